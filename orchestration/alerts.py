"""Sensors that report failed runs, and streams whose supervisor gave up, with what to do."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass

import dagster as dg

from headrace.orchestration.pipelines import PIPELINE_TAG, WRITE_SUFFIX

log = logging.getLogger(__name__)

GAVE_UP_TAG = "headrace/gave_up"
"""Tag of the failed run after which the supervisor starts no other. Its value is the reason."""
_REMEMBERED = 200


@dataclass(frozen=True, slots=True)
class Alert:
    """A message for people. `text` has the error and what to do."""

    pipeline: str
    run_id: str
    title: str
    text: str


Send = Callable[[Alert], None]


def log_alert(alert: Alert) -> None:
    """Write an alert to the log of the sensor, which the Dagster UI shows."""
    log.error("event=alert title=%s text=%s", alert.title, alert.text)


def build_alert_sensors(send: Send = log_alert, *, is_on: bool = False) -> list[dg.SensorDefinition]:
    """Return two sensors that call `send` once per failed run and once when a supervisor gives up.

    They cover all pipelines of the code location. `send` can post with dagster-slack or dagster-pagerduty.
    The tick fails if it raises.
    """
    status = dg.DefaultSensorStatus.RUNNING if is_on else dg.DefaultSensorStatus.STOPPED

    @dg.run_failure_sensor(
        name="headrace_failures", default_status=status, description="Reports failed runs of pipelines."
    )
    def failures(context: dg.RunFailureSensorContext) -> None:
        if alert := describe_failure(context):
            send(alert)

    @dg.sensor(
        name="headrace_give_ups",
        default_status=status,
        minimum_interval_seconds=30,
        description="Reports streams that their supervisor no longer starts.",
    )
    def give_ups(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        reported: list[str] = json.loads(context.cursor) if context.cursor else []
        runs = context.instance.get_runs(
            dg.RunsFilter(statuses=[dg.DagsterRunStatus.FAILURE]), limit=_REMEMBERED
        )
        new = [run for run in runs if GAVE_UP_TAG in run.tags and run.run_id not in reported]
        for run in new:
            send(_describe_give_up(run))
        cursor = json.dumps([*(run.run_id for run in new), *reported][:_REMEMBERED])
        reason = f"{len(new)} alerts" if new else "no supervisor gave up"
        return dg.SensorResult(skip_reason=reason, cursor=cursor)

    return [failures, give_ups]


def describe_failure(context: dg.RunFailureSensorContext) -> Alert | None:
    """Return the alert of a failed run. None for runs of other jobs."""
    run = context.dagster_run
    steps = context.get_step_failure_events()
    keys = [event.step_key or "" for event in steps]
    pipeline = run.tags.get(PIPELINE_TAG) or next(
        (key.removesuffix(WRITE_SUFFIX) for key in keys if key.endswith(WRITE_SUFFIX)), ""
    )
    if not pipeline:
        return None
    texts = [text for event in steps if (text := _describe_step(event))]
    text = "\n".join(texts or [context.failure_event.message or "The run failed."])
    return Alert(
        pipeline,
        run.run_id,
        f"Pipeline {pipeline}: run {run.run_id[:8]} of {run.job_name} failed.",
        f"{text}\nWhat to do: correct the cause. A supervisor or a schedule tries again. To do it now, launch"
        f" {run.job_name}.",
    )


def _describe_step(event: dg.DagsterEvent) -> str:
    data = event.step_failure_data
    if data.user_failure_data:
        return data.user_failure_data.description or ""
    error = data.error.cause or data.error if data.error else None
    return error.message.strip() if error else ""


def _describe_give_up(run: dg.DagsterRun) -> Alert:
    pipeline = run.tags.get(PIPELINE_TAG, run.job_name)
    return Alert(
        pipeline,
        run.run_id,
        f"Pipeline {pipeline}: the supervisor gave up. The stream is down.",
        f"{run.tags[GAVE_UP_TAG]}\nWhat to do: correct the cause, then launch {run.job_name}.",
    )
