"""Materializing from the command line: Dagster's own command in a process of its own, with its errors in one line."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import dagster as dg

from headrace.orchestration.home import MODULE, child_environment, dagster_home
from headrace.orchestration.pipelines import load
from headrace.pipeline.errors import LaneError

_ERROR = re.compile(r"^(?:[\w.]+\.)?(?:\w+(?:Error|Failure|Exception)|Failure): (?P<said>.+)$")


def command(file: Path, *, select: Sequence[str] = (), first: str = "", last: str = "") -> list[str]:
    """`dagster asset materialize` for the sinks named by asset key (all if none), over partitions first to last.

    What a person would type. Raises UserError for a file that cannot be loaded.
    """
    keys = list(select) or [physical.key.to_user_string() for physical in load(file).sinks.values()]
    chosen = " or ".join(f'key:"{key}"' for key in keys)
    windows = ["--partition-range", f"{first}...{last or first}"] if first else []
    return [sys.executable, "-m", "dagster", "asset", "materialize", "-m", MODULE, "--select", chosen, *windows]


def start(file: Path, home: Path, *, select: Sequence[str] = (), first: str = "", last: str = "") -> subprocess.Popen[bytes]:
    """Starts the command in a session of its own, its output in `<home>/logs/materialize.log`. The caller waits for it or kills it."""
    path = _log(home)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as output:
        return subprocess.Popen(
            command(file, select=select, first=first, last=last),
            env=child_environment(home, file),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def materialize(file: Path, home: Path, *, select: Sequence[str] = (), first: str = "", last: str = "") -> None:
    """Runs the command to its end. Raises LaneError with the reason in one line, as the run's own event log or its output has it."""
    process = start(file, home, select=select, first=first, last=last)
    if code := process.wait():
        msg = f"materializing failed: {reason(home) or f'exit code {code}'}"
        raise LaneError(msg, hint=f"Everything that Dagster said is in {_log(home)}; the run is in its pages too: headrace ui.")


def reason(home: Path) -> str:
    """Why the last materialization failed: by the run's event log, or, where no run began, by the last error in its output."""
    text = _log(home).read_text(encoding="utf-8", errors="replace")
    with dg.DagsterInstance.from_config(str(dagster_home())) as instance:
        run = next(iter(instance.get_runs(limit=1)), None)
        if run is not None and run.run_id in text:
            for entry in instance.all_logs(run.run_id, of_type=dg.DagsterEventType.STEP_FAILURE):
                data = entry.get_dagster_event().step_failure_data
                said = data.user_failure_data.description if data.user_failure_data else data.error and data.error.message
                return " ".join((said or "").split())
    errors = [match["said"] for line in text.splitlines() if (match := _ERROR.match(line.strip()))]
    return errors[-1] if errors else ""


def _log(home: Path) -> Path:
    return home / "logs" / "materialize.log"
