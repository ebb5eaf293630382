"""The `clickhouse` source and sink of a pipeline file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pyarrow.types import is_uint64
from pydantic import Field, PositiveInt, model_validator

from headrace.connectors.direct_types import explain_unfit_columns
from headrace.pipeline.model.sinks import KeyedSinkConfig
from headrace.pipeline.model.sources import SourceConfig
from headrace.pipeline.model.strict import Columns

if TYPE_CHECKING:
    import pyarrow as pa


class ClickHouseSourceConfig(SourceConfig):
    """A ClickHouse table, read once: pinned by CLONE AS, split by its sorting key. Or a query's result."""

    identity_keys: ClassVar[frozenset[str]] = frozenset(
        {"table_name", "query", "split_column", "filter", "start_at", "snapshot"}
    )
    metric_labels: ClassVar[tuple[str, ...]] = ("table",)
    filter_dialect: ClassVar[Literal["clickhouse", "postgres", "spark"]] = "clickhouse"

    type: Literal["clickhouse"] = "clickhouse"
    table_name: str | None = Field(
        default=None, description="`table` of the connection's own database, or `database.table`."
    )
    query: str | None = Field(
        default=None,
        description="In place of `table_name`: a SELECT in ClickHouse's own SQL. It runs once; its result is"
        " stored in the connection's own database while history is read.",
    )
    split_column: str | None = Field(
        default=None, description="With `query`: the column of its result that splits are ranges of."
    )
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


class ClickHouseSinkConfig(KeyedSinkConfig):
    """A ClickHouse table on one server, created if missing: a ReplacingMergeTree with a key."""

    target_keys: ClassVar[tuple[str, ...]] = ("table",)
    metric_labels: ClassVar[tuple[str, ...]] = ("table",)
    check_dialect: ClassVar[Literal["spark", "postgres", "clickhouse"]] = "clickhouse"

    type: Literal["clickhouse"] = "clickhouse"
    table: str = Field(description="`table` of the connection's own database, or `database.table`.")
    append_only_mode: bool = Field(
        default=True,
        description="With a key: whether a delete stays as a row with `is_deleted` = 1, which FINAL leaves"
        " out. With `false`, all rows of a deleted key are removed after each epoch.",
    )
    schema_override: dict[str, str] = Field(
        default_factory=dict,
        description="ClickHouse types of columns of a table that is created, such as"
        " `id: UInt64 CODEC(Delta, ZSTD)`.",
    )
    compression: Literal["none", "lz4", "zstd", "gzip"] | None = Field(
        default=None,
        description="Compression of rows on their way. Defaults to `clickhouse_sink.compression` of the"
        " settings.",
    )
    compression_level: int | None = Field(
        default=None, ge=1, le=9, description="For `zstd` and `gzip`. Defaults to that of the settings."
    )

    @model_validator(mode="before")
    @classmethod
    def _rename(cls, values: Any) -> Any:
        """Take Streamling's names of keys that have another name here."""
        if not isinstance(values, dict):
            return values
        return {_STREAMLING[key] if _is_free(key, values) else key: value for key, value in values.items()}

    def explain_direct_obstacle(self, payload: pa.Schema, key: Sequence[str]) -> str:
        """See `SinkConfig.explain_direct_obstacle`."""
        return explain_unfit_columns(payload, key, self.version_column, is_uint64)


_STREAMLING = {"schema_overrides": "schema_override", "version_column_name": "version_column"}


def _is_free(key: Any, values: dict[Any, Any]) -> bool:
    """Return whether a key is Streamling's name of a key that the node does not have."""
    return key in _STREAMLING and _STREAMLING[key] not in values
