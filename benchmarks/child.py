"""A pipeline run in a process of its own, which says on standard output when it has come how far."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

STARTED = time.time()


def say(step: str) -> None:
    """One line of JSON, seconds since the process began to run Python."""
    print(json.dumps({"step": step, "at": time.time() - STARTED}), flush=True)


def main() -> None:
    """Reads what to run from the environment."""
    from benchmarks.kit import Bench
    from headrace.jobs.run.events import EpochCommitted, Event, Until
    from headrace.jobs.run.pipeline_run import PipelineRun
    from headrace.jobs.run.runner import run
    from headrace.pipeline.file.loader import parse_pipeline
    from headrace.services import Services

    asked = json.loads(os.environ["HEADRACE_BENCH"])
    say("imports")
    original = PipelineRun.__enter__

    def entered(self: PipelineRun) -> PipelineRun:
        found = original(self)
        say("lane open")
        return found

    PipelineRun.__enter__ = entered

    def listener(event: Event) -> None:
        if isinstance(event, EpochCommitted):
            say("epoch")

    folder = Path(asked["folder"])
    run(parse_pipeline(asked["text"]), Bench(folder, Services(folder)).settings(), until=Until.CAUGHT_UP, listener=listener)
    say("end")


if __name__ == "__main__":
    main()
