"""Options of a pipeline's runs: partitions of history, epoch size and interval, stream runs, the schedule."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Literal

from pydantic import (
    BeforeValidator,
    Field,
    PlainSerializer,
    PositiveInt,
    WithJsonSchema,
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
    match = re.fullmatch(r"(\d+)\s*([a-z]*)", str(value).strip().lower())
    if isinstance(value, bool) or match is None or match[2] not in _SIZES:
        msg = (
            f"`{str(value).lower() if isinstance(value, bool) else value}` is no size; write a number of"
            " bytes, or one with a unit such as 64MiB"
        )
        raise ValueError(msg)
    return int(match[1]) * _SIZES[match[2]]


def _epoch_size(value: object) -> int:
    size = parse_size(value)
    if size < LEAST_EPOCH:
        msg = f"`{value}` is less than 64KiB"
        raise ValueError(msg)
    return size


EpochSize = Annotated[int, BeforeValidator(_epoch_size), WithJsonSchema({"type": ["integer", "string"]})]


class EpochOptions(Strict):
    """How large epochs are and how often they come."""

    stream_rows: PositiveInt | None = Field(
        default=None,
        description="Maximum number of messages in a stream epoch, shared equally among the sources. Defaults"
        " to 100000. Without Spark, epochs of a backlog grow to 1600000 messages or about 10 seconds.",
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
