"""History and then the stream of one pipeline in one Dagster process.

python -m headrace.demo.dagster_run FILE FIRST LAST

The partitions FIRST to LAST as one range run (none if the ledger has them already), then the job `<pipeline>_stream` until it
has caught up. Both are ordinary runs of the instance, with their checks. Exit code 0 if both succeeded.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import dagster as dg

from headrace.jobs.run.status import history_complete
from headrace.orchestration.build import build
from headrace.orchestration.instance import dagster_home
from headrace.orchestration.pipelines import load
from headrace.orchestration.state import lane_state
from headrace.pipeline.protocol.epochs import Json


def carry(file: Path, first: str, last: str) -> bool:
    """Runs both; whether both succeeded. Raises UserError for a file that cannot be loaded."""
    pipeline = load(file)
    repository = dg.Definitions.merge(build([file]), dg.Definitions(executor=dg.in_process_executor)).get_repository_def()
    with dg.DagsterInstance.from_config(str(dagster_home())) as instance:
        if not history_complete(pipeline.file, lane_state(pipeline)):
            tags = {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last}
            if not _succeeds(repository, f"{pipeline.name}_history", instance, tags, {}):
                return False
        caught_up: Json = {"ops": {f"{pipeline.name}_stream_op": {"config": {"until": "caught-up"}}}}
        return _succeeds(repository, f"{pipeline.name}_stream", instance, {}, caught_up)


def _succeeds(repository: dg.RepositoryDefinition, job: str, instance: dg.DagsterInstance, tags: dict[str, str], config: Json) -> bool:
    found = repository.get_job(job)
    return found.execute_in_process(instance=instance, tags=tags, run_config=config, raise_on_error=False).success


def main() -> int:
    """0 if both runs succeeded, else 1."""
    parser = argparse.ArgumentParser(prog="python -m headrace.demo.dagster_run")
    parser.add_argument("file", type=Path)
    parser.add_argument("first")
    parser.add_argument("last")
    asked = parser.parse_args()
    return 0 if carry(asked.file, asked.first, asked.last) else 1


if __name__ == "__main__":
    sys.exit(main())
