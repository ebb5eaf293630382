"""Reads files in tasks, as Arrow. Each file has one handle, and is compared with the pin before and after."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headrace.connectors.files.formats import UNREADABLE, FileContents, Rows, TextOptions, format_reader
from headrace.connectors.files.listing import MISSING, File, changed_file_error
from headrace.connectors.files.storage import FileStorage, LocalStorage, OpenFile
from headrace.connectors.row_errors import task_error
from headrace.pipeline.errors import DataError, HeadraceError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

PART, OFF, GROUP = "_headrace_part", "_headrace_off", "_headrace_group"
FOLDER = "_headrace_folder_"
PLACE = (pa.field(PART, pa.int32()), pa.field(GROUP, pa.int32()), pa.field(OFF, pa.int64()))


@dataclass(frozen=True, slots=True)
class FileRange:
    """The part of a file that a task reads: its index among the files, and row groups [first, end).

    `start` is the number of the first row of the file, where the rows of several files are counted.
    """

    ordinal: int
    file: File
    first: int = 0
    end: int = 1
    start: int = 0


@dataclass(frozen=True, slots=True)
class FileScan:
    """What all pieces of one source read. Picklable.

    `columns` are read from the files in these types (for csv all text; for json and text the one column
    `LINE`; for Avro `BLOCK`), `folders` are partition folders, whose values are text columns `FOLDER`0, 1, …
    after them.
    """

    node: str
    format: str
    columns: pa.Schema
    folders: tuple[str, ...] = ()
    text: TextOptions = field(default_factory=TextOptions)
    storage: FileStorage = field(default_factory=LocalStorage)

    @property
    def schema(self) -> pa.Schema:
        """The columns of the batches: the file's, the folders', and the position of each row."""
        folders = [pa.field(f"{FOLDER}{at}", pa.string()) for at in range(len(self.folders))]
        return pa.schema([*self.columns, *folders, *PLACE])

    def rows(self, piece: FileRange) -> Iterator[pa.RecordBatch]:
        """Return the rows of a file range in the file's order. OFF is the row's number.

        Raise PipelineStateError for a file that changed since the snapshot, and DataError for one of another
        format. Both are raised in a form that Spark tasks can report.
        """
        try:
            with self.storage.open(piece.file) as file:
                self._same(file, piece)
                yield from self._add_positions(piece, self._batches(file, piece))
                self._same(file, piece)
        except FileNotFoundError:
            raise task_error(changed_file_error(piece.file.path, MISSING, self.node)) from None
        except HeadraceError as error:
            raise task_error(error) from None
        except UNREADABLE as error:
            raise self._unreadable(piece, error) from error

    def _same(self, file: OpenFile, piece: FileRange) -> None:
        if what := file.change():
            raise task_error(changed_file_error(piece.file.path, what, self.node))

    def _unreadable(self, piece: FileRange, error: Exception) -> Exception:
        """Return the error for a file that cannot be read: that it changed, if it did."""
        try:
            with self.storage.open(piece.file) as file:
                what = file.change()
        except HeadraceError as other:
            return task_error(other)
        except OSError:
            what = MISSING
        if what:
            return task_error(changed_file_error(piece.file.path, what, self.node))
        return task_error(unreadable(piece.file.path, self.format, error, self.node))

    def _batches(self, file: OpenFile, piece: FileRange) -> Rows:
        reader = format_reader(self.format, self.text)
        if not piece.file.size and not reader.has_counts:
            return
        span = range(piece.first, piece.end)
        yield from reader.rows(file.stream, piece.file.path, piece.file.groups or (), span, self.columns)

    def _add_positions(self, piece: FileRange, batches: Rows) -> Iterator[pa.RecordBatch]:
        values = piece.file.partitions
        for group, seen, batch in batches:
            count = batch.num_rows
            columns = [fit_column(batch.column(field.name), field.type) for field in self.columns]
            columns += [pa.repeat(pa.scalar(values[name], pa.string()), count) for name in self.folders]
            columns += [pa.repeat(pa.scalar(at, pa.int32()), count) for at in (piece.ordinal, group)]
            numbers = (
                np.arange(seen, seen + count, dtype="int64") if isinstance(seen, int) else seen.to_numpy()
            )
            columns.append(pa.array(numbers + piece.start))
            yield pa.RecordBatch.from_arrays(columns, schema=self.schema)


def unreadable(path: str, kind: str, error: Exception, node: str) -> DataError:
    """Return the error for a file that is broken, or of another format."""
    msg = f"`{path}` cannot be read as {kind}: {' '.join(str(error).split())[:300]}"
    hint = "Correct the file, or `path`, `format`, `schema` and the options of the node."
    return DataError(msg, hint=hint, node=node)


def read_contents(storage: FileStorage, file: File, kind: str, node: str) -> FileContents:
    """Return row groups and columns of a file. Raise DataError for one of another format."""
    try:
        with storage.open(file) as opened:
            return format_reader(kind).contents(opened.stream)
    except UNREADABLE as error:
        raise unreadable(file.path, kind, error, node) from error


def fit_column(column: pa.Array, wanted: pa.DataType) -> pa.Array:
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
    """Return the path of a row's file. It is evaluated only for a refused row."""
    return _look_up({str(piece.ordinal): piece.file.path for task in tasks for piece in task}, "string")


def row_of(tasks: Sequence[Sequence[FileRange]]) -> Column:
    """Return the number of a row in its file, from 1. It is evaluated only for a refused row."""
    from pyspark.sql import functions as F  # noqa: N812

    starts = {str(piece.ordinal): piece.start for task in tasks for piece in task}
    return F.col(OFF) - _look_up(starts, "bigint") + 1 if any(starts.values()) else F.col(OFF) + 1


def _look_up(values: Mapping[str, str | int], kind: str) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    result = F.from_json(F.lit(json.dumps(values)), f"map<string,{kind}>")
    return F.element_at(result, F.col(PART).cast("string"))


def _task(
    scan: FileScan, tasks: Sequence[Sequence[FileRange]]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(places: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in places:
            for place in batch.column(0).to_pylist():
                for piece in tasks[place]:
                    yield from scan.rows(piece)

    return run


def read_all_contents(
    storage: FileStorage, files: Sequence[File], kind: str, node: str
) -> list[tuple[File, pa.Schema]]:
    """Return the files with the row counts of their row groups, and the columns of each.

    Raise DataError for a file of another format.
    """

    def one(file: File) -> tuple[File, pa.Schema]:
        contents = read_contents(storage, file, kind, node)
        return replace(file, groups=contents.groups), contents.columns

    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(one, files))
