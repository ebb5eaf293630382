"""Reads files in tasks, as Arrow. Each file has one handle, and is compared with the pin before and after."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headrace.connectors.files.listing import File, change, changed
from headrace.connectors.local_rows import collect_rows, place_rows
from headrace.connectors.row_errors import task_error
from headrace.pipeline.errors import DataError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

PART, OFF, GROUP = "_headrace_part", "_headrace_off", "_headrace_group"
LINE = "_headrace_line"
FOLDER = "_headrace_folder_"
_PLACE = (pa.field(PART, pa.int32()), pa.field(GROUP, pa.int32()), pa.field(OFF, pa.int64()))
_BLOCK = 16 << 20  # bytes: a record of a text file must fit into one
_BATCH = 20_000  # rows
_CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
_NO_JSON = "\x01"  # a byte that no JSON line can contain: the csv reader reads lines as one column


@dataclass(frozen=True, slots=True)
class FileRange:
    """The part of a file that a task reads: its index in the pin, and parquet row groups [first, end)."""

    ordinal: int
    file: File
    first: int = 0
    end: int = 1


@dataclass(frozen=True, slots=True)
class FileScan:
    """What all pieces of one source read. Picklable.

    `columns` are read from the files in these types (for csv all text; for json the one column `LINE`),
    `folders` are partition folders, whose values are text columns `FOLDER`0, 1, … after them. `names` are all
    columns of a csv file without a header.
    """

    node: str
    format: str
    columns: pa.Schema
    folders: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    header: bool = True
    delimiter: str = ","
    null_value: str = ""

    @property
    def schema(self) -> pa.Schema:
        """The columns of the batches: the file's, the folders', and the position of each row."""
        folders = [pa.field(f"{FOLDER}{at}", pa.string()) for at in range(len(self.folders))]
        return pa.schema([*self.columns, *folders, *_PLACE])

    def rows(self, piece: FileRange) -> Iterator[pa.RecordBatch]:
        """Return the rows of a file range in the file's order; OFF is the row's number in the file, from 0.

        Raise PipelineStateError for a file that changed since the snapshot, and DataError for one of another
        format. Both are raised in a form that Spark tasks can report.
        """
        try:
            with open(piece.file.path, "rb") as held:
                self._same(held, piece)
                with os.fdopen(os.dup(held.fileno()), "rb") as file:  # Arrow may close what it reads
                    yield from self._add_positions(piece, self._batches(file, piece))
                self._same(held, piece)
        except FileNotFoundError:
            raise task_error(changed(piece.file.path, "it is missing", self.node)) from None
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, KeyError, OSError, EOFError) as error:
            raise self._unreadable(piece, error) from error

    def _same(self, file: IO[bytes], piece: FileRange) -> None:
        if what := change(os.fstat(file.fileno()), piece.file):
            raise task_error(changed(piece.file.path, what, self.node))

    def _unreadable(self, piece: FileRange, error: Exception) -> Exception:
        try:
            about = os.stat(piece.file.path)
        except OSError:
            return task_error(changed(piece.file.path, "it is missing", self.node))
        if what := change(about, piece.file):
            return task_error(changed(piece.file.path, what, self.node))
        msg = f"`{piece.file.path}` cannot be read as {self.format}: {' '.join(str(error).split())[:300]}"
        return task_error(
            DataError(
                msg,
                hint="Correct the file, or `format`, `schema` and the options of the node.",
                node=self.node,
            )
        )

    def _batches(self, file: IO[bytes], piece: FileRange) -> Iterator[tuple[int, int, pa.RecordBatch]]:
        """Yield (row group, number of the first row, rows)."""
        if self.format == "parquet":
            yield from self._parquet(file, piece)
            return
        seen = 0
        for batch in self._text(file, piece.file):
            yield 0, seen, batch
            seen += batch.num_rows

    def _parquet(self, file: IO[bytes], piece: FileRange) -> Iterator[tuple[int, int, pa.RecordBatch]]:
        source = parquet(file)
        groups = piece.file.groups or ()
        for group in range(piece.first, piece.end):
            seen = sum(groups[:group])
            for batch in source.iter_batches(_BATCH, [group], columns=self.columns.names, use_threads=False):
                yield group, seen, batch
                seen += batch.num_rows

    def _text(self, file: IO[bytes], about: File) -> Iterator[pa.RecordBatch]:
        from pyarrow import csv

        if about.size == 0:
            return
        codec = next((name for suffix, name in _CODECS.items() if about.path.endswith(suffix)), None)
        plain = pa.PythonFile(file, mode="r")
        stream = pa.CompressedInputStream(plain, codec) if codec else plain
        if self.format == "json":
            reading = csv.ReadOptions(use_threads=False, block_size=_BLOCK, column_names=[LINE])
            parsing = csv.ParseOptions(
                delimiter=_NO_JSON, quote_char=False, double_quote=False, ignore_empty_lines=False
            )
            nulls: Any = {"null_values": []}
        else:
            names = None if self.header else list(self.names)
            reading = csv.ReadOptions(use_threads=False, block_size=_BLOCK, column_names=names)
            parsing = csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True)
            nulls = {
                "null_values": [self.null_value],
                "strings_can_be_null": True,
                "quoted_strings_can_be_null": False,
            }
        kinds = {field.name: field.type for field in self.columns}
        converting = csv.ConvertOptions(
            column_types=kinds, include_columns=list(kinds), check_utf8=True, **nulls
        )
        with csv.open_csv(stream, reading, parsing, converting) as reader:
            yield from reader

    def _add_positions(
        self, piece: FileRange, batches: Iterable[tuple[int, int, pa.RecordBatch]]
    ) -> Iterator[pa.RecordBatch]:
        values = piece.file.partitions
        for group, seen, batch in batches:
            count = batch.num_rows
            columns = [fitted(batch.column(field.name), field.type) for field in self.columns]
            columns += [pa.repeat(pa.scalar(values[name], pa.string()), count) for name in self.folders]
            columns += [pa.repeat(pa.scalar(at, pa.int32()), count) for at in (piece.ordinal, group)]
            columns.append(pa.array(np.arange(seen, seen + count, dtype="int64")))
            yield pa.RecordBatch.from_arrays(columns, schema=self.schema)


def parquet(file: Any) -> Any:
    """Open the file as parquet. 96-bit timestamps are read in microseconds, Spark's precision."""
    from pyarrow import parquet as pq

    return pq.ParquetFile(file, coerce_int96_timestamp_unit="us")


@contextmanager
def footer(file: File, node: str) -> Iterator[Any]:
    """Open the parquet file. Raise DataError for a file that is not parquet."""
    try:
        with open(file.path, "rb") as opened, parquet(opened) as source:
            yield source
    except (pa.ArrowInvalid, OSError) as error:
        msg = f"`{file.path}` cannot be read as parquet: {' '.join(str(error).split())[:300]}"
        raise DataError(msg, hint="Correct the file, `path`, or `format`.", node=node) from error


def fitted(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Cast the column to a type that stores all its values.

    Only the digits of a time below a microsecond are truncated.
    """
    from pyarrow import compute as pc

    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    return (
        column
        if column.type == wanted
        else pc.cast(column, options=pc.CastOptions(wanted, allow_time_truncate=True))
    )


def read(spark: SparkSession, scan: FileScan, tasks: Sequence[Sequence[FileRange]]) -> DataFrame:
    """Return the rows of all file ranges, with one task for each of the sequences."""
    from pyspark.sql.pandas.types import from_arrow_schema

    listed = tuple(tuple(task) for task in tasks)
    wanted = from_arrow_schema(scan.schema, prefer_timestamp_ntz=True)
    return spark.range(0, len(listed), 1, max(len(listed), 1)).mapInArrow(_task(scan, listed), wanted)


def path_of(tasks: Sequence[Sequence[FileRange]]) -> Column:
    """Return the path of a row's file by its ordinal. It is evaluated only for a refused row."""
    from pyspark.sql import functions as F  # noqa: N812

    paths = {str(piece.ordinal): piece.file.path for task in tasks for piece in task}
    return F.element_at(
        F.from_json(F.lit(json.dumps(paths)), "map<string,string>"), F.col(PART).cast("string")
    )


def read_table(scan: FileScan, pieces: Sequence[FileRange], ordinal: int) -> pa.Table | None:
    """Return the rows of file ranges with `_gs_op` and `_gs_pos`, or None if they exceed `DRIVER_BYTES`."""
    rows = collect_rows((batch for piece in pieces for batch in scan.rows(piece)), scan.schema)
    return None if rows is None else place_rows(rows.drop_columns([GROUP]), ordinal, PART, OFF)


def _task(
    scan: FileScan, tasks: Sequence[Sequence[FileRange]]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(places: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in places:
            for place in batch.column(0).to_pylist():
                for piece in tasks[place]:
                    yield from scan.rows(piece)

    return run


def footers(files: Sequence[File], node: str, check: Callable[[File, pa.Schema], None]) -> list[File]:
    """Return the parquet files with the row counts of their row groups; `check` is called with each schema.

    Raise DataError for a file that is not parquet.
    """
    from concurrent.futures import ThreadPoolExecutor

    def one(file: File) -> tuple[File, pa.Schema]:
        with footer(file, node) as source:
            about = source.metadata
            groups = tuple(about.row_group(at).num_rows for at in range(about.num_row_groups))
            return File(file.path, file.size, file.changed, groups), source.schema_arrow

    with ThreadPoolExecutor(8) as pool:
        read_ = list(pool.map(one, files))
    for file, schema in read_:
        check(file, schema)
    return [file for file, _ in read_]
