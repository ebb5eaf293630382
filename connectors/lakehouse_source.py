"""Tables of files with versions, as bounded sources: what Delta and Iceberg have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.connectors import offsets
from headrace.connectors.filters import (
    EVERYTHING,
    apply_filter,
    apply_scope,
    check_columns,
    position_column,
    quote_identifier,
    read_end_offsets,
    scope_of,
    select_columns,
)
from headrace.connectors.lazy_session import ensure_session
from headrace.connectors.source_base import BoundedSource, Snapshot
from headrace.connectors.splitting import PACKED, is_full
from headrace.pipeline.errors import InternalError, SchemaError
from headrace.pipeline.model.sources import OffsetTable
from headrace.pipeline.protocol.epochs import Json
from headrace.pipeline.protocol.partitions import HistoryPartition, PartitionGap, UnpartitionedRows
from headrace.pipeline.protocol.table_offsets import HandoffFilter, TableOffsets
from headrace.pipeline.sql.system_columns import HIDDEN, OP, POS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_FILE, _PART = "_headrace_file", "_headrace_part"


@dataclass(frozen=True, slots=True)
class TableFile:
    """A data file of a version.

    `rows` are those that the version has of it; None if only a scan can count them. `size` is in bytes.
    """

    rows: int | None
    size: int


class VersionedTable(ABC):
    """A table whose versions never change. A version is JSON, as a snapshot's handle has it."""

    name: str
    file_column: ClassVar[str]
    """Spark's column with the location of a row's file, as in `files`."""
    place_column: ClassVar[str]
    """Spark's column with the place of a row in its file."""

    @abstractmethod
    def choose_version(self, spark: SparkSession, wanted: int | None) -> Json | None:
        """Return a version: the wanted one, or the newest. None if the table has no version yet."""

    @abstractmethod
    def frame(self, spark: SparkSession, version: Json | None) -> DataFrame:
        """Return all rows of a version, or of the table as it is now.

        Raise PipelineStateError if the table no longer has the version, TargetError if there is no table.
        """

    def read_columns(self, spark: SparkSession, version: Json | None) -> StructType:
        """Return the columns of `frame`, perhaps without Spark."""
        return self.frame(spark, version).schema

    @abstractmethod
    def files(self, spark: SparkSession, version: Json) -> Mapping[str, TableFile]:
        """Return the data files by location, in the order in which rows were added. The order never changes.

        Raise PipelineStateError if the table no longer has the version.
        """

    @abstractmethod
    def read_files(self, spark: SparkSession, version: Json, locations: Iterable[str]) -> DataFrame:
        """Return the rows of these files of a version, and perhaps of others, without removed rows."""

    def close(self) -> None:
        """Release what `files` and `read_files` keep. By default they keep nothing."""
        return


class LakehouseSource(BoundedSource):
    """Reads one version of a table once, in groups of data files.

    A version never changes, so a split reads the same rows as long as the table keeps the version: let the
    table's maintenance keep it until the history is complete. Every row is an insert. `_gs_pos` is the row's
    topic partition and offset where the history is cut by them, else its file (files ordered by when rows
    were added) and its place there.
    """

    version_keys: ClassVar[tuple[str, ...]]
    """The keys of a version in a snapshot's handle. The first one is also the key of the node."""

    def __init__(self, node: Any, table: VersionedTable, ordinal: int, name: str) -> None:
        """Create the source without reading the table. `name` is the node's name in errors."""
        self.node = node
        self.ordinal = ordinal
        self.name = name
        self._table = table
        self._session: SparkSession | None = None

    @abstractmethod
    def open_table(self, name: str) -> VersionedTable:
        """Return another table of the same kind. Called for `offset_table` of a handoff."""

    def _choose(self, spark: SparkSession) -> Json | None:
        return self._table.choose_version(spark, getattr(self.node, self.version_keys[0]))

    def _version(self, snapshot: Snapshot) -> Json | None:
        """Return the version of a handle. None if the table was empty."""
        version = {key: snapshot.handle[key] for key in self.version_keys}
        return None if version[self.version_keys[0]] is None else version

    def schema(self, spark: SparkSession) -> pa.Schema:
        """Return the payload's schema at the node's version, or of the current table without one."""
        from pyspark.errors import PySparkException
        from pyspark.sql.pandas.types import to_arrow_schema

        self._session = spark
        wanted = getattr(self.node, self.version_keys[0])
        columns = self._read_columns(spark, None if wanted is None else self._choose(spark))
        if taken := [name for name in columns.names if name.lower() in HIDDEN]:
            msg = f"`{taken[0]}` is a name that Headrace keeps for itself"
            raise SchemaError(msg, hint="List the other columns under `columns`.", node=self.name)
        try:
            return to_arrow_schema(columns)
        except PySparkException as error:
            msg = f"a column of `{self._table.name}` has a type that is not available yet: {error}"
            raise SchemaError(
                msg, hint="List the columns to read under `columns`.", node=self.name
            ) from error

    def _read_columns(self, spark: SparkSession, version: Json | None) -> StructType:
        """Return the columns of a version that the node reads. Raise SchemaError for one that it lacks."""
        from pyspark.sql.types import StructType

        every = self._table.read_columns(spark, version)
        check_columns(every.names, self.node.columns, self._table.name, self.name)
        return StructType([every[name] for name in self.node.columns]) if self.node.columns else every

    def _narrow(self, frame: DataFrame, wanted: Sequence[str]) -> DataFrame:
        return select_columns(frame, wanted, self._table.name, self.name)

    def create_snapshot(self, spark: SparkSession, token: str) -> Snapshot:
        """Return the node's version, or the newest one.

        Nothing is created, so `token` is not used. The choice is fixed when the ledger stores the handle.
        """
        del token
        version = self._choose(spark)
        self._table.read_columns(spark, version)  # raises if the table no longer has the version
        if self.node.filter:
            apply_filter(self._table.frame(spark, version), self.node.filter, self.name)
        handle = {"pinned": True, "table": self._table.name} | dict.fromkeys(self.version_keys)
        return Snapshot(handle | (version or {}), is_stable=True)

    def check(self, spark: SparkSession, columns: Sequence[str]) -> None:
        """Check filter and columns against the table's own schema."""
        version = self._choose(spark)
        names = self._table.read_columns(spark, version).names
        check_columns(names, columns, self._table.name, self.name)
        if self.node.filter:
            apply_filter(self._table.frame(spark, version), self.node.filter, self.name)

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

        The counts are taken after removed rows, filter, partition and handoff filter.
        """
        if (version := self._version(snapshot)) is None:
            return []
        scope = scope_of(window, cut)
        files = self._table.files(spark, version)
        counted = self._count_rows(spark, version, files, scope)
        result: list[Json] = []
        for ordinal, (location, file) in enumerate(files.items()):
            if not (rows := counted.get(location, 0)):
                continue
            size = PACKED * file.size
            if not result or is_full(result[-1], rows, size):
                name = f"{'' if window is None else window.key + '/'}{len(result):05d}"
                result.append({"id": name, "rows": 0, "bytes": 0, "files": [], "scope": scope})
            result[-1]["files"].append([ordinal, location])
            result[-1]["rows"] += rows
            result[-1]["bytes"] += size
        return result

    def _count_rows(
        self, spark: SparkSession, version: Json, files: Mapping[str, TableFile], scope: Json
    ) -> dict[str, int]:
        """Return the rows by file, from the metadata if it is exact, else from the columns of the scope."""
        known = {location: file.rows for location, file in files.items() if file.rows is not None}
        if not self.node.filter and not scope["window"] and not scope["cut"] and len(known) == len(files):
            return known
        frame = self._filter_scope(self._table.frame(spark, version), scope)
        return {row[0]: int(row[1]) for row in frame.groupBy(self._table.file_column).count().collect()}

    def _filter_scope(self, frame: DataFrame, scope: Json) -> DataFrame:
        """Return the rows inside filter, partition and handoff filter."""
        filtered = apply_filter(frame, self.node.filter, self.name)
        return apply_scope(filtered, scope, self._table.name, self.name)

    def read(
        self,
        spark: SparkSession,
        snapshot: Snapshot,
        splits: Sequence[Json],
        columns: Sequence[str] | None = None,
    ) -> DataFrame:
        """Return the rows of these splits; `columns` selects and orders the columns that are read.

        Filters and columns are applied when the files are read.
        """
        from pyspark.sql import functions as F  # noqa: N812

        spark = ensure_session(spark)
        version = self._version(snapshot)
        files = [(location, ordinal) for split in splits for ordinal, location in split["files"]]
        scope = splits[0]["scope"] if splits else EVERYTHING
        if files and version is not None:
            whole = self._table.read_files(spark, version, [location for location, _ in files])
        else:
            whole = self._table.frame(spark, version).limit(0)
        frame = self._filter_scope(whole, scope)
        wanted = columns if columns is not None else self.node.columns
        payload = [F.col(quote_identifier(name)) for name in self._narrow(frame, wanted).columns]
        if not files:
            empty = position_column(self.ordinal, scope, F.lit(0), F.lit(0))
            return frame.select(*payload, F.lit("i").alias(OP), empty.alias(POS))
        listed = F.broadcast(spark.createDataFrame(files, f"{_FILE} string, {_PART} int"))
        place = position_column(self.ordinal, scope, F.col(_PART), F.col(self._table.place_column))
        return frame.join(listed, F.col(self._table.file_column) == F.col(_FILE)).select(
            *payload, F.lit("i").alias(OP), place.alias(POS)
        )

    def read_end_offsets(self, table: OffsetTable, topic: str) -> Mapping[str, int]:
        """Return the largest offset plus one per topic partition. Call it before `create_snapshot`."""
        from pyspark.sql import SparkSession

        spark = self._session or SparkSession.getActiveSession()
        if spark is None:
            msg = "the offsets of a table were read before its columns"
            raise InternalError(msg, node=self.name)
        result = self.open_table(table.table_name) if table.table_name else self._table
        return read_end_offsets(result.frame(spark, None), table, topic, result.name, self.name)

    def measure_offsets(
        self,
        spark: SparkSession,
        snapshot: Snapshot,
        table: OffsetTable,
        topic: str,
        since: Mapping[str, int],
    ) -> TableOffsets:
        """See `BoundedSource.measure_offsets`."""
        if (version := self._version(snapshot)) is None:
            return TableOffsets({})
        frame = self._table.frame(spark, version)
        return offsets.measure(frame, table, topic, since, self._table.name, self.name)

    def has_nulls(self, spark: SparkSession, snapshot: Snapshot, column: str) -> bool:
        """See `BoundedSource.has_nulls`."""
        version = self._version(snapshot)
        return version is not None and offsets.has_nulls(self._table.frame(spark, version), column)

    def count_unpartitioned_rows(
        self, spark: SparkSession, snapshot: Snapshot, gap: PartitionGap, cut: HandoffFilter | None
    ) -> UnpartitionedRows:
        """See `BoundedSource.count_unpartitioned_rows`."""
        if (version := self._version(snapshot)) is None:
            return UnpartitionedRows()
        rows = self._filter_scope(self._table.frame(spark, version), scope_of(None, cut))
        return offsets.count_unpartitioned_rows(rows, gap)

    def close(self) -> None:
        """Release planned scans."""
        self._table.close()
