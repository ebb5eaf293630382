"""The stream as a job. Its op runs the pipeline until `max_run_time` ends, and reports on the sinks."""

# No postponed annotations here: Dagster compares the annotation of `context` as an object, not as text.
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import dagster as dg
from pydantic import Field

from headrace.jobs.run.events import (
    CheckResult,
    EpochCommitted,
    Event,
    PartitionCompleted,
    PhaseChanged,
    RunMessage,
    RunResult,
    Until,
)
from headrace.orchestration import metadata as report
from headrace.orchestration import source_reports
from headrace.orchestration.columns import ColumnCatalog
from headrace.orchestration.drawing import draw_pipeline
from headrace.orchestration.execution import run_checks, run_pipeline
from headrace.orchestration.operations import suggest_operations
from headrace.orchestration.pipelines import PIPELINE_TAG, STREAM_TAG, Pipeline, applicable_checks
from headrace.orchestration.resources import SPARK
from headrace.orchestration.stream_progress import (
    REPORT_SECONDS,
    SinkProgress,
    StreamPartitions,
    StreamProgress,
)
from headrace.orchestration.termination import RunStatusWatch, end_if_requested
from headrace.pipeline.errors import HeadraceError

PARTITION_STATE, CURRENT, BEGUN, COMPLETE = "partition state", "current", "begun", "complete"
"""Metadata of a report about a partition of the stream, and its values."""
CONTENT_SECONDS, CONTENT_ROWS = 1800.0, 1000
"""Seconds between two comparisons of rows, and the size of their sample."""
CHECK_REPORT_SECONDS = 1800.0
"""Seconds between two reports of a check whose result stays the same. Dagster never prunes its event log."""
SOURCE_SECONDS = 900.0
"""Seconds between two observations of the sources."""
_CHECK_SHARE = 0.05
"""The largest share of the time that checks may use, since they count whole tables."""


class StreamConfig(dg.Config):
    """Options of one launch that override the pipeline file."""

    until: str = Field(default="", description="`caught-up` or `forever`. Default: the file's `stream.mode`.")
    max_run_seconds: float = Field(
        default=0.0,
        description="The run ends after the first epoch past this time. Default: the file's"
        " `stream.max_run_time`.",
    )


def stream_job(pipeline: Pipeline) -> dg.JobDefinition:
    """Return the job `<pipeline>_stream`.

    Its run id is the pipeline run's id. A termination stops it after the current epoch.
    """

    @dg.op(
        name=f"{pipeline.name}_stream_op",
        out=dg.Out(dg.Nothing),
        required_resource_keys={SPARK},
        tags={PIPELINE_TAG: pipeline.name},
        pool=pipeline.stream_pool,
    )
    def stream(context: dg.OpExecutionContext, config: StreamConfig) -> None:
        until, max_run_time = _run_limits(pipeline, config)
        with RunStatusWatch(context.instance, context.run.run_id) as watch:
            reporter = StreamReporter(context, pipeline, is_canceled=watch.canceled.is_set)
            try:
                result = run_pipeline(
                    pipeline,
                    getattr(context.resources, SPARK),
                    until=until,
                    max_run_time=max_run_time,
                    run_id=context.run.run_id,
                    is_canceled=watch.canceled.is_set,
                    on_event=reporter.on_event,
                    on_tick=reporter.on_tick,
                )
                end_if_requested(context, result, is_pause_success=True)
            except BaseException:
                reporter.report_remaining(caught_up=False)
                raise
            reporter.finish(result)

    @dg.job(
        name=f"{pipeline.name}_stream",
        description=f"The rest of history, the handoff, then the stream of pipeline `{pipeline.file.name}`"
        f" ({pipeline.file.model.stream.mode}).\n\n{draw_pipeline(pipeline)}",
        tags={**pipeline.options.run_tags, PIPELINE_TAG: pipeline.name, STREAM_TAG: pipeline.name},
        executor_def=dg.in_process_executor,
    )
    def job() -> None:
        stream()

    return job


def _run_limits(pipeline: Pipeline, config: StreamConfig) -> tuple[Until, timedelta | None]:
    options = pipeline.file.model.stream
    chosen = config.until or ("forever" if options.mode == "continuous" else "caught-up")
    if chosen not in (Until.FOREVER, Until.CAUGHT_UP):
        msg = f"until: `{chosen}` is not known; allowed: {Until.CAUGHT_UP}, {Until.FOREVER}"
        raise dg.Failure(description=msg, allow_retries=False)
    until = Until(chosen)
    max_run_time = (
        timedelta(seconds=config.max_run_seconds) if config.max_run_seconds else options.max_run_time
    )
    return until, max_run_time if until is Until.FOREVER or config.max_run_seconds else None


class StreamReporter:
    """Converts the events of a run into materializations and checks, at intervals.

    With partitions, rows count for the partition of today, and completed partitions are reported as
    materialized. If all partitions of the stream are in the past, the work before it has caught up is an
    observation, because it belongs to no partition.
    """

    def __init__(
        self,
        context: Any,
        pipeline: Pipeline,
        clock: Callable[[], float] = time.monotonic,
        is_canceled: Callable[[], bool] = lambda: False,
    ) -> None:
        self._is_canceled = is_canceled
        self._context, self._pipeline, self._clock = context, pipeline, clock
        interval = pipeline.file.model.stream.report_interval.total_seconds()
        self._progress = StreamProgress(pipeline.sinks, clock, interval)
        partitions = pipeline.file.model.partitions
        self._partitions = StreamPartitions(
            partitions, *(_reported_partitions(context.instance, pipeline) if partitions else ((), ()))
        )
        self._backlog: int | None = None
        self._unchecked = False
        self._next_checks = clock() + REPORT_SECONDS
        self._next_sources = clock() + REPORT_SECONDS
        self._next_content = clock()
        self._checks: dict[tuple[str, str], tuple[bool | None, float]] = {}
        """Result and time of the last report, by sink and check."""
        self._rows: Mapping[str, Mapping[str, int]] = {}
        """The row count of each target that a check has counted, as metadata."""
        catalog = ColumnCatalog(pipeline)
        self._lineage = {sink: catalog.lineage(sink, pipeline.sources) for sink in pipeline.sinks}
        """Column lineage by sink, until it is reported: once in a run."""

    def on_event(self, event: Event) -> None:
        """Add an event to the progress. Report only rare events at once."""
        if isinstance(event, EpochCommitted):
            self._progress.add(event)
            self._backlog = event.backlog
            self._unchecked = True
        elif isinstance(event, PhaseChanged):
            self._context.log.info("event=phase_changed phase=%s detail=%s", event.phase, event.detail or "")
        elif isinstance(event, PartitionCompleted) and event.window and self._pipeline.partitions:
            for sink, physical in self._pipeline.sinks.items():
                rows = {"dagster/partition_row_count": event.rows[sink]} if sink in event.rows else {}
                self._context.log_event(
                    dg.AssetMaterialization(physical.key, partition=event.window, metadata=rows)
                )
        elif isinstance(event, RunMessage):
            self._context.log.log(event.level.upper(), "event=run_message message=%s", event.message)

    def on_tick(self) -> None:
        """Report what is due: checks, which count the rows of the targets, then sinks and sources."""
        if self._unchecked and self._clock() >= self._next_checks:
            self._run_checks()
        completed = self._partitions.take_completed(caught_up=self._backlog == 0)
        progress = {figures.sink: figures for figures in self._progress.take_due(force=bool(completed))}
        self._report_progress(progress, completed)
        if progress and self._clock() >= self._next_sources:
            self._report_sources()

    def report_remaining(self, *, caught_up: bool) -> None:
        """Report what was not due yet, so that every committed epoch is reported, however the run ends."""
        progress = {figures.sink: figures for figures in self._progress.take_due(force=True)}
        self._report_progress(progress, self._partitions.take_completed(caught_up=caught_up))

    def finish(self, result: RunResult) -> None:
        """Run the checks a last time, and report the rest."""
        self._run_checks(is_last=True)
        self.report_remaining(caught_up=result.caught_up)
        self._report_sources()
        self._context.log.info(
            "event=run_ended stop_reason=%s epochs=%d caught_up=%s",
            result.stop_reason,
            result.epochs,
            result.caught_up,
        )

    def _report_progress(self, progress: Mapping[str, SinkProgress], completed: list[str]) -> None:
        begun = self._partitions.take_begun()
        for sink, physical in self._pipeline.sinks.items():
            metadata = self._metadata(progress[sink]) if sink in progress else {}
            for partition in completed:
                self._context.log_event(
                    dg.AssetMaterialization(
                        physical.key,
                        partition=partition,
                        metadata=metadata | {PARTITION_STATE: COMPLETE},
                    )
                )
            for partition in begun:
                self._context.log_event(
                    dg.AssetObservation(physical.key, partition=partition, metadata={PARTITION_STATE: BEGUN})
                )
            if not metadata or completed:
                continue
            partition = self._partitions.current()
            if self._pipeline.partitions and partition is None:
                self._context.log_event(dg.AssetObservation(physical.key, metadata=metadata))
            else:
                state = {PARTITION_STATE: CURRENT} if partition else {}
                self._context.log_event(
                    dg.AssetMaterialization(physical.key, partition=partition, metadata=metadata | state)
                )

    def _metadata(self, progress: SinkProgress) -> dict[str, Any]:
        lineage = self._lineage.pop(progress.sink, None)
        return (
            _progress_metadata(progress)
            | dict(self._rows.get(progress.sink, {}))
            | ({"dagster/column_lineage": lineage} if lineage else {})
        )

    def _report_sources(self) -> None:
        source_reports.report_sources(self._context, self._pipeline, self._is_canceled)
        self._next_sources = self._clock() + SOURCE_SECONDS

    def _run_checks(self, *, is_last: bool = False) -> None:
        """Report the checks whose result changed, or whose last report is old. The last time report all.

        Rows are compared in longer intervals. Without this an asset downstream that waits for all blocking
        checks would never be requested. A system that is unreachable does not end the stream.
        """
        started, self._unchecked = self._clock(), False
        content = started >= self._next_content
        try:
            results = (
                run_checks(
                    self._pipeline,
                    getattr(self._context.resources, SPARK),
                    sorted(self._pipeline.verifiable_sinks),
                    content=content,
                    content_rows=CONTENT_ROWS,
                    is_canceled=self._is_canceled,
                )
                if self._pipeline.verifiable_sinks
                else []
            )
        except HeadraceError as error:
            self._context.log.warning("event=checks_not_run error=%s", error)
            results = []
        if content and results:
            self._next_content = self._clock() + CONTENT_SECONDS
        for check in results:
            if check.name == "row_count_matches":
                self._rows = {**self._rows, check.sink: report.target_metadata({check.name: check})}
            if check.name in applicable_checks(self._pipeline, check.sink) and (
                is_last or self._is_check_due(check)
            ):
                self._checks[check.sink, check.name] = check.passed, started
                advice = suggest_operations(self._pipeline, check)
                report.log_check(self._context, check, self._pipeline.sinks[check.sink].key, advice=advice)
        seconds = self._clock() - started
        self._next_checks = self._clock() + max(REPORT_SECONDS, seconds / _CHECK_SHARE)

    def _is_check_due(self, check: CheckResult) -> bool:
        passed, reported_at = self._checks.get((check.sink, check.name), (None, float("-inf")))
        return passed is not check.passed or self._clock() - reported_at >= CHECK_REPORT_SECONDS


def _progress_metadata(progress: SinkProgress) -> dict[str, Any]:
    metadata = report.counts_metadata(progress.counts) | {
        "epochs": progress.epochs,
        "last epoch": progress.last,
        "phase": str(progress.phase),
    }
    metadata |= report.speed_metadata(progress.counts.rows, progress.seconds)
    return metadata if progress.backlog is None else metadata | {"lag_offsets": progress.backlog}


def _reported_partitions(instance: dg.DagsterInstance, pipeline: Pipeline) -> tuple[set[str], set[str]]:
    """Return the partitions that are complete for every sink, and those that are current for some sink.

    A current partition is materialized as well, so the metadata of the newest report decides.
    """
    states = [_read_states(instance, physical.key) for physical in pipeline.sinks.values()]
    complete = set.intersection(*({key for key, state in one.items() if state == COMPLETE} for one in states))
    return complete, {key for one in states for key, state in one.items() if state == CURRENT} - complete


def _read_states(instance: dg.DagsterInstance, key: dg.AssetKey) -> dict[str, str]:
    """Return the state of each partition that the stream has reported, by its newest materialization."""
    newest = instance.get_latest_storage_id_by_partition(key, dg.DagsterEventType.ASSET_MATERIALIZATION)
    if not newest:
        return {}
    records = instance.fetch_materializations(
        dg.AssetRecordsFilter(key, storage_ids=sorted(newest.values())), limit=len(newest)
    ).records
    reports = (record.asset_materialization for record in records)
    return {
        report.partition: str(report.metadata[PARTITION_STATE].value)
        for report in reports
        if report and report.partition and PARTITION_STATE in report.metadata
    }
