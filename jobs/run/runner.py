"""Runs a pipeline: opens it, finishes an open epoch, loads history, hands off, streams."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from headrace.jobs.planning.refresh import check_readable_keys, find_refresh_obstacle
from headrace.jobs.run.events import LagMeasured, Listener, RunResult, Until
from headrace.jobs.run.pipeline_run import PipelineRun
from headrace.jobs.run.snapshots import drop_unused_snapshots, renew_snapshots
from headrace.jobs.run.stalls import StallWatch
from headrace.jobs.sources.backfill import BackfillPlanner, SplitCache
from headrace.jobs.sources.changed_keys import check_messages_since_handoff
from headrace.jobs.sources.side_outputs import check_side_outputs
from headrace.jobs.sources.stream import StreamPlanner
from headrace.jobs.transforms.http.endpoint import find_endpoint_errors
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import PipelineFileError, PipelineStateError, UserError
from headrace.pipeline.file.loader import PipelineFile
from headrace.pipeline.model import graph
from headrace.pipeline.protocol import positions
from headrace.pipeline.protocol.epochs import Json, Phase, Position
from headrace.pipeline.protocol.partitions import WHOLE, describe_keys, is_history_open

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

_IDLE_FIRST, _IDLE_LAST = 0.02, 0.25
"""Seconds between two reads of an idle stream: short at first, for rows that follow soon, then longer."""


def run(
    file: PipelineFile,
    settings: Settings,
    *,
    until: Until,
    partitions: Sequence[str] | None = None,
    refresh: bool = False,
    listener: Listener | None = None,
    stop: threading.Event | None = None,
    max_run_time: timedelta | None = None,
    launched_by: str = "cli",
    run_id: str = "",
    spark: SparkSession | None = None,
) -> RunResult:
    """Run a pipeline from the position in its ledger.

    Args:
        file: the pipeline.
        settings: connections, ledger, Spark.
        until: when to stop. `job_mode` in the file means HISTORY.
        partitions: keys of the history partitions to load. Defaults to all. If given, the run ends after
            them.
        refresh: read partitions that are complete again, from new snapshots of the history. Their rows
            replace those that the sinks have of them.
        listener: called with every event, in this thread.
        stop: set it to stop. A request in the ledger sets it too. The epoch in flight is finished within
            25 s or abandoned, which is safe.
        max_run_time: the run ends at the first epoch boundary after this time.
        launched_by: what started the run. Shown to users whose run is refused by its lease.
        run_id: the caller's name for the run.
        spark: the session to use. By default the run starts and stops its own.

    Raises:
        PipelineFileError: a handler's secret is not in the settings. Nothing was started.
        GuaranteeError: the partitions cannot be refreshed. Nothing was started.
        PluginError: a side output in the settings is not installed. Nothing was started.
        LeaseHeldError: another run owns the pipeline.
        PausedError: the pipeline is paused.
        SinkStateError: a sink and the ledger disagree.
        BlockedError: an epoch failed too often in the same way.
        HeadraceError: any other failure. Rows are safe, and the next run resumes here.
    """
    wanted = _select_partitions(file, partitions)
    if problems := find_endpoint_errors(file, settings):
        raise PipelineFileError(problems)
    if refresh and (obstacle := find_refresh_obstacle(file)):
        raise obstacle
    check_side_outputs(settings)
    until = Until.HISTORY if file.model.job_mode or partitions is not None else until
    with PipelineRun(
        file,
        settings,
        listener=listener,
        stop=stop,
        max_run_time=max_run_time,
        launched_by=launched_by,
        run_id=run_id,
        spark=spark,
        refuse_if_paused=True,
    ) as pipeline_run:
        # Rows are met before any epoch is planned too: some sources count or look through theirs to divide
        # them.
        with pipeline_run.session.translate_errors():
            pipeline_run.finish_open()
            _history(pipeline_run, wanted, refresh=refresh)
            caught_up = False
            if (
                until is not Until.HISTORY
                and not pipeline_run.stopping
                and positions.history_complete(file.model, pipeline_run.coordinator.position)
            ):
                caught_up = _stream(pipeline_run, until)
        return pipeline_run.result(caught_up=caught_up)


def _select_partitions(file: PipelineFile, windows: Sequence[str] | None) -> list[str]:
    every = positions.windows_of(file.model)
    if windows is None:
        return every
    if unknown := [key for key in windows if key not in every]:
        shown = describe_keys(every) if every != [WHOLE] else "none: the file has no `partitions`"
        later = (
            "are added when they have passed"
            if is_history_open(file.model.partitions)
            else "belong to the stream"
        )
        msg = f"`{unknown[0]}` is not a partition of this pipeline's history"
        raise UserError(msg, hint=f"Partitions: {shown}. Later ones {later}.", place=file.place("partitions"))
    return [key for key in every if key in windows]


def _history(pipeline_run: PipelineRun, windows: Sequence[str], *, refresh: bool) -> None:
    coordinator, model = pipeline_run.coordinator, pipeline_run.file.model

    def note(page: Json) -> None:
        coordinator.ledger.event(coordinator.lease, "splits", page)

    known = [
        event["data"]
        for event in coordinator.ledger.events(model.name, coordinator.lease.lane)
        if event["kind"] == "splits"
    ]
    sources = pipeline_run.assembly.sources
    history = BackfillPlanner(
        model, sources, SplitCache(known, note), model.epoch.history_rows, model.epoch.max_bytes
    )
    partly_read = positions.partly_read(coordinator.position)
    refreshed = positions.refreshable(model, coordinator.position, windows) if refresh else []
    _check_order(pipeline_run.file, coordinator.position, windows, refreshed)
    if refreshed or any(
        positions.needs_snapshot(model, coordinator.position[name], windows)
        for name, source in sources.items()
        if source.bounded
    ):
        if refreshed:
            check_readable_keys(coordinator.sinks.values())
            for name, source in sources.items():
                check_messages_since_handoff(source, coordinator.position[name])
        _load(pipeline_run, history, partly_read)
        if not pipeline_run.stopping:
            pipeline_run.run_epoch(renew_snapshots(pipeline_run.assembly, coordinator, refreshed))
    done = positions.completed_partitions(model, coordinator.position)
    if left := [key for key in windows if key not in done]:
        pipeline_run.reporter.enter(Phase.HISTORY, {"windows": len(left)})
    _load(pipeline_run, history, windows)
    if (refreshed or is_history_open(model.partitions)) and not coordinator.has_open_epoch:
        drop_unused_snapshots(pipeline_run.assembly, coordinator, pipeline_run.reporter)


def _load(pipeline_run: PipelineRun, history: BackfillPlanner, windows: Sequence[str]) -> None:
    """Run the epochs of these partitions, until they are complete or the run must stop."""
    while not pipeline_run.stopping:
        spark, position = pipeline_run.assembly.planner.spark, pipeline_run.coordinator.position
        step = history.next(spark, position, windows)
        if step is None:
            return
        pipeline_run.run_epoch(step)


def _check_order(
    file: PipelineFile, position: Position, windows: Sequence[str], refreshed: Sequence[str]
) -> None:
    """Raise PipelineStateError for a partition before one that is loaded, at sinks where the last row stays.

    A key with rows in both would keep the row of the earlier partition. `refreshed` are partitions
    that are read again.
    """
    sinks = graph.partition_ordered_sinks(file.model)
    done = [key for key in positions.completed_partitions(file.model, position) if key not in refreshed]
    begun = max([*done, *positions.partly_read(position)], default="")
    late = [key for key in windows if key < begun and key not in done]
    if not sinks or not late or late[0] in positions.partly_read(position):
        return
    msg = (
        f"partition {late[0]} cannot be loaded after {begun}: at sink {', '.join(sinks)} the last row of a"
        " key stays, and a key with rows in both partitions would keep the older row"
    )
    hint = (
        "If all history rows of a key are in one partition, set `any_order: true` in `partitions`. Or set"
        " `version_column` at the sinks. Or start over and load the partitions in order:"
        f" headrace reset {file.path}."
    )
    raise PipelineStateError(msg, hint=hint, place=file.place("partitions"))


def _stream(pipeline_run: PipelineRun, until: Until) -> bool:
    """Stream until stopped or caught up. Return whether the stream was caught up at the end."""
    model, coordinator = pipeline_run.file.model, pipeline_run.coordinator
    stream = StreamPlanner(pipeline_run.assembly.sources, model.epoch.stream_rows, model.epoch.max_bytes)
    if not stream:
        return True
    begun = stream.begin(coordinator.position)
    pipeline_run.reporter.report_stream_start(begun)
    target, pause = stream.end_position(begun), _IDLE_FIRST
    stalls = StallWatch(pipeline_run.assembly.sources, pipeline_run.reporter.publish)
    while not pipeline_run.stopping:
        begun = stream.begin(coordinator.position) if pipeline_run.reporter.epochs else begun
        step = stream.next(begun)
        if step is None:
            backlog = stream.backlog(begun)
            pipeline_run.idle(backlog)
            pipeline_run.reporter.publish(LagMeasured(stream.lags))
            if until is Until.CAUGHT_UP and (not backlog or stream.has_reached(begun, target)):
                return True
            if backlog:
                stalls.check(begun, ending=until is Until.CAUGHT_UP)
            pipeline_run.wait(pause)
            pause = min(pause * 1.2, _IDLE_LAST)
            continue
        pause = _IDLE_FIRST
        stalls.clear()
        pipeline_run.reporter.enter(step.phase)
        pipeline_run.run_epoch(step, backlog=stream.backlog)
        pipeline_run.reporter.publish(LagMeasured(stream.lags))
        stream.commit(coordinator.position)
        if until is Until.CAUGHT_UP and stream.has_reached(coordinator.position, target):
            return True
        if not stream.has_more(step):
            pipeline_run.wait(model.epoch.interval.total_seconds() - pipeline_run.reporter.last_seconds)
    return False
