"""Files as an unbounded source: all files of a path, and new ones as they come. See `known_files`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pyarrow.compute

from headrace.connectors.dead_letters import ERROR, good_rows
from headrace.connectors.files import reader
from headrace.connectors.files.arrow_rows import read_table
from headrace.connectors.files.config import FileSourceConfig
from headrace.connectors.files.decoder import FileDecoder
from headrace.connectors.files.discovery import FileDiscovery
from headrace.connectors.files.known_files import (
    PARTITION,
    KnownFile,
    append_files,
    bytes_between,
    divide_ranges,
    drop_removed,
    end_of_epoch,
    files_of,
    offset_of,
    position_at,
    ranges_of,
)
from headrace.connectors.files.listing import File, describe_path
from headrace.connectors.files.locations import storage_of
from headrace.connectors.files.reader import FileRange
from headrace.connectors.files.schema import FileSchema, declared_schema, narrow_schema, shape_of
from headrace.connectors.files.storage import list_files
from headrace.connectors.filter_marks import mark_filtered_rows
from headrace.connectors.filters import EVERYTHING, apply_filter, position_column, quote_identifier
from headrace.connectors.lakehouse_rows import DRIVER_ROWS
from headrace.connectors.spark_types import spark_schema
from headrace.connectors.stream_base import ReadLimits, UnboundedSource
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import PipelineStateError
from headrace.pipeline.model.capabilities import SourceCapabilities
from headrace.pipeline.model.connectors import stream_entries
from headrace.pipeline.protocol.epochs import Json
from headrace.pipeline.sql.system_columns import OP, POS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pc: Any = pyarrow.compute
"""Its functions are made at import, so type checkers do not see them."""


class FileStream(UnboundedSource):
    """Reads each file of a path once, in the order in which they were written.

    A position lists the files that were read, so a file is read neither twice nor never, whatever its time
    is. A file that is still written to is left for later. A file that changes after it was read is an error.
    Every row is an insert. `_gs_pos` is the number of the row among all rows of the stream.
    """

    capabilities: ClassVar[SourceCapabilities] = stream_entries()["file"].capabilities

    def __init__(
        self,
        name: str,
        node: FileSourceConfig,
        settings: Settings,
        ordinal: int = 0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Create the source without listing files."""
        self._name, self._node, self._ordinal = name, node, ordinal
        self._storage = storage_of(node.path, settings)
        self._decoder = FileDecoder(node, self._storage, name)
        self._discovery = FileDiscovery(name, node, self._storage, self._shape_of, clock)
        self._read: list[KnownFile] = []
        self._position: Json = position_at(0, [])
        """The position that `_read` are the files of."""

    @cached_property
    def _shape(self) -> FileSchema:
        """The columns of the files: those of `schema`, or of the first file."""
        if self._node.schema_:
            return declared_schema(self._node, self._name)
        files = list_files(self._storage, self._node.path, self._name)
        return shape_of(self._node, self._storage, files, self._name)

    def _shape_of(self, file: File) -> FileSchema:
        """Return the same columns, with those of the folders of a file apart."""
        if self._node.schema_:
            return declared_schema(self._node, self._name, file.partitions)
        return self._shape

    @property
    def has_declared_columns(self) -> bool:
        """Whether `schema` needs no file."""
        return bool(self._node.schema_)

    def schema(self) -> pa.Schema:
        """Return the columns that the node reads. Raise TargetError without `schema` and files."""
        return narrow_schema(self._shape, self._node.columns, self._node.path, self._name)

    def initial_offsets(self) -> Json:
        """Return the position before the first file."""
        return position_at(0, [])

    def earliest_offsets(self) -> Json:
        """Return the position before the first file."""
        return position_at(0, [])

    def readable_offsets(self, at: Json) -> Json:
        """Return the position after the last file of `at` that was removed or has changed."""
        now = {file.path: file for file in self._storage.list_files(self._node.path, self._name)}
        first = end = 0
        for one in files_of(at):
            there = now.get(one.file.path)
            if there is None or there.version != one.file.version:
                first = one.end
            elif one.start != end:  # Removed files were dropped from the position.
                first = one.start
            end = one.end
        return at | {"offsets": {PARTITION: min(first, offset_of(at))}}

    def resume(self, position: Json) -> None:
        """See `UnboundedSource.resume`."""
        if self._position.get("files") != position.get("files"):
            self._read = files_of(position)
        self._position = position

    def next_end_offsets(self, after: Json, limits: ReadLimits) -> Json:
        """Return the end of one epoch: whole row groups, or whole files of formats without them.

        Raise PipelineStateError for a file that changed after it was read, and DataError for one that cannot
        be read.
        """
        self.resume(after)
        files, start = self._files(), offset_of(after)
        rows = min(limits.rows, limits.per_partition or limits.rows)
        end = end_of_epoch(files, start, rows, limits.bytes or _NO_LIMIT)
        if end == start:
            return after
        return position_at(end, drop_removed(files, self._discovery.listed_paths()))

    def end_offsets(self) -> Json:
        """Return the position after the last row of the files that are complete now."""
        files = self._files()
        return position_at(files[-1].end if files else 0, files)

    def high_watermarks(self) -> Json:
        """Return the position after all files that exist now, but for those that are still written to.

        Wait until the youngest of them is `min_file_age` old.
        """
        self._discovery.wait()
        return self.end_offsets()

    def has_rows(self, start: Json, end: Json) -> bool:
        """Return whether no file of these rows was removed or has changed."""
        ranges = ranges_of(files_of(end), offset_of(start), offset_of(end))
        try:
            self._storage.check([piece.file for piece in ranges], self._name)
        except PipelineStateError:
            return False
        return True

    def lags(self, at: Json) -> Mapping[str, int]:
        """Return the rows after `at`."""
        self.resume(at)
        files = self._files()
        return {PARTITION: max(0, (files[-1].end if files else 0) - offset_of(at))}

    def estimate_bytes(self, start: Json, end: Json, most: int) -> int | None:
        """See `UnboundedSource.estimate_bytes`."""
        return min(most, bytes_between(files_of(end), offset_of(start), offset_of(end)))

    def newest_change_ms(self) -> int | None:
        """Return the time of the newest file."""
        files = self._storage.list_files(self._node.path, self._name)
        return max((file.changed for file in files), default=0) // 1_000_000 or None

    def check(self) -> None:
        """Check that the path exists, and that there is a file if the columns are not declared."""
        if not self._storage.list_files(self._node.path, self._name):
            self._storage.check_path(self._node.path, self._name)
        self.schema()

    def check_filter(self, spark: SparkSession) -> None:
        """See `UnboundedSource.check_filter`."""
        if self._node.filter:
            empty = spark.createDataFrame([], spark_schema(self._shape.payload))
            apply_filter(empty, self._node.filter, self._name)

    def read(self, spark: SparkSession, start: Json, end: Json) -> DataFrame:
        """Return the rows of [start, end) that pass the filter, or all of them, marked. None is rejected."""
        if self._node.on_error == "dead_letter":
            return self.filter_rows(good_rows(self.read_with_errors(spark, start, end)))
        rows, shape, tasks = self._plan(start, end)
        needed = shape.payload.names if self._node.filter else self.schema().names
        frame = self._decoder.rows(spark, shape, tasks, needed)
        return self.filter_rows(self._place_rows(frame, needed, rows))

    def read_with_errors(self, spark: SparkSession, start: Json, end: Json) -> DataFrame:
        """See `UnboundedSource.read_with_errors`. The rows have all columns, which a filter may need."""
        rows, shape, tasks = self._plan(start, end)
        frame = self._decoder.rows_with_errors(spark, shape, tasks, self._node.primary_key)
        return self._place_rows(frame, shape.payload.names, rows, ERROR)

    def _plan(self, start: Json, end: Json) -> tuple[range, FileSchema, list[list[FileRange]]]:
        """Return the offsets of [start, end), the columns of their files, and the ranges of tasks.

        Raise PipelineStateError for a file that was removed or has changed.
        """
        rows = range(offset_of(start), offset_of(end))
        ranges = ranges_of(files_of(end), rows.start, rows.stop)
        self._storage.check([piece.file for piece in ranges], self._name)
        shape = self._shape_of(ranges[0].file) if ranges else self._shape
        return rows, shape, divide_ranges(ranges)

    def _place_rows(self, frame: DataFrame, names: Sequence[str], offsets: range, *more: str) -> DataFrame:
        """Return the rows with these offsets, with `_gs_op` and `_gs_pos`."""
        from pyspark.sql import functions as F  # noqa: N812

        place = position_column(self._ordinal, EVERYTHING, F.lit(0), F.col(reader.OFF))
        rows = frame.where(F.col(reader.OFF).between(offsets.start, offsets.stop - 1))
        columns = [*map(quote_identifier, names), F.lit("i").alias(OP), place.alias(POS)]
        return rows.select(*columns, *more)

    def filter_rows(self, rows: DataFrame) -> DataFrame:
        """Return the rows that pass the node's filter, or all of them, marked, in the columns of the node."""
        names = self.schema().names
        if self._node.filter and self.marks:
            rows = mark_filtered_rows(rows, self._node.filter)
        elif self._node.filter:
            rows = apply_filter(rows, self._node.filter, self._name)
        elif rows.columns == [*names, OP, POS]:
            return rows
        return rows.select(*map(quote_identifier, names), OP, POS)

    def read_table(self, spark: SparkSession, start: Json, end: Json) -> pa.Table | None:
        """Return few rows, if Arrow reads them as Spark does."""
        del spark
        first, last = offset_of(start), offset_of(end)
        ranges = ranges_of(files_of(end), first, last)
        shape = self._shape_of(ranges[0].file) if ranges else self._shape
        rows = self._decoder.arrow_rows(shape, self.schema().names, EVERYTHING)
        rejects = self._node.on_error == "dead_letter"
        if rows is None or rejects or last - first > DRIVER_ROWS:
            return None
        table = read_table(rows, [replace(piece, ordinal=0) for piece in ranges], self._ordinal)
        if table is None:
            return None
        offsets = pc.struct_field(table[POS], "off")
        inside = pc.and_(pc.greater_equal(offsets, first), pc.less(offsets, last))
        return table.filter(inside).select([*self.schema().names, OP, POS])

    def describe(self) -> Json:
        """Return the type, asset key and path, from the file alone."""
        return describe_path(self._node.path)

    def _files(self) -> Sequence[KnownFile]:
        """Return the files that were read, then the complete ones that were not."""
        return append_files(self._read, self._discovery.new_files([one.file for one in self._read]))


_NO_LIMIT = 1 << 62
