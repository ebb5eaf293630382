"""The partitions of a history: [start, end) in hours, days, weeks, months or years, in UTC."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta

from headrace.pipeline.model.run_options import PartitionsConfig

WHOLE = ""
"""The key of the only partition of an unpartitioned history."""
HOUR_FORMAT = "%Y-%m-%dT%H"
"""The key of an hour: no colon, because keys are parts of file names."""


@dataclass(frozen=True, slots=True)
class TimePartition:
    """One partition. `key` is the ISO date of its first day, or `2024-03-01T05`, as Dagster names it.

    `start` and `end` are datetimes in UTC without a zone if partitions are hours.
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


def current_time(partitions: PartitionsConfig, now: datetime | None = None) -> date:
    """Return `now`, by default the current time, in the type of the partitions' bounds: days or times."""
    if partitions.every == "hour":
        return now or utc_now()
    return now.date() if now else today()


def _bound(partitions: PartitionsConfig, day: date) -> date:
    """Return the beginning of a day in the type of the partitions' bounds."""
    return datetime.combine(day, time()) if partitions.every == "hour" else day


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


def history_end(partitions: PartitionsConfig, now: datetime | None = None) -> date:
    """Return the end of the last partition that history fills.

    With an open end, this is the start of the partition of `now` (UTC without a zone), by default now.
    """
    if partitions.history_end is not None:
        return _bound(partitions, partitions.history_end)
    if isinstance(partitions.end, str):
        return _current_start(partitions, now)
    return _bound(partitions, partitions.end)


def is_history_open(partitions: PartitionsConfig | None) -> bool:
    """Return whether history gets a new partition whenever one has passed."""
    return partitions is not None and partitions.history_end is None and isinstance(partitions.end, str)


def _current_start(partitions: PartitionsConfig, now: datetime | None) -> date:
    """Return the start of the partition that `now` is in, or `start` if that is later."""
    day, current = _bound(partitions, partitions.start), current_time(partitions, now)
    if isinstance(current, datetime):
        return max(day, current.replace(minute=0, second=0, microsecond=0))
    while (after := _next(day, partitions.every)) <= current:
        day = after
    return day


def list_partitions(
    partitions: PartitionsConfig, *, history_only: bool = True, now: datetime | None = None
) -> list[TimePartition]:
    """Return all partitions in order, or only those that history fills if `history_only` is set.

    With an open end, the partition of `now` (UTC without a zone, by default now) is the last one, and history
    does not fill it.
    """
    if history_only:
        last = history_end(partitions, now)
    elif isinstance(partitions.end, str):
        current = _next(_current_start(partitions, now), partitions.every)
        last = max(current, _bound(partitions, partitions.history_end or date.min))
    else:
        last = _bound(partitions, partitions.end)
    found: list[TimePartition] = []
    day = _bound(partitions, partitions.start)
    while day < last:
        after = min(_next(day, partitions.every), last)
        found.append(TimePartition(_key_of(day), day, after))
        day = after
    return found


def _key_of(start: date) -> str:
    return start.strftime(HOUR_FORMAT) if isinstance(start, datetime) else start.isoformat()


def window_at(partitions: PartitionsConfig, key: str) -> TimePartition:
    """Return the partition of history that begins at `key`."""
    is_hour = partitions.every == "hour"
    start = datetime.strptime(key, HOUR_FORMAT) if is_hour else date.fromisoformat(key)  # noqa: DTZ007  UTC
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
