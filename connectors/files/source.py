"""Files as a bounded source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from headrace.connectors import offsets
from headrace.connectors.arrow_partition import COUNTED_BYTES, UnknownBoundError, find_partition
from headrace.connectors.files import listing, reader
from headrace.connectors.files.arrow_rows import (
    TEXT_FORMATS,
    ArrowSplitReader,
    count_rows,
    count_unpartitioned_rows,
    explain_unsupported,
    parse_folder,
    read_table,
)
from headrace.connectors.files.config import FileSourceConfig
from headrace.connectors.files.decoder import FileDecoder
from headrace.connectors.files.formats import format_reader
from headrace.connectors.files.listing import File
from headrace.connectors.files.locations import storage_of
from headrace.connectors.files.reader import GROUP, OFF, PART, FileRange
from headrace.connectors.files.schema import FileSchema, check_file, narrow_schema, shape_of, unpack
from headrace.connectors.files.storage import list_files
from headrace.connectors.filters import (
    EVERYTHING,
    apply_filter,
    apply_scope,
    check_columns,
    position_column,
    quote_identifier,
    scope_of,
)
from headrace.connectors.lakehouse_rows import DRIVER_ROWS
from headrace.connectors.plain_text import UnprovenTextError
from headrace.connectors.source_base import BoundedSource, Snapshot
from headrace.connectors.splitting import is_full
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import PipelineStateError
from headrace.pipeline.model.capabilities import SourceCapabilities
from headrace.pipeline.model.connectors import source_entries
from headrace.pipeline.model.sources import OffsetTable
from headrace.pipeline.protocol.epochs import Json
from headrace.pipeline.protocol.partitions import HistoryPartition, PartitionGap, UnpartitionedRows
from headrace.pipeline.protocol.table_offsets import HandoffFilter, TableOffsets
from headrace.pipeline.sql.system_columns import OP, POS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COUNTING = 64  # tasks
_PLAIN = "plain"
"""Key of a split whose rows Arrow reads as Spark does: all text in it is plain, see `plain_text`."""


class Files(BoundedSource):
    """Reads the files of a path once, in the natural order of their names.

    The pin is the list of files with size and time of change. A task reads each file through one open handle
    and compares it with the pin before and after, so that a file which was changed or removed is an error and
    never other rows. Splits are whole files, or row groups of parquet and Avro files. Every row is an insert.
    `_gs_pos` is the row's topic partition and offset where the history is cut by them, else its file's place
    in the order and its number in the file.
    """

    capabilities: ClassVar[SourceCapabilities] = source_entries()["file"].capabilities

    def __init__(self, node: FileSourceConfig, settings: Settings, ordinal: int = 0, name: str = "") -> None:
        """Create the source without listing files.

        `name` is the node's name in errors. It defaults to the path.
        """
        self.node = node
        self.ordinal = ordinal
        self.name = name or node.path
        self._storage = storage_of(node.path, settings)
        self._decoder = FileDecoder(node, self._storage, self.name)
        self._has_counts = format_reader(node.format).has_counts
        self.listed: dict[str, tuple[list[File], FileSchema]] = {}

    def schema(self, spark: SparkSession) -> pa.Schema:
        """Return the payload's schema of the current files."""
        del spark
        return self._narrow(self._shape(self._list()))

    def _narrow(self, shape: FileSchema, columns: Sequence[str] | None = None) -> pa.Schema:
        wanted = columns if columns is not None else self.node.columns
        return narrow_schema(shape, wanted, self.node.path, self.name)

    def create_snapshot(self, spark: SparkSession, token: str) -> Snapshot:
        """Return the current files with size and time of change, and the rows of parquet row groups.

        Nothing is created, so `token` is not used. The choice is fixed when the ledger stores the handle.
        """
        del token
        files, shape = self._list_with_schema()
        if self.node.filter:
            apply_filter(_empty(spark, shape.payload), self.node.filter, self.name)
        handle = {
            "pinned": True,
            "path": self.node.path,
            "format": self.node.format,
            "schema": shape.pack(),
            **listing.pack(files),
        }
        return Snapshot(handle, is_stable=True)

    def describe_snapshot(self, spark: SparkSession) -> Snapshot:
        """Return the same snapshot as `create_snapshot`, which creates nothing."""
        return self.create_snapshot(spark, "")

    def check(self, spark: SparkSession, columns: Sequence[str]) -> None:
        """Check filter and columns against the schema of the current files."""
        shape = self._shape(self._list())
        self._narrow(shape, columns)
        if self.node.filter:
            apply_filter(_empty(spark, shape.payload), self.node.filter, self.name)

    def _list(self) -> list[File]:
        return list_files(self._storage, self.node.path, self.name)

    def _shape(self, files: Sequence[File], inner: pa.Schema | None = None) -> FileSchema:
        return shape_of(self.node, self._storage, files, self.name, inner)

    def _list_with_schema(self) -> tuple[list[File], FileSchema]:
        files = self._list()
        shape = self._shape(files)
        if self._has_counts:
            wanted = {*self._narrow(shape).names, *self._columns_to_read(shape, EVERYTHING, ())}
            inner = pa.schema([field for field in shape.inner if field.name in wanted])
            contents = reader.read_all_contents(self._storage, files, self.node.format, self.name)
            for file, columns in contents:
                check_file(file, columns, inner, self.name)
            files = [file for file, _ in contents]
        self._storage.check(files, self.name)
        return files, shape

    def _unpack_handle(self, handle: Json) -> tuple[list[File], FileSchema]:
        key = handle["root"] + handle["files"]
        if key not in self.listed:
            files = listing.unpack(handle)
            self.listed[key] = files, self._shape(files, unpack(handle["schema"]))
        return self.listed[key]

    def splits(
        self,
        spark: SparkSession,
        snapshot: Snapshot,
        window: HistoryPartition | None,
        cut: HandoffFilter | None,
    ) -> Sequence[Json]:
        """Return whole text files, or row groups, with exact row counts.

        The counts are taken after filter, partition and handoff filter.
        """
        files, shape = self._unpack_handle(snapshot.handle)
        scope = scope_of(window, cut)
        near = {at: file for at, file in enumerate(files) if _may_hold(file, shape, scope)}
        self._storage.check(list(near.values()), self.name)
        counted, is_plain = self._counts(spark, near, shape, scope)
        result: list[Json] = []
        for (ordinal, group), rows in sorted(counted.items()):
            size = listing.unpacked_size(files[ordinal], group)
            if not result or is_full(result[-1], rows, size):
                name = f"{'' if window is None else window.key + '/'}{len(result):05d}"
                split = {"id": name, "rows": 0, "bytes": 0, "files": [], "scope": scope}
                result.append(split | ({_PLAIN: True} if is_plain else {}))
            listing.append_group(result[-1]["files"], ordinal, files[ordinal].path, group)
            result[-1]["rows"] += rows
            result[-1]["bytes"] += size
        return result

    def _counts(
        self, spark: SparkSession, files: Mapping[int, File], shape: FileSchema, scope: Json
    ) -> tuple[Mapping[tuple[int, int], int], bool]:
        """Return non-zero row counts by file and row group, and whether all text in them is plain.

        They come from the footers if these are exact, else from reading the columns of the scope. All text is
        converted to learn its form.
        """
        if self._has_counts and not self.node.filter and scope == EVERYTHING:
            return {
                (at, group): rows
                for at, file in files.items()
                for group, rows in enumerate(file.groups or ())
                if rows
            }, False
        pieces = [_whole(at, file) for at, file in files.items()]
        has_text = self.node.format in TEXT_FORMATS
        rows = self._decoder.arrow_rows(shape, self._narrow(shape).names if has_text else (), scope)
        if rows is not None and sum(file.size for file in files.values()) <= COUNTED_BYTES:
            counts = count_rows(rows, pieces)
            if counts is not None:
                return counts, has_text
        tasks = [pieces[first::_COUNTING] for first in range(min(_COUNTING, len(pieces)))]
        frame = self._filter_scope(
            self._rows(spark, shape, tasks, self._columns_to_read(shape, scope, ())), scope
        )
        return {(row[0], row[1]): int(row[2]) for row in frame.groupBy(PART, GROUP).count().collect()}, False

    def _columns_to_read(self, shape: FileSchema, scope: Json, wanted: Sequence[str]) -> list[str]:
        """Return the columns to read; a filter needs every column whose name appears in it."""
        names = shape.payload.names
        bounds = {**(scope["window"] or {}), **(scope["cut"] or {})}
        used = {
            *wanted,
            *(bounds.get(key) for key in ("column", "partition_column", "offset_column", "topic_column")),
        }
        filter_text = (self.node.filter or "").lower()
        return [
            name
            for name in names
            if name in used or (filter_text and name.replace("`", "``").lower() in filter_text)
        ]

    def _filter_scope(self, frame: DataFrame, scope: Json) -> DataFrame:
        """Return the rows inside filter, partition and handoff filter."""
        return apply_scope(apply_filter(frame, self.node.filter, self.name), scope, self.node.path, self.name)

    def read(
        self,
        spark: SparkSession,
        snapshot: Snapshot,
        splits: Sequence[Json],
        columns: Sequence[str] | None = None,
    ) -> DataFrame:
        """Return the rows of these splits; `columns` selects and orders the columns that are read.

        Raise PipelineStateError at once for a file that changed since the snapshot. A file that changes later
        fails the task that reads it.
        """
        from pyspark.sql import functions as F  # noqa: N812

        files, shape = self._unpack_handle(snapshot.handle)
        tasks = self._tasks(files, splits)
        scope = splits[0]["scope"] if splits else EVERYTHING
        wanted = self._narrow(shape, columns).names
        frame = self._filter_scope(
            self._rows(spark, shape, tasks, self._columns_to_read(shape, scope, wanted)), scope
        )
        place = position_column(self.ordinal, scope, F.col(PART), F.col(OFF))
        return frame.select(*map(quote_identifier, wanted), F.lit("i").alias(OP), place.alias(POS))

    def read_table(
        self, snapshot: Snapshot, splits: Sequence[Json], columns: Sequence[str]
    ) -> pa.Table | None:
        """Return the rows if they are few, and if Arrow reads them as Spark does."""
        if sum(split["rows"] for split in splits) > DRIVER_ROWS:
            return None
        if (fetch := self._split_reader(snapshot, splits, columns)) is None:
            return None
        pieces = [piece for split in splits for piece in fetch.ranges[split["id"]]]
        rows = read_table(fetch.rows, pieces, self.ordinal)
        return None if rows is None else rows.select([*columns, OP, POS])

    def explain_direct_obstacle(self) -> str:
        """See `BoundedSource.explain_direct_obstacle`. Text may still need Spark, which its form decides."""
        if self.node.filter:
            return "Spark applies its filter"
        files = self._list()
        folders = {name: self.node.schema_.get(name, "string") for name in files[0].partitions}
        return explain_unsupported(self.node.format, self.node.schema_, folders)

    def explain_key_spread(self, key: Sequence[str]) -> str:
        """See `BoundedSource.explain_key_spread`."""
        del key
        return "several files may have rows of one key"

    def create_split_reader(
        self, snapshot: Snapshot, splits: Sequence[Json], query: str | None, key: Sequence[str] = ()
    ) -> ArrowSplitReader | None:
        """Return a reader of row groups and files. There is none for rows that only Spark reads."""
        del key
        assert query is None  # noqa: S101  the source has not `SourceCapabilities.computes_sql`
        _, shape = self._unpack_handle(snapshot.handle)
        return self._split_reader(snapshot, splits, self._narrow(shape).names)

    def _split_reader(
        self, snapshot: Snapshot, splits: Sequence[Json], columns: Sequence[str]
    ) -> ArrowSplitReader | None:
        files, shape = self._unpack_handle(snapshot.handle)
        scope = splits[0]["scope"] if splits else EVERYTHING
        rows = self._decoder.arrow_rows(shape, columns, scope)
        has_text = self.node.format in TEXT_FORMATS
        if rows is None or any(
            split["scope"] != scope or (has_text and _PLAIN not in split) for split in splits
        ):
            return None
        ranges = {split["id"]: task for split, task in zip(splits, self._tasks(files, splits), strict=True)}
        return ArrowSplitReader(rows, tuple(splits), ranges)

    def _tasks(self, files: Sequence[File], splits: Sequence[Json]) -> list[list[FileRange]]:
        """Return the file ranges of each split. Raise PipelineStateError for a file that changed."""
        tasks = [[self._piece(files, *piece) for piece in split["files"]] for split in splits]
        self._storage.check([piece.file for task in tasks for piece in task], self.name)
        return tasks

    def _piece(self, files: Sequence[File], ordinal: int, path: str, first: int, end: int) -> FileRange:
        if ordinal >= len(files) or files[ordinal].path != path:
            msg = f"`{path}` is not among the files that were pinned"
            raise PipelineStateError(
                msg,
                hint="The ledger's position and its splits do not belong together; start the history over.",
                node=self.name,
            )
        return FileRange(ordinal, files[ordinal], first, end)

    def _rows(
        self,
        spark: SparkSession,
        shape: FileSchema,
        tasks: Sequence[Sequence[FileRange]],
        needed: Sequence[str],
    ) -> DataFrame:
        """Return the needed columns in their types, with PART, GROUP and OFF."""
        return self._decoder.rows(spark, shape, tasks, needed)

    def measure_offsets(
        self,
        spark: SparkSession,
        snapshot: Snapshot,
        table: OffsetTable,
        topic: str,
        since: Mapping[str, int],
    ) -> TableOffsets:
        """See `BoundedSource.measure_offsets`."""
        return offsets.measure(
            self._all(spark, snapshot, offsets.offset_columns(table)),
            table,
            topic,
            since,
            self.node.path,
            self.name,
        )

    def has_nulls(self, spark: SparkSession, snapshot: Snapshot, column: str) -> bool:
        """See `BoundedSource.has_nulls`."""
        return offsets.has_nulls(self._all(spark, snapshot, [column]), column)

    def count_unpartitioned_rows(
        self, spark: SparkSession, snapshot: Snapshot, gap: PartitionGap, cut: HandoffFilter | None
    ) -> UnpartitionedRows:
        """See `BoundedSource.count_unpartitioned_rows`."""
        files, shape = self._unpack_handle(snapshot.handle)
        scope, pieces = scope_of(None, cut), [_whole(at, file) for at, file in enumerate(files)]
        rows = self._decoder.arrow_rows(shape, [gap.column], scope)
        if rows is not None and sum(file.size for file in files) <= COUNTED_BYTES:
            counted = count_unpartitioned_rows(rows, pieces, gap)
            if counted is not None:
                return counted
        needed = self._columns_to_read(shape, scope, [gap.column])
        frame = self._rows(spark, shape, [[piece] for piece in pieces], needed)
        return offsets.count_unpartitioned_rows(self._filter_scope(frame, scope), gap)

    def _all(self, spark: SparkSession, snapshot: Snapshot, columns: Sequence[str]) -> DataFrame:
        """Return some columns of all rows of the snapshot's files."""
        files, shape = self._unpack_handle(snapshot.handle)
        check_columns(shape.payload.names, columns, self.node.path, self.name)
        return self._rows(spark, shape, [[_whole(at, file)] for at, file in enumerate(files)], columns)

    def describe(self) -> Json:
        """Return the type, asset key and path, from the file alone."""
        return listing.describe_path(self.node.path)

    def close(self) -> None:
        """Clear the cached file lists."""
        self.listed.clear()


def _whole(ordinal: int, file: File) -> FileRange:
    return FileRange(ordinal, file, 0, 1 if file.groups is None else len(file.groups))


def _may_hold(file: File, shape: FileSchema, scope: Json) -> bool:
    """Return whether the folders of a file allow rows inside the partition."""
    window = scope["window"]
    if window is None or window["column"] not in shape.folders:
        return True
    text, kind = file.partitions[window["column"]], shape.payload.field(window["column"]).type
    if text is None:
        return False
    try:
        value = parse_folder(text, kind).as_py()
        partition = find_partition({"window": window, "cut": None}, shape.payload)
    except (UnprovenTextError, UnknownBoundError):
        return True
    return partition is None or partition.may_contain(value, value)


def _empty(spark: SparkSession, schema: pa.Schema) -> DataFrame:
    from pyspark.sql.pandas.types import from_arrow_schema

    return spark.createDataFrame([], from_arrow_schema(schema, prefer_timestamp_ntz=True))
