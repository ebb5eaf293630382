"""Options of a pipeline's runs: partitions of history, epoch size and interval, stream runs, the schedule."""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta
from typing import Annotated, Literal

from pydantic import (
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    PositiveInt,
    WithJsonSchema,
    model_validator,
)

from headrace.pipeline.errors import UserError
from headrace.pipeline.model.strict import Strict
from headrace.pipeline.types.durations import parse_duration, spell_duration


def as_duration(value: object) -> object:
    """Parse a duration from a string. Return other values unchanged. Raise ValueError for an invalid one."""
    if isinstance(value, int | float) and value < 0:
        msg = f"`{value}` is not a duration; write a number and a unit, such as 500ms or 1h 30m"
        raise ValueError(msg)
    if not isinstance(value, str):
        return value
    try:
        return parse_duration(value)
    except UserError as error:
        msg = f"{error.message}; {error.hint[:1].lower()}{error.hint[1:].rstrip('.')}"
        raise ValueError(msg) from error


Duration = Annotated[
    timedelta, BeforeValidator(as_duration), PlainSerializer(spell_duration, when_used="json")
]


_SIZES = {
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "b": 1,
    "": 1,
}
LEAST_EPOCH = 64 << 10


def parse_size(value: object) -> int:
    """Return the bytes of a number or of a string with a unit. Raise ValueError for other values."""
    found = re.fullmatch(r"(\d+)\s*([a-z]*)", str(value).strip().lower())
    if isinstance(value, bool) or found is None or found[2] not in _SIZES:
        msg = (
            f"`{str(value).lower() if isinstance(value, bool) else value}` is no size; write a number of"
            " bytes, or one with a unit such as 64MiB"
        )
        raise ValueError(msg)
    return int(found[1]) * _SIZES[found[2]]


def _epoch_size(value: object) -> int:
    size = parse_size(value)
    if size < LEAST_EPOCH:
        msg = f"`{value}` is less than 64KiB"
        raise ValueError(msg)
    return size


EpochSize = Annotated[int, BeforeValidator(_epoch_size), WithJsonSchema({"type": ["integer", "string"]})]


def _day(value: object) -> object:
    if isinstance(value, datetime):
        return value.date()
    if not isinstance(value, str):
        return value
    try:
        return date.fromisoformat(f"{value}-01" if len(value) == len("2013-01") else value)
    except ValueError:
        msg = f"`{value}` is no day and no month; write one such as 2013-01-31 or 2013-01"
        raise ValueError(msg) from None


Day = Annotated[date, BeforeValidator(_day)]

OPEN = "open"
"""The `end` of partitions that never end."""


def _day_or_open(value: object) -> date | str:
    if value == OPEN:
        return OPEN
    day = _day(value)
    if isinstance(day, date):
        return day
    msg = f"`{value}` is no day and no month; write one such as 2013-01-31 or 2013-01, or open"
    raise ValueError(msg)


PartitionsEnd = Annotated[
    date | Literal["open"],
    PlainValidator(_day_or_open),
    PlainSerializer(str, when_used="json"),
    WithJsonSchema(
        {"type": "string", "pattern": r"^(open|\d{4}-\d{2}(-\d{2})?)$|\$\{", "examples": ["open", "2013-01"]}
    ),
]


class PartitionsConfig(Strict):
    """History in windows of time, each a partition in Dagster."""

    column: str = Field(
        description="A date or timestamp column of the history, for `hour` a timestamp; all times are in UTC."
    )
    every: Literal["hour", "day", "week", "month", "year"] = Field(
        default="month",
        description="How long a partition is. A week begins on the weekday of `start`.",
    )
    start: Day = Field(description="First day of the first partition.")
    end: PartitionsEnd = Field(
        description="Day after the last partition that Dagster shows. `open`: a partition is added when it"
        " has passed."
    )
    history_end: Day | None = Field(
        default=None,
        description="Day after the last partition that history fills. The stream fills later ones. Defaults"
        " to `end`.",
    )
    any_order: bool = Field(
        default=False,
        description="Declares that all history rows of a key are in one partition. Otherwise a partition is"
        " refused after a later one, at sinks where the last row of a key stays.",
    )

    @model_validator(mode="after")
    def _in_order(self) -> PartitionsConfig:
        end = date.max if isinstance(self.end, str) else self.end
        if self.start >= end:
            msg = f"`start` {self.start} must be before `end` {self.end}"
            raise ValueError(msg)
        if self.history_end and not self.start < self.history_end <= end:
            msg = (
                f"`history_end` {self.history_end} must be after `start` {self.start} and not after `end`"
                f" {self.end}"
            )
            raise ValueError(msg)
        fixed = [day for day in (self.start, self.end, self.history_end) if isinstance(day, date)]
        if self.every in ("month", "year") and any(day.day != 1 for day in fixed):
            msg = f"{self.every}ly partitions start and end on the first day of a {self.every}"
            raise ValueError(msg)
        if self.every == "year" and any(day.month != 1 for day in fixed):
            msg = "yearly partitions start and end on the first day of a year"
            raise ValueError(msg)
        if self.every == "week" and any((day - self.start).days % 7 for day in fixed):
            msg = f"weekly partitions end a whole number of weeks after `start` {self.start}"
            raise ValueError(msg)
        return self


class EpochOptions(Strict):
    """How large epochs are and how often they come."""

    stream_rows: PositiveInt = Field(
        default=100_000,
        description="Maximum number of messages in a stream epoch, shared equally among the sources.",
    )
    history_rows: PositiveInt = Field(
        default=1_000_000,
        description="Rows in a history epoch, about: as many whole splits as fit, at least one.",
    )
    max_bytes: EpochSize = Field(
        default=256 << 20,
        description="Approximate size of an epoch, estimated from samples and statistics of the source, at"
        " least 64KiB. Defaults to 256MiB."
        " Example: `64MiB`. An epoch has at least one split of history, and one message of each partition.",
    )
    interval: Duration = Field(
        default=timedelta(seconds=5),
        description="From the start of one stream epoch to the next; 0s: as fast as it can.",
    )
    max_attempts: PositiveInt = Field(
        default=3, description="Equal failures of one epoch before the pipeline is blocked."
    )


class StreamOptions(Strict):
    """How Dagster runs the stream."""

    mode: Literal["continuous", "triggered"] = Field(
        default="continuous",
        description="`continuous` is kept running, `triggered` ends when it has caught up.",
    )
    max_run_time: Duration = Field(
        default=timedelta(hours=6),
        description="A continuous run ends at an epoch's border after this and is started again.",
    )
    report_interval: Duration = Field(
        default=timedelta(minutes=4),
        description="Time between two reports of a sink to Dagster. In the first ten minutes of a run it"
        " is at most a minute.",
    )


class Schedule(Strict):
    """When Dagster materializes the pipeline by itself."""

    cron: str = Field(description="Five fields: minute, hour, day of month, month, day of week.")
    timezone: str = Field(default="UTC", description="A name of the tz database, such as Europe/Berlin.")
