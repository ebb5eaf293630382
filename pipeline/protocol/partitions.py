"""The partitions of a history.

They are windows of time, [start, end) in hours, days, weeks, months or years, ranges of an integer column, or
values of a column.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import TypeGuard
from zoneinfo import ZoneInfo

from headrace.pipeline.model.partitions import (
    UTC_ZONE,
    IntegerPartitionsConfig,
    PartitionsConfig,
    TimePartitionsConfig,
    ValuePartitionsConfig,
)

WHOLE = ""
"""The key of the only partition of an unpartitioned history."""
HOUR_FORMAT = "%Y-%m-%dT%H"
"""The key of an hour: no colon, because keys are parts of file names."""
_DIGITS = 19
"""Of the largest 64-bit integer."""


@dataclass(frozen=True, slots=True)
class TimePartition:
    """One partition. `key` is the ISO date of its first day, or `2024-03-01T05`, as Dagster names it.

    `start` and `end` are days in UTC. If partitions are hours, or days of another time zone, they are
    datetimes in UTC without a zone.
    """

    key: str
    start: date
    end: date


def today() -> date:
    """Return the current day in UTC."""
    return datetime.now(UTC).date()


def utc_now() -> datetime:
    """Return the current time in UTC, without a zone."""
    return datetime.now(UTC).replace(tzinfo=None)


def has_time_bounds(partitions: TimePartitionsConfig) -> bool:
    """Return whether the bounds of partitions are datetimes, and not days."""
    return partitions.every == "hour" or partitions.timezone != UTC_ZONE


def current_time(partitions: TimePartitionsConfig, now: datetime | None = None) -> date:
    """Return `now`, by default the current time, in the type of the partitions' bounds: days or times."""
    if has_time_bounds(partitions):
        return now or utc_now()
    return now.date() if now else today()


def _current_step(partitions: TimePartitionsConfig, now: datetime | None) -> date:
    """Return the current time in UTC for hours, else the current day in the time zone of the partitions."""
    current = current_time(partitions, now)
    if partitions.every == "hour" or not isinstance(current, datetime):
        return current
    return current.replace(tzinfo=UTC).astimezone(ZoneInfo(partitions.timezone)).date()


def _step_of(partitions: TimePartitionsConfig, day: date) -> date:
    """Return the beginning of a day as the steps of the partitions are: days, or datetimes for hours."""
    return datetime.combine(day, time()) if partitions.every == "hour" else day


def _to_instant(partitions: TimePartitionsConfig, step: date) -> date:
    """Return a step, or the moment in UTC at which that day begins in the partitions' time zone."""
    if isinstance(step, datetime) or not has_time_bounds(partitions):
        return step
    midnight = datetime.combine(step, time(), ZoneInfo(partitions.timezone))
    return midnight.astimezone(UTC).replace(tzinfo=None)


def _next(day: date, every: str) -> date:
    match every:
        case "hour":
            return day + timedelta(hours=1)
        case "day" | "week":
            return day + timedelta(days=7 if every == "week" else 1)
        case "month":
            return date(day.year + day.month // 12, day.month % 12 + 1, 1)
        case _:
            return date(day.year + 1, 1, 1)


def history_end(partitions: TimePartitionsConfig, now: datetime | None = None) -> date:
    """Return the end of the last partition that history fills, in the type of the partitions' bounds.

    With an open end, this is the start of the partition of `now` (UTC without a zone), by default now.
    """
    return _to_instant(partitions, _last_step(partitions, now))


def _last_step(partitions: TimePartitionsConfig, now: datetime | None = None) -> date:
    if partitions.history_end is not None:
        return _step_of(partitions, partitions.history_end)
    if isinstance(partitions.end, str):
        return _current_start(partitions, now)
    return _step_of(partitions, partitions.end)


def is_history_open(partitions: PartitionsConfig | None) -> TypeGuard[TimePartitionsConfig]:
    """Return whether history gets a new partition whenever one has passed."""
    return (
        isinstance(partitions, TimePartitionsConfig)
        and partitions.history_end is None
        and isinstance(partitions.end, str)
    )


def _current_start(partitions: TimePartitionsConfig, now: datetime | None) -> date:
    """Return the first step of the partition that `now` is in, or `start` if that is later."""
    day, current = _step_of(partitions, partitions.start), _current_step(partitions, now)
    if isinstance(current, datetime):
        return max(day, current.replace(minute=0, second=0, microsecond=0))
    while (after := _next(day, partitions.every)) <= current:
        day = after
    return day


def list_partitions(
    partitions: TimePartitionsConfig, *, history_only: bool = True, now: datetime | None = None
) -> list[TimePartition]:
    """Return all partitions in order, or only those that history fills if `history_only` is set.

    With an open end, the partition of `now` (UTC without a zone, by default now) is the last one, and history
    does not fill it.
    """
    if history_only:
        last = _last_step(partitions, now)
    elif isinstance(partitions.end, str):
        current = _next(_current_start(partitions, now), partitions.every)
        last = max(current, _step_of(partitions, partitions.history_end or date.min))
    else:
        last = _step_of(partitions, partitions.end)
    result: list[TimePartition] = []
    step = _step_of(partitions, partitions.start)
    while step < last:
        after = min(_next(step, partitions.every), last)
        result.append(
            TimePartition(_key_of(step), _to_instant(partitions, step), _to_instant(partitions, after))
        )
        step = after
    return result


def _key_of(start: date) -> str:
    return start.strftime(HOUR_FORMAT) if isinstance(start, datetime) else start.isoformat()


def _window_at(partitions: TimePartitionsConfig, key: str) -> TimePartition:
    """Return the partition of history that begins at `key`."""
    is_hour = partitions.every == "hour"
    step = datetime.strptime(key, HOUR_FORMAT) if is_hour else date.fromisoformat(key)  # noqa: DTZ007  UTC
    after = _next(step, partitions.every)
    last = after if is_history_open(partitions) else min(after, _last_step(partitions))
    return TimePartition(key, _to_instant(partitions, step), _to_instant(partitions, last))


def partition_at(partitions: PartitionsConfig, key: str) -> HistoryPartition:
    """Return the rows of a partition of history."""
    if isinstance(partitions, ValuePartitionsConfig):
        return HistoryPartition(key, partitions.column, key, key)
    if isinstance(partitions, IntegerPartitionsConfig):
        return HistoryPartition(key, partitions.column, key, str(int(key) + partitions.every))
    start, end = partition_span(partitions, key)
    if start == end:  # a day that a time zone left out has no rows; equal bounds would be a value
        end = (datetime.fromisoformat(end) - timedelta(seconds=1)).isoformat()
    return HistoryPartition(key, partitions.column, start, end)


def partition_span(partitions: PartitionsConfig | None, key: str) -> tuple[str, str]:
    """Return start and end of a partition as a position stores them: their order as text is their order."""
    if partitions is None or key == WHOLE:
        return WHOLE, WHOLE
    if isinstance(partitions, ValuePartitionsConfig):
        return key, key
    if isinstance(partitions, IntegerPartitionsConfig):
        return f"{int(key):0{_DIGITS}d}", f"{int(key) + partitions.every:0{_DIGITS}d}"
    window = _window_at(partitions, key)
    return window.start.isoformat(), window.end.isoformat()


def snapshot_coverage(partitions: PartitionsConfig | None) -> str | list[str] | None:
    """Return which partitions a snapshot can fill that is created after this call. None: also later ones.

    A text is the end of the last partition, as in `partition_span`. A list has the values. Rows of other
    partitions are not in the snapshot, or only some of them.
    """
    if isinstance(partitions, ValuePartitionsConfig):
        return list(partitions.values)
    if isinstance(partitions, IntegerPartitionsConfig):
        return f"{partitions.end:0{_DIGITS}d}"
    return history_end(partitions).isoformat() if is_history_open(partitions) else None


def partition_length(partitions: PartitionsConfig) -> str | int:
    """Return how long a partition is: a length of time, a number, or `value`."""
    return "value" if isinstance(partitions, ValuePartitionsConfig) else partitions.every


def describe_keys(keys: Sequence[str]) -> str:
    """Return the first and the last of the partitions' keys, for messages."""
    return f"{keys[0]} to {keys[-1]}" if keys else "none has passed yet"


def window_keys(partitions: PartitionsConfig | None) -> list[str]:
    """Return the keys of the history's partitions, or one empty key if history has no partitions."""
    if partitions is None:
        return [WHOLE]
    if isinstance(partitions, ValuePartitionsConfig):
        return list(partitions.values)
    if isinstance(partitions, IntegerPartitionsConfig):
        return [str(first) for first in range(partitions.start, partitions.end, partitions.every)]
    return [window.key for window in list_partitions(partitions)]


@dataclass(frozen=True, slots=True)
class HistoryPartition:
    """A range of history by one column, [start, end), as literals of that column's type.

    `key` names it ('2013-01-01'). If `start` and `end` are equal, the partition has the rows with that value.
    """

    key: str
    column: str
    start: str
    end: str


@dataclass(frozen=True, slots=True)
class PartitionGap:
    """The values of a column that no partition has, as literals of its type.

    They are those from `start` to before `end`, and those before `before`; an empty text is no bound. With
    `values`, they are all others.
    """

    column: str
    start: str = ""
    end: str = ""
    before: str = ""
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UnpartitionedRows:
    """Rows of a history that no partition has: those without a value, and those in a `PartitionGap`.

    The highest value among the latter is `last`.
    """

    nulls: int = 0
    outside: int = 0
    last: str = ""
