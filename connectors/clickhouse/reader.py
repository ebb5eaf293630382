# ruff: noqa: S608  SQL is built from driver-quoted names and the server's own strings; values are bound
"""Reading splits in tasks: Arrow over HTTP, one query per split, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from headrace.connectors.clickhouse.client import arrow_settings, connect_shared, translate_errors
from headrace.connectors.clickhouse.key_ranges import (
    SqlParameters,
    by_offset,
    has_topic_offset_sql,
    in_range,
    in_scope,
)
from headrace.connectors.clickhouse.types import ClickHouseColumn, arrow_schema, quote
from headrace.connectors.filters import LOWEST
from headrace.connectors.local_rows import collect_rows, place_rows
from headrace.connectors.source_base import SplitReader
from headrace.connectors.spark_types import spark_schema
from headrace.pipeline.config.sections import ClickHouseConnection
from headrace.pipeline.errors import PipelineStateError, TransientError
from headrace.pipeline.protocol.epochs import Json
from headrace.pipeline.types.int256 import storage_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pc: Any = pyarrow.compute  # its functions are made at import, unseen by type checkers
PART, OFF = "_headrace_part", "_headrace_off"
SPLIT = "_headrace_split"
"""The name that a translated query reads from: the rows of one split, in the types that Spark sees."""
_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"


@dataclass(frozen=True, slots=True)
class ClickHouseScan:
    """What all splits of one table ask for. Picklable; holds no connection.

    `order` are expressions that make the order of rows total, empty where there is none. `checked` says that
    a split's count of rows is known and must be met. `gaps`: where the table is cut by topic offsets, rows
    may have none. `shared`: so many parts of the order have one value for all rows of a key, whose rows then
    go by topic partition and offset.
    """

    name: str
    table: str
    final: bool
    columns: tuple[ClickHouseColumn, ...]
    filter: str
    order: tuple[str, ...]
    checked: bool
    gaps: bool = False
    shared: int | None = None

    @property
    def rows(self) -> pa.Schema:
        """The payload's schema as the server returns it."""
        return storage_schema(arrow_schema(self.columns))

    def where(self, split: Json, bound: SqlParameters) -> str:
        """Return SQL for the rows of one split.

        The filter is on its own line, because it may end in a comment.
        """
        result = f"({in_range(split, bound)}) AND ({in_scope(split['scope'], bound)})"
        return f"{result} AND (\n{self.filter}\n)" if self.filter else result

    def select(self, split: Json, bound: SqlParameters, extra: Sequence[str] = (), *, ordered: bool) -> str:
        """Return the query of one split.

        Columns are named by index, because an alias would shadow the column that a filter refers to.
        """
        expressions = [_cast(column) for column in self.columns]
        listed = (
            ", ".join(f"{sql} AS _headrace_{place}" for place, sql in enumerate([*expressions, *extra]))
            or "1 AS _headrace_0"
        )
        text = (
            f"SELECT {listed} FROM {self.table}{' FINAL' if self.final else ''} WHERE"
            f" {self.where(split, bound)}"
        )
        order = self._order(split, bound) if ordered else []
        return f"{text} ORDER BY {', '.join(order)}" if order else text

    def last(self, split: Json, bound: SqlParameters, key: Sequence[str]) -> str:
        """Return the query with only the last row of those that agree in the columns of `key`."""
        places = [[column.name for column in self.columns].index(name) for name in key]
        order = ", ".join(f"{one} DESC NULLS FIRST" for one in self._order(split, bound))
        return (
            f"{self.select(split, bound, ordered=False)} ORDER BY {order} LIMIT 1 BY"
            f" {', '.join(f'_headrace_{place}' for place in places)}"
        )

    def _order(self, split: Json, bound: SqlParameters) -> list[str]:
        order = list(self.order)
        if self.shared is not None:
            order[self.shared : self.shared] = by_offset(split["scope"]["cut"], bound)
        return order


def _cast(column: ClickHouseColumn) -> str:
    sql = quote(column.name)
    return sql if column.source == column.target else f"CAST({sql} AS {column.target})"


class _Tail:
    """A stream that keeps its last bytes, to detect a response that ended too early."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._last = b""
        self.closed = False

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self._last = (self._last + data[-len(_END) :])[-len(_END) :]
        return data

    def close(self) -> None:
        self.closed = True
        self._stream.close()

    @property
    def whole(self) -> bool:
        return self._last == _END


@dataclass(frozen=True)
class ClickHouseSplitReader(SplitReader):
    """Reads splits on a worker.

    With `query`, ClickHouse SQL over the name `_headrace_split`, the transform runs in the server.
    """

    connection: ClickHouseConnection = field(repr=False)
    scan: ClickHouseScan
    splits: Sequence[Json]
    query: str | None = None
    last_by: tuple[str, ...] = ()
    """Columns of which `query` sees one row for each of their values: the last one."""

    def fetch(self, split: Json) -> Iterator[pa.RecordBatch]:
        """Return the split's payload rows in the order of the sorting key.

        Raise TransientError for an incomplete response, and PipelineStateError for a wrong count.
        """
        bound = SqlParameters()
        if self.query is None:
            yield from self._check_batches(
                split, self.scan.select(split, bound, ordered=True), bound, self.scan.rows
            )
            return
        names = ", ".join(
            f"_headrace_{place} AS {quote(column.name)}" for place, column in enumerate(self.scan.columns)
        )
        rows = (
            self.scan.last(split, bound, self.last_by)
            if self.last_by
            else self.scan.select(split, bound, ordered=True)
        )
        inner = f"SELECT {names or '_headrace_0'} FROM ({rows})"
        for batch in self.stream(f"WITH {SPLIT} AS ({inner}) {self.query}", bound):
            yield _plain(batch)

    def read_positioned(self, split: Json) -> Iterator[pa.RecordBatch]:
        """Return the split's rows with the two columns of `_gs_pos`.

        They are topic partition and offset, or split and row number. Rows without an offset, or with one of
        another topic, sort before rows that have one: in the order of the splits, and by their number in the
        split.
        """
        bound, cut = SqlParameters(), split["scope"]["cut"]
        schema = self.scan.rows.append(pa.field(PART, pa.int32())).append(pa.field(OFF, pa.int64()))
        if cut is not None:
            names = (cut["partition_column"], cut["offset_column"])
            mine = has_topic_offset_sql(cut, bound)
            extra = [
                f"if({mine}, {kind}(ifNull({quote(name)}, -1)), -1)"
                for kind, name in zip(("toInt32", "toInt64"), names, strict=True)
            ]
            seen = 0
            for batch in self._check_batches(
                split, self.scan.select(split, bound, extra, ordered=self.scan.gaps), bound, schema
            ):
                yield _fill_positions(batch, split["ordinal"], seen) if self.scan.gaps else batch
                seen += batch.num_rows
            return
        seen = 0
        for batch in self._check_batches(
            split, self.scan.select(split, bound, ordered=True), bound, self.scan.rows
        ):
            part = pa.repeat(pa.scalar(split["ordinal"], pa.int32()), batch.num_rows)
            rows = pa.array(np.arange(seen, seen + batch.num_rows, dtype="int64"))
            seen += batch.num_rows
            yield pa.RecordBatch.from_arrays([*batch.columns, part, rows], schema=schema)

    def _check_batches(
        self, split: Json, query: str, bound: SqlParameters, schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        seen = 0
        for batch in self.stream(query, bound):
            seen += batch.num_rows
            columns = [
                _fit(column, field.type)
                for column, field in zip(batch.columns, schema, strict=bool(schema.names))
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema) if schema.names else batch
        if self.scan.checked and seen != split["rows"]:
            msg = (
                f"split {split['id']} of {self.scan.table} has {seen} rows, planned were {split['rows']}:"
                " the pinned copy was changed"
            )
            raise PipelineStateError(
                msg,
                hint="Nothing may write to tables named _headrace_…; start the history over.",
                node=self.scan.name,
            )

    def stream(self, query: str, bound: SqlParameters) -> Iterator[pa.RecordBatch]:
        """Yield the response to a query, batch by batch."""
        client = connect_shared(self.connection, self.scan.name)
        with translate_errors(self.scan.name, self.scan.table, "read it"):
            # A sort below a transform is not redundant here: it keeps the rows of a split in one order.
            settings = arrow_settings(self.connection.url) | {"query_plan_remove_redundant_sorting": "0"}
            raw = _Tail(
                client.raw_stream(query, parameters=bound.parameters, settings=settings, fmt="ArrowStream")
            )
            try:
                with pa.ipc.open_stream(pa.PythonFile(raw, mode="r")) as reader:
                    yield from reader
            except (pa.ArrowInvalid, OSError) as error:
                msg = f"the answer of ClickHouse is not readable as Arrow: {error}"
                raise TransientError(msg, node=self.scan.name) from error
            finally:
                raw.close()
            if not raw.whole:
                msg = "the answer of ClickHouse broke off in the middle"
                raise TransientError(msg, node=self.scan.name)


def _fill_positions(batch: pa.RecordBatch, ordinal: int, seen: int) -> pa.RecordBatch:
    """Fill in positions of rows without partition or offset; `seen` rows of the split come before them."""
    *payload, part, off = batch.columns
    without = pc.or_(pc.less(part, 0), pc.less(off, 0))
    part = pc.if_else(without, pa.scalar(LOWEST + ordinal, pa.int32()), part)
    off = pc.if_else(without, pa.array(np.arange(seen, seen + batch.num_rows, dtype="int64")), off)
    return pa.RecordBatch.from_arrays([*payload, part, off], schema=batch.schema)


def _fit(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    return column if column.type == wanted else column.cast(wanted)


def _plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the columns of a translated query in the types of `types.convert`.

    Fixed-size binaries become binaries, and all members become nullable.
    """
    columns = [_fit(column, _nullable(column.type)) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _nullable(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_list(kind):
        return pa.list_(_nullable(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_nullable(kind.key_type), _nullable(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(member.name, _nullable(member.type)) for member in kind])
    return kind


def read(spark: SparkSession, fetch: ClickHouseSplitReader) -> DataFrame:
    """Return all splits of `fetch` with the columns `PART` and `OFF` after the payload; a task per split."""
    splits = tuple(fetch.splits)
    wanted = (
        arrow_schema(fetch.scan.columns).append(pa.field(PART, pa.int32())).append(pa.field(OFF, pa.int64()))
    )
    tasks = max(len(splits), 1)
    return spark.range(0, len(splits), 1, tasks).mapInArrow(_task(fetch), spark_schema(wanted))


def read_table(fetch: ClickHouseSplitReader, ordinal: int) -> pa.Table | None:
    """Return all splits of `fetch` with `_gs_op` and `_gs_pos`, or None if they exceed `DRIVER_BYTES`."""
    schema = fetch.scan.rows.append(pa.field(PART, pa.int32())).append(pa.field(OFF, pa.int64()))
    rows = collect_rows((batch for split in fetch.splits for batch in fetch.read_positioned(split)), schema)
    return None if rows is None else place_rows(rows, ordinal, PART, OFF)


def _task(fetch: ClickHouseSplitReader) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(places: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in places:
            for place in batch.column(0).to_pylist():
                yield from fetch.read_positioned(fetch.splits[place])

    return run
