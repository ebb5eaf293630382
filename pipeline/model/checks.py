"""Checks that a pipeline file declares for the rows of a sink's target."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, NonNegativeInt, WithJsonSchema, model_validator

from headrace.pipeline.model.run_options import Duration
from headrace.pipeline.model.strict import Columns, Strict
from headrace.pipeline.sql.check_queries import TARGET

BUILT_IN_CHECKS = ("exactly_once_epochs", "row_count_matches", "handoff_has_no_gap", "content_matches")
"""The names of Headrace's own checks."""
Bound = Decimal | date | datetime
"""A limit of a range. A timestamp has a time zone."""


def parse_bound(text: str) -> Bound:
    """Return the number, date or timestamp in a text. Raise ValueError for other texts."""
    try:
        number = Decimal(text)
        if number.is_finite():
            return number
    except InvalidOperation:
        pass
    try:
        if re.fullmatch(r"\d{4}-\d{2}-\d{2}", text):
            return date.fromisoformat(text)
        moment = datetime.fromisoformat(text)
    except ValueError:
        msg = f"`{text}` is no number, date or timestamp; write one such as 10, 0.5, 2025-01-31"
        raise ValueError(msg) from None
    return moment.replace(tzinfo=moment.tzinfo or UTC)


def _comparable(bound: Bound) -> Decimal | datetime:
    """Return a limit that compares with others: a date as its first moment."""
    if isinstance(bound, date) and not isinstance(bound, datetime):
        return datetime(bound.year, bound.month, bound.day, tzinfo=UTC)
    return bound


def _bound_text(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal | date | str):
        return value
    text = value.isoformat() if isinstance(value, date) else str(value).strip()
    parse_bound(text)
    return text


def _percent(value: object) -> object:
    result = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", value.strip()) if isinstance(value, str) else None
    if result is None:
        msg = f"`{value}` is no percentage; write one such as 20%"
        raise ValueError(msg)
    return float(result[1])


BoundText = Annotated[
    str, BeforeValidator(_bound_text), WithJsonSchema({"type": ["integer", "number", "string"]})
]
Percent = Annotated[
    float,
    BeforeValidator(_percent),
    WithJsonSchema({"type": "string", "pattern": r"^\d+(\.\d+)?\s*%$|\$\{", "examples": ["20%"]}),
]


class RangeCheckConfig(Strict):
    """No value is outside of the range. NULL is accepted, NaN is not."""

    column: str = Field(description="A number, date or timestamp column of the target.")
    min: BoundText | None = Field(default=None, description="The lowest accepted value.")
    max: BoundText | None = Field(default=None, description="The highest accepted value.")

    @model_validator(mode="after")
    def _has_order(self) -> RangeCheckConfig:
        low, high = self.bounds
        if low is None and high is None:
            msg = "needs `min`, `max` or both"
            raise ValueError(msg)
        if low is None or high is None:
            return self
        if isinstance(low, Decimal) is not isinstance(high, Decimal):
            msg = f"`min` {self.min} and `max` {self.max} must both be numbers or both be times"
            raise ValueError(msg)
        if _comparable(low) > _comparable(high):  # pyright: ignore[reportOperatorIssue]  both have one type
            msg = f"`min` {self.min} is above `max` {self.max}"
            raise ValueError(msg)
        return self

    @property
    def bounds(self) -> tuple[Bound | None, Bound | None]:
        """The lowest and the highest accepted value."""
        low, high = (None if text is None else parse_bound(text) for text in (self.min, self.max))
        return low, high


class RowCountCheckConfig(Strict):
    """The number of rows in the target."""

    min: NonNegativeInt | None = Field(default=None, description="The lowest accepted number of rows.")
    max: NonNegativeInt | None = Field(default=None, description="The highest accepted number of rows.")
    max_change: Percent | None = Field(
        default=None,
        description="How much the number of rows may grow or shrink `within` a time. Example: `20%`.",
    )
    within: Duration = Field(
        default=timedelta(days=1), description="The period of `max_change`, up to the time of the check."
    )

    @model_validator(mode="after")
    def _has_limits(self) -> RowCountCheckConfig:
        if self.min is None and self.max is None and self.max_change is None:
            msg = "needs `min`, `max` or `max_change`"
            raise ValueError(msg)
        if self.min is not None and self.max is not None and self.min > self.max:
            msg = f"`min` {self.min} is above `max` {self.max}"
            raise ValueError(msg)
        if not self.within:
            msg = "`within` must be above 0s"
            raise ValueError(msg)
        return self


class FreshnessCheckConfig(Strict):
    """The age of the newest value of a column."""

    column: str = Field(description="A date or timestamp column of the target. Dates begin at 00:00 UTC.")
    max_age: Duration = Field(description="The highest accepted age at the time of the check.")


class SinkCheckConfig(Strict):
    """One check: `not_null`, `unique`, `range`, `row_count`, `freshness` or `sql`."""

    RULES: ClassVar[tuple[str, ...]] = ("not_null", "unique", "range", "row_count", "freshness", "sql")
    """The keys of which a check has one."""

    not_null: Columns = Field(default=(), description="Columns without NULL.")
    unique: Columns = Field(
        default=(),
        description="Columns whose values together occur once. Rows with NULL in one of them do not count.",
    )
    range: RangeCheckConfig | None = Field(default=None, description="No value is outside of a range.")
    row_count: RowCountCheckConfig | None = Field(
        default=None, description="The number of rows, or its change in a period."
    )
    freshness: FreshnessCheckConfig | None = Field(
        default=None, description="The newest value of a column has at most this age."
    )
    sql: str | None = Field(
        default=None,
        description=f"A SELECT that must return no row, in the SQL of the target's system (Spark SQL for"
        f" Delta and Iceberg). The sink's table is called `{TARGET}`.",
    )
    severity: Literal["error", "warning"] = Field(
        default="error",
        description="`error` fails `headrace audit` and stops the assets downstream in the same Dagster run.",
    )
    samples: Annotated[int, Field(ge=0, le=50)] = Field(
        default=5, description="Maximum number of rows with violations that the result shows."
    )
    description: str = Field(default="", description="What the check is about, for people.")

    @model_validator(mode="after")
    def _has_one_rule(self) -> SinkCheckConfig:
        set_ = [name for name in self.RULES if getattr(self, name)]
        if len(set_) != 1:
            names = ", ".join(self.RULES)
            msg = f"has {' and '.join(f'`{name}`' for name in set_) or 'no rule'}; set one of {names}"
            raise ValueError(msg)
        return self

    @property
    def rule(self) -> str:
        """The key that the check has."""
        return next(name for name in self.RULES if getattr(self, name))

    @property
    def columns(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """The columns of the target that the check names, each with its keys in the file."""
        match self.rule:
            case "not_null" | "unique" as rule:
                return tuple((column, (rule,)) for column in getattr(self, rule))
            case "range" | "freshness" as rule:
                return ((getattr(self, rule).column, (rule, "column")),)
        return ()
