"""The face of a run while it works: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.status import Status

from headrace.console import count, rate, span
from headrace.jobs.run.events import EpochCommitted, Event, PartitionCompleted, PhaseChanged, RunMessage
from headrace.pipeline.protocol.epochs import Phase

_EVERY_SECONDS = 5.0
_PHASES = {Phase.HISTORY: "history", Phase.CATCHING_UP: "catching up", Phase.LIVE: "live"}


class ProgressScreen:
    """Listens to a run. Called from the run's thread; rich's consoles are safe for that."""

    def __init__(self, console: Console, name: str, status: Status | None) -> None:
        self._console = console
        self._name = name
        self._status = status
        self._started = time.monotonic()
        self._phase: Phase | None = None
        self._rows = 0
        self._said = self._started
        self._behind: int | None = None

    def __call__(self, event: Event) -> None:
        """Shows one event."""
        match event:
            case EpochCommitted():
                self._epoch(event)
            case PhaseChanged():
                self._enter(event)
            case PartitionCompleted():
                rows = max(event.rows.values(), default=0)
                self._console.print(f"{self._name}: {event.window or 'history'} complete, {count(rows)} rows")
            case RunMessage():
                self._console.print(f"{self._name}: {event.message}", style="yellow" if event.level != "info" else None)

    def asked_to_stop(self, signal_name: str) -> None:
        """Says that the signal was heard."""
        self._console.print(f"{self._name}: {signal_name}, ending after the epoch in flight (25 s at most)")

    def gave_up(self) -> None:
        """Says what became of the epoch in flight when the stop took it down."""
        self._console.print(f"{self._name}: stopped. The epoch in flight was given up; the next run finishes it as planned")

    def _enter(self, event: PhaseChanged) -> None:
        self._phase, self._rows, self._started = event.phase, 0, time.monotonic()
        self._console.print(f"{self._name}: {_PHASES[event.phase]}{_details(event)}")

    def _epoch(self, event: EpochCommitted) -> None:
        if event.plan.phase != self._phase:  # an epoch that an earlier run left open comes before any phase is announced
            self._enter(PhaseChanged(event.plan.phase))
            self._started -= event.steps["total"]
        self._rows += max((counts.rows for counts in event.counts.values()), default=0)
        self._behind = event.backlog
        line = self._line(event)
        if self._status:
            self._status.update(line)
        elif time.monotonic() - self._said >= _EVERY_SECONDS:
            self._said = time.monotonic()
            self._console.print(f"{self._name}: {line}")

    def _line(self, event: EpochCommitted) -> str:
        spent = time.monotonic() - self._started
        behind = f", {count(self._behind)} behind" if self._behind else ""
        phase = _PHASES[event.plan.phase]
        return f"{phase}, epoch {event.plan.number}, {count(self._rows)} rows in {span(spent)}, {rate(self._rows, spent)}{behind}"


def _details(event: PhaseChanged) -> str:
    """How many windows of history, or at how many offsets the stream begins."""
    if windows := event.detail.get("windows"):
        return f", {count(windows)} windows to go"
    at = sum(sum(offsets.values()) for offsets in event.detail.get("offsets", {}).values())
    return f", from offset {count(at)} over all partitions" if at else ""


@contextmanager
def progress_screen(console: Console, name: str) -> Iterator[ProgressScreen]:
    """A screen for the length of a run."""
    if not console.is_terminal:
        console.print(f"{name}: starting")
        yield ProgressScreen(console, name, None)
        return
    with console.status(f"{name}: starting") as status:
        yield ProgressScreen(console, name, status)
