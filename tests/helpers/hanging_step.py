"""A step that hangs in a process of its own, with a child, as a run worker of Dagster is one.

python hanging_step.py FOLDER LIMIT. Started by test_terminate.
"""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import time
from pathlib import Path

import dagster as dg

from headrace.orchestration.termination import RunStatusWatch


def hang(folder: Path, limit: float) -> None:
    """Never return: neither an interrupt nor the status ends this step."""
    with dg.DagsterInstance.from_config(str(folder)) as instance:
        run = instance.get_runs()[0]
        with RunStatusWatch(instance, run.run_id, poll=0.1, limit=limit):
            child = subprocess.Popen(["sleep", "600"], process_group=0)
            (folder / "child").write_text(str(child.pid))
            while True:
                time.sleep(60)


if __name__ == "__main__":
    worker = multiprocessing.get_context("spawn").Process(
        target=hang, args=(Path(sys.argv[1]), float(sys.argv[2]))
    )
    worker.start()
    worker.join()
    sys.exit(worker.exitcode)
