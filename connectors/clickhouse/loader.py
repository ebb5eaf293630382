"""Loads the rows of an epoch into a staging table: Arrow from the driver, or from each Spark task."""

from __future__ import annotations

import io
import re
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute

from headrace.connectors.clickhouse.client import SINK, connect_shared, is_loopback, translate_errors
from headrace.connectors.clickhouse.commit_table import SAFE_INSERT
from headrace.connectors.clickhouse.sink_table import ATTEMPT, EPOCH, INSERT_TIME, IS_DELETED
from headrace.connectors.clickhouse.sink_types import ColumnRule
from headrace.connectors.row_errors import task_error, translate_row_errors
from headrace.connectors.versions import ENDED
from headrace.pipeline.config.sections import ClickHouseTarget
from headrace.pipeline.errors import DataError, HeadraceError
from headrace.pipeline.sql.system_columns import OP

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pc: Any = pyarrow.compute
"""Its functions are made at import, so type checkers do not see them."""
_SETTINGS = SAFE_INSERT | {
    # A null has no default in its place, and the server merges no rows before it stores them.
    "input_format_null_as_default": "0",
    "optimize_on_insert": "0",
    "date_time_overflow_behavior": "throw",
}
_CONVERSION = frozenset({6, 27, 38, 41, 53, 69, 70, 72, 117, 131, 321, 349, 376, 407, 691})
"""Codes of values that do not fit into a column."""
_VIOLATED_CONSTRAINT = 469
_CONSTRAINT = re.compile(r"Constraint (\S+) .*?is violated.*?Expression: (.*)\. Column values:", re.DOTALL)
"""What the server says about a violated constraint. Values of the row follow, which may be secret."""
_RESULT = "rows bigint"
PIECE_BYTES = 4 << 20
"""Bytes of an insert that are sent at once, before compression."""


@dataclass(frozen=True, slots=True)
class StageLoad:
    """The load of one attempt: the place of its rows and what they carry. Picklable."""

    node: str
    connection: ClickHouseTarget
    table: str
    """The quoted name of the staging table."""
    columns: tuple[str, ...]
    rules: tuple[ColumnRule, ...]
    epoch: int
    attempt: int
    clock: int
    """`insert_time` of the rows, in microseconds since 1970."""
    version: str | None = None
    """The version column, which no row may lack."""

    def load(self, batches: Iterable[pa.RecordBatch]) -> int:
        """Insert the batches by one statement. Return the number of rows."""
        from clickhouse_connect.driver.exceptions import ClickHouseError

        completed = (self._complete(batch) for batch in batches if batch.num_rows)
        first = next(completed, None)
        if first is None:
            return 0
        rows = 0

        def count_rows() -> Iterator[pa.RecordBatch]:
            nonlocal rows
            for batch in chain([first], completed):
                rows += batch.num_rows
                yield batch

        codec = self._codec
        with translate_errors(self.node, self.table, "insert rows", SINK):
            try:
                connect_shared(self.connection, self.node, SINK).raw_insert(
                    self.table,
                    list(self.columns),
                    _encode(count_rows(), first.schema, codec),
                    settings=_SETTINGS,
                    fmt="ArrowStream",
                    compression=None if codec is None else codec.name,
                )
            except ClickHouseError as error:
                if refusal := explain_refusal(error, self.node):
                    raise refusal from error
                raise
        return rows

    def run(self, frame: DataFrame) -> int:
        """Load a frame by one insert per task. Return the rows that the tasks loaded.

        A task that ran twice loads its rows twice: compare the result with the staging table.
        """
        names, load = frame.columns, self

        def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            try:
                rows = load.load(batch.rename_columns(names) for batch in batches)
            except HeadraceError as error:
                raise task_error(error) from error
            yield pa.RecordBatch.from_pydict({"rows": pa.array([rows], pa.int64())})

        # mapInArrow does not quote names, so columns are passed by index.
        indexed = frame.toDF(*(f"c{at}" for at in range(len(names))))
        with translate_row_errors():
            return sum(row.rows for row in indexed.mapInArrow(task, _RESULT).collect())

    def _complete(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Check a batch and return it with the columns that every row carries."""
        for rule in self.rules:
            rule.check(batch.column(rule.name), self.node)
        if self.version is not None:
            self._check_versions(batch, self.version)
        size = batch.num_rows
        own = {
            INSERT_TIME: lambda: pa.scalar(self.clock, pa.timestamp("us", tz="UTC")),
            EPOCH: lambda: pa.scalar(self.epoch, pa.uint64()),
            ATTEMPT: lambda: pa.scalar(self.attempt, pa.uint64()),
        }
        columns = []
        for name in self.columns:
            if name == IS_DELETED:
                columns.append(pc.cast(pc.equal(batch.column(OP), "d"), pa.uint8()))
            else:
                columns.append(pa.repeat(own[name](), size) if name in own else batch.column(name))
        return pa.RecordBatch.from_arrays(columns, names=list(self.columns))

    def _check_versions(self, batch: pa.RecordBatch, version: str) -> None:
        """Raise DataError for a delete without a version: ClickHouse cannot order it."""
        if batch.column(version).null_count or pc.any(batch.column(ENDED)).as_py():
            msg = f"version_column `{version}` is null in a delete, which ClickHouse cannot compare"
            hint = f"Give it a version in a transform: coalesce({version}, …). Or remove `version_column`."
            raise DataError(msg, hint=hint, node=self.node)

    @property
    def _codec(self) -> pa.Codec | None:
        name = self.connection.compression or ("none" if is_loopback(self.connection.url) else "zstd")
        if name == "none":
            return None
        level = self.connection.compression_level if name in ("zstd", "gzip") else None
        return pa.Codec(name, compression_level=level)


def explain_refusal(error: Exception, node: str) -> DataError | None:
    """Return the error of a row that the table refuses, or None for another failure of an insert."""
    code = getattr(error, "code", None)
    if code == _VIOLATED_CONSTRAINT:
        match = _CONSTRAINT.search(str(error))
        which = "a constraint" if match is None else f"constraint {match[1]}: {match[2]}"
        hint = "Filter such rows out, or drop the table's constraint."
        return DataError(f"a row violates {which}"[:400], hint=hint, node=node)
    if code in _CONVERSION:
        msg = f"a value does not fit into its column: {str(error).split('DB::Exception: ')[-1]}"
        return DataError(msg[:400], node=node)
    return None


def now_micros() -> int:
    """Return the time in microseconds since 1970."""
    return int(datetime.now(UTC).timestamp() * 1_000_000)


def _encode(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, codec: pa.Codec | None
) -> Generator[bytes, None, None]:
    """Yield an Arrow stream in pieces, each a frame of the codec."""
    buffer = io.BytesIO()
    with pa.ipc.new_stream(buffer, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
            if buffer.tell() >= PIECE_BYTES:
                yield _take(buffer, codec)
        writer.close()
        yield _take(buffer, codec)


def _take(buffer: io.BytesIO, codec: pa.Codec | None) -> bytes:
    result = buffer.getvalue()
    buffer.seek(0)
    buffer.truncate()
    return result if codec is None else codec.compress(result, asbytes=True)
