"""The partitions of a history: [start, end) in days, weeks, months or years."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from headrace.pipeline.model.run_options import PartitionsConfig

WHOLE = ""
"""The key of the only partition of an unpartitioned history."""


@dataclass(frozen=True, slots=True)
class TimePartition:
    """One partition. `key` is the ISO date of its first day, as Dagster names it."""

    key: str
    start: date
    end: date


def today() -> date:
    """Return the current day in UTC."""
    return datetime.now(UTC).date()


def _next(day: date, every: str) -> date:
    match every:
        case "day" | "week":
            return day + timedelta(days=7 if every == "week" else 1)
        case "month":
            return date(day.year + day.month // 12, day.month % 12 + 1, 1)
        case _:
            return date(day.year + 1, 1, 1)


def history_end(partitions: PartitionsConfig, now: date | None = None) -> date:
    """Return the day after the last partition that history fills.

    With an open end, this is the first day of the partition of `now`, by default today.
    """
    if partitions.history_end is not None:
        return partitions.history_end
    return _current_start(partitions, now) if isinstance(partitions.end, str) else partitions.end


def is_history_open(partitions: PartitionsConfig | None) -> bool:
    """Return whether history gets a new partition whenever one has passed."""
    return partitions is not None and partitions.history_end is None and isinstance(partitions.end, str)


def _current_start(partitions: PartitionsConfig, now: date | None) -> date:
    """Return the first day of the partition that `now` is in, or `start` if that is later."""
    day, now = partitions.start, now or today()
    while (after := _next(day, partitions.every)) <= now:
        day = after
    return day


def list_partitions(
    partitions: PartitionsConfig, *, history_only: bool = True, now: date | None = None
) -> list[TimePartition]:
    """Return all partitions in order, or only those that history fills if `history_only` is set.

    With an open end, the partition of `now` (by default today) is the last one, and history does not fill it.
    """
    if history_only:
        last = history_end(partitions, now)
    elif isinstance(partitions.end, str):
        current = _next(_current_start(partitions, now), partitions.every)
        last = max(current, partitions.history_end or date.min)
    else:
        last = partitions.end
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
    after = _next(start, partitions.every)
    return TimePartition(
        key, start, after if is_history_open(partitions) else min(after, history_end(partitions))
    )


def describe_keys(keys: Sequence[str]) -> str:
    """Return the first and the last of the partitions' keys, for messages."""
    return f"{keys[0]} to {keys[-1]}" if keys else "none has passed yet"


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
