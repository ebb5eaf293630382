"""Decodes batches of messages by the schemas that they name, in the driver and in Spark's tasks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from headrace.connectors.kafka.decoded_rows import join_rows, take_rows
from headrace.connectors.kafka.message_batch import Numbers
from headrace.connectors.kafka.message_columns import REASON
from headrace.connectors.kafka.protobuf.decoder import decode_payloads
from headrace.connectors.kafka.protobuf.frames import FramedRows, SchemasByFrame, split_by_frame

pc: Any = pyarrow.compute
"""Its functions are made at import, so type checkers do not see them."""
_END = 2**31 - 1
"""Arrow's default for the end overflows."""
_NO_PAYLOAD = "the message has no payload (a tombstone), and no key"


@dataclass(frozen=True, slots=True)
class ProtobufBatchDecoder:
    """Converts messages to the columns of the payload.

    `values` and `keys` have how the schemas of values, and of the keys of tombstones, are read.
    """

    columns: pa.Schema
    values: SchemasByFrame
    keys: SchemasByFrame

    def decode(self, values: pa.Array, keys: pa.Array) -> tuple[pa.Table, pa.Array]:
        """Return the columns of messages, and the reasons why they are rejected: NULL for good ones.

        The columns of a rejected message have any values. A tombstone has the columns of its key.
        """
        rows = join_rows(self._decode_parts(values, keys), self._schema)
        return rows.drop_columns(REASON), rows[REASON].combine_chunks()

    @property
    def _schema(self) -> pa.Schema:
        return self.columns.append(pa.field(REASON, pa.string()))

    def _decode_parts(self, values: pa.Array, keys: pa.Array) -> Iterator[tuple[Numbers, pa.Table]]:
        """Yield places in the batch, and the columns and reasons of the messages there."""
        parts = [(np.arange(len(values)), values, self.values, "payload")]
        if values.null_count:
            is_tombstone = values.is_null()
            with_key = pc.and_(is_tombstone, keys.is_valid())
            without = pc.and_(is_tombstone, keys.is_null())
            places = [
                np.flatnonzero(some.to_numpy(zero_copy_only=False))
                for some in (values.is_valid(), with_key, without)
            ]
            parts = [
                (places[0], values.take(pa.array(places[0])), self.values, "payload"),
                (places[1], keys.take(pa.array(places[1])), self.keys, "key"),
            ]
            if len(places[2]):
                yield places[2], self._reject(len(places[2]), _NO_PAYLOAD)
        for place, bodies, schemas, part in parts:
            for framed in split_by_frame(bodies, schemas, part):
                yield place[framed.rows], self._decode_framed(bodies, framed, part)

    def _decode_framed(self, bodies: pa.Array, framed: FramedRows, part: str) -> pa.Table:
        count = len(framed.rows)
        if isinstance(framed.type, str):
            return self._reject(count, framed.type)
        payloads = pc.binary_slice(take_rows(bodies, framed.rows), framed.length, _END)
        table, reasons = decode_payloads(payloads, framed.type)
        by_name = dict(zip(map(str.lower, table.column_names), table.columns, strict=True))
        columns = [by_name.get(field.name.lower(), pa.nulls(count, field.type)) for field in self.columns]
        what = f"the {part} is no `{framed.type}`: "
        return pa.table([*columns, pc.binary_join_element_wise(what, reasons, "")], schema=self._schema)

    def _reject(self, count: int, reason: str) -> pa.Table:
        columns = [pa.nulls(count, field.type) for field in self.columns]
        return pa.table([*columns, pa.repeat(pa.scalar(reason), count)], schema=self._schema)
