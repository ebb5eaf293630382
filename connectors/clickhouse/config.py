"""The `clickhouse` source of a pipeline file."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, PositiveInt

from headrace.pipeline.model.sources import SourceConfig
from headrace.pipeline.model.strict import Columns


class ClickHouseSourceConfig(SourceConfig):
    """A ClickHouse table, read once: pinned by CLONE AS, split by its sorting key."""

    identity_keys: ClassVar[frozenset[str]] = frozenset({"table_name", "filter", "start_at", "snapshot"})
    metric_labels: ClassVar[tuple[str, ...]] = ("table",)
    filter_dialect: ClassVar[Literal["clickhouse", "spark"]] = "clickhouse"

    type: Literal["clickhouse"] = "clickhouse"
    table_name: str = Field(description="`table` of the connection's own database, or `database.table`.")
    columns: Columns = Field(default=(), description="Columns to read. Defaults to all.")
    filter: str | None = Field(
        default=None, description="Only rows for which this holds: a predicate in ClickHouse's own SQL."
    )
    start_at: str | None = Field(
        default=None,
        description="Lowest value of the first sorting key column to read, inclusive. By default reads from"
        " the start.",
    )
    snapshot: Literal["clone", "none"] = Field(
        default="clone",
        description="`clone` pins the table by hard links; `none` needs no rights beyond SELECT but does"
        " not hold still.",
    )
    split_rows: PositiveInt = Field(
        default=250_000,
        description="Rows per split, about; fewer where they hold more than 32 MiB. A split is what one"
        " task reads at a time.",
    )
