"""Materialize from the command line: run Dagster's own command, and print its result or its error in short.

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
from headrace.orchestration.pipelines import Pipeline, partition_error, read_pipeline
from headrace.pipeline.config.settings import load_settings
from headrace.pipeline.errors import HeadraceError, PipelineStateError, UserError
from headrace.pipeline.file.partitions import unknown_partition_error

_ERROR = re.compile(r"^(?:[\w.]+\.)?(?:\w+(?:Error|Failure|Exception)|Failure): (?P<message>.+)$")


def build_command(
    pipeline: Pipeline, *, select: Sequence[str] = (), first: str = "", last: str = ""
) -> list[str]:
    """Return the `dagster asset materialize` command.

    `select` are asset keys of sinks (default: all), `first` and `last` a partition range. Raise UserError for
    unknown sinks and partitions (Dagster would select nothing and report success), and for partitions that
    the stream fills.
    """
    if problem := partition_error(pipeline, _select_partitions(pipeline, first, last or first)):
        raise UserError(problem)
    known = [physical.key.to_user_string() for physical in pipeline.sinks.values()]
    if unknown := [key for key in select if key not in known]:
        msg = f"no sink has the asset key `{unknown[0]}`"
        raise UserError(msg, hint=f"There are: {', '.join(known)}.", place=pipeline.file.place("sinks"))
    keys = list(select) or known
    selection = " or ".join(f'key:"{key}"' for key in keys)
    range_options = ["--partition-range", f"{first}...{last or first}"] if first else []
    return [
        sys.executable,
        "-m",
        "dagster",
        "asset",
        "materialize",
        "-m",
        MODULE,
        "--select",
        selection,
        *range_options,
    ]


def materialize(
    file: Path, home: Path, *, select: Sequence[str] = (), first: str = "", last: str = ""
) -> list[str]:
    """Run the command to its end, and return its result in lines.

    Its output goes to `<home>/logs/materialize.log`. Raise UserError for an invalid file or invalid
    partitions, and PipelineStateError with a one-line reason if the run fails.
    """
    command = build_command(read_pipeline(file), select=select, first=first, last=last)
    path = home / "logs" / "materialize.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as output:
        process = subprocess.run(
            command, env=child_environment(home, file), stdout=output, stderr=subprocess.STDOUT, check=False
        )
    text = path.read_text(encoding="utf-8", errors="replace")
    if process.returncode:
        reason = _find_failure_reason(text) or f"exit code {process.returncode}"
        msg = f"materializing failed: {reason}"
        raise PipelineStateError(
            msg,
            hint=f"Dagster's output is in {path}. A run that started is also in the Dagster UI: headrace ui.",
        )

    return _summarize_run(text)


def _find_run(instance: dg.DagsterInstance, output: str) -> dg.DagsterRun | None:
    """Return the newest run if `output` is of it."""
    run = next(iter(instance.get_runs(limit=1)), None)
    return run if run is not None and run.run_id in output else None


def _summarize_run(output: str) -> list[str]:
    """Return a line for each asset that the run in `output` wrote, then one for its checks."""
    with dg.DagsterInstance.from_config(str(dagster_home())) as instance:
        if (run := _find_run(instance, output)) is None:
            return []
        reported = {dg.DagsterEventType.ASSET_MATERIALIZATION, dg.DagsterEventType.ASSET_OBSERVATION}
        checked = dg.DagsterEventType.ASSET_CHECK_EVALUATION
        events = [
            entry.get_dagster_event() for entry in instance.all_logs(run.run_id, of_type=reported | {checked})
        ]
    rows: dict[str, int] = {}
    for event in events:
        if event.event_type in reported and event.asset_key is not None:
            written = (
                event.step_materialization_data.materialization
                if event.event_type == dg.DagsterEventType.ASSET_MATERIALIZATION
                else event.asset_observation_data.asset_observation
            ).metadata.get("rows_written")
            if written is not None:
                rows[event.asset_key.to_user_string()] = int(str(written.value))
    result = [event.asset_check_evaluation_data for event in events if event.event_type == checked]
    checks = {(one.asset_key.to_user_string(), one.check_name) for one in result}
    failed = {(one.asset_key.to_user_string(), one.check_name) for one in result if not one.passed}
    return [
        *(f"{key}: {count} row{'s' if count != 1 else ''} written" for key, count in sorted(rows.items())),
        *([f"checks: {len(checks) - len(failed)} passed, {len(failed)} failed"] if checks else []),
        *(f"  failed: {key}: {check}" for key, check in sorted(failed)),
    ]


def _select_partitions(pipeline: Pipeline, first: str, last: str) -> list[str]:
    if pipeline.partitions is None or not first:
        return []
    keys = pipeline.partitions.get_partition_keys()
    if unknown := [key for key in (first, last) if key not in keys]:
        raise unknown_partition_error(pipeline.file, unknown[0])
    return list(keys[keys.index(first) : keys.index(last) + 1])


def _find_failure_reason(output: str) -> str:
    """Return the reason of a failure.

    It comes from the event log of the run. Without a run it is the last error in `output`.
    """
    with dg.DagsterInstance.from_config(str(dagster_home())) as instance:
        if (run := _find_run(instance, output)) is not None:
            for entry in instance.all_logs(run.run_id, of_type=dg.DagsterEventType.STEP_FAILURE):
                data = entry.get_dagster_event().step_failure_data
                message = (
                    data.user_failure_data.description
                    if data.user_failure_data
                    else data.error and data.error.message
                )
                return _to_line(message or "")
    errors = [match["message"] for line in output.splitlines() if (match := _ERROR.match(line.strip()))]
    return errors[-1] if errors else ""


def _to_line(text: str) -> str:
    """Return sentences on several lines as one line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    ended = [line if line[-1] in ".:;!?," else f"{line}." for line in lines[:-1]]
    return " ".join([*ended, *lines[-1:]])


def main() -> int:
    """Run the script and print its result. Return 1 after printing the reason of a failure, else 0."""
    parser = argparse.ArgumentParser(prog="python -m headrace.orchestration.materialize")
    parser.add_argument("file", type=Path)
    parser.add_argument("first", nargs="?", default="", help="first partition")
    parser.add_argument("last", nargs="?", default="", help="last partition")
    parser.add_argument(
        "--select", action="append", default=[], help="asset key of a sink, such as postgres/public/flights"
    )
    arguments = parser.parse_args()
    try:
        lines = materialize(
            arguments.file,
            load_settings().home,
            select=arguments.select,
            first=arguments.first,
            last=arguments.last,
        )
    except HeadraceError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
