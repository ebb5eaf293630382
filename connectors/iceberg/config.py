"""The `iceberg` source and sink of a pipeline file."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from headrace.pipeline.model.sinks import KeyedSinkConfig
from headrace.pipeline.model.sources import SourceConfig
from headrace.pipeline.model.strict import Columns


class IcebergSourceConfig(SourceConfig):
    """An Iceberg table of a hadoop catalog, read once at a pinned snapshot."""

    identity_keys: ClassVar[frozenset[str]] = frozenset({"table_name", "warehouse", "filter", "snapshot_id"})
    metric_labels: ClassVar[tuple[str, ...]] = ("table",)

    type: Literal["iceberg"] = "iceberg"
    table_name: str = Field(description="`namespace.table`.")
    warehouse: str | None = Field(
        default=None,
        description="Folder or URI of the Hadoop catalog. Defaults to the setting `iceberg.warehouse`.",
    )
    columns: Columns = Field(default=(), description="Columns to read. Defaults to all.")
    filter: str | None = Field(
        default=None, description="Only rows for which this holds: a predicate in Spark SQL."
    )
    snapshot_id: int | None = Field(
        default=None, description="Snapshot to read. Defaults to the newest at the first start."
    )


class IcebergSinkConfig(KeyedSinkConfig):
    """A table of a hadoop catalog, created if missing: upserts and deletes by key, or appends without one."""

    target_keys: ClassVar[tuple[str, ...]] = ("table_name", "warehouse")
    metric_labels: ClassVar[tuple[str, ...]] = ("table",)

    type: Literal["iceberg"] = "iceberg"
    table_name: str = Field(description="`namespace.table`.")
    warehouse: str | None = Field(
        default=None,
        description="Folder or URI of the Hadoop catalog. Defaults to the setting `iceberg.warehouse`.",
    )
