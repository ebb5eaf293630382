"""Runs the stream of a pipeline as a Dagster job in its own process, with a fault of `fault_driver`.

python dagster_stream.py FILE POINT NTH ACTION
"""

from __future__ import annotations

import sys
from pathlib import Path

import dagster as dg

from headrace.orchestration.build import build_definitions
from headrace.orchestration.instance import dagster_home
from headrace.orchestration.pipelines import read_pipeline

sys.path.insert(0, str(Path(__file__).parents[1]))  # tests start this file by its path
from helpers.fault_driver import install


def main() -> int:
    """Return 0 if the run succeeded, else 1."""
    path, point, nth, action = Path(sys.argv[1]), *sys.argv[2:5]
    install(point, int(nth), action)
    name = read_pipeline(path).name
    job = build_definitions([path]).resolve_job_def(f"{name}_stream")
    config = {"ops": {f"{name}_stream_op": {"config": {"until": "caught-up"}}}}
    with dg.DagsterInstance.from_config(str(dagster_home())) as instance:
        return (
            0
            if job.execute_in_process(instance=instance, run_config=config, raise_on_error=False).success
            else 1
        )


if __name__ == "__main__":
    sys.exit(main())
