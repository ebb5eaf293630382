"""Requests of an epoch: its rows in the order of their positions, in batches of equal size.

An epoch that is computed again gives the same batches with the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute

from headrace.connectors.arrow_stream import stream_arrow
from headrace.connectors.frame import EpochFrame
from headrace.connectors.http.client import RequestBatch
from headrace.connectors.http.encode import row_json
from headrace.connectors.lakehouse_rows import collect_small_rows
from headrace.connectors.local_relation import collect_arrow
from headrace.connectors.spark_types import spark_schema
from headrace.pipeline.sql.system_columns import POS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pc: Any = pyarrow.compute
"""Its functions are made at import, so type checkers do not see them."""
TEXT = "text"
_PARTS = ("source", "part", "off", "sub")


def read_texts(frame: EpochFrame, version: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of an epoch as JSON, in order. Rows of a union can have the same position."""
    rows = frame.rows.select(row_json(spark_schema(frame.schema), version).alias(TEXT), POS)
    table = collect_arrow(rows) if frame.table is not None else collect_small_rows(frame, rows)
    if table is None:
        yield from stream_arrow(_sort(rows))
        return
    columns = dict(zip(_PARTS, table[POS].combine_chunks().flatten(), strict=True)) | {TEXT: table[TEXT]}
    order = pc.SortOptions([(name, "ascending") for name in (*_PARTS, TEXT)])
    yield from table.take(pc.call_function("sort_indices", [pa.table(columns)], order)).to_batches()


def _sort(rows: DataFrame) -> DataFrame:
    return rows.orderBy(POS, TEXT)


def build_requests(
    texts: Iterable[pa.RecordBatch], size: int, prefix: str, *, single: bool
) -> Iterator[RequestBatch]:
    """Yield requests of `size` rows; the last one may be smaller. With `single`, a body is one object.

    The idempotency key is `prefix` and the number of the request.
    """
    for number, rows in enumerate(_slices(texts, 1 if single else size)):
        yield _build_request(rows.combine_chunks().to_batches()[0], f"{prefix}/{number}", single=single)


def halve_request(request: RequestBatch) -> tuple[RequestBatch, RequestBatch]:
    """Return requests for the two halves of the rows. Their keys are those of the request with .0 and .1."""
    rows, key = request.rows, request.key
    middle = (rows.num_rows + 1) // 2
    first = _build_request(rows.slice(0, middle), f"{key}.0", single=False)
    return first, _build_request(rows.slice(middle), f"{key}.1", single=False)


def _build_request(rows: pa.RecordBatch, key: str, *, single: bool) -> RequestBatch:
    column = rows.column(TEXT)
    if single:
        return RequestBatch(rows, column[0].as_py().encode(), key)
    whole = pc.binary_join(pa.ListArray.from_arrays([0, len(column)], column), ",\n")
    return RequestBatch(rows, b"[" + whole[0].as_buffer().to_pybytes() + b"]\n", key)


def _slices(batches: Iterable[pa.RecordBatch], size: int) -> Iterator[pa.Table]:
    """Yield tables of `size` rows, and the rest."""
    kept: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        at = 0
        while at < batch.num_rows:
            piece = batch.slice(at, size - rows)
            kept.append(piece)
            rows, at = rows + piece.num_rows, at + piece.num_rows
            if rows == size:
                yield pa.Table.from_batches(kept)
                kept, rows = [], 0
    if rows:
        yield pa.Table.from_batches(kept)
