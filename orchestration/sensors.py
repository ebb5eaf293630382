"""The supervisor of a continuous stream: looks at the ledger, and starts the stream's job where it ought to run and does not."""

from __future__ import annotations

import time

import dagster as dg

from headrace.jobs.run.status import history_complete
from headrace.orchestration.pipelines import PIPELINE_TAG, STREAM_TAG, Pipeline
from headrace.orchestration.state import blocked_epoch, lane_state
from headrace.orchestration.supervision import Act, Decision, Ended, LastRun, Memory, decide

INTERVAL_SECONDS = 10
_ENDED = {
    dg.DagsterRunStatus.SUCCESS: Ended.WELL,
    dg.DagsterRunStatus.FAILURE: Ended.BADLY,
    dg.DagsterRunStatus.CANCELED: Ended.BY_HAND,
}


class GaveUpError(Exception):
    """Makes every tick of a supervisor red until somebody acts."""


def supervisor(pipeline: Pipeline, job: dg.JobDefinition) -> dg.SensorDefinition:
    """The sensor `<pipeline>_supervisor`. On from the start: the file asks for a continuous stream.

    It reads the ledger and the job's newest run, and asks no outside system. At most one successor is ever requested per run.
    """

    @dg.sensor(
        name=f"{pipeline.name}_supervisor",
        job=job,
        minimum_interval_seconds=INTERVAL_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Keeps the stream running once the history is complete. Turn it off, or terminate the run, to stop the stream.",
    )
    def supervise(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        state = lane_state(pipeline)
        record = _newest(context.instance, job.name)
        decision = decide(
            state,
            complete=not pipeline.has_history or history_complete(pipeline.file, state),
            last=_last_run(record) if record else None,
            memory=Memory.load(context.cursor),
            now=time.time(),
            blocked=blocked_epoch(pipeline, state),
        )
        return _act(context, pipeline, decision, record)

    return supervise


def _act(context: dg.SensorEvaluationContext, pipeline: Pipeline, decision: Decision, record: dg.RunRecord | None) -> dg.SensorResult:
    cursor = decision.memory.dump()
    last = record.dagster_run.run_id if record else ""
    match decision.act:
        case Act.WAIT:
            return dg.SensorResult(skip_reason=decision.why, cursor=cursor)
        case Act.START:
            context.log.info(decision.why)
            tags = {PIPELINE_TAG: pipeline.name, STREAM_TAG: pipeline.name}
            return dg.SensorResult([dg.RunRequest(run_key=f"after {last or 'nothing'}", tags=tags)], cursor=cursor)
        case Act.BURY:
            if record:
                context.instance.report_run_failed(record.dagster_run, decision.why)
            return dg.SensorResult(skip_reason=decision.why, cursor=cursor)
        case Act.GIVE_UP:
            raise GaveUpError(decision.why)


def _newest(instance: dg.DagsterInstance, job_name: str) -> dg.RunRecord | None:
    return next(iter(instance.get_run_records(dg.RunsFilter(job_name=job_name), limit=1)), None)


def _last_run(record: dg.RunRecord) -> LastRun:
    ended = _ENDED.get(record.dagster_run.status, Ended.RUNNING)
    since = record.start_time or record.create_timestamp.timestamp()
    if ended is not Ended.RUNNING:
        since = record.end_time or record.update_timestamp.timestamp()
    return LastRun(record.dagster_run.run_id, ended, since)
