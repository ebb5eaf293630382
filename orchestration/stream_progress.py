"""Progress of a stream since its last report.

Dagster never prunes its event log, so a sink is reported once a minute at first, and every four minutes
later. With two sinks that is less than 100 MB a week.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from datetime import date, datetime

from headrace.jobs.run.events import EpochCommitted
from headrace.pipeline.model.partitions import PartitionsConfig, TimePartitionsConfig
from headrace.pipeline.protocol.epochs import Phase, WriteCounts
from headrace.pipeline.protocol.partitions import TimePartition, current_time, history_end, list_partitions

REPORT_SECONDS = 60.0
"""Seconds between two reports of a sink in the first `EARLY_SECONDS` of a run, unless the file has fewer."""
EARLY_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class SinkProgress:
    """The epochs `first` to `last` of a sink.

    `backlog` is what the stream had still to read after `last`, if known.
    """

    sink: str
    counts: WriteCounts = field(default_factory=WriteCounts)
    epochs: int = 0
    first: int = 0
    last: int = 0
    phase: Phase = Phase.LIVE
    backlog: int | None = None
    seconds: float = 0.0
    """The time to write them, without the pauses between them."""


class StreamProgress:
    """Sums up epochs by sink, and returns the sinks that are due. `clock` is monotonic, in seconds.

    `interval` is the time between two reports of a sink, in seconds.
    """

    def __init__(
        self,
        sinks: Iterable[str],
        clock: Callable[[], float],
        interval: float = REPORT_SECONDS,
    ) -> None:
        self._clock, self._early_interval, self._interval = clock, min(interval, REPORT_SECONDS), interval
        self._started = clock()
        self._progress = {sink: SinkProgress(sink) for sink in sinks}
        self._reported_at = dict.fromkeys(self._progress, clock())

    def add(self, event: EpochCommitted) -> None:
        """Add an epoch to every sink."""
        number, seconds = event.plan.number, event.steps.get("total", 0.0)
        for sink, progress in self._progress.items():
            self._progress[sink] = replace(
                progress,
                counts=progress.counts + event.counts.get(sink, WriteCounts()),
                epochs=progress.epochs + 1,
                first=progress.first or number,
                last=number,
                phase=event.plan.phase,
                backlog=event.backlog,
                seconds=progress.seconds + seconds,
            )

    def take_due(self, *, force: bool = False) -> list[SinkProgress]:
        """Return the sinks with new epochs and no report for the interval, and reset them.

        `force` ignores the time, for the end of a run.
        """
        now = self._clock()
        is_early = now - self._started <= EARLY_SECONDS
        interval = self._early_interval if is_early else self._interval
        due = [
            progress
            for sink, progress in self._progress.items()
            if progress.epochs and (force or now - self._reported_at[sink] >= interval)
        ]
        for progress in due:
            self._reported_at[progress.sink] = now
            self._progress[progress.sink] = SinkProgress(progress.sink)
        return due


class StreamPartitions:
    """The windows of time after the end of history, which the stream fills.

    A partition is current until its end has passed, and complete when the stream has caught up after that.
    In between, a partition that the stream has filled is begun.
    """

    def __init__(
        self,
        partitions: PartitionsConfig | None,
        reported: Collection[str],
        filled: Collection[str] = (),
        now: Callable[[], datetime] | None = None,
    ) -> None:
        """Take the partitions that are not in `reported`, the keys that were complete before.

        `filled` are the keys that were current before. `now` returns the time in UTC without a zone.
        """
        self._partitions = partitions if isinstance(partitions, TimePartitionsConfig) else None
        self._reported = set(reported)
        self._filled = set(filled)
        self._now = now

    def current(self) -> str | None:
        """Return the partition of now, None if all are past or none has begun."""
        now, listed = self._list_open()
        result = next((one.key for one in listed if one.start <= now < one.end), None)
        if result is not None:
            self._filled.add(result)
        return result

    def take_begun(self) -> list[str]:
        """Return the partitions that were current, have passed and are not complete, each once."""
        now, listed = self._list_open()
        begun = [one.key for one in listed if one.end <= now and one.key in self._filled]
        self._filled.difference_update(begun)
        return begun

    def take_completed(self, *, caught_up: bool) -> list[str]:
        """Return the partitions that are complete now, each once."""
        if not caught_up:
            return []
        now, listed = self._list_open()
        completed = [one.key for one in listed if one.end <= now]
        self._reported.update(completed)
        return completed

    def _list_open(self) -> tuple[date, list[TimePartition]]:
        """Return the time and the partitions of the stream that are not reported as complete, up to now's."""
        if self._partitions is None:
            return date.min, []
        moment = self._now() if self._now else None
        first = history_end(self._partitions)
        return current_time(self._partitions, moment), [
            one
            for one in list_partitions(self._partitions, history_only=False, now=moment)
            if one.start >= first and one.key not in self._reported
        ]
