"""Materializing from the command line: Dagster's own command in a process of its own, with its errors in one line.

python -m headrace.orchestration.materialize FILE [FIRST [LAST]] [--select KEY ...]
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import dagster as dg

from headrace.orchestration.instance import MODULE, child_environment, dagster_home
from headrace.orchestration.pipelines import Pipeline, load, window_problem
from headrace.pipeline.config.settings import load_settings
from headrace.pipeline.errors import HeadraceError, PipelineStateError, UserError

_ERROR = re.compile(r"^(?:[\w.]+\.)?(?:\w+(?:Error|Failure|Exception)|Failure): (?P<said>.+)$")


def command(pipeline: Pipeline, *, select: Sequence[str] = (), first: str = "", last: str = "") -> list[str]:
    """`dagster asset materialize`, as a person would type it: sinks by asset key (all if none), partitions first to last.

    Raises UserError for sinks and partitions that there are not (Dagster selects nothing and calls that a success), and for
    partitions that the stream fills.
    """
    if problem := window_problem(pipeline, _windows(pipeline, first, last or first)):
        raise UserError(problem)
    known = [physical.key.to_user_string() for physical in pipeline.sinks.values()]
    if unknown := [key for key in select if key not in known]:
        msg = f"no sink has the asset key `{unknown[0]}`"
        raise UserError(msg, hint=f"There are: {', '.join(known)}.", place=pipeline.file.place("sinks"))
    keys = list(select) or known
    chosen = " or ".join(f'key:"{key}"' for key in keys)
    windows = ["--partition-range", f"{first}...{last or first}"] if first else []
    return [sys.executable, "-m", "dagster", "asset", "materialize", "-m", MODULE, "--select", chosen, *windows]


def materialize(file: Path, home: Path, *, select: Sequence[str] = (), first: str = "", last: str = "") -> None:
    """Runs the command to its end, its output in `<home>/logs/materialize.log`.

    Raises UserError for a file or partitions that cannot be, PipelineStateError with the reason in one line where the run fails.
    """
    asked = command(load(file), select=select, first=first, last=last)
    path = home / "logs" / "materialize.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as output:
        done = subprocess.run(asked, env=child_environment(home, file), stdout=output, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        why = _reason(path.read_text(encoding="utf-8", errors="replace")) or f"exit code {done.returncode}"
        msg = f"materializing failed: {why}"
        raise PipelineStateError(msg, hint=f"Everything that Dagster said is in {path}; a run that began is in its pages too: headrace ui.")


def _windows(pipeline: Pipeline, first: str, last: str) -> list[str]:
    if pipeline.partitions is None or not first:
        return []
    keys = pipeline.partitions.get_partition_keys()
    if unknown := [key for key in (first, last) if key not in keys]:
        msg = f"there is no partition `{unknown[0]}`"
        raise UserError(msg, hint=f"Partitions: {keys[0]} to {keys[-1]}.", place=pipeline.file.place("partitions"))
    return list(keys[keys.index(first) : keys.index(last) + 1])


def _reason(said: str) -> str:
    """Why it failed: by the run's event log, or, where no run began, by the last error in the output."""
    with dg.DagsterInstance.from_config(str(dagster_home())) as instance:
        run = next(iter(instance.get_runs(limit=1)), None)
        if run is not None and run.run_id in said:
            for entry in instance.all_logs(run.run_id, of_type=dg.DagsterEventType.STEP_FAILURE):
                data = entry.get_dagster_event().step_failure_data
                found = data.user_failure_data.description if data.user_failure_data else data.error and data.error.message
                return " ".join((found or "").split())
    errors = [match["said"] for line in said.splitlines() if (match := _ERROR.match(line.strip()))]
    return errors[-1] if errors else ""


def main() -> int:
    """0 if it succeeded, else 1 and the reason on standard error."""
    parser = argparse.ArgumentParser(prog="python -m headrace.orchestration.materialize")
    parser.add_argument("file", type=Path)
    parser.add_argument("first", nargs="?", default="", help="first partition")
    parser.add_argument("last", nargs="?", default="", help="last partition")
    parser.add_argument("--select", action="append", default=[], help="asset key of a sink, such as postgres/public/flights")
    asked = parser.parse_args()
    try:
        materialize(asked.file, load_settings().home, select=asked.select, first=asked.first, last=asked.last)
    except HeadraceError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
