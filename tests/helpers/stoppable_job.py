"""A job run in its own process, whose pipeline writes one endless epoch.

Started by test_stream.
"""

from __future__ import annotations

import sys
from pathlib import Path

import dagster as dg
from dagster._utils.interrupts import capture_interrupts

import headrace.jobs.checks.audit
import headrace.jobs.run.runner
import headrace.orchestration.source_reports
import headrace.orchestration.spark
from headrace.jobs.run.events import RunResult
from headrace.orchestration.build import build_definitions

pipeline, folder, job_name = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]


def lane(file, settings, *, stop, **_):
    (folder / "started").touch()
    stop.wait(30)
    with (folder / "ended").open("a") as ended:
        ended.write("at a border\n" if stop.is_set() else "by itself\n")
    return RunResult(file.name, "", "signal", 1, 1, 1, {}, {}, history_complete=True, caught_up=False)


headrace.jobs.run.runner.run = lane
headrace.orchestration.source_reports.observe_sources = lambda _: {}
headrace.jobs.checks.audit.audit = lambda *_, **__: []
headrace.orchestration.spark.start_session = lambda *_: None
with capture_interrupts(), dg.DagsterInstance.ephemeral() as instance:
    job = build_definitions([pipeline]).resolve_job_def(job_name)
    try:
        job.execute_in_process(instance=instance, raise_on_error=False)
    finally:
        (folder / "status").write_text(instance.get_runs()[0].status.value)
