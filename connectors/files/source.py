"""Files as a bounded source."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from headrace.connectors import offsets
from headrace.connectors.files import listing, reader, text_values
from headrace.connectors.files.config import FileSourceConfig
from headrace.connectors.files.listing import File
from headrace.connectors.files.reader import FOLDER, GROUP, LINE, OFF, PART, FileRange, FileScan
from headrace.connectors.files.schema import FileSchema, check_file, shape_of, unpack
from headrace.connectors.filters import (
    EVERYTHING,
    apply_filter,
    apply_scope,
    check_columns,
    position_column,
    quote_identifier,
    scope_of,
)
from headrace.connectors.kafka.json_decoder import checked, exact_text, parsed
from headrace.connectors.lakehouse_rows import DRIVER_ROWS
from headrace.connectors.row_errors import RowConditions
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
    from pyspark.sql import Column, DataFrame, SparkSession

_COUNTING = 64  # tasks


class Files(BoundedSource):
    """Reads the files of a path once, in the natural order of their names.

    The pin is the list of files with size and time of change. A task reads each file through one open handle
    and compares it with the pin before and after, so that a file which was changed or removed is an error and
    never other rows. Splits are whole text files, or row groups of parquet files. Every row is an insert.
    `_gs_pos` is the row's topic partition and offset where the history is cut by them, else its file's place
    in the order and its number in the file.
    """

    capabilities: ClassVar[SourceCapabilities] = source_entries()["file"].capabilities

    def __init__(self, node: FileSourceConfig, settings: Settings, ordinal: int = 0, name: str = "") -> None:
        """Create the source without listing files.

        `name` is the node's name in errors. It defaults to the path.
        """
        del settings
        self.node = node
        self.ordinal = ordinal
        self.name = name or node.path
        self.listed: dict[str, tuple[list[File], FileSchema]] = {}

    def schema(self, spark: SparkSession) -> pa.Schema:
        """Return the payload's schema of the current files."""
        del spark
        return self._narrow(shape_of(self.node, listing.list_files(self.node.path, self.name), self.name))

    def _narrow(self, shape: FileSchema, columns: Sequence[str] | None = None) -> pa.Schema:
        wanted = columns if columns is not None else self.node.columns
        check_columns(shape.payload.names, wanted, self.node.path, self.name)
        return pa.schema([shape.payload.field(name) for name in wanted or shape.payload.names])

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
        shape = shape_of(self.node, listing.list_files(self.node.path, self.name), self.name)
        self._narrow(shape, columns)
        if self.node.filter:
            apply_filter(_empty(spark, shape.payload), self.node.filter, self.name)

    def _list_with_schema(self) -> tuple[list[File], FileSchema]:
        files = listing.list_files(self.node.path, self.name)
        shape = shape_of(self.node, files, self.name)
        if self.node.format == "parquet":
            wanted = {*self._narrow(shape).names, *self._needed(shape, EVERYTHING, ())}
            inner = pa.schema([field for field in shape.inner if field.name in wanted])
            files = reader.footers(
                files, self.name, lambda file, schema: check_file(file, schema, inner, self.name)
            )
        listing.check(files, self.name)
        return files, shape

    def _pinned(self, handle: Json) -> tuple[list[File], FileSchema]:
        key = handle["root"] + handle["files"]
        if key not in self.listed:
            files = listing.unpack(handle)
            self.listed[key] = files, shape_of(self.node, files, self.name, unpack(handle["schema"]))
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
        files, shape = self._pinned(snapshot.handle)
        scope = scope_of(window, cut)
        near = {at: file for at, file in enumerate(files) if _may_hold(file, shape, scope)}
        listing.check(list(near.values()), self.name)
        counted = self._counts(spark, near, shape, scope)
        found: list[Json] = []
        for (ordinal, group), rows in sorted(counted.items()):
            size = listing.unpacked_size(files[ordinal], group)
            if not found or is_full(found[-1], rows, size):
                name = f"{'' if window is None else window.key + '/'}{len(found):05d}"
                found.append({"id": name, "rows": 0, "bytes": 0, "files": [], "scope": scope})
            listing.append_group(found[-1]["files"], ordinal, files[ordinal].path, group)
            found[-1]["rows"] += rows
            found[-1]["bytes"] += size
        return found

    def _counts(
        self, spark: SparkSession, files: Mapping[int, File], shape: FileSchema, scope: Json
    ) -> dict[tuple[int, int], int]:
        """Return non-zero row counts by file and row group.

        They come from the footers if these are exact, else from reading the columns of the scope.
        """
        if self.node.format == "parquet" and not self.node.filter and scope == EVERYTHING:
            return {
                (at, group): rows
                for at, file in files.items()
                for group, rows in enumerate(file.groups or ())
                if rows
            }
        pieces = [
            FileRange(at, file, 0, 1 if file.groups is None else len(file.groups))
            for at, file in files.items()
        ]
        tasks = [pieces[first::_COUNTING] for first in range(min(_COUNTING, len(pieces)))]
        frame = self._scoped(self._rows(spark, shape, tasks, self._needed(shape, scope, ())), scope)
        return {(row[0], row[1]): int(row[2]) for row in frame.groupBy(PART, GROUP).count().collect()}

    def _needed(self, shape: FileSchema, scope: Json, wanted: Sequence[str]) -> list[str]:
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

    def _scoped(self, frame: DataFrame, scope: Json) -> DataFrame:
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

        files, shape = self._pinned(snapshot.handle)
        tasks = self._tasks(files, splits)
        scope = splits[0]["scope"] if splits else EVERYTHING
        wanted = self._narrow(shape, columns).names
        frame = self._scoped(self._rows(spark, shape, tasks, self._needed(shape, scope, wanted)), scope)
        place = position_column(self.ordinal, scope, F.col(PART), F.col(OFF))
        return frame.select(*map(quote_identifier, wanted), F.lit("i").alias(OP), place.alias(POS))

    def read_table(
        self, snapshot: Snapshot, splits: Sequence[Json], columns: Sequence[str]
    ) -> pa.Table | None:
        """Return the rows of whole parquet files if they are few. Other values are text that Spark reads."""
        files, shape = self._pinned(snapshot.handle)
        is_plain = self.node.format == "parquet" and not self.node.filter and not shape.folders
        if not is_plain or any(split["scope"] != EVERYTHING for split in splits):
            return None
        if sum(split["rows"] for split in splits) > DRIVER_ROWS:
            return None
        pieces = [piece for task in self._tasks(files, splits) for piece in task]
        rows = reader.read_table(self._scan(shape, columns), pieces, self.ordinal)
        return None if rows is None else rows.select([*columns, OP, POS])

    def _tasks(self, files: Sequence[File], splits: Sequence[Json]) -> list[list[FileRange]]:
        """Return the file ranges of each split. Raise PipelineStateError for a file that changed."""
        tasks = [[self._piece(files, *piece) for piece in split["files"]] for split in splits]
        listing.check([piece.file for task in tasks for piece in task], self.name)
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
        from pyspark.sql import functions as F  # noqa: N812

        scan = self._scan(shape, needed)
        folders, kind = scan.folders, self.node.format
        inner = [field for field in shape.inner if field.name in scan.columns.names]
        frame = reader.read(spark, scan, tasks)
        where = {"file": reader.path_of(tasks), "row" if kind == "csv" else "line": F.col(OFF) + 1}
        hidden = [*(f"{FOLDER}{at}" for at in range(len(folders))), PART, GROUP, OFF]
        if kind == "json":
            frame, columns = self._objects(frame, shape, hidden, where)
        elif kind == "csv":
            columns = [
                text_values.value(self.name, field.name, field.name, self.node.schema_[field.name], where)
                for field in inner
            ]
        else:
            columns = [F.col(quote_identifier(field.name)) for field in inner]
        there = {"file": where["file"]}
        columns += [
            text_values.value(self.name, f"{FOLDER}{at}", name, shape.folders[name], there)
            for at, name in enumerate(folders)
        ]
        return frame.select(*columns, PART, GROUP, OFF)

    def _scan(self, shape: FileSchema, needed: Sequence[str]) -> FileScan:
        """Return the scan of the needed columns."""
        kind = self.node.format
        inner = [field for field in shape.inner if field.name in needed]
        if not inner and kind == "csv":
            inner = [shape.inner.field(0)]  # Arrow reads all columns if none is requested
        as_text = [pa.field(field.name, pa.string()) for field in inner]
        return FileScan(
            node=self.name,
            format=kind,
            columns=pa.schema(
                [pa.field(LINE, pa.binary())] if kind == "json" else as_text if kind == "csv" else inner
            ),
            folders=tuple(name for name in shape.folders if name in needed),
            names=tuple(shape.inner.names),
            header=self.node.header,
            delimiter=self.node.delimiter,
            null_value=self.node.null_value,
        )

    def _objects(
        self, frame: DataFrame, shape: FileSchema, hidden: Sequence[str], where: Mapping[str, Column]
    ) -> tuple[DataFrame, list[Column]]:
        """Return the objects of JSON lines, each checked as a whole. Blank lines are skipped.

        The rules are those of `kafka.json_decoder`.
        """
        from pyspark.sql import functions as F  # noqa: N812

        declared = {name: self.node.schema_[name] for name in shape.inner.names}
        value = F.col(LINE)
        lines = frame.where(F.trim(value.cast("string")) != "").select(
            *hidden, value.alias("value"), *parsed(value, declared)
        )
        row = checked(RowConditions(self.name), declared, where, "line", "Correct the file")
        found = lines.select(*hidden, F.col("text").alias("_headrace_text"), F.inline(F.array(row)))
        return found, [
            exact_text(name) if pa.types.is_string(kind) else F.col(quote_identifier(name))
            for name, kind in _typed(shape.inner)
        ]

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
        files, shape = self._pinned(snapshot.handle)
        scope = scope_of(None, cut)
        pieces = [
            [FileRange(at, file, 0, 1 if file.groups is None else len(file.groups))]
            for at, file in enumerate(files)
        ]
        rows = self._rows(spark, shape, pieces, self._needed(shape, scope, [gap.column]))
        return offsets.count_unpartitioned_rows(self._scoped(rows, scope), gap)

    def _all(self, spark: SparkSession, snapshot: Snapshot, columns: Sequence[str]) -> DataFrame:
        """Return some columns of all rows of the snapshot's files."""
        files, shape = self._pinned(snapshot.handle)
        check_columns(shape.payload.names, columns, self.node.path, self.name)
        tasks = [
            [FileRange(at, file, 0, 1 if file.groups is None else len(file.groups))]
            for at, file in enumerate(files)
        ]
        return self._rows(spark, shape, tasks, columns)

    def describe(self) -> Json:
        """Return the type, asset key and path, from the file alone."""
        place = self.node.path.removeprefix("file://")
        parts = [re.sub(r"[^\w.=-]+", "_", part) for part in place.split("/") if part not in ("", ".", "..")]
        return {"kind": "file", "asset_key": ["file", *parts], "location": self.node.path}

    def close(self) -> None:
        """Clear the cached file lists."""
        self.listed.clear()


def _may_hold(file: File, shape: FileSchema, scope: Json) -> bool:
    """Return whether the folders of a file allow rows inside the partition."""
    window = scope["window"]
    if window is None or window["column"] not in shape.folders:
        return True
    said, kind = file.partitions[window["column"]], shape.payload.field(window["column"]).type
    if said is None or not (pa.types.is_string(kind) or pa.types.is_date(kind)):
        return said is not None
    return said == window["start"] or window["start"] <= said < window["end"]


def _empty(spark: SparkSession, schema: pa.Schema) -> DataFrame:
    from pyspark.sql.pandas.types import from_arrow_schema

    return spark.createDataFrame([], from_arrow_schema(schema, prefer_timestamp_ntz=True))


def _typed(schema: pa.Schema) -> list[tuple[str, pa.DataType]]:
    return [(field.name, field.type) for field in schema]
