"""Rows of history that the driver reads itself, without Spark."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from headrace.connectors.frame import DRIVER_BYTES
from headrace.connectors.spark_types import POS_ARROW
from headrace.pipeline.sql.system_columns import OP, POS


def collect_rows(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.Table | None:
    """Return the rows of all batches, or None if they exceed `DRIVER_BYTES`."""
    result: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        size += batch.nbytes
        if size > DRIVER_BYTES:
            return None
        result.append(batch)
    return pa.Table.from_batches(result, schema)


def place_rows(rows: pa.Table, ordinal: int, part: str, off: str) -> pa.Table:
    """Return the rows as inserts of the source `ordinal`, with the columns `part` and `off` as position."""
    count = rows.num_rows
    places = [
        pa.repeat(pa.scalar(ordinal, pa.int32()), count),
        rows[part].combine_chunks(),
        rows[off].combine_chunks(),
        pa.repeat(pa.scalar(0, pa.int64()), count),
    ]
    payload = rows.drop_columns([part, off]).append_column(OP, pa.repeat("i", count))
    return payload.append_column(POS, pa.StructArray.from_arrays(places, fields=list(POS_ARROW)))
