"""The schedule of a pipeline: the cron line of its file, rejected if it can never fire."""

from __future__ import annotations

from datetime import UTC, datetime

import dagster as dg
from dagster._utils.schedules import (
    schedule_execution_time_iterator,
)  # the only API for the next tick; the daemon uses it as well

from headrace.jobs.run.status import history_complete
from headrace.orchestration.pipelines import PIPELINE_TAG, Pipeline
from headrace.orchestration.state import read_pipeline_state
from headrace.pipeline.errors import UserError
from headrace.pipeline.file.loader import PipelineFile
from headrace.pipeline.model.run_options import Schedule


def pipeline_schedule(
    pipeline: Pipeline, materialize: dg.UnresolvedAssetJobDefinition, stream: dg.JobDefinition | None
) -> dg.ScheduleDefinition | None:
    """Return the schedule `<pipeline>_schedule`, None if the file has no schedule.

    Without partitions a tick materializes the sinks: history, then the stream until it has caught up. With
    partitions history is loaded by choice, so a tick runs the stream, and skips with the reason until the
    history is complete. Raise UserError for an invalid cron line or time zone.
    """
    options = pipeline.file.model.schedule
    if options is None:
        return None
    check_cron(pipeline.file, options)
    if pipeline.partitions is not None and stream is None:
        msg = (
            "`schedule` has nothing to do: partitions of history are materialized by choice, and there is"
            " no stream"
        )
        raise UserError(
            msg, hint="Remove the schedule or the partitions.", place=pipeline.file.place("schedule")
        )
    target = stream if pipeline.partitions is not None else materialize

    @dg.schedule(
        name=f"{pipeline.name}_schedule",
        job=target,
        cron_schedule=options.cron,
        execution_timezone=options.timezone,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        tags={PIPELINE_TAG: pipeline.name},
    )
    def schedule() -> dg.RunRequest | dg.SkipReason:
        state = read_pipeline_state(pipeline)
        if state and state.holder:
            return dg.SkipReason("another run of the pipeline is active")
        if pipeline.partitions is not None and not history_complete(pipeline.file, state):
            return dg.SkipReason("the history is not complete: materialize its partitions first")
        return dg.RunRequest()

    return schedule


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
