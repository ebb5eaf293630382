"""Operations on a pipeline for schedulers: each can first report what it would change.

Stop, restart, replay, rebuild and prune are here; rewind and reset are in `interventions`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headrace.connectors.ledger.factory import open_existing_ledger
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import PipelineStateError
from headrace.pipeline.file.loader import PipelineFile
from headrace.pipeline.protocol import positions
from headrace.pipeline.protocol.ledger import LeaseStatus, Ledger, PipelineState, StopAction, StopRequest
from headrace.pipeline.protocol.ledger.owner import format_owner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Lines = tuple[str, ...]
RESTART = "restart"
"""The reason of the pause that a restart makes. Another restart continues one whose process died."""
_POLL_SECONDS = 0.2


def stop(file: PipelineFile, settings: Settings, *, by: str, timeout: float, dry_run: bool) -> Lines:
    """End the active run of the pipeline. Later runs may start.

    Raise PipelineStateError if it has not ended after `timeout` seconds. The request stays in the ledger.
    """
    with open_pipeline_state(file, settings) as (ledger, state):
        if dry_run:
            return (describe_run(ledger, file, state, "would end"),)
        request = ledger.request_stop(file.name, StopAction.STOP, by=by, reason="")
        if request is None:
            return ("No run is active.",)
        _wait_for_end(ledger, file, request.generation, timeout)
        return (_describe_end(ledger, file),)


def restart(file: PipelineFile, settings: Settings, *, by: str, timeout: float, dry_run: bool) -> Lines:
    """End the active run as a success, so that a supervisor starts the next one.

    The run ends by a pause, which is removed afterwards. A pause of a user stays, and is refused. If
    the process dies in between, the pipeline stays paused until another restart or `headrace resume`.
    """
    with open_pipeline_state(file, settings) as (ledger, state):
        _check_no_other_pause(file, state.request)
        following = "A supervisor or a schedule starts the next run. Without them, launch the job."
        if dry_run:
            return describe_run(ledger, file, state, "would end"), following
        request = ledger.request_stop(file.name, StopAction.PAUSE, by=by, reason=RESTART)
        _check_no_other_pause(file, request)
        if request is not None:
            _wait_for_end(ledger, file, request.generation, timeout)
        ledger.end_pause(file.name)
        return _describe_end(ledger, file), following


def replay(
    file: PipelineFile,
    settings: Settings,
    *,
    sink: str,
    from_epoch: int | None,
    start_spark: Callable[[], SparkSession] | None = None,
    dry_run: bool,
) -> Lines:
    """Write committed epochs again into one sink. `from_epoch` defaults to the one after its last.

    `start_spark` returns the session, by default a new one. A dry run does not call it.
    """
    with open_pipeline_state(file, settings) as (ledger, state):
        file.check_sink(sink)
        if from_epoch is not None and not state.kept_from <= from_epoch <= max(1, state.committed):
            kept = f"the ledger has epochs {state.kept_from} to {state.committed}"
            msg = f"epoch {from_epoch} cannot be replayed: {kept}"
            raise PipelineStateError(msg, hint=f"headrace reset {file.path} starts over with a new snapshot.")
        if dry_run:
            first = (
                "the epoch after the last one in the sink" if from_epoch is None else f"epoch {from_epoch}"
            )
            return (
                f"Sink {sink}: {first} to epoch {state.committed} would be written again.",
                describe_run(ledger, file, state, "must end first"),
            )
    from headrace.jobs.run.repair import replay as work

    result = work(
        file, settings, sink=sink, from_epoch=from_epoch, spark=start_spark() if start_spark else None
    )
    if not result.epochs:
        return (f"Nothing to replay: {sink} contains epoch {result.last_epoch}.",)
    rows = result.counts[sink].rows
    return (f"Sink {sink}: epochs {result.first_epoch} to {result.last_epoch} written again, {rows} rows.",)


def prune(file: PipelineFile, settings: Settings, *, keep: int, dry_run: bool) -> Lines:
    """Roll up all committed epochs of the ledger but the last `keep`.

    A run rolls up by itself, with the setting `ledger.keep_epochs`. Raise LeaseHeldError while one is active.
    """
    with open_pipeline_state(file, settings) as (ledger, state):
        complete = positions.history_complete(file.model, state.position)
        due = max(0, state.committed - keep - state.kept_from + 1)
        if dry_run:
            kept = "" if complete else " Epochs of history stay until all history is in the sinks."
            return (
                f"Up to {due} epochs would be rolled up. They can no longer be replayed.{kept}",
                describe_run(ledger, file, state, "must end first"),
            )
        from headrace.jobs.run.interventions import hold_lease

        total = 0
        with hold_lease(ledger, file, "prune") as lease:
            # A roll-up has epochs of one phase, so a short one need not be the last.
            while done := ledger.roll_up(lease, keep, history=complete):
                total += done
        return (f"{total} epochs are rolled up.",)


def _check_no_other_pause(file: PipelineFile, request: StopRequest | None) -> None:
    if request and request.is_pause and request.reason != RESTART:
        msg = f"pipeline `{file.name}` is paused {request}"
        raise PipelineStateError(msg, hint=f"End the pause: headrace resume {file.path}")


@contextmanager
def open_pipeline_state(file: PipelineFile, settings: Settings) -> Iterator[tuple[Ledger, PipelineState]]:
    """Open the ledger. Raise PipelineStateError for a pipeline that it does not have."""
    ledger = open_existing_ledger(settings)
    try:
        state = ledger.state(file.name) if ledger else None
        if ledger is None or state is None:
            msg = f"pipeline `{file.name}` never ran with this ledger"
            raise PipelineStateError(msg, hint=f"Start it: headrace run {file.path}")
        yield ledger, state
    finally:
        if ledger:
            ledger.close()


def describe_run(ledger: Ledger, file: PipelineFile, state: PipelineState, what: str) -> str:
    """Return a sentence about the active run. `what` is its verb."""
    if ledger.lease_status(file.name, state.generation) is not LeaseStatus.ACTIVE:
        return "No run is active."
    return f"The active run {what} ({format_owner(state.holder or {})})."


def _describe_end(ledger: Ledger, file: PipelineFile) -> str:
    state = ledger.state(file.name)
    return f"No run is active. The last epoch is {state.committed if state else 0}."


def _wait_for_end(ledger: Ledger, file: PipelineFile, generation: int, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while ledger.lease_status(file.name, generation) is LeaseStatus.ACTIVE:
        if time.monotonic() >= deadline:
            msg = f"the run of `{file.name}` has not ended within {timeout:.0f} s"
            raise PipelineStateError(msg, hint="The request stays, and the run ends when it reads it.")
        time.sleep(_POLL_SECONDS)
