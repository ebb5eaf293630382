"""Runs a pipeline: opens it, finishes an open epoch, loads history, hands off, streams."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from headrace.jobs.run.events import LagMeasured, Listener, RunMessage, RunResult, Until
from headrace.jobs.run.pipeline_run import PipelineRun
from headrace.jobs.run.stalls import StallWatch
from headrace.jobs.sources.backfill import BackfillPlanner, SplitCache
from headrace.jobs.sources.side_outputs import check_side_outputs
from headrace.jobs.sources.stream import StreamPlanner
from headrace.jobs.transforms.http.endpoint import find_endpoint_errors
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import PipelineFileError, UserError
from headrace.pipeline.file.loader import PipelineFile
from headrace.pipeline.model import graph
from headrace.pipeline.protocol import positions
from headrace.pipeline.protocol.epochs import Json, Phase

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
        listener: called with every event, in this thread.
        stop: set it to stop. The epoch in flight is finished within 25 s or abandoned, which is safe.
        max_run_time: the run ends at the first epoch boundary after this time.
        launched_by: what started the run. Shown to users whose run is refused by its lease.
        run_id: the caller's name for the run.
        spark: the session to use. By default the run starts and stops its own.

    Raises:
        PipelineFileError: a handler's secret is not in the settings. Nothing was started.
        PluginError: a side output in the settings is not installed. Nothing was started.
        LeaseHeldError: another run owns the pipeline.
        SinkStateError: a sink and the ledger disagree.
        BlockedError: an epoch failed too often in the same way.
        HeadraceError: any other failure. Rows are safe, and the next run resumes here.
    """
    wanted = _select_partitions(file, partitions)
    if problems := find_endpoint_errors(file, settings):
        raise PipelineFileError(problems)
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
    ) as pipeline_run:
        # Rows are met before any epoch is planned too: some sources count or look through theirs to divide
        # them.
        with pipeline_run.session.translate_errors():
            pipeline_run.finish_open()
            _history(pipeline_run, wanted)
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
        shown = f"{every[0]} … {every[-1]}" if every != [""] else "none: the file has no `partitions`"
        msg = f"`{unknown[0]}` is not a partition of this pipeline's history"
        raise UserError(
            msg, hint=f"Partitions: {shown}. Later ones belong to the stream.", place=file.place("partitions")
        )
    return [key for key in every if key in windows]


def _history(pipeline_run: PipelineRun, windows: Sequence[str]) -> None:
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
    done = positions.completed_partitions(model, coordinator.position)
    if left := [key for key in windows if key not in done]:
        pipeline_run.reporter.enter(Phase.HISTORY, {"windows": len(left)})
        if note_of_order := _out_of_order(pipeline_run.file, left, done):
            pipeline_run.reporter.publish(RunMessage(note_of_order, "warning"))
    while not pipeline_run.stopping:
        step = history.next(pipeline_run.assembly.planner.spark, coordinator.position, windows)
        if step is None:
            return
        pipeline_run.run_epoch(step)


def _out_of_order(file: PipelineFile, left: Sequence[str], done: Sequence[str]) -> str:
    """Return how out-of-order partitions affect sinks where the last row of a key wins. Empty if fine."""
    model = file.model
    late = [key for key in left if any(other > key for other in done)]
    sinks = [
        name
        for name, sink in model.sinks.items()
        if (key := graph.key_of(model, name))
        and not graph.lacks_commit_record(sink)
        and getattr(sink, "version_column", None) is None
        if model.partitions is not None
        and model.partitions.column.lower() not in {column.lower() for column in key}
    ]
    if not late or not sinks:
        return ""
    return (
        f"window {late[0]} is read after window {max(done)}: a key that is in both keeps the row that is"
        f" written last, at {', '.join(sinks)}."
        f" Set `version_column` there if keys move between windows; `headrace audit {file.path} --content"
        " --full` compares the rows."
    )


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
