"""Partitions of history in a pipeline file: windows of time, ranges of an integer column, or values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date, datetime
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    NonNegativeInt,
    PlainSerializer,
    PlainValidator,
    PositiveInt,
    Tag,
    WithJsonSchema,
    model_validator,
)

from headrace.pipeline.model.strict import Strict


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

UTC_ZONE = "UTC"
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


_ANY_ORDER = (
    "Declares that all history rows of a key are in one partition. Otherwise a partition is refused after a"
    " later one, at sinks where the last row of a key stays."
)


class TimePartitionsConfig(Strict):
    """History in windows of time, each a partition in Dagster."""

    column: str = Field(
        description="A date or timestamp column of the history, for `hour` or a `timezone` a timestamp."
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
    timezone: str = Field(
        default=UTC_ZONE,
        description="The time zone in which days begin, a name of the tz database. Hours are in UTC.",
    )
    any_order: bool = Field(default=False, description=_ANY_ORDER)

    @model_validator(mode="after")
    def _in_order(self) -> TimePartitionsConfig:
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
        if self.every == "hour" and self.timezone != UTC_ZONE:
            msg = f"`timezone: {self.timezone}` cannot be set with `every: hour`: hours are in UTC"
            raise ValueError(msg)
        if self.timezone != UTC_ZONE and self.start.year == date.min.year:
            msg = f"`start` {self.start} must be 0002-01-01 or later with a `timezone`"
            raise ValueError(msg)
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


class IntegerPartitionsConfig(Strict):
    """History in ranges of an integer column, each a partition in Dagster. The key is the first number."""

    column: str = Field(description="An integer column of the history.")
    every: PositiveInt = Field(description="How many numbers a partition has.")
    start: NonNegativeInt = Field(default=0, description="First number of the first partition.")
    end: PositiveInt = Field(description="Number after the last partition.")
    any_order: bool = Field(default=False, description=_ANY_ORDER)

    @model_validator(mode="after")
    def _in_order(self) -> IntegerPartitionsConfig:
        if self.start >= self.end:
            msg = f"`start` {self.start} must be less than `end` {self.end}"
            raise ValueError(msg)
        if (self.end - self.start) % self.every:
            above = self.start + -(-(self.end - self.start) // self.every) * self.every
            msg = f"`end` {self.end} must be `start` plus a multiple of `every`; the next one is {above}"
            raise ValueError(msg)
        if self.end >= _LARGEST:
            msg = f"`end` {self.end} must be less than {_LARGEST}"
            raise ValueError(msg)
        count = (self.end - self.start) // self.every
        if count > MOST_PARTITIONS:
            msg = (
                f"`every: {self.every}` makes {count:,} partitions from {self.start} to {self.end};"
                f" at most {MOST_PARTITIONS:,} are possible"
            )
            raise ValueError(msg)
        return self


_LARGEST = 1 << 63
MOST_PARTITIONS = 25_000
"""Dagster's recommendation for an asset is at most 25,000 partitions."""
MOST_VALUES = 200
"""The position of a source lists the values that are complete."""
_VALUE = re.compile(r"[\w+@-]([\w+@. -]*[\w+@-])?")
"""A value is a Dagster partition key, and a part of file names."""
_LONGEST_VALUE = 100


def _value(value: object) -> str:
    """Return a value as the text of its partition key. Raise ValueError for one that cannot be a key."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if isinstance(value, datetime) or not isinstance(value, str | int | date):
        msg = "write a text, an integer, a date, true or false"
        raise ValueError(msg)  # noqa: TRY004  pydantic reports a ValueError as a mistake of the file
    if len(text) > _LONGEST_VALUE or not _VALUE.fullmatch(text) or ".." in text:
        msg = (
            f"`{text[:_LONGEST_VALUE]}` cannot be the key of a partition: allowed are up to {_LONGEST_VALUE}"
            " letters and digits, `_`, `-`, `+`, `@`, and `.` or a space between them"
        )
        raise ValueError(msg)
    return text


PartitionValue = Annotated[
    str, BeforeValidator(_value), WithJsonSchema({"type": ["string", "integer", "boolean"]})
]


class ValuePartitionsConfig(Strict):
    """History by the values of a column, each a partition in Dagster."""

    column: str = Field(description="A text, integer, boolean or date column of the history.")
    values: Annotated[list[PartitionValue], Field(min_length=1, max_length=MOST_VALUES)] = Field(
        description="The values, in the order in which they are read. A history with other values is refused."
    )
    any_order: bool = Field(default=False, description=_ANY_ORDER)

    @model_validator(mode="after")
    def _has_no_duplicates(self) -> ValuePartitionsConfig:
        seen: dict[str, str] = {}
        for value in self.values:
            other = seen.setdefault(value.casefold(), value)
            if other != value:
                # Keys are parts of file names, and some file systems ignore case.
                msg = f"`values` has `{other}` and `{value}`, which differ in case only"
                raise ValueError(msg)
        if len(seen) < len(self.values):
            twice = next(value for value in self.values if self.values.count(value) > 1)
            msg = f"`values` has `{twice}` twice"
            raise ValueError(msg)
        return self


def _kind_of(value: Any) -> str:
    """Return which partitions a map describes: `values`, `integers` or `time`."""
    read = value.get if isinstance(value, dict) else lambda key: getattr(value, key, None)
    if read("values") is not None:
        return "values"
    every = read("every")
    return "integers" if isinstance(every, int) or (isinstance(every, str) and every.isdigit()) else "time"


PARTITION_MODELS: Mapping[str, type[Strict]] = {
    "time": TimePartitionsConfig,
    "integers": IntegerPartitionsConfig,
    "values": ValuePartitionsConfig,
}


def partitions_model(value: Any) -> type[Strict]:
    """Return the model of the partitions that a map describes."""
    return PARTITION_MODELS[_kind_of(value)]


PartitionsConfig = Annotated[
    Annotated[TimePartitionsConfig, Tag("time")]
    | Annotated[IntegerPartitionsConfig, Tag("integers")]
    | Annotated[ValuePartitionsConfig, Tag("values")],
    Discriminator(_kind_of),
]
"""The kind follows from the keys: `values`, a number in `every`, or time."""
