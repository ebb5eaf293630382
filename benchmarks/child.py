"""A pipeline run in a separate process, which prints each step that it reaches."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

STARTED = time.time()


def print_step(step: str) -> None:
    """Print a line of JSON with the seconds since the process started to run Python."""
    print(json.dumps({"step": step, "at": time.time() - STARTED}), flush=True)


def main() -> None:
    """Read the pipeline from the environment, and run it."""
    from benchmarks.kit import BenchmarkRunner
    from headrace.jobs.run.events import EpochCommitted, Event, Until
    from headrace.jobs.run.pipeline_run import PipelineRun
    from headrace.jobs.run.runner import run
    from headrace.pipeline.file.loader import parse_pipeline
    from headrace.services import Services

    options = json.loads(os.environ["HEADRACE_BENCH"])
    print_step("imports")
    original = PipelineRun.__enter__

    def entered(self: PipelineRun) -> PipelineRun:
        run_entered = original(self)
        print_step("lane open")
        return run_entered

    PipelineRun.__enter__ = entered

    def listener(event: Event) -> None:
        if isinstance(event, EpochCommitted):
            print_step("epoch")

    folder = Path(options["folder"])
    run(
        parse_pipeline(options["text"]),
        BenchmarkRunner(folder, Services(folder)).settings(),
        until=Until.CAUGHT_UP,
        listener=listener,
    )
    print_step("end")


if __name__ == "__main__":
    main()
