"""What a stream has done since it was last said: the event log is never pruned, so it is said once per sink and minute."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime

from headrace.jobs.run.events import EpochCommitted
from headrace.pipeline.model.run_options import PartitionsConfig
from headrace.pipeline.protocol.epochs import Phase, WriteCounts
from headrace.pipeline.protocol.partitions import list_partitions

EVERY = 60.0
"""Seconds between two reports of one sink."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One sink's epochs first..last. `backlog` is what the stream had still to read behind the last one, None if unknown."""

    sink: str
    counts: WriteCounts = field(default_factory=WriteCounts)
    epochs: int = 0
    first: int = 0
    last: int = 0
    phase: Phase = Phase.LIVE
    backlog: int | None = None
    seconds: float = 0.0
    """How long it took to write them, without the pauses between."""


class Tally:
    """Adds up epochs by sink, and says which sinks are due, first after `every`. `clock` is a monotonic one, in seconds."""

    def __init__(self, sinks: Iterable[str], clock: Callable[[], float], every: float = EVERY) -> None:
        self._clock, self._every = clock, every
        self._figures = {sink: Figures(sink) for sink in sinks}
        self._said = dict.fromkeys(self._figures, clock())

    def add(self, event: EpochCommitted) -> None:
        """Takes an epoch in for every sink."""
        number, seconds = event.plan.number, event.steps.get("total", 0.0)
        for sink, had in self._figures.items():
            self._figures[sink] = replace(
                had,
                counts=had.counts + event.counts.get(sink, WriteCounts()),
                epochs=had.epochs + 1,
                first=had.first or number,
                last=number,
                phase=event.plan.phase,
                backlog=event.backlog,
                seconds=had.seconds + seconds,
            )

    def due(self, *, all_of_it: bool = False) -> list[Figures]:
        """Sinks with something new that were not reported within `every` seconds; their tally starts anew.

        With `all_of_it` the time does not matter: at the end of a run nothing stays unsaid.
        """
        now = self._clock()
        ready = [
            figures for sink, figures in self._figures.items() if figures.epochs and (all_of_it or now - self._said[sink] >= self._every)
        ]
        for figures in ready:
            self._said[figures.sink] = now
            self._figures[figures.sink] = Figures(figures.sink)
        return ready


def _today() -> date:
    return datetime.now(UTC).date()


class StreamWindows:
    """The partitions behind the history's end, which the stream fills.

    One is full when its end has passed on the clock and the stream has caught up after that.
    """

    def __init__(self, partitions: PartitionsConfig | None, known: Collection[str], today: Callable[[], date] = _today) -> None:
        """`known` are keys that were said to be full before."""
        first = (partitions.history_end or partitions.end) if partitions else date.max
        every = list_partitions(partitions, history_only=False) if partitions else []
        self._open = [window for window in every if window.start >= first and window.key not in known]
        self._today = today

    def current(self) -> str | None:
        """The window that today lies in, None where the stream's windows are all past or not yet begun."""
        today = self._today()
        return next((window.key for window in self._open if window.start <= today < window.end), None)

    def filled(self, *, caught_up: bool) -> list[str]:
        """Windows that are full now, each answered once."""
        if not caught_up:
            return []
        today = self._today()
        full = [window.key for window in self._open if window.end <= today]
        self._open = [window for window in self._open if window.end > today]
        return full
