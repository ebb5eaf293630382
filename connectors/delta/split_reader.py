"""Reads data files of a Delta table as Arrow, without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyarrow import types as kinds
from pyarrow.parquet import ParquetFile

from headrace.connectors.arrow_partition import ArrowPartition
from headrace.connectors.delta.data_files import DataFile, may_contain
from headrace.connectors.delta.deletion_vectors import UnknownVectorError, read_deletion_vector
from headrace.connectors.files.formats import UNREADABLE, open_parquet
from headrace.connectors.files.reader import fit_column
from headrace.connectors.source_base import SplitReader
from headrace.pipeline.errors import DataError, PipelineStateError
from headrace.pipeline.protocol.epochs import Json

PART, OFF = "_headrace_part", "_headrace_off"
_BATCH_ROWS = 50_000
_LEGACY = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
"""Marks of files whose days before 1582 are those of another calendar, which Spark converts."""


@dataclass(frozen=True, slots=True)
class DeltaSplitReader(SplitReader):
    """Reads the columns `schema` of splits of one version. `files` are the data files by location.

    Rows outside of `partition`, whose column has the type `partition_field`, are left out.
    """

    node: str
    schema: pa.Schema
    splits: Sequence[Json]
    files: Mapping[str, DataFile]
    partition: ArrowPartition | None = None
    partition_field: pa.Field | None = None

    def fetch(self, split: Json) -> Iterator[pa.RecordBatch]:
        """Return the split's rows in the order of the files.

        Raise PipelineStateError for a file that the table's maintenance removed, and DataError for one that
        cannot be read.
        """
        for _, location in split["files"]:
            for _, batch in self._read_file(self.files[location]):
                yield batch

    def read_placed(self) -> Iterator[pa.RecordBatch]:
        """Return the rows of all splits, with the order of their file in PART and their place in OFF."""
        for split in self.splits:
            for ordinal, location in split["files"]:
                for places, batch in self._read_file(self.files[location]):
                    part = pa.repeat(pa.scalar(ordinal, pa.int32()), batch.num_rows)
                    yield batch.append_column(PART, part).append_column(OFF, places)

    def count_rows(self) -> dict[str, int]:
        """Return the non-zero counts of rows by location."""
        result = {location: self._count_file(file) for location, file in self.files.items()}
        return {location: rows for location, rows in result.items() if rows}

    def _count_file(self, file: DataFile) -> int:
        if self.partition is not None and self.partition_field is not None:
            column, kind = self.partition.column, self.partition_field.type
            if column in file.add["partitionValues"]:
                value = _repeat_value(file.add["partitionValues"][column], kind, 1)
                if not self.partition.contains(value)[0].as_py():
                    return 0
                if file.live_rows is not None:
                    return file.live_rows
            elif not may_contain(file.statistics, column, *self.partition.bounds(kind)):
                return 0
        return sum(batch.num_rows for _, batch in self._read_file(file))

    def read_all(self) -> Iterator[pa.RecordBatch]:
        """Return the rows of all files."""
        for file in self.files.values():
            yield from self.read_file(file)

    def read_file(self, file: DataFile) -> Iterator[pa.RecordBatch]:
        """Return the rows of one file."""
        for _, batch in self._read_file(file):
            yield batch

    @property
    def placed_schema(self) -> pa.Schema:
        """The columns of `read_placed`."""
        return self.schema.append(pa.field(PART, pa.int32())).append(pa.field(OFF, pa.int64()))

    def is_readable(self) -> bool:
        """Return whether Arrow reads all files as Spark does: their vectors, dates and partition columns."""
        partitioned = {name for file in self.files.values() for name in file.add["partitionValues"]}
        if any(not _is_plain(field.type) for field in self._read_schema if field.name in partitioned):
            return False
        has_times = any(kinds.is_temporal(field.type) for field in self._read_schema)
        try:
            return all(self._is_readable_file(file, has_times=has_times) for file in self.files.values())
        except UNREADABLE:
            return False

    def _is_readable_file(self, file: DataFile, *, has_times: bool) -> bool:
        try:
            if file.deletion_vector is not None:
                read_deletion_vector(file.table, file.deletion_vector)
            if not has_times:
                return True
            with open_parquet(file.path) as source:
                return not any(mark in (source.metadata.metadata or {}) for mark in _LEGACY)
        except UnknownVectorError:
            return False
        except FileNotFoundError:
            raise self._missing(file) from None

    @property
    def _read_schema(self) -> pa.Schema:
        """The columns that are read from files: those of the schema, and that of the partition."""
        extra = self.partition_field
        return self.schema if extra is None or extra.name in self.schema.names else self.schema.append(extra)

    def _read_file(self, file: DataFile) -> Iterator[tuple[pa.Array, pa.RecordBatch]]:
        """Return the places of rows in the file, and the rows that the version has of them."""
        removed = None
        try:
            if file.deletion_vector is not None:
                vector = read_deletion_vector(file.table, file.deletion_vector)
                removed = np.fromiter(vector, dtype="int64", count=len(vector))
            schema = self._read_schema
            with open_parquet(file.path) as source:
                start = 0
                for columns, count in self._read_columns(source, file):
                    places = np.arange(start, start + count, dtype="int64")
                    kept = None
                    if removed is not None and removed.size:
                        kept = np.isin(places, removed, invert=True)
                    if self.partition is not None:
                        inside = self.partition.contains(
                            columns[schema.get_field_index(self.partition.column)]
                        )
                        inside = inside.to_numpy(zero_copy_only=False)
                        kept = inside if kept is None else kept & inside
                    batch = pa.RecordBatch.from_arrays(columns[: len(self.schema)], schema=self.schema)
                    if kept is not None:
                        places, batch = places[kept], batch.filter(pa.array(kept))
                    start += count
                    yield pa.array(places), batch
        except FileNotFoundError:
            raise self._missing(file) from None
        except UNREADABLE as error:
            text = " ".join(str(error).split())[:300]
            msg = f"the data file `{file.path}` cannot be read: {text}"
            raise DataError(msg, hint="Repair the table, or list other `columns`.", node=self.node) from error

    def _read_columns(self, source: ParquetFile, file: DataFile) -> Iterator[tuple[list[pa.Array], int]]:
        """Yield the columns of `_read_schema` for some rows, and their count. Missing columns are NULL."""
        values = file.add["partitionValues"]
        in_file = {name.lower(): name for name in source.schema_arrow.names}
        schema = self._read_schema
        present = {field.name: in_file.get(field.name.lower()) for field in schema}
        wanted = [name for name in present.values() if name is not None]
        # Without a column, a batch has no rows.
        listed = wanted or source.schema_arrow.names[:1]
        for batch in source.iter_batches(_BATCH_ROWS, columns=listed, use_threads=False):
            columns = []
            for field in schema:
                name = present[field.name]
                if field.name in values:
                    columns.append(_repeat_value(values[field.name], field.type, batch.num_rows))
                elif name is None:
                    columns.append(pa.nulls(batch.num_rows, field.type))
                else:
                    columns.append(fit_column(batch.column(name), field.type))
            yield columns, batch.num_rows

    def _missing(self, file: DataFile) -> PipelineStateError:
        msg = f"the data file `{file.path}` or its deletion vector does not exist any more"
        hint = (
            "The table's maintenance (VACUUM) removed it before the history was complete. Start the history"
            " over, and let the table keep its files for longer."
        )
        return PipelineStateError(msg, hint=hint, node=self.node)


def _is_plain(kind: pa.DataType) -> bool:
    """Return whether the text of a partition value has one meaning."""
    return kinds.is_string(kind) or kinds.is_integer(kind) or kinds.is_date(kind)


def _repeat_value(value: str | None, kind: pa.DataType, count: int) -> pa.Array:
    """Return the value of a partition for each row. Delta stores NULL as nothing or as an empty text."""
    return pa.repeat(pa.scalar(value or None, pa.string()).cast(kind), count)
