"""The `rate` source of a pipeline file."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import ClassVar, Literal, Self

from pydantic import Field, PositiveInt, field_validator, model_validator

from headrace.pipeline.model.run_options import Duration
from headrace.pipeline.model.sources import SourceConfig

_LAST = datetime(9999, 12, 31, tzinfo=UTC)
_SHORTEST = timedelta(microseconds=1)


class RateSourceConfig(SourceConfig):
    """Numbered rows that Headrace makes itself, for trials: the same number is always the same row."""

    identity_keys: ClassVar[frozenset[str]] = frozenset({"start_time", "interval"})

    type: Literal["rate"] = "rate"
    rows: PositiveInt | None = Field(
        default=None,
        description="Number of rows. `headrace run FILE --until caught-up` ends after them. Defaults to no"
        " end.",
    )
    rows_per_second: PositiveInt | None = Field(
        default=None,
        description="Rows that become available per second of a run. Defaults to 1 without `rows`; with"
        " `rows`, all are available at once.",
    )
    start_time: datetime = Field(
        default=datetime(2025, 1, 1, tzinfo=UTC),
        description="`timestamp` of the first row, with its time zone.",
    )
    interval: Duration = Field(
        default=timedelta(milliseconds=1),
        description="Time between the `timestamp` of a row and that of the next one.",
    )

    @property
    def speed(self) -> int | None:
        """The rows per second, or None without a limit."""
        return self.rows_per_second or (None if self.rows else 1)

    @field_validator("start_time")
    @classmethod
    def _check_zone(cls, value: datetime) -> datetime:
        if value.tzinfo is None:
            msg = "must have a time zone, such as `2025-01-31T12:00:00Z`"
            raise ValueError(msg)
        return value

    @model_validator(mode="after")
    def _check_times(self) -> Self:
        if (self.rows or 0) > (_LAST - self.start_time) // max(self.interval, _SHORTEST):
            msg = "the last row would be later than the year 9999; lower `rows` or `interval`"
            raise ValueError(msg)
        return self
