"""The stream as a job: one op that runs the lane until its max_run_time ends, and reports on the sinks while it does."""

# No postponed annotations here: Dagster compares the annotation of `context` itself, not its spelling.
import time
from collections.abc import Callable, Mapping
from datetime import date, timedelta
from typing import Any

import dagster as dg
from pydantic import Field

from headrace.jobs.run.events import EpochCommitted, Event, PartitionCompleted, PhaseChanged, RunMessage, RunResult, Until
from headrace.orchestration import metadata as report
from headrace.orchestration.execution import check_results, run_lane
from headrace.orchestration.pipelines import PIPELINE_TAG, STREAM_TAG, Pipeline, checks_of
from headrace.orchestration.resources import SPARK
from headrace.orchestration.stream_progress import EVERY, Figures, StreamWindows, Tally
from headrace.pipeline.errors import HeadraceError

_CHECK_SHARE = 0.05
"""Checks count whole tables: they get this share of the time at most."""


class StreamConfig(dg.Config):
    """What one launch of the stream may differ in from its file."""

    until: str = Field(default="", description="`caught-up` or `forever`; by the file's `stream.mode` if not given.")
    max_run_seconds: float = Field(
        default=0.0, description="After how long the run ends at an epoch's border; the file's `stream.max_run_time` if not given."
    )


def stream_job(pipeline: Pipeline) -> dg.JobDefinition:
    """The job `<pipeline>_stream`. Its run id is the lane's run id; a termination ends it at an epoch's border."""

    @dg.op(name=f"{pipeline.name}_stream_op", out=dg.Out(dg.Nothing), required_resource_keys={SPARK}, tags={PIPELINE_TAG: pipeline.name})
    def stream(context: dg.OpExecutionContext, config: StreamConfig) -> None:
        until, max_run_time = _how_long(pipeline, config)
        reporter = StreamReporter(context, pipeline)
        try:
            result = run_lane(
                pipeline,
                getattr(context.resources, SPARK),
                until=until,
                max_run_time=max_run_time,
                run_id=context.run.run_id,
                on_event=reporter.on_event,
                on_tick=reporter.on_tick,
            )
        except BaseException:
            reporter.say_the_rest(caught_up=False)
            raise
        reporter.finish(result)

    @dg.job(
        name=f"{pipeline.name}_stream",
        description=f"History that is left, the handoff, then the stream of pipeline `{pipeline.file.name}` ({pipeline.file.model.stream.mode}).",
        tags={PIPELINE_TAG: pipeline.name, STREAM_TAG: pipeline.name},
        executor_def=dg.in_process_executor,
    )
    def job() -> None:
        stream()

    return job


def _how_long(pipeline: Pipeline, config: StreamConfig) -> tuple[Until, timedelta | None]:
    options = pipeline.file.model.stream
    wished = config.until or ("forever" if options.mode == "continuous" else "caught-up")
    if wished not in (Until.FOREVER, Until.CAUGHT_UP):
        msg = f"until: `{wished}` is not known; allowed: {Until.CAUGHT_UP}, {Until.FOREVER}"
        raise dg.Failure(description=msg, allow_retries=False)
    until = Until(wished)
    max_run_time = timedelta(seconds=config.max_run_seconds) if config.max_run_seconds else options.max_run_time
    return until, max_run_time if until is Until.FOREVER or config.max_run_seconds else None


class StreamReporter:
    """Turns a lane's events into asset events: materializations and checks, per sink at most once a minute.

    On a pipeline with partitions, rows count for the window that today lies in; windows that are full turn green; where the
    stream's windows all lie in the past, what it does before it has caught up is an observation, since no window can be named.
    """

    def __init__(
        self, context: Any, pipeline: Pipeline, clock: Callable[[], float] = time.monotonic, today: Callable[[], date] | None = None
    ) -> None:
        self._context, self._pipeline, self._clock = context, pipeline, clock
        self._tally = Tally(pipeline.sinks, clock)
        partitions = pipeline.file.model.partitions
        known = _materialized_everywhere(context.instance, pipeline) if partitions else set()
        self._windows = StreamWindows(partitions, known, *([today] if today else []))
        self._backlog: int | None = None
        self._unchecked = False
        self._next_checks = clock() + EVERY

    def on_event(self, event: Event) -> None:
        """Takes in what the lane did; says at once only what happens seldom."""
        if isinstance(event, EpochCommitted):
            self._tally.add(event)
            self._backlog = event.backlog
        elif isinstance(event, PhaseChanged):
            self._context.log.info("phase %s %s", event.phase, event.detail or "")
        elif isinstance(event, PartitionCompleted) and event.window and self._pipeline.partitions:
            for sink, physical in self._pipeline.sinks.items():
                rows = {"dagster/partition_row_count": event.rows[sink]} if sink in event.rows else {}
                self._context.log_event(dg.AssetMaterialization(physical.key, partition=event.window, metadata=rows))
        elif isinstance(event, RunMessage):
            self._context.log.log(event.level.upper(), event.message)

    def on_tick(self) -> None:
        """Reports the sinks that are due, and asks the real systems about them when that is due too."""
        filled = self._windows.filled(caught_up=self._backlog == 0)
        due = {figures.sink: figures for figures in self._tally.due(all_of_it=bool(filled))}
        self._say(due, filled)
        self._unchecked = self._unchecked or bool(due)
        if self._unchecked and self._clock() >= self._next_checks:
            self._check()

    def say_the_rest(self, *, caught_up: bool) -> None:
        """Says what was not due yet: epochs that are committed do not stay unsaid, however the run ends."""
        rest = {figures.sink: figures for figures in self._tally.due(all_of_it=True)}
        self._say(rest, self._windows.filled(caught_up=caught_up))

    def finish(self, result: RunResult) -> None:
        """Says what is left to say, with a last look at the real systems."""
        self.say_the_rest(caught_up=result.caught_up)
        self._context.log.info("ended by %s after %d epochs, caught up: %s", result.stop_reason, result.epochs, result.caught_up)
        self._check()

    def _say(self, figures: Mapping[str, Figures], filled: list[str]) -> None:
        for sink, physical in self._pipeline.sinks.items():
            metadata = _metadata(figures[sink]) if sink in figures else {}
            for window in filled:
                self._context.log_event(dg.AssetMaterialization(physical.key, partition=window, metadata=metadata))
            if not metadata or filled:
                continue
            window = self._windows.current()
            if self._pipeline.partitions and window is None:
                self._context.log_event(dg.AssetObservation(physical.key, metadata=metadata))
            else:
                self._context.log_event(dg.AssetMaterialization(physical.key, partition=window, metadata=metadata))

    def _check(self) -> None:
        """One evaluation per check and sink. A system that cannot be asked just now does not end the stream."""
        started, self._unchecked = self._clock(), False
        try:
            found = (
                check_results(self._pipeline, getattr(self._context.resources, SPARK), sorted(self._pipeline.proven))
                if self._pipeline.proven
                else []
            )
        except HeadraceError as error:
            self._context.log.warning("no checks this time: %s", error)
            found = []
        for check in found:
            if check.name in checks_of(self._pipeline, check.sink):
                report.log_check(self._context, check, self._pipeline.sinks[check.sink].key)
        took = self._clock() - started
        self._next_checks = self._clock() + max(EVERY, took / _CHECK_SHARE)


def _metadata(figures: Figures) -> dict[str, Any]:
    found = report.counts_metadata(figures.counts) | {
        "epochs": figures.epochs,
        "first epoch": figures.first,
        "last epoch": figures.last,
        "phase": str(figures.phase),
        "rows per second of work": round(figures.counts.rows / figures.seconds) if figures.seconds else 0,
    }
    return found if figures.backlog is None else found | {"offsets behind": figures.backlog}


def _materialized_everywhere(instance: dg.DagsterInstance, pipeline: Pipeline) -> set[str]:
    """Partitions that every sink is known to hold."""
    return set.intersection(*(instance.get_materialized_partitions(physical.key) for physical in pipeline.sinks.values()))
