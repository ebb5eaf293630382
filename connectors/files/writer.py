"""Writes the rows of an epoch as files: by the driver, or one file of each partition by each Spark task."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute
from pyarrow import csv, parquet

from headrace.connectors.files.listing import NO_VALUE
from headrace.connectors.filters import quote_identifier
from headrace.connectors.json_text import JSON_OPTIONS, as_json, plain_values, with_text_keys
from headrace.connectors.row_errors import task_error, translate_row_errors
from headrace.connectors.spark_types import spark_schema
from headrace.pipeline.errors import DataError, HeadraceError, TransientError
from headrace.pipeline.sql.system_columns import OP
from headrace.pipeline.types.arrow import is_nested

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

pc: Any = pyarrow.compute
"""Its functions are made at import, so type checkers do not see them."""
CHANGE = "headrace_op"
"""The operation of a row in the files of a sink with a key."""
_LINE = "headrace_line"
_NOTHING, _LINE_END = pa.scalar("", pa.large_string()), pa.scalar("\n", pa.large_string())
_ROW_GROUP = 1 << 20  # rows
_RESULT = "name string, rows bigint, size bigint"
_NAME_BYTES = 255
WrittenFile = tuple[str, int, int]
"""Name below the folder of the attempt, rows and bytes."""


@dataclass(frozen=True, slots=True)
class RowFiles:
    """How the rows of one sink become files. Picklable."""

    node: str
    format: str
    codec: str
    partition_by: tuple[str, ...]
    header: bool
    delimiter: str

    def select(self, rows: DataFrame, schema: pa.Schema, *, keyed: bool) -> DataFrame:
        """Return the columns of the files, then those of `partition_by` as text.

        JSON files have one column, the line.
        """
        from pyspark.sql import functions as F  # noqa: N812

        kinds = spark_schema(schema)
        inner = {
            field.name: self._value(field, kinds[field.name].dataType)
            for field in schema
            if field.name not in self.partition_by
        }
        if keyed:
            inner[CHANGE] = F.col(OP)
        columns = [column.alias(name) for name, column in inner.items()]
        if self.format == "json":
            columns = [F.to_json(F.struct(*columns), JSON_OPTIONS).alias(_LINE)]
        folders = [
            F.col(quote_identifier(name)).cast("string").alias(f"{_LINE}{at}")
            for at, name in enumerate(self.partition_by)
        ]
        return rows.select(*columns, *folders)

    def _value(self, field: pa.Field, kind: Any) -> Column:
        from pyspark.sql import functions as F  # noqa: N812

        column = F.col(quote_identifier(field.name))
        if self.format == "parquet":
            return column
        if self.format == "csv":
            plain = plain_values(column, kind)
            return as_json(plain, field.type) if is_nested(field.type) else plain
        return with_text_keys(plain_values(column, kind), field.type)

    def write_local(self, rows: pa.Table, folder: Path) -> list[WrittenFile]:
        """Write rows of `select` from the driver."""
        folders = self._folder_columns(rows.column_names)
        if folders:
            rows = rows.sort_by([(name, "ascending") for name in folders])
        return self.write(rows.to_batches(), folder)

    def write_distributed(self, rows: DataFrame, folder: Path) -> list[WrittenFile]:
        """Write rows of `select` by Spark's tasks. Files of a task that runs twice are not listed."""
        names, files = rows.columns, self
        if folders := self._folder_columns(names):
            rows = rows.repartition(*folders).sortWithinPartitions(*folders)

        def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            try:
                result = files.write((batch.rename_columns(names) for batch in batches), folder)
            except HeadraceError as error:
                raise task_error(error) from error
            except OSError as error:
                msg = f"files in `{folder}` cannot be written: {error.strerror}"
                raise task_error(TransientError(msg, node=files.node)) from error
            columns = list(zip(*result, strict=True)) or [(), (), ()]
            kinds = (pa.string(), pa.int64(), pa.int64())
            arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, names=["name", "rows", "size"])

        # mapInArrow does not quote names, so columns are passed by index.
        indexed = rows.toDF(*(f"c{at}" for at in range(len(names))))
        with translate_row_errors():
            return [(one.name, one.rows, one.size) for one in indexed.mapInArrow(task, _RESULT).collect()]

    def write(self, batches: Iterable[pa.RecordBatch], folder: Path) -> list[WrittenFile]:
        """Write batches that are sorted by the columns of folders, a file for each run of equal values."""
        result: list[WrittenFile] = []
        here: str | None = None
        with ExitStack() as stack:
            writer: _OpenFile | None = None
            for inner, batch in self._runs(batches):
                if writer is None or inner != here:
                    if writer is not None:
                        result.append(writer.finish())
                    here = inner
                    writer = _OpenFile(self, folder, inner, batch.schema)
                    stack.callback(writer.close)
                writer.write(batch)
            if writer is not None:
                result.append(writer.finish())
        return result

    def _runs(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield the rows of each run of equal folder values, without these, and their folder."""
        for batch in batches:
            if not batch.num_rows:
                continue
            folders = self._folder_columns(batch.schema.names)
            values = [batch.column(name) for name in folders]
            inner = batch.select([name for name in batch.schema.names if name not in folders])
            ends = {batch.num_rows}
            for column in values:
                ends.update(pc.run_end_encode(column).run_ends.to_pylist())
            start = 0
            for end in sorted(ends):
                yield (
                    self._folder_of([column[start].as_py() for column in values]),
                    inner.slice(start, end - start),
                )
                start = end

    def _folder_columns(self, names: list[str]) -> list[str]:
        return names[len(names) - len(self.partition_by) :]

    def _folder_of(self, values: list[str | None]) -> str:
        """Return the folder of partition values. Raise DataError for a value that no folder can have."""
        parts = []
        for name, value in zip(self.partition_by, values, strict=True):
            part = f"{quote(name, safe='')}={NO_VALUE if value is None else quote(value, safe=' :')}"
            reason = (
                "is an empty string, which readers of folders take for null"
                if value == ""
                else f"has the value `{value}`, which such folders have instead of null"
                if value == NO_VALUE
                else "has a value that is too long for the name of a folder"
                if len(part.encode()) > _NAME_BYTES
                else ""
            )
            if reason:
                msg = f"column `{name}` of partition_by {reason}"
                raise DataError(msg, hint="Replace the value in a transform.", node=self.node)
            parts.append(part)
        return "/".join(parts)


class _OpenFile:
    """One file that is being written."""

    def __init__(self, files: RowFiles, folder: Path, inner: str, schema: pa.Schema) -> None:
        gzip = files.format != "parquet" and files.codec == "gzip"
        ending = {"parquet": "parquet", "csv": "csv", "json": "jsonl"}[files.format]
        self._name = os.path.join(inner, f"{uuid.uuid4().hex}.{ending}{'.gz' if gzip else ''}")
        self._path = folder / self._name
        # Only folders of partitions are made: the folder of the attempt is missing if a newer run moved it.
        at = folder
        for part in Path(inner).parts:
            at /= part
            at.mkdir(exist_ok=True)
        self._file: Any = self._path.open("wb")
        self._rows = 0
        self._stream: Any = pa.CompressedOutputStream(self._file, "gzip") if gzip else self._file
        self._writer: Any = None
        if files.format == "parquet":
            self._writer = parquet.ParquetWriter(
                self._file, schema, compression=files.codec, coerce_timestamps="us", store_schema=False
            )
        elif files.format == "csv":
            options = csv.WriteOptions(include_header=files.header, delimiter=files.delimiter)
            self._writer = csv.CSVWriter(self._stream, schema, write_options=options)

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows."""
        self._rows += batch.num_rows
        if self._writer is None:
            text = (batch.column(0).cast(pa.large_string()), _NOTHING, _LINE_END)
            lines = pc.binary_join_element_wise(*text)
            self._stream.write(lines.buffers()[2].slice(0, _length(lines)))
        elif isinstance(self._writer, parquet.ParquetWriter):
            self._writer.write_batch(batch, row_group_size=_ROW_GROUP)
        else:
            self._writer.write_batch(batch)

    def finish(self) -> WrittenFile:
        """Complete the file and write it through to the disk."""
        if self._writer is not None:
            self._writer.close()
        if self._stream is not self._file:
            self._stream.flush()
            self._stream.close()
        if not self._file.closed:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
        return self._name, self._rows, self._path.stat().st_size

    def close(self) -> None:
        """Close the file, also after an error."""
        self._file.close()


def _length(lines: pa.Array) -> int:
    """Return the bytes of an array of large strings that begins at its buffer's start."""
    offsets = pa.Array.from_buffers(pa.int64(), len(lines) + 1, [None, lines.buffers()[1]])
    return offsets[len(lines)].as_py()
