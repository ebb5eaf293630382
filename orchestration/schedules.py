"""The schedule of a pipeline: the cron line of its file, rejected if it can never fire."""

from __future__ import annotations

from datetime import UTC, datetime

import dagster as dg
from dagster._utils.schedules import (
    schedule_execution_time_iterator,
)  # the only API for the next tick; the daemon uses it as well

from headrace.jobs.run.status import completed_partitions, was_history_loaded
from headrace.orchestration.pipelines import PIPELINE_TAG, REFRESH_TAG, Pipeline, partition_range_tags
from headrace.orchestration.state import read_pipeline_state
from headrace.pipeline.errors import UserError
from headrace.pipeline.file.loader import PipelineFile
from headrace.pipeline.model.run_options import Schedule
from headrace.pipeline.protocol.ledger import PipelineState
from headrace.pipeline.protocol.partitions import is_history_open, list_partitions

UNFINISHED = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]
"""The statuses of a run that can still write."""


def pipeline_schedule(
    pipeline: Pipeline,
    materialize: dg.UnresolvedAssetJobDefinition,
    stream: dg.JobDefinition | None,
    *,
    is_on: bool = False,
) -> dg.ScheduleDefinition | None:
    """Return the schedule `<pipeline>_schedule`, None if the file has no schedule.

    `is_on`: it ticks before a person turns it on.

    Without partitions a tick materializes the sinks: history, then the stream until it has caught up. With
    partitions and a stream, history is loaded by choice, so a tick runs the stream, and skips with the reason
    until the history is complete. With partitions that have an open end, a tick materializes those that have
    passed and that the sinks lack, in one run. Raise UserError for an invalid cron line or time zone.
    """
    options = pipeline.file.model.schedule
    if options is None:
        return None
    check_cron(pipeline.file, options)
    is_open = is_history_open(pipeline.file.model.partitions)
    if pipeline.partitions is not None and stream is None and not is_open:
        msg = (
            "`schedule` has nothing to do: partitions of history are materialized by choice, and there is"
            " no stream"
        )
        hint = "Set `end: open` in `partitions`: the schedule then loads each partition when it has passed."
        raise UserError(msg, hint=hint, place=pipeline.file.place("schedule"))
    target = stream if stream and pipeline.partitions is not None and not is_open else materialize

    @dg.schedule(
        name=f"{pipeline.name}_schedule",
        job=target,
        cron_schedule=options.cron,
        execution_timezone=options.timezone,
        default_status=dg.DefaultScheduleStatus.RUNNING if is_on else dg.DefaultScheduleStatus.STOPPED,
        tags={PIPELINE_TAG: pipeline.name},
    )
    def schedule(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        if waiting := _find_unfinished_run(context.instance, target.name):
            return dg.SkipReason(f"run {waiting.run_id[:8]} is {waiting.status.value.lower()}")
        state = read_pipeline_state(pipeline)
        if state and state.request and state.request.is_pause:
            return dg.SkipReason(f"the pipeline is paused {state.request}")
        if state and state.holder:
            return dg.SkipReason("another run of the pipeline is active")
        if is_open:
            return _request_missing(pipeline, state, context.scheduled_execution_time)
        if pipeline.partitions is not None and not was_history_loaded(pipeline.file, state):
            return dg.SkipReason("the history is not complete: materialize its partitions first")
        return dg.RunRequest()

    return schedule


def _request_missing(
    pipeline: Pipeline, state: PipelineState | None, scheduled: datetime
) -> dg.RunRequest | dg.SkipReason:
    """Request one run for the partitions that had passed at the scheduled time and that a sink lacks.

    The range can contain partitions that are complete. The run does not read them again.
    """
    partitions = pipeline.file.model.partitions
    assert is_history_open(partitions)  # noqa: S101  the caller has an open end
    done = set(completed_partitions(pipeline.file, state))
    passed = [
        one.key for one in list_partitions(partitions, now=scheduled.astimezone(UTC).replace(tzinfo=None))
    ]
    if not passed:
        return dg.SkipReason("no partition has passed yet")
    missing = [key for key in passed if key not in done]
    if not missing:
        return dg.SkipReason(f"all partitions up to {passed[-1]} are complete")
    tags = {REFRESH_TAG: "false"}
    if len(missing) == 1:
        return dg.RunRequest(partition_key=missing[0], tags=tags)
    return dg.RunRequest(tags=tags | partition_range_tags(missing[0], missing[-1]))


def _find_unfinished_run(instance: dg.DagsterInstance, job_name: str) -> dg.DagsterRun | None:
    runs = instance.get_runs(dg.RunsFilter(job_name=job_name, statuses=UNFINISHED), limit=1)
    return next(iter(runs), None)


def check_cron(file: PipelineFile, schedule: Schedule) -> None:
    """Raise UserError if a schedule never fires."""
    location = file.place("schedule", "cron")
    try:
        dg.ScheduleDefinition(
            name="probe", cron_schedule=schedule.cron, job_name="probe", execution_timezone=schedule.timezone
        )
        next(
            schedule_execution_time_iterator(datetime.now(UTC).timestamp(), schedule.cron, schedule.timezone)
        )
    except dg.DagsterInvalidDefinitionError as error:
        if "timezone" in str(error):
            msg = f"time zone `{schedule.timezone}` is not known"
            zone_location = file.place("schedule", "timezone")
            raise UserError(
                msg, hint="Use a name such as Europe/Vienna or UTC.", place=zone_location
            ) from None
        msg = f"cron `{schedule.cron}` is not a cron line that can ever fire"
        raise UserError(
            msg, hint="Five fields: minute hour day month weekday. Example: `15 3 * * *`.", place=location
        ) from None
    except Exception as error:  # the iterator's own errors are private: a day that no month has
        msg = f"cron `{schedule.cron}` never fires: {error}"
        raise UserError(msg, hint="Is there such a day in these months?", place=location) from error
