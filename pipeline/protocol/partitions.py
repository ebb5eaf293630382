"""The partitions of a history: [start, end) in days or months."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta

from headrace.pipeline.model.run_options import PartitionsConfig

WHOLE = ""
"""The key of the only partition of an unpartitioned history."""


@dataclass(frozen=True, slots=True)
class TimePartition:
    """One partition. `key` is the ISO date of its first day, as Dagster names it."""

    key: str
    start: date
    end: date


def _next(day: date, every: str) -> date:
    if every == "day":
        return day + timedelta(days=1)
    return date(day.year + day.month // 12, day.month % 12 + 1, 1)


def history_end(partitions: PartitionsConfig) -> date:
    """Return the day after the last partition that history fills."""
    return partitions.history_end or partitions.end


def list_partitions(partitions: PartitionsConfig, *, history_only: bool = True) -> list[TimePartition]:
    """Return all partitions in order, or only those that history fills if `history_only` is set."""
    last = history_end(partitions) if history_only else partitions.end
    found: list[TimePartition] = []
    day = partitions.start
    while day < last:
        after = min(_next(day, partitions.every), last)
        found.append(TimePartition(day.isoformat(), day, after))
        day = after
    return found


def window_at(partitions: PartitionsConfig, key: str) -> TimePartition:
    """Return the partition of history whose first day is `key`."""
    start = date.fromisoformat(key)
    return TimePartition(key, start, min(_next(start, partitions.every), history_end(partitions)))


def window_keys(partitions: PartitionsConfig | None) -> list[str]:
    """Return the keys of the history's partitions, or one empty key if history has no partitions."""
    return [window.key for window in list_partitions(partitions)] if partitions else [WHOLE]


@dataclass(frozen=True, slots=True)
class HistoryPartition:
    """A range of history by one column, [start, end), as literals of that column's type.

    `key` names it ('2013-01-01').
    """

    key: str
    column: str
    start: str
    end: str


@dataclass(frozen=True, slots=True)
class UnpartitionedRows:
    """Rows of a history that no partition has: those without a value, and those after the last partition.

    The last value among the latter is `last`.
    """

    nulls: int = 0
    later: int = 0
    last: str = ""
