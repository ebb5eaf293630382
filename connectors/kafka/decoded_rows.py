"""The rows of messages that the driver has decoded: the payload, and the columns that every message has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from headrace.connectors.dead_letters import ERROR
from headrace.connectors.kafka.config import KafkaSourceConfig
from headrace.connectors.kafka.message_batch import MessageBatch, Numbers
from headrace.connectors.kafka.message_columns import METADATA, OPERATIONS
from headrace.connectors.spark_types import POS_ARROW
from headrace.pipeline.sql.system_columns import OP, POS

pc: Any = pyarrow.compute
"""Its functions are made at import, so type checkers do not see them."""

Payload = Mapping[str, "pa.Array | pa.ChunkedArray"]
"""The columns of messages by name."""


def complete_batch(
    payload: Payload, batch: MessageBatch, node: KafkaSourceConfig, ordinal: int
) -> pa.Table | None:
    """Return the rows of a batch of a node, or None if Spark must decide about one of them."""
    key = node.tombstone_key
    rows = complete_rows(payload, batch, ordinal, metadata=node.include_metadata, tombstone_key=key)
    return None if rows is None else accept_rows(rows, node)


def complete_rows(
    payload: Payload, batch: MessageBatch, ordinal: int, *, metadata: bool, tombstone_key: Iterable[str] = ()
) -> pa.Table | None:
    """Return payload, optional metadata, `_gs_op` and `_gs_pos`, or None for an unknown operation.

    The operation is that of the column `_gs_op` of the payload, or else of the header. A tombstone is a
    delete. Return None for one without all columns of `tombstone_key`.
    """
    operations = payload[OP] if OP in payload else pa.array(batch.operations, pa.string())
    if None in batch.values:
        if not tombstone_key or _has_null(payload, tombstone_key):
            return None
        operations = pc.if_else(pc.is_null(pa.array(batch.values, pa.binary())), "d", operations)
    named = _name_operations(operations)
    if named is None:
        return None
    columns = {name: column for name, column in payload.items() if name != OP}
    if metadata:
        columns |= _metadata_columns(batch)
    return pa.table(columns | {OP: named, POS: _message_positions(batch, ordinal)})


def accept_rows(rows: pa.Table, node: KafkaSourceConfig) -> pa.Table | None:
    """Return rows as they are. With dead letters, return them as good ones, or None if one lacks the key."""
    if node.on_error != "dead_letter":
        return rows
    if _has_null(dict(zip(rows.column_names, rows.columns, strict=True)), node.primary_key):
        return None
    return rows.append_column(ERROR, pa.nulls(len(rows)))


def take_rows(values: pa.Array, rows: Numbers) -> pa.Array:
    """Return the values at some places, which ascend."""
    return values if len(rows) == len(values) else values.take(pa.array(rows))


def join_rows(parts: Iterable[tuple[Numbers, pa.Table]], schema: pa.Schema) -> pa.Table:
    """Return the rows of parts in the order of their places."""
    places, tables = [], []
    for rows, table in parts:
        places.append(rows)
        tables.append(table)
    if len(tables) <= 1:
        return tables[0] if tables else schema.empty_table()
    return pa.concat_tables(tables).take(pa.array(np.argsort(np.concatenate(places))))


def _has_null(payload: Payload, names: Iterable[str]) -> bool:
    wanted = {name.lower() for name in names}
    return any(column.null_count for name, column in payload.items() if name.lower() in wanted)


def _message_positions(batch: MessageBatch, ordinal: int) -> pa.Array:
    """Return `_gs_pos` of each message."""
    rows = len(batch)
    parts = (
        pa.repeat(pa.scalar(ordinal, pa.int32()), rows),
        pa.array(batch.partitions, pa.int32()),
        pa.array(batch.offsets, pa.int64()),
        pa.repeat(pa.scalar(0, pa.int64()), rows),
    )
    return pa.StructArray.from_arrays(list(parts), fields=list(POS_ARROW))


def _metadata_columns(batch: MessageBatch) -> dict[str, pa.Array]:
    """Return the columns of `include_metadata`."""
    at = pa.array(batch.timestamps, pa.timestamp("ms", tz="UTC"))
    places = (pa.array(batch.partitions, pa.int32()), pa.array(batch.offsets, pa.int64()), at)
    return {name: column.cast(kind) for (name, kind), column in zip(METADATA, places, strict=True)}


def _name_operations(texts: Any) -> pa.Array | None:
    """Return i, u or d for each text; i where there is none. Return None for an unknown text."""
    if isinstance(texts, pa.ChunkedArray):
        texts = texts.combine_chunks()
    known = pc.index_in(pc.ascii_lower(texts), value_set=pa.array(list(OPERATIONS)))
    if known.null_count != texts.null_count:
        return None
    return pc.fill_null(pa.array(list(OPERATIONS.values())).take(known), "i")
