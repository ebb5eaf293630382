"""The supervisor of a continuous stream: a sensor that starts the stream's job when it should run."""

from __future__ import annotations

import time

import dagster as dg

from headrace.jobs.run.status import was_history_loaded
from headrace.orchestration.alerts import GAVE_UP_TAG
from headrace.orchestration.pipelines import PIPELINE_TAG, STREAM_TAG, Pipeline
from headrace.orchestration.state import describe_blocked_epoch, read_pipeline_state
from headrace.orchestration.supervision import (
    LastRun,
    LastRunStatus,
    SupervisorAction,
    SupervisorDecision,
    SupervisorMemory,
    decide_action,
)

INTERVAL_SECONDS = 10
_RUN_STATUSES = {
    dg.DagsterRunStatus.QUEUED: LastRunStatus.QUEUED,
    dg.DagsterRunStatus.SUCCESS: LastRunStatus.SUCCEEDED,
    dg.DagsterRunStatus.FAILURE: LastRunStatus.FAILED,
    dg.DagsterRunStatus.CANCELED: LastRunStatus.CANCELED,
}


class SupervisorGaveUpError(Exception):
    """Fails every tick of a supervisor until a person acts."""


def build_supervisor(
    pipeline: Pipeline, job: dg.JobDefinition, *, is_on: bool = False
) -> dg.SensorDefinition:
    """Return the sensor `<pipeline>_supervisor`. `is_on`: it ticks before a person turns it on.

    It reads the ledger and the job's newest run, and calls no other system. It requests at most one run after
    each run.
    """

    @dg.sensor(
        name=f"{pipeline.name}_supervisor",
        job=job,
        minimum_interval_seconds=INTERVAL_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING if is_on else dg.DefaultSensorStatus.STOPPED,
        description="Keeps the stream running once the history is complete. Turn it off, or terminate the"
        " run, to stop the stream.",
    )
    def supervise(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        state = read_pipeline_state(pipeline)
        record = _find_newest_run(context.instance, job.name)
        decision = decide_action(
            state,
            complete=not pipeline.has_history or was_history_loaded(pipeline.file, state),
            last=_to_last_run(record) if record else None,
            memory=SupervisorMemory.load(context.cursor),
            now=time.time(),
            blocked=describe_blocked_epoch(pipeline, state),
        )
        return _apply_decision(context, pipeline, decision, record)

    return supervise


def _apply_decision(
    context: dg.SensorEvaluationContext,
    pipeline: Pipeline,
    decision: SupervisorDecision,
    record: dg.RunRecord | None,
) -> dg.SensorResult:
    cursor = decision.memory.dump()
    last = record.dagster_run.run_id if record else ""
    match decision.action:
        case SupervisorAction.WAIT:
            return dg.SensorResult(skip_reason=decision.reason, cursor=cursor)
        case SupervisorAction.START:
            context.log.info("event=sensor_evaluated reason=%s", decision.reason)
            tags = {PIPELINE_TAG: pipeline.name, STREAM_TAG: pipeline.name}
            return dg.SensorResult(
                [dg.RunRequest(run_key=f"after {last or 'nothing'}", tags=tags)], cursor=cursor
            )
        case SupervisorAction.MARK_FAILED:
            if record:
                context.instance.report_run_failed(record.dagster_run, decision.reason)
            return dg.SensorResult(skip_reason=decision.reason, cursor=cursor)
        case SupervisorAction.GIVE_UP:
            if record and GAVE_UP_TAG not in record.dagster_run.tags:
                context.instance.add_run_tags(last, {GAVE_UP_TAG: decision.reason})
            raise SupervisorGaveUpError(decision.reason)


def _find_newest_run(instance: dg.DagsterInstance, job_name: str) -> dg.RunRecord | None:
    return next(iter(instance.get_run_records(dg.RunsFilter(job_name=job_name), limit=1)), None)


def _to_last_run(record: dg.RunRecord) -> LastRun:
    status = _RUN_STATUSES.get(record.dagster_run.status, LastRunStatus.RUNNING)
    since = record.start_time or record.create_timestamp.timestamp()
    if status not in (LastRunStatus.QUEUED, LastRunStatus.RUNNING):
        since = record.end_time or record.update_timestamp.timestamp()
    return LastRun(record.dagster_run.run_id, status, since)
