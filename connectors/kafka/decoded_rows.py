"""The rows of messages that the driver has decoded: the payload, and the columns that every message has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute

from headrace.connectors.dead_letters import ERROR
from headrace.connectors.kafka.arrow_decoder import message_positions, metadata_columns, name_operations
from headrace.connectors.kafka.config import KafkaSourceConfig
from headrace.connectors.kafka.message_batch import MessageBatch
from headrace.pipeline.sql.system_columns import OP, POS

pc: Any = pyarrow.compute
"""Its functions are made at import, so type checkers do not see them."""


def complete_rows(
    payload: Mapping[str, pa.Array | pa.ChunkedArray],
    batch: MessageBatch,
    node: KafkaSourceConfig,
    ordinal: int,
) -> pa.Table | None:
    """Return the rows of a batch, or None if Spark must decide about one of them.

    The operation is that of the column `_gs_op` of the payload, or else of the header. A tombstone is a
    delete and needs the key. So does every message with dead letters.
    """
    operations = payload[OP] if OP in payload else pa.array(batch.operations, pa.string())
    wanted = {name.lower() for name in node.tombstone_key}
    if None in batch.values:
        if not wanted:
            return None
        is_tombstone = pc.is_null(pa.array(batch.values, pa.binary()))
        operations = pc.if_else(is_tombstone, "d", operations)
    else:
        wanted = set()
    if node.on_error == "dead_letter":
        wanted = {name.lower() for name in node.primary_key}
    named = name_operations(operations)
    if named is None or any(column.null_count for name, column in payload.items() if name.lower() in wanted):
        return None
    columns = {name: column for name, column in payload.items() if name != OP}
    if node.include_metadata:
        columns |= metadata_columns(batch)
    columns |= {OP: named, POS: message_positions(batch, ordinal)}
    if node.on_error == "dead_letter":
        columns[ERROR] = pa.nulls(len(batch))
    return pa.table(columns)
