"""Rows of files in their types, without Spark."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.compute
from pyarrow import types as kinds

from headrace.connectors.arrow_partition import ArrowPartition, count_gap
from headrace.connectors.files.formats import LINE, TEXT_COLUMN, open_parquet
from headrace.connectors.files.reader import GROUP, OFF, PART, PLACE, FileRange, FileScan
from headrace.connectors.kafka.arrow_decoder import ObjectDecoder, join_lines
from headrace.connectors.local_rows import collect_rows, place_rows
from headrace.connectors.plain_text import UnprovenTextError, convert_text, is_supported
from headrace.connectors.row_errors import translate_row_errors
from headrace.connectors.source_base import SplitReader
from headrace.pipeline.errors import InternalError
from headrace.pipeline.protocol.epochs import Json
from headrace.pipeline.protocol.partitions import PartitionGap, UnpartitionedRows
from headrace.pipeline.types.arrow import parse_type

pc: Any = pyarrow.compute
"""Its functions are made at import, so type checkers do not see them."""

ARROW_FORMATS = ("parquet", "orc")
"""Formats whose values Arrow reads."""
TEXT_FORMATS = ("csv", "json", "text")
"""Formats whose values are text. Spark converts it, unless its form is plain (`plain_text`)."""


@dataclass(frozen=True, slots=True)
class ArrowRowReader:
    """Reads file ranges as rows with the columns `names`, in the types of `payload`. Picklable.

    `declared` are the types of the columns of text files, `folders` those of partition folders. Rows outside
    of `partition` are left out. UnprovenTextError is raised for text that only Spark converts.
    """

    scan: FileScan
    payload: pa.Schema
    names: tuple[str, ...]
    declared: Mapping[str, str]
    folders: Mapping[str, pa.DataType]
    partition: ArrowPartition | None = None

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows: `names`, then the position of each row."""
        return pa.schema([*[self.payload.field(name) for name in self.names], *PLACE])

    def read(self, piece: FileRange) -> Iterator[pa.RecordBatch]:
        """Return the rows of a file range in the file's order. For errors see `FileScan.rows`."""
        folders = self._parse_folders(piece)
        objects = ObjectDecoder(self.declared) if self.scan.format == "json" else None
        for batch in self.scan.rows(piece):
            columns, places = self._decode(batch, objects)
            count = places.num_rows
            columns |= {name: pa.repeat(value, count) for name, value in folders.items()}
            listed = [*[columns[name] for name in self.names], *places.columns]
            rows = pa.RecordBatch.from_arrays(listed, schema=self.schema)
            if self.partition is not None:
                rows = rows.filter(self.partition.contains(columns[self.partition.column]))
            yield rows

    def _decode(
        self, batch: pa.RecordBatch, objects: ObjectDecoder | None
    ) -> tuple[dict[str, pa.Array], pa.RecordBatch]:
        """Return the columns of the files, and the positions of the rows."""
        if objects is not None:
            return self._decode_objects(batch, objects)
        if self.scan.format == "text":
            try:
                columns = {TEXT_COLUMN: batch.column(LINE).cast(pa.string())}
            except pa.ArrowInvalid:
                raise UnprovenTextError from None
        elif self.scan.format == "csv":
            columns = {
                name: convert_text(batch.column(name), parse_type(self.declared[name])).cast(
                    self.payload.field(name).type
                )
                for name in self.scan.columns.names
            }
        else:
            columns = {name: batch.column(name) for name in self.scan.columns.names}
        return columns, batch.select([PART, GROUP, OFF])

    def _decode_objects(
        self, batch: pa.RecordBatch, objects: ObjectDecoder
    ) -> tuple[dict[str, pa.Array], pa.RecordBatch]:
        lines = batch.column(LINE)
        if pc.min(pc.binary_length(lines)).as_py() == 0:
            # Spark leaves out lines of spaces. Others must be JSON.
            batch = batch.filter(pc.greater(pc.binary_length(lines), 0))
            lines = batch.column(LINE)
        text = join_lines(lines) if len(lines) else b""
        result = objects.decode(text, len(lines)) if text is not None else None
        if result is None:
            raise UnprovenTextError
        columns = {
            name: column.combine_chunks().cast(self.payload.field(name).type)
            for name, column in result.items()
        }
        return columns, batch.select([PART, GROUP, OFF])

    def _parse_folders(self, piece: FileRange) -> Mapping[str, pa.Scalar]:
        values = piece.file.partitions
        return {name: parse_folder(values[name], kind) for name, kind in self.folders.items()}


@dataclass(frozen=True, slots=True)
class ArrowSplitReader(SplitReader):
    """Reads splits of files. `ranges` are the file ranges of a split, by its id."""

    rows: ArrowRowReader
    splits: Sequence[Json]
    ranges: Mapping[str, Sequence[FileRange]]

    def fetch(self, split: Json) -> Iterator[pa.RecordBatch]:
        """Return the split's rows in the order of the files. For errors see `FileScan.rows`."""
        with translate_row_errors():
            for piece in self.ranges[split["id"]]:
                try:
                    for batch in self.rows.read(piece):
                        yield batch.select(list(self.rows.names))
                except UnprovenTextError:
                    msg = f"`{piece.file.path}` has other values than when its rows were counted"
                    raise InternalError(msg, node=self.rows.scan.node) from None


def parse_folder(text: str | None, kind: pa.DataType) -> pa.Scalar:
    """Return the value of a partition folder. Raise UnprovenTextError if only Spark converts it."""
    if text is None or kinds.is_string(kind):
        return pa.scalar(text, kind)
    try:
        if kinds.is_date32(kind) and re.fullmatch(r"[1-9][0-9]{3}-[0-9]{2}-[0-9]{2}", text):
            return pa.scalar(date.fromisoformat(text), kind)
        if kinds.is_signed_integer(kind) and re.fullmatch(r"-?[0-9]{1,19}", text):
            return pa.scalar(int(text), kind)
    except (ValueError, OverflowError, pa.ArrowInvalid):
        pass
    raise UnprovenTextError


def explain_unsupported(kind: str, declared: Mapping[str, str], folders: Mapping[str, str]) -> str:
    """Return why only Spark reads files of a format with these columns, or an empty string."""
    if kind not in ARROW_FORMATS + TEXT_FORMATS:
        return f"Spark decodes {kind} files"
    inner = {name: text for name, text in declared.items() if name not in folders}
    if kind == "json" and not ObjectDecoder(inner).is_supported:
        return "Spark decodes some columns of its JSON lines"
    if kind == "csv" and (
        other := [name for name, text in inner.items() if not is_supported(parse_type(text))]
    ):
        return f"Spark converts the text of its columns: {', '.join(other)}"
    if other := [name for name, text in folders.items() if not _is_folder_type(parse_type(text))]:
        return f"Spark converts the values of its folders: {', '.join(other)}"
    return ""


def _is_folder_type(kind: pa.DataType) -> bool:
    return kinds.is_string(kind) or kinds.is_date(kind) or kinds.is_signed_integer(kind)


def count_rows(reader: ArrowRowReader, pieces: Sequence[FileRange]) -> Mapping[tuple[int, int], int] | None:
    """Return non-zero row counts by file and row group, or None if only Spark converts some text."""

    def count(piece: FileRange) -> Counter[tuple[int, int]]:
        result: Counter[tuple[int, int]] = Counter()
        for near in _leave_out_groups(reader, piece):
            for batch in reader.read(near):
                if batch.num_rows:  # all of one group
                    result[piece.ordinal, batch.column(GROUP)[0].as_py()] += batch.num_rows
        return result

    counted: Counter[tuple[int, int]] = Counter()
    with ThreadPoolExecutor(min(len(pieces), os.cpu_count() or 1) or 1) as pool, translate_row_errors():
        try:
            for result in pool.map(count, pieces):
                counted.update(result)
        except UnprovenTextError:
            pool.shutdown(cancel_futures=True)
            return None
    return counted


def count_unpartitioned_rows(
    reader: ArrowRowReader, pieces: Sequence[FileRange], gap: PartitionGap
) -> UnpartitionedRows | None:
    """Count the rows of the one column of `reader` that no partition has. Return None if only Spark can."""
    with translate_row_errors():
        try:
            batches = (batch for piece in pieces for batch in reader.read(piece))
            return count_gap(batches, reader.payload.field(gap.column), gap)
        except UnprovenTextError:
            return None


def _leave_out_groups(reader: ArrowRowReader, piece: FileRange) -> Iterator[FileRange]:
    """Yield the row groups of a piece, without those whose statistics exclude rows of the partition."""
    partition = reader.partition
    if partition is None or reader.scan.format != "parquet" or partition.column in reader.folders:
        yield piece
        return
    with reader.scan.storage.open(piece.file) as file:
        metadata = open_parquet(file.stream).metadata
        for group in range(piece.first, piece.end):
            lowest, highest = _find_bounds(metadata.row_group(group), partition.column)
            is_comparable = type(lowest) is type(partition.start) and not isinstance(lowest, str)
            if not is_comparable or partition.may_contain(lowest, highest):
                yield replace(piece, first=group, end=group + 1)


def _find_bounds(group: Any, column: str) -> tuple[Any, Any]:
    """Return the lowest and the highest value of a column in a row group, or None for unknown ones."""
    for at in range(group.num_columns):
        about = group.column(at)
        if about.path_in_schema == column and about.is_stats_set and about.statistics.has_min_max:
            return about.statistics.min, about.statistics.max
    return None, None


def read_table(reader: ArrowRowReader, pieces: Sequence[FileRange], ordinal: int) -> pa.Table | None:
    """Return the rows of file ranges with `_gs_op` and `_gs_pos`.

    Return None if they exceed `DRIVER_BYTES`, or if only Spark converts some text.
    """
    with translate_row_errors():
        try:
            rows = collect_rows((batch for piece in pieces for batch in reader.read(piece)), reader.schema)
        except UnprovenTextError:
            return None
    return None if rows is None else place_rows(rows.drop_columns([GROUP]), ordinal, PART, OFF)
