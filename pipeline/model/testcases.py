"""The tests of a pipeline file: input rows of sources and transforms, and the expected rows or error."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from headrace.pipeline.model.strict import Columns, Strict
from headrace.pipeline.sql.dynamic_tables import VALUE

FORMS = ("rows", "csv", "json", "parquet")
"""The ways to set the rows of a node. One of them is used."""


def _moment(value: object) -> object:
    if isinstance(value, datetime):
        return value if value.tzinfo else value.replace(tzinfo=UTC)
    if isinstance(value, date):
        return datetime.combine(value, time(), UTC)
    try:
        return _moment(datetime.fromisoformat(str(value)))
    except ValueError:
        msg = f"`{value}` is no moment; write one such as 2025-01-31T12:00:00Z"
        raise ValueError(msg) from None


Moment = Annotated[datetime, BeforeValidator(_moment)]


class RowsConfig(Strict):
    """Rows, in the file itself or in another one."""

    rows: tuple[dict[str, Any], ...] | None = Field(
        default=None, description="The rows, each a map of columns; `_gs_op` is i, u or d."
    )
    csv: str | None = Field(
        default=None, description="A CSV file with a header, relative to this file; empty is null."
    )
    json_: str | None = Field(
        default=None, alias="json", description="A file with one JSON object per line, relative to this file."
    )
    parquet: str | None = Field(default=None, description="A Parquet file, relative to this file.")

    @property
    def forms(self) -> list[str]:
        """The used ones of `FORMS`."""
        values = (self.rows, self.csv, self.json_, self.parquet)
        return [form for form, value in zip(FORMS, values, strict=True) if value is not None]

    @property
    def path(self) -> str | None:
        """The other file, if it contains the rows."""
        return self.csv or self.json_ or self.parquet


class InputRowsConfig(RowsConfig):
    """What a source has, or a transform gives, in a test."""

    schema_: dict[str, str] | None = Field(
        default=None,
        alias="schema",
        description="Column types, if the pipeline file does not declare them. By default they are inferred.",
    )


def _values(rows: object) -> object:
    """Convert a plain list of a dynamic table's values to rows."""
    return {"rows": [{VALUE: value} for value in rows]} if isinstance(rows, list) else rows


class ExpectedRowsConfig(RowsConfig):
    """What a node must give, or a sink's target must hold at the end."""

    ordered: bool = Field(default=False, description="Whether the rows must come in this order.")
    columns: Columns = Field(default=(), description="Columns to compare. Defaults to all.")
    tolerance: float = Field(default=0.0, ge=0, description="By how much floats and decimals may differ.")


class CaseConfig(Strict):
    """One test."""

    description: str | None = Field(default=None, description="What the test is about, for people.")
    now: Moment | None = Field(default=None, description="Value of now(). Defaults to the real time.")
    given: dict[str, Annotated[InputRowsConfig, BeforeValidator(_values)]] = Field(
        default_factory=dict,
        description="Rows by source or transform; a list of values for a dynamic table. Who is not named"
        " has none.",
    )
    expect: dict[str, Annotated[ExpectedRowsConfig, BeforeValidator(_values)]] = Field(
        default_factory=dict,
        description="Rows by source, transform or sink; a list of values for a dynamic table.",
    )
    expect_error: str | None = Field(
        default=None, description="A part of the error's message, where the test expects one."
    )
