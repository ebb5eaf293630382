"""`headrace run --refresh` next to a run that owns the pipeline: the request, and the wait for its result."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from headrace.commands.stop import describe_user
from headrace.connectors.ledger.factory import open_ledger
from headrace.console import stderr_console, stdout_console
from headrace.jobs.run.events import RunResult
from headrace.jobs.run.queued_refresh import QueuedRefresh
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import LeaseHeldError, TransientError
from headrace.pipeline.file.loader import PipelineFile
from headrace.pipeline.protocol.ledger import LeaseStatus, Ledger, RefreshRequest, RefreshState
from headrace.pipeline.protocol.ledger.owner import format_owner

_POLL_SECONDS = 0.2


def run_or_queue(
    file: PipelineFile,
    settings: Settings,
    partitions: Sequence[str],
    run: Callable[[bool], RunResult],
    stop: threading.Event,
) -> RunResult | None:
    """Refresh partitions (all of history if empty) in a run of this process, or ask the run that is active.

    `run` starts a run, and raises LeaseHeldError if another one is active. Its argument is whether it
    refreshes the partitions; otherwise it executes the request in the ledger. Return its result. Return None
    if another run has executed the request, or if `stop` was set. Raise PipelineStateError if the request was
    refused.
    """
    with suppress(LeaseHeldError):
        return run(True)
    ledger = open_ledger(settings)
    try:
        queued = QueuedRefresh.make(ledger, file, partitions, by=describe_user())
        while not stop.is_set():
            if _wait_for_result(ledger, file, queued, stop):
                return None
            with suppress(LeaseHeldError):
                result = run(False)
                queued.read()
                return result
    finally:
        ledger.close()
    return None


def _wait_for_result(
    ledger: Ledger, file: PipelineFile, queued: QueuedRefresh, stop: threading.Event
) -> bool:
    """Wait until the active run has executed the request. Return False if it ended before, or on `stop`."""
    shown = ""
    while not stop.is_set():
        with suppress(TransientError):  # the request is stored; the ledger can be away for a moment
            if (request := queued.read()).state is RefreshState.DONE:
                stdout_console().print(_describe_result(file, request), markup=False, soft_wrap=True)
                return True
            state = ledger.state(file.name)
            if state is None or ledger.lease_status(file.name, state.generation) is not LeaseStatus.ACTIVE:
                return False
            owner = format_owner(state.holder or {})
            if owner != shown:
                _print(
                    f"{file.name}: the refresh of {request.subject} is queued for the run ({owner}), which"
                    " executes it between two epochs. Ctrl-C leaves the request in the ledger"
                )
                shown = owner
        stop.wait(_POLL_SECONDS)
    _print(f"{file.name}: the request stays. The run that owns the pipeline executes it")
    return False


def _describe_result(file: PipelineFile, request: RefreshRequest) -> str:
    first, last = request.first_epoch, request.last_epoch
    epochs = f"epoch {last}" if first is None else f"epochs {first} to {last}"
    return f"{file.name}: refreshed {request.subject}, {epochs}"


def _print(line: str) -> None:
    stderr_console().print(line, markup=False, soft_wrap=True)
