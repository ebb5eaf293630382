"""Repairs: replay of epochs at one sink, acceptance of a target, a ledger rebuilt from commit records."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from headrace.connectors.ledger.factory import open_ledger
from headrace.jobs.planning.compiled_pipeline import CompiledPipeline, node_types
from headrace.jobs.planning.resolution import resolve_file
from headrace.jobs.run.events import Listener, RunResult
from headrace.jobs.run.pipeline_run import LANE, PipelineRun
from headrace.jobs.spark.session import start_session, stop_session
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.file.loader import PipelineFile
from headrace.pipeline.protocol.coordinator import EpochCoordinator
from headrace.pipeline.protocol.ledger import describe_launcher

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def replay(
    file: PipelineFile,
    settings: Settings,
    *,
    sink: str,
    from_epoch: int | None = None,
    recompute: bool = False,
    listener: Listener | None = None,
    stop: threading.Event | None = None,
    spark: SparkSession | None = None,
) -> RunResult:
    """Write epochs to one sink again, up to the last committed one.

    `from_epoch` defaults to the sink's own position. Each epoch is read and computed with the plan and the
    file of its first write, so its rows are the same. Rows of non-deterministic nodes come from their stored
    results. `recompute` allows recomputing missing ones. Stopping in between is safe: the sink is then at a
    lower epoch, and replay can be run again.

    Raises:
        LeaseHeldError: the pipeline is running.
        SinkStateError: the ledger lacks the epochs, stored results are missing, or a sink without a key would
            get rows twice.
    """
    file.check_sink(sink)
    if recompute:
        settings = settings.model_copy(
            update={"staging": settings.staging.model_copy(update={"recompute": True})}
        )
    with _open_run(file, settings, sink, "replay", listener, stop, spark) as pipeline_run:
        pipeline_run.rewrite(sink, from_epoch)
        return pipeline_run.result(caught_up=False)


def accept_target(
    file: PipelineFile,
    settings: Settings,
    *,
    sink: str,
    take_over: bool = False,
    spark: SparkSession | None = None,
) -> None:
    """Accept the rows in a sink's target as the state of the last committed epoch.

    They become the new baseline. `take_over` first ends and fences the claims of other pipelines to the
    target. Without it, such a claim raises SinkStateError.
    """
    file.check_sink(sink)
    with _open_run(
        file, settings, sink, "accept-target", None, None, spark, take_over=take_over
    ) as pipeline_run:
        if not take_over or pipeline_run.coordinator.disagrees(sink):
            pipeline_run.coordinator.accept_target(sink)


def rebuild(file: PipelineFile, settings: Settings, *, spark: SparkSession | None = None) -> str:
    """Rebuild the pipeline's state in an empty ledger from the commit records; return the pipeline's UUID.

    Raises SinkStateError if a sink has no commit record, or if the records do not lead to one state.
    """
    file = resolve_file(file, settings)
    session = spark or start_session(settings, node_types(file))
    ledger = open_ledger(settings)
    try:
        with file.locate_errors():
            assembly = CompiledPipeline(file, settings, session)
            return EpochCoordinator.rebuild(
                ledger,
                file.name,
                LANE,
                describe_launcher("rebuild", file.path),
                lambda uuid, _: assembly.open_sinks(uuid, LANE, ledger),
                file.compiled(),
                file.hash,
                ttl=settings.lease_seconds,
                commit_timeout=settings.commit_timeout_seconds,
            )
    finally:
        ledger.close()
        if spark is None:
            stop_session(session)


def _open_run(
    file: PipelineFile,
    settings: Settings,
    sink: str,
    launched_by: str,
    listener: Listener | None,
    stop: threading.Event | None,
    spark: SparkSession | None,
    *,
    take_over: bool = False,
) -> PipelineRun:
    options = {"repair": (sink,), "take_over": (sink,) if take_over else ()}
    return PipelineRun(
        file,
        settings,
        listener=listener,
        stop=stop,
        max_run_time=None,
        launched_by=launched_by,
        run_id="",
        spark=spark,
        **options,
    )
