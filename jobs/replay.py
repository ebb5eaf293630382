"""Mending a lane: epochs written again into one sink, a sink taken as it stands, a lost ledger rebuilt from the records."""

from __future__ import annotations

import os
import socket
import threading
from typing import TYPE_CHECKING

from headrace.connectors.ledgers import open_ledger
from headrace.jobs.assembly import Assembly, node_types
from headrace.jobs.events import Listener, RunResult
from headrace.jobs.lane_run import LANE, LaneRun
from headrace.jobs.session import start_session, stop_session
from headrace.pipeline.errors import UserError
from headrace.pipeline.file import PipelineFile
from headrace.pipeline.lane import Lane
from headrace.pipeline.settings import Settings

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
    """Writes epochs again into one sink, from `from_epoch` (by default: from what the sink holds) to the last committed one.

    Each epoch is read and computed by the plan and the file that it was first written with, so its rows are the same rows; those
    of impure nodes come from their stage. `recompute` allows to compute them anew where the stage is gone.
    Stopping in between is safe; the sink then stands at a lower epoch and replay is offered again.

    Raises:
        LeaseHeldError: the pipeline is running.
        RecordError: the ledger has not the epochs, staged rows are gone, or rows would be written twice at a sink without a key.
    """
    _known(file, sink)
    if recompute:
        settings = settings.model_copy(update={"staging": settings.staging.model_copy(update={"recompute": True})})
    with _lane(file, settings, sink, "replay", listener, stop, spark) as lane_run:
        lane_run.rewrite(sink, from_epoch)
        return lane_run.result(caught_up=False)


def adopt(file: PipelineFile, settings: Settings, *, sink: str, spark: SparkSession | None = None) -> None:
    """Takes what a sink's target holds now as right for the last committed epoch; its rows become the new baseline."""
    _known(file, sink)
    with _lane(file, settings, sink, "adopt", None, None, spark) as lane_run:
        lane_run.lane.adopt(sink)


def rebuild(file: PipelineFile, settings: Settings, *, spark: SparkSession | None = None) -> str:
    """Rebuilds the lane in an empty ledger from the records in the sinks; returns the pipeline's UUID.

    Raises RecordError where a sink has no record, or records do not lead to one state.
    """
    session = spark or start_session(settings, node_types(file))
    ledger = open_ledger(settings)
    try:
        assembly = Assembly(file, settings, session)
        holder = {"host": socket.gethostname(), "pid": os.getpid(), "door": "rebuild", "file": file.path}
        return Lane.rebuild(
            ledger,
            file.name,
            LANE,
            holder,
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


def _known(file: PipelineFile, sink: str) -> None:
    if sink not in file.model.sinks:
        msg = f"`{sink}` is no sink of this pipeline"
        raise UserError(msg, hint=f"Sinks: {', '.join(file.model.sinks)}.", place=file.place("sinks"))


def _lane(
    file: PipelineFile,
    settings: Settings,
    sink: str,
    door: str,
    listener: Listener | None,
    stop: threading.Event | None,
    spark: SparkSession | None,
) -> LaneRun:
    return LaneRun(file, settings, listener=listener, stop=stop, lifetime=None, door=door, run_id="", spark=spark, repair=(sink,))
