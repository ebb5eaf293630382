"""A pipeline run in a separate process, which prints each step that it reaches."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.pipeline.config.settings import Settings
    from headrace.pipeline.file.loader import PipelineFile

STARTED = time.time()


def print_step(step: str) -> None:
    """Print a line of JSON with the seconds since the process started to run Python."""
    print(json.dumps({"step": step, "at": time.time() - STARTED}), flush=True)


def main() -> None:
    """Read the pipeline and its settings from the environment, and run it as `headrace run` does."""
    from headrace.pipeline.config.settings import Settings
    from headrace.pipeline.file.loader import parse_pipeline

    options = json.loads(os.environ["HEADRACE_BENCH"])
    file, settings = parse_pipeline(options["text"]), Settings.model_validate(options["settings"])
    from headrace.jobs.run.early_session import spark_in_background

    with spark_in_background([file], settings):
        _run(file, settings)


def _run(file: PipelineFile, settings: Settings) -> None:
    from headrace.jobs.run.events import EpochCommitted, Event, Until
    from headrace.jobs.run.pipeline_run import PipelineRun
    from headrace.jobs.run.runner import run

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

    run(file, settings, until=Until.CAUGHT_UP, listener=listener)
    print_step("end")


if __name__ == "__main__":
    main()
