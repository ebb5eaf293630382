"""Runs a pipeline: opens it, finishes an open epoch, loads history, hands off, streams."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from headrace.jobs.planning.refresh import find_refresh_obstacle
from headrace.jobs.run.events import LagMeasured, Listener, RunResult, Until
from headrace.jobs.run.history import HistoryLoad
from headrace.jobs.run.pipeline_run import PipelineRun
from headrace.jobs.run.refresh_queue import RefreshQueue
from headrace.jobs.run.stalls import StallWatch
from headrace.jobs.sources.side_outputs import check_side_outputs
from headrace.jobs.sources.stream import StreamPlanner
from headrace.jobs.transforms.http.endpoint import find_endpoint_errors
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import PipelineFileError, SnapshotStoppedError
from headrace.pipeline.file.loader import PipelineFile
from headrace.pipeline.file.partitions import select_partitions
from headrace.pipeline.protocol import positions

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
    """Run a pipeline from the position in its ledger, and execute the requests for a refresh in it.

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
    wanted = select_partitions(file, partitions)
    if problems := find_endpoint_errors(file, settings):
        raise PipelineFileError(problems)
    if refresh and (obstacle := find_refresh_obstacle(file)):
        raise obstacle
    check_side_outputs(settings)
    until = Until.HISTORY if file.model.job_mode or partitions is not None else until
    pipeline_run = PipelineRun(
        file,
        settings,
        listener=listener,
        stop=stop,
        max_run_time=max_run_time,
        launched_by=launched_by,
        run_id=run_id,
        spark=spark,
        refuse_if_paused=True,
    )
    try:
        with pipeline_run:
            # Rows are met before any epoch is planned too: some sources count or look through theirs to
            # divide them.
            with pipeline_run.session.translate_errors():
                caught_up = _load_and_stream(pipeline_run, until, wanted, refresh=refresh)
            return pipeline_run.result(caught_up=caught_up)
    except SnapshotStoppedError:
        return pipeline_run.result_of_stopped_start()


def _load_and_stream(
    pipeline_run: PipelineRun, until: Until, partitions: Sequence[str], *, refresh: bool
) -> bool:
    """Finish the open epoch, load history, then stream. Return whether the stream was caught up."""
    queue = RefreshQueue(pipeline_run)
    queue.drop_failed_epoch()
    pipeline_run.finish_open()
    try:
        queue.finish_begun()
        HistoryLoad(pipeline_run, partitions, refresh=refresh).run()
        queue.execute()
        if (
            until is Until.HISTORY
            or pipeline_run.stopping
            or not positions.history_complete(pipeline_run.file.model, pipeline_run.coordinator.position)
        ):
            return False
        return _stream(pipeline_run, until, queue.execute)
    except SnapshotStoppedError:
        return False


def _stream(
    pipeline_run: PipelineRun, until: Until, execute_requests: Callable[[], bool] = lambda: False
) -> bool:
    """Stream until stopped or caught up. Return whether the stream was caught up at the end.

    `execute_requests` is called between two epochs. It returns whether it has written epochs.
    """
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
        if execute_requests():
            if pipeline_run.stopping:
                break
            begun = stream.begin(coordinator.position)
            pipeline_run.reporter.report_stream_start(begun)
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
        has_spark = pipeline_run.session.is_started
        stream.adapt_size(begun, step.end, pipeline_run.reporter.last_seconds, has_spark=has_spark)
        pipeline_run.reporter.publish(LagMeasured(stream.lags))
        stream.commit(coordinator.position)
        if until is Until.CAUGHT_UP and stream.has_reached(coordinator.position, target):
            return True
        left = model.epoch.interval.total_seconds() - pipeline_run.reporter.last_seconds
        if left > 0 and not stream.has_more(step):
            pipeline_run.wait(left)
    return False
