"""The `postgres` source of a pipeline file."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from headrace.pipeline.model.sources import SourceConfig
from headrace.pipeline.model.strict import Columns


class PostgresSourceConfig(SourceConfig):
    """A Postgres table or view, read once in one consistent snapshot; Headrace stores its rows."""

    identity_keys: ClassVar[frozenset[str]] = frozenset({"schema", "table", "filter"})
    metric_labels: ClassVar[tuple[str, ...]] = ("table",)
    filter_dialect: ClassVar[Literal["clickhouse", "postgres", "spark"]] = "postgres"

    type: Literal["postgres"] = "postgres"
    schema_: str = Field(default="public", alias="schema", description="The table's schema.")
    table: str = Field(description="The name of the table or view.")
    columns: Columns = Field(default=(), description="Columns to read. Defaults to all.")
    filter: str | None = Field(
        default=None, description="Only rows for which this holds: a predicate in Postgres' own SQL."
    )
