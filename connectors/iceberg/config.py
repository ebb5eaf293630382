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
        default=None, description="The hadoop catalog's folder or URI; `iceberg.warehouse` of the settings if not given."
    )
    columns: Columns = Field(default=(), description="Columns to read; all if not given.")
    filter: str | None = Field(default=None, description="Only rows for which this holds: a predicate in Spark SQL.")
    snapshot_id: int | None = Field(default=None, description="The snapshot to read; the newest at the first start if not given.")


class IcebergSinkConfig(KeyedSinkConfig):
    """A table of a hadoop catalog, created if missing: upserts and deletes by key, or appends without one."""

    target_keys: ClassVar[tuple[str, ...]] = ("table_name", "warehouse")
    metric_labels: ClassVar[tuple[str, ...]] = ("table",)

    type: Literal["iceberg"] = "iceberg"
    table_name: str = Field(description="`namespace.table`.")
    warehouse: str | None = Field(default=None, description="The hadoop catalog's folder; from the settings if not given.")
