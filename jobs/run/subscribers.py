"""The events of a run and their subscribers: the log, the lease's heartbeat, the metrics, the listener."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.jobs.run.events import (
    AttemptFailed,
    CallsPending,
    EpochCommitted,
    EpochStarted,
    Event,
    LagMeasured,
    Listener,
    PhaseChanged,
    RunEvent,
    RunFailed,
    RunMessage,
    StreamIdle,
    StreamStalled,
)
from headrace.jobs.staging.pending_calls import read_pending_calls
from headrace.pipeline.errors import HeadraceError
from headrace.pipeline.protocol.epochs import Json

if TYPE_CHECKING:
    from headrace.jobs.monitoring.monitor import NullMonitor

log = logging.getLogger(__name__)

Subscriber = Callable[[RunEvent], None]


class EventStream:
    """Passes each event of a run to all subscribers, in the order in which they subscribed.

    Events of one thread reach every subscriber in the order in which they were published. The run's own
    thread publishes all events except `CallsPending`, which the heartbeat's thread publishes.
    """

    def __init__(self, *subscribers: Subscriber) -> None:
        self._subscribers = subscribers

    def publish(self, event: RunEvent) -> None:
        """Pass an event to every subscriber.

        A subscriber that fails is logged, and neither the others nor the run fail.
        """
        for subscriber in self._subscribers:
            try:
                subscriber(event)
            except Exception as error:  # rows must not depend on those who watch
                log.warning(
                    "event=subscriber_failed run_event=%s error=%s: %s",
                    type(event).__name__,
                    type(error).__name__,
                    error,
                    exc_info=error,
                )


def log_event(event: RunEvent) -> None:
    """Write messages, and external calls that tasks begin to wait for, to the log."""
    if isinstance(event, RunMessage):
        log.log(
            logging.WARNING if event.level == "warning" else logging.INFO,
            "event=run_message message=%s",
            event.message,
        )
    elif isinstance(event, CallsPending):
        for node, message in event.started.items():
            log.warning("event=calls_pending node=%s message=%s", node, message)


def forward_to_monitor(monitor: NullMonitor) -> Subscriber:
    """Return the subscriber that records events as metrics."""

    def record(event: RunEvent) -> None:
        match event:
            case EpochStarted():
                monitor.record_plan(event.plan, again=event.again)
            case EpochCommitted():
                monitor.record_commit(event.plan, event.counts, event.steps, event.backlog, event.rejected)
            case AttemptFailed() | RunFailed():
                monitor.record_failure(event.error)
            case PhaseChanged():
                monitor.phase(event.phase)
            case LagMeasured():
                monitor.lags(event.lags)
            case CallsPending():
                monitor.waiting = event.message
            case _:
                pass

    return record


def forward_to_listener(listener: Listener) -> Subscriber:
    """Return the subscriber that passes the events of `Event` to the listener, in the run's thread."""

    def forward(event: RunEvent) -> None:
        if isinstance(event, Event):
            listener(event)

    return forward


def create_event_stream(
    heartbeat: HeartbeatDetails, monitor: NullMonitor, listener: Listener | None
) -> EventStream:
    """Return the event stream of a run, with all its subscribers."""
    to_listener = [forward_to_listener(listener)] if listener is not None else []
    return EventStream(log_event, heartbeat, forward_to_monitor(monitor), *to_listener)


class HeartbeatDetails:
    """The heartbeat's data in the ledger: phase, rows, backlog, last error, pending external calls.

    As a subscriber it runs in the run's thread; `read` runs in the heartbeat's.
    """

    def __init__(self) -> None:
        self._progress: Json = {}
        self._stall = ""
        self._calls: dict[str, str] = {}
        self._message = ""

    def __call__(self, event: RunEvent) -> None:
        """Update the data from an event."""
        match event:
            case EpochCommitted():
                self._progress = _progress(event)
            case AttemptFailed():
                self._progress = {**self._progress, "error": _first_line(event.error)}
            case StreamIdle():
                self._progress = {**self._progress, "backlog": event.backlog}
            case StreamStalled():
                self._stall = event.message
            case _:
                pass

    def read(self, folder: Path, publish: Callable[[CallsPending], None]) -> Json:
        """Return the data for a heartbeat.

        Reads the external calls that tasks wait for from `folder`, and publishes a CallsPending event if what
        the run waits for has changed.
        """
        calls = read_pending_calls(folder)
        message = "; ".join(
            [*(f"{node}: {call}" for node, call in calls.items()), *([self._stall] if self._stall else [])]
        )
        if message != self._message:
            started = {node: call for node, call in calls.items() if node not in self._calls}
            self._calls, self._message = calls, message
            publish(CallsPending(message, started))
        return {**self._progress, "waiting": message} if message else self._progress


def _progress(event: EpochCommitted) -> Json:
    rows = event.largest_rows
    return {
        "phase": str(event.plan.phase),
        "epoch": event.plan.number,
        "rows": rows,
        "rows_per_s": round(rows / max(event.steps["total"], 1e-3)),
        "backlog": event.backlog,
    }


def _first_line(error: HeadraceError) -> str:
    return error.message.splitlines()[0][:200] if error.message else type(error).__name__
