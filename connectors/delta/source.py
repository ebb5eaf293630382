"""A Delta table as a bounded source."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from headrace.connectors.arrow_partition import (
    COUNTED_BYTES,
    UnknownBoundError,
    count_gap,
    find_partition,
)
from headrace.connectors.delta.config import DeltaSourceConfig, describe_table
from headrace.connectors.delta.split_reader import OFF, PART, DeltaSplitReader
from headrace.connectors.delta.versions import TABLE_ID, VERSION, DeltaVersions
from headrace.connectors.filters import EVERYTHING, scope_of
from headrace.connectors.lakehouse_rows import DRIVER_ROWS
from headrace.connectors.lakehouse_source import LakehouseSource, TableFile
from headrace.connectors.local_rows import collect_rows, place_rows
from headrace.connectors.source_base import Snapshot
from headrace.connectors.spark_types import arrow_schema
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.model.capabilities import SourceCapabilities
from headrace.pipeline.model.connectors import source_entries
from headrace.pipeline.protocol.epochs import Json
from headrace.pipeline.protocol.partitions import PartitionGap, UnpartitionedRows
from headrace.pipeline.protocol.table_offsets import HandoffFilter
from headrace.pipeline.types.arrow import is_nested

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class DeltaTable(LakehouseSource):
    """Reads one version of the table at a path."""

    capabilities: ClassVar[SourceCapabilities] = source_entries()["delta"].capabilities
    version_keys = (VERSION, TABLE_ID)

    def __init__(self, node: DeltaSourceConfig, settings: Settings, ordinal: int = 0, name: str = "") -> None:
        """Create the source without reading the table.

        `name` is the node's name in errors. It defaults to the path.
        """
        self._settings = settings
        self.name = name or node.path
        self._versions = self.open_table(node.path)
        super().__init__(node, self._versions, ordinal, self.name)

    def open_table(self, name: str) -> DeltaVersions:
        """See `LakehouseSource.open_table`. The name is a path."""
        return DeltaVersions(name, self.name, self._settings)

    def explain_direct_obstacle(self) -> str:
        """See `BoundedSource.explain_direct_obstacle`."""
        if self.node.filter:
            return "Spark applies its filter"
        return "" if self._versions.is_local else "only a log on a local disk is read without Spark"

    def explain_key_spread(self, key: Sequence[str]) -> str:
        """See `BoundedSource.explain_key_spread`."""
        del key
        return "several files may have rows of one key"

    def create_split_reader(
        self, snapshot: Snapshot, splits: Sequence[Json], query: str | None, key: Sequence[str] = ()
    ) -> DeltaSplitReader | None:
        """Return a reader of whole data files. There is none for files that only Spark reads."""
        del key
        assert query is None  # noqa: S101  the source has not `SourceCapabilities.computes_sql`
        return self._split_reader(snapshot, splits, self.node.columns)

    def read_table(
        self, snapshot: Snapshot, splits: Sequence[Json], columns: Sequence[str]
    ) -> pa.Table | None:
        """See `BoundedSource.read_table`."""
        if sum(split["rows"] for split in splits) > DRIVER_ROWS:
            return None
        if (reader := self._split_reader(snapshot, splits, columns)) is None:
            return None
        rows = collect_rows(reader.read_placed(), reader.placed_schema)
        return None if rows is None else place_rows(rows, self.ordinal, PART, OFF)

    def _split_reader(
        self, snapshot: Snapshot, splits: Sequence[Json], columns: Sequence[str]
    ) -> DeltaSplitReader | None:
        scope = splits[0]["scope"] if splits else EVERYTHING
        wanted = {location for split in splits for _, location in split["files"]}
        if any(split["scope"] != scope for split in splits):
            return None
        reader = self._open_reader(self._version(snapshot), columns, scope, wanted)
        return None if reader is None else replace(reader, splits=tuple(splits))

    def _open_reader(
        self, version: Json | None, columns: Sequence[str], scope: Json, wanted: Collection[str] | None = None
    ) -> DeltaSplitReader | None:
        """Return a reader of the wanted files, or of all. Return None if only Spark reads them."""
        local = self._versions.find_local(version) if version is not None else None
        if local is None or self.node.filter:
            return None
        every = arrow_schema(local.read_columns())
        files = self._versions.locate_files(local)
        try:
            partition = find_partition(scope, every)
        except UnknownBoundError:
            return None
        schema = pa.schema([every.field(name) for name in columns or every.names])
        wanted = files.keys() if wanted is None else wanted
        if not files.keys() >= set(wanted) or any(is_nested(field.type) for field in schema):
            return None
        reader = DeltaSplitReader(
            self.name,
            schema,
            splits=(),
            files={location: files[location] for location in wanted},
            partition=partition,
            partition_field=every.field(partition.column) if partition else None,
        )
        return reader if reader.is_readable() else None

    def _count_rows(
        self, spark: SparkSession, version: Json, files: Mapping[str, TableFile], scope: Json
    ) -> dict[str, int]:
        """See `LakehouseSource._count_rows`."""
        window = scope["window"]
        if window and sum(file.size for file in files.values()) <= COUNTED_BYTES:
            reader = self._open_reader(version, [window["column"]], scope)
            if reader is not None:
                return reader.count_rows()
        return super()._count_rows(spark, version, files, scope)

    def count_unpartitioned_rows(
        self, spark: SparkSession, snapshot: Snapshot, gap: PartitionGap, cut: HandoffFilter | None
    ) -> UnpartitionedRows:
        """See `BoundedSource.count_unpartitioned_rows`."""
        reader = self._open_reader(self._version(snapshot), [gap.column], scope_of(None, cut))
        if reader is not None:
            counted = count_gap(reader.read_all(), reader.schema.field(gap.column), gap)
            if counted is not None:
                return counted
        return super().count_unpartitioned_rows(spark, snapshot, gap, cut)

    def describe(self) -> Json:
        """Return the type, asset key and location."""
        return describe_table(self._table.name)
