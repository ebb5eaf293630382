"""An Iceberg table as a bounded source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.connectors import offsets
from headrace.connectors.addresses import split_location
from headrace.connectors.filters import (
    EVERYTHING,
    apply_filter,
    apply_scope,
    position_column,
    quote_identifier,
    read_end_offsets,
    scope_of,
    select_columns,
)
from headrace.connectors.iceberg.catalog import WarehouseTable
from headrace.connectors.iceberg.config import IcebergSourceConfig
from headrace.connectors.source_base import BoundedSource, Snapshot
from headrace.connectors.splitting import PACKED, is_full
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import InternalError, SchemaError
from headrace.pipeline.model.capabilities import SourceCapabilities
from headrace.pipeline.model.connectors import source_entries
from headrace.pipeline.model.sources import OffsetTable
from headrace.pipeline.protocol.epochs import Json
from headrace.pipeline.protocol.partitions import HistoryPartition, PartitionGap, UnpartitionedRows
from headrace.pipeline.protocol.table_offsets import HandoffFilter, TableOffsets
from headrace.pipeline.sql.system_columns import HIDDEN, OP, POS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_FILE, _PART = "_headrace_file", "_headrace_part"


class IcebergTable(BoundedSource):
    """Reads one snapshot of a table once, in groups of data files, deletes applied.

    A snapshot never changes, so a split reads the same rows as long as the table keeps the snapshot: let the
    table's maintenance keep it until the history is complete. Every row is an insert. `_gs_pos` is the row's
    topic partition and offset where the history is cut by them, else its file (files ordered by when rows
    were added) and its place there.
    """

    capabilities: ClassVar[SourceCapabilities] = source_entries()["iceberg"].capabilities

    def __init__(
        self, node: IcebergSourceConfig, settings: Settings, ordinal: int = 0, name: str = ""
    ) -> None:
        """Create the source without reading the table.

        `name` is the node's name in errors. It defaults to the table's name.
        """
        self.node = node
        self.ordinal = ordinal
        self.name = name or node.table_name
        self._warehouse = node.warehouse or settings.iceberg.warehouse
        self._table = WarehouseTable(self._warehouse, node.table_name, self.name)

    def schema(self, spark: SparkSession) -> pa.Schema:
        """Return the payload's schema at the node's snapshot, or of the current table without one."""
        from pyspark.errors import PySparkException
        from pyspark.sql.pandas.types import to_arrow_schema

        frame = self._narrow(self._table.frame(spark, self.node.snapshot_id), self.node.columns)
        if taken := [name for name in frame.columns if name.lower() in HIDDEN]:
            msg = f"`{taken[0]}` is a name that Headrace keeps for itself"
            raise SchemaError(msg, hint="List the other columns under `columns`.", node=self.name)
        try:
            return to_arrow_schema(frame.schema)
        except PySparkException as error:
            msg = f"a column of `{self.node.table_name}` has a type that is not available yet: {error}"
            raise SchemaError(
                msg, hint="List the columns to read under `columns`.", node=self.name
            ) from error

    def _narrow(self, frame: DataFrame, wanted: Sequence[str]) -> DataFrame:
        return select_columns(frame, wanted, self.node.table_name, self.name)

    def create_snapshot(self, spark: SparkSession, token: str) -> Snapshot:
        """Return the node's snapshot, or the newest one.

        Nothing is created, so `token` is not used. The choice is fixed when the ledger stores the handle.
        """
        del token
        found = self.node.snapshot_id
        if found is None:
            newest = self._table.load(spark).currentSnapshot()
            found = newest.snapshotId() if newest is not None else None
        self._scoped(self._table.frame(spark, found), EVERYTHING)
        return Snapshot({"pinned": True, "table": self.node.table_name, "snapshot_id": found}, is_stable=True)

    def check(self, spark: SparkSession, columns: Sequence[str]) -> None:
        """Check filter and columns against the table's own schema."""
        frame = self._table.frame(spark, self.node.snapshot_id)
        self._narrow(frame, columns)
        apply_filter(frame, self.node.filter, self.name)

    def describe_snapshot(self, spark: SparkSession) -> Snapshot:
        """Return the same snapshot as `create_snapshot`, which creates nothing."""
        return self.create_snapshot(spark, "")

    def splits(
        self,
        spark: SparkSession,
        snapshot: Snapshot,
        window: HistoryPartition | None,
        cut: HandoffFilter | None,
    ) -> Sequence[Json]:
        """Return groups of data files with exact row counts.

        The counts are taken after deletes, filter, partition and handoff filter.
        """
        snapshot_id = snapshot.handle["snapshot_id"]
        if snapshot_id is None:
            return []
        scope = scope_of(window, cut)
        tasks = self._table.files(spark, snapshot_id)
        counted = self._counts(spark, snapshot_id, tasks, scope)
        found: list[Json] = []
        for ordinal, location in enumerate(tasks):
            if not (rows := counted.get(location, 0)):
                continue
            size = PACKED * int(tasks[location].file().fileSizeInBytes())
            if not found or is_full(found[-1], rows, size):
                name = f"{'' if window is None else window.key + '/'}{len(found):05d}"
                found.append({"id": name, "rows": 0, "bytes": 0, "files": [], "scope": scope})
            found[-1]["files"].append([ordinal, location])
            found[-1]["rows"] += rows
            found[-1]["bytes"] += size
        return found

    def _counts(
        self, spark: SparkSession, snapshot_id: int, tasks: Mapping[str, Any], scope: Json
    ) -> dict[str, int]:
        """Return the rows by file, from the metadata if it is exact, else from the columns of the scope."""
        if (
            not self.node.filter
            and not scope["window"]
            and not scope["cut"]
            and not any(task.deletes().size() for task in tasks.values())
        ):
            return {location: int(task.file().recordCount()) for location, task in tasks.items()}
        frame = self._scoped(self._table.frame(spark, snapshot_id), scope)
        return {row[0]: int(row[1]) for row in frame.groupBy("_file").count().collect()}

    def _scoped(self, frame: DataFrame, scope: Json) -> DataFrame:
        """Return the rows inside filter, partition and handoff filter."""
        return apply_scope(
            apply_filter(frame, self.node.filter, self.name), scope, self.node.table_name, self.name
        )

    def read(
        self,
        spark: SparkSession,
        snapshot: Snapshot,
        splits: Sequence[Json],
        columns: Sequence[str] | None = None,
    ) -> DataFrame:
        """Return the rows of these splits; `columns` selects and orders the columns that are read.

        Iceberg applies filters and columns when it reads the files.
        """
        from pyspark.sql import functions as F  # noqa: N812

        snapshot_id = snapshot.handle["snapshot_id"]
        files = [(location, ordinal) for split in splits for ordinal, location in split["files"]]
        scope = splits[0]["scope"] if splits else EVERYTHING
        whole = (
            self._table.frame(spark, snapshot_id).limit(0)
            if not files
            else self._table.read_files(spark, snapshot_id, [file[0] for file in files])
        )
        frame = self._scoped(whole, scope)
        listed = F.broadcast(spark.createDataFrame(files, f"{_FILE} string, {_PART} int"))
        place = position_column(self.ordinal, scope, F.col(_PART), F.col("_pos"))
        payload = [
            quote_identifier(name)
            for name in self._narrow(frame, columns if columns is not None else self.node.columns).columns
        ]
        return frame.join(listed, F.col("_file") == F.col(_FILE)).select(
            *payload, F.lit("i").alias(OP), place.alias(POS)
        )

    def read_end_offsets(self, table: OffsetTable, topic: str) -> Mapping[str, int]:
        """Return the largest offset plus one per topic partition. Call it before `create_snapshot`."""
        from pyspark.sql import SparkSession

        spark = SparkSession.getActiveSession()
        if spark is None:
            msg = "the fence of an Iceberg table was asked for without a Spark session"
            raise InternalError(msg, node=self.name)
        frame = WarehouseTable(self._warehouse, table.table_name or self.node.table_name, self.name).frame(
            spark, None
        )
        return read_end_offsets(frame, table, topic, table.table_name or self.node.table_name, self.name)

    def measure_offsets(
        self,
        spark: SparkSession,
        snapshot: Snapshot,
        table: OffsetTable,
        topic: str,
        since: Mapping[str, int],
    ) -> TableOffsets:
        """See `BoundedSource.measure_offsets`."""
        if (
            snapshot.handle["snapshot_id"] is None
        ):  # an empty table; without an id Spark would read what it has by now
            return TableOffsets({})
        frame = self._table.frame(spark, snapshot.handle["snapshot_id"])
        return offsets.measure(frame, table, topic, since, self.node.table_name, self.name)

    def has_nulls(self, spark: SparkSession, snapshot: Snapshot, column: str) -> bool:
        """See `BoundedSource.has_nulls`."""
        found = snapshot.handle["snapshot_id"]
        return found is not None and offsets.has_nulls(self._table.frame(spark, found), column)

    def count_unpartitioned_rows(
        self, spark: SparkSession, snapshot: Snapshot, gap: PartitionGap, cut: HandoffFilter | None
    ) -> UnpartitionedRows:
        """See `BoundedSource.count_unpartitioned_rows`."""
        found = snapshot.handle["snapshot_id"]
        if found is None:
            return UnpartitionedRows()
        return offsets.count_unpartitioned_rows(
            self._scoped(self._table.frame(spark, found), scope_of(None, cut)), gap
        )

    def describe(self) -> Json:
        """Return the type, asset key, table name and warehouse from the file and the settings alone."""
        name = self.node.table_name
        return {
            "kind": "iceberg",
            "asset_key": ["iceberg", *name.split(".")],
            "scope": split_location(self._warehouse or ""),
            "table_name": name,
            "location": self._warehouse,
        }

    def close(self) -> None:
        """Release planned scans."""
        self._table.close()
