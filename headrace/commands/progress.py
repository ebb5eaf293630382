"""Progress of a run: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.status import Status

from headrace.console import format_count, format_duration, format_rate
from headrace.jobs.run.events import EpochCommitted, Event, PartitionCompleted, PhaseChanged, RunMessage
from headrace.pipeline.protocol.epochs import Phase

_EVERY_SECONDS = 5.0
_PHASES = {Phase.HISTORY: "history", Phase.CATCHING_UP: "catching up", Phase.LIVE: "live"}


class ProgressScreen:
    """Listens to a run. It is called from the run's thread; rich's consoles are thread-safe."""

    def __init__(self, console: Console, name: str, status: Status | None) -> None:
        self._console = console
        self._name = name
        self._status = status
        self._started = time.monotonic()
        self._phase: Phase | None = None
        self._rows = 0
        self._shown_at = self._started
        self._backlog: int | None = None

    def __call__(self, event: Event) -> None:
        """Print an event."""
        match event:
            case EpochCommitted():
                self._add_epoch(event)
            case PhaseChanged():
                self._show_phase(event)
            case PartitionCompleted():
                rows = max(event.rows.values(), default=0)
                self._console.print(
                    f"{self._name}: {event.window or 'history'} complete, {format_count(rows)} rows"
                )
            case RunMessage():
                self._console.print(
                    f"{self._name}: {event.message}", style="yellow" if event.level != "info" else None
                )

    def on_stop_signal(self, signal_name: str) -> None:
        """Print that the signal was received."""
        self._console.print(f"{self._name}: {signal_name}, ending after the epoch in flight (25 s at most)")

    def on_epoch_abandoned(self) -> None:
        """Print that the stop ended the epoch in flight."""
        self._console.print(
            f"{self._name}: stopped. The epoch in flight was abandoned; the next run finishes it as planned"
        )

    def _show_phase(self, event: PhaseChanged) -> None:
        self._phase, self._rows, self._started = event.phase, 0, time.monotonic()
        self._console.print(f"{self._name}: {_PHASES[event.phase]}{_format_details(event)}")

    def _add_epoch(self, event: EpochCommitted) -> None:
        if (
            event.plan.phase != self._phase
        ):  # the open epoch of an earlier run comes before the first PhaseChanged
            self._show_phase(PhaseChanged(event.plan.phase))
            self._started -= event.steps["total"]
        self._rows += event.largest_rows
        self._backlog = event.backlog
        line = self._format_epoch(event)
        if self._status:
            self._status.update(line)
        elif time.monotonic() - self._shown_at >= _EVERY_SECONDS:
            self._shown_at = time.monotonic()
            self._console.print(f"{self._name}: {line}")

    def _format_epoch(self, event: EpochCommitted) -> str:
        seconds = time.monotonic() - self._started
        backlog = f", backlog {format_count(self._backlog)}" if self._backlog else ""
        phase = _PHASES[event.plan.phase]
        rows = (
            f"{format_count(self._rows)} rows in {format_duration(seconds)},"
            f" {format_rate(self._rows, seconds)}"
        )
        return f"{phase}, epoch {event.plan.number}, {rows}{backlog}"


def _format_details(event: PhaseChanged) -> str:
    """Return the number of partitions of history, or the offset at which the stream begins."""
    if partitions := event.detail.get("windows"):
        return f", {format_count(partitions)} partitions to go"
    offset = sum(sum(offsets.values()) for offsets in event.detail.get("offsets", {}).values())
    return f", from offset {format_count(offset)} over all partitions" if offset else ""


@contextmanager
def progress_screen(console: Console, name: str) -> Iterator[ProgressScreen]:
    """Yield a screen for the duration of a run."""
    if not console.is_terminal:
        console.print(f"{name}: starting")
        yield ProgressScreen(console, name, None)
        return
    with console.status(f"{name}: starting") as status:
        yield ProgressScreen(console, name, status)
