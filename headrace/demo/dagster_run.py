"""Run history and then the stream of one pipeline in one Dagster process.

python -m headrace.demo.dagster_run FILE FIRST LAST UNTIL

It runs the partitions FIRST to LAST as one range (unless the ledger has them), then the job
`<pipeline>_stream` until it has caught up or, with UNTIL `forever`, without an end. Both are ordinary runs of
the instance, with their checks. Exit code 0 if both succeeded.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import dagster as dg
import psutil

from headrace.jobs.run.events import Until
from headrace.jobs.run.status import history_complete
from headrace.orchestration.build import build_definitions
from headrace.orchestration.instance import dagster_home
from headrace.orchestration.pipelines import partition_range_tags, read_pipeline
from headrace.orchestration.state import read_pipeline_state
from headrace.pipeline.protocol.epochs import Json

_PROCESS_TAG = "headrace/demo_process"
"""Of a run: the process that executes it."""


def run_history_and_stream(file: Path, first: str, last: str, until: Until) -> bool:
    """Run both, and return whether both succeeded. Raise UserError for a file that cannot be loaded."""
    pipeline = read_pipeline(file)
    repository = dg.Definitions.merge(
        build_definitions([file]), dg.Definitions(executor=dg.in_process_executor)
    ).get_repository_def()
    with dg.DagsterInstance.from_config(str(dagster_home())) as instance:
        _report_killed_runs(instance)
        if not history_complete(pipeline.file, read_pipeline_state(pipeline)):
            tags = partition_range_tags(first, last)
            if not _run_job(repository, f"{pipeline.name}_history", instance, tags, {}):
                return False
        limits: Json = {"ops": {f"{pipeline.name}_stream_op": {"config": {"until": until.value}}}}
        return _run_job(repository, f"{pipeline.name}_stream", instance, {}, limits)


def _report_killed_runs(instance: dg.DagsterInstance) -> None:
    """Report runs whose process the demo killed as failed. Dagster watches only processes that it starts."""
    for run in instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED])):
        process = run.tags.get(_PROCESS_TAG)
        if process and not psutil.pid_exists(int(process)):
            instance.report_run_failed(run, message="The demo killed the process of this run with -9.")


def _run_job(
    repository: dg.RepositoryDefinition,
    job: str,
    instance: dg.DagsterInstance,
    tags: dict[str, str],
    config: Json,
) -> bool:
    definition = repository.get_job(job)
    return definition.execute_in_process(
        instance=instance,
        tags=tags | {_PROCESS_TAG: str(os.getpid())},
        run_config=config,
        raise_on_error=False,
    ).success


def main() -> int:
    """Run the script. Return 0 if both runs succeeded, else 1."""
    parser = argparse.ArgumentParser(prog="python -m headrace.demo.dagster_run")
    parser.add_argument("file", type=Path)
    parser.add_argument("first")
    parser.add_argument("last")
    parser.add_argument("until", type=Until, choices=[Until.CAUGHT_UP, Until.FOREVER])
    arguments = parser.parse_args()
    succeeded = run_history_and_stream(arguments.file, arguments.first, arguments.last, arguments.until)
    return 0 if succeeded else 1


if __name__ == "__main__":
    sys.exit(main())
