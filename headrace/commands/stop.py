"""`headrace stop`, `pause` and `resume`: requests in the ledger, which the run reads within a second."""

from __future__ import annotations

import getpass
import socket
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from headrace.connectors.ledger.factory import open_existing_ledger, open_ledger
from headrace.console import format_duration, stderr_console, stdout_console
from headrace.pipeline.config.settings import load_settings
from headrace.pipeline.errors import PipelineStateError, TransientError
from headrace.pipeline.file.loader import load_pipeline
from headrace.pipeline.protocol.ledger import LeaseStatus, Ledger, PipelineState, StopAction, StopRequest
from headrace.pipeline.protocol.ledger.owner import format_owner

_POLL_SECONDS = 0.2


def stop(path: Path, *, reason: str, timeout: timedelta) -> None:
    """End the active run of a pipeline, and wait for its end.

    Raise PipelineStateError if it has not ended after `timeout`. The request stays in the ledger then.
    """
    name = load_pipeline(path).name
    ledger = open_existing_ledger(load_settings())
    if ledger is None:
        _print(f"{name} has not been started yet")
        return
    try:
        before = ledger.state(name)
        request = ledger.request_stop(name, StopAction.STOP, by=describe_user(), reason=reason)
        if request is None:
            _print(f"{name}: no run is active{_describe_rest(before)}")
            return
        _wait_until_ended(ledger, name, request, before, timeout)
        if before and before.holder and before.holder.get("launched_by") == "dagster":
            _print("In Dagster the run is canceled. The supervisor waits until you launch the stream's job.")
    finally:
        ledger.close()


def pause(path: Path, *, reason: str, timeout: timedelta) -> None:
    """Keep runs of a pipeline from starting until `resume`. End the active run, and wait for its end.

    Raise PipelineStateError if it has not ended after `timeout`. The pause stays in the ledger then.
    """
    name = load_pipeline(path).name
    ledger = open_ledger(load_settings())
    try:
        before = ledger.state(name)
        request = ledger.request_stop(name, StopAction.PAUSE, by=describe_user(), reason=reason)
        if request and ledger.lease_status(name, request.generation) is LeaseStatus.ACTIVE:
            _wait_until_ended(ledger, name, request, before, timeout)
        _print(f"{name}: paused {request}")
        _print(f"No run starts until: headrace resume {path}")
    finally:
        ledger.close()


def resume(path: Path) -> None:
    """End the pause of a pipeline. This starts no run."""
    name = load_pipeline(path).name
    ledger = open_existing_ledger(load_settings())
    try:
        former = ledger.end_pause(name) if ledger else None
    finally:
        if ledger:
            ledger.close()
    if former is None:
        _print(f"{name} is not paused")
        return
    _print(f"{name}: resumed. It was paused {former}")
    _print(f"A supervisor or a schedule continues at its next tick. Without them: headrace run {path}")


def _wait_until_ended(
    ledger: Ledger, name: str, request: StopRequest, before: PipelineState | None, timeout: timedelta
) -> None:
    """Wait until the owner that the request is for has released its lease or has died."""
    owner = format_owner(before.holder) if before and before.holder else "its lease has expired"
    stderr_console().print(
        f"{name}: waiting for the run ({owner}), which ends after the epoch in flight (25 s at most)",
        markup=False,
        soft_wrap=True,
    )
    deadline = time.monotonic() + timeout.total_seconds()
    while True:
        with suppress(TransientError):  # the request is stored; the ledger can be away for a moment
            status = ledger.lease_status(name, request.generation)
            if status is not LeaseStatus.ACTIVE:
                break
        if time.monotonic() >= deadline:
            seconds = format_duration(timeout.total_seconds())
            msg = f"the run of `{name}` has not ended within {seconds} ({owner})"
            hint = "The request stays, and the run ends when it reads it. `kill -9` is safe too."
            raise PipelineStateError(msg, hint=hint)
        time.sleep(_POLL_SECONDS)
    if status is LeaseStatus.EXPIRED:
        _print(f"{name}: no run is active: the lease has expired. A suspended process ends later")
        return
    state = ledger.state(name)
    how = "its process has died" if status is LeaseStatus.DEAD else "stopped"
    _print(f"{name}: {how} after epoch {state.committed if state else 0}")


def _describe_rest(state: PipelineState | None) -> str:
    if state is None:
        return ""
    if state.holder:
        return f"; the process of the last one has died ({format_owner(state.holder)})"
    if state.request and state.request.is_pause:
        return f"; it is paused {state.request}"
    return ""


def describe_user() -> str:
    """Return `user@host`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def _print(line: str) -> None:
    stdout_console().print(line, markup=False, soft_wrap=True)
