"""A Dagster run whose JVM is killed at a point, with a real Spark session. Only the pipeline's work is fake.

python dead_jvm_job.py FILE FOLDER POINT: the point is `checks` or `run`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import dagster as dg

import headrace.jobs.checks.audit
import headrace.jobs.run.runner
import headrace.orchestration.source_reports
import headrace.orchestration.spark
from headrace.jobs.run.events import RunResult
from headrace.orchestration.build import build_definitions
from headrace.pipeline.protocol.epochs import WriteCounts

path, folder, point = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
calls: list[str] = []
sessions: list[object] = []
start = headrace.orchestration.spark.start_session


def start_session(*arguments):
    sessions.append(None)
    return start(*arguments)


def work(at, spark):
    calls.append(at)
    if at == point:
        spark.sparkContext._gateway.proc.kill()
        spark.range(10).count()


def run(file, _, *, spark, **__):
    work("run", spark)
    counts = dict.fromkeys(file.model.sinks, WriteCounts(rows=1))
    return RunResult(file.name, "", "completed", 1, 1, 1, counts, {}, history_complete=True, caught_up=True)


def audit(*_, spark, **__):
    work("checks", spark)
    return []


headrace.orchestration.spark.start_session = start_session
headrace.orchestration.source_reports.observe_sources = lambda _: {}
headrace.jobs.run.runner.run = run
headrace.jobs.checks.audit.audit = audit
with dg.DagsterInstance.ephemeral() as instance:
    job = build_definitions([path]).resolve_job_def("flights_history")
    result = job.execute_in_process(instance=instance, raise_on_error=False)
    failure = result.failure_data_for_node("flights_write")
    types = [event.event_type_value for event in result.all_events]
    answer = {
        "calls": calls,
        "sessions": len(sessions),
        "retries": types.count("STEP_UP_FOR_RETRY"),
        "failures": types.count("STEP_FAILURE"),
        "said": failure.user_failure_data.description if failure and failure.user_failure_data else None,
    }
(folder / "answer.json").write_text(json.dumps(answer))
