"""The frame of a Protobuf message: that of a schema registry, then the place of the message in its schema.

The place is a number of varints and the varints themselves, each zigzag encoded. A single 0 is the first
message.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from headrace.connectors.kafka.decoded_rows import take_rows
from headrace.connectors.kafka.message_batch import Numbers
from headrace.connectors.kafka.message_columns import FRAME_BYTES
from headrace.connectors.kafka.protobuf.resolution import ReadableMessages
from headrace.connectors.kafka.protobuf.schema import ProtobufType
from headrace.connectors.kafka.schema_frames import schema_id_of

pc: Any = pyarrow.compute
"""Its functions are made at import, so type checkers do not see them."""
SchemasByFrame = Mapping[bytes, ReadableMessages | str]
"""How the messages of a schema are read, or why it cannot be read, by the frame of the registry."""
_MOST_BYTES = 64
"""Of a frame. A longer one is no frame."""
_NO_FRAME = "the {part} does not begin with a 0 and the id of a schema"
_NO_PLACE = "the {part} does not have the place of a message in schema {schema_id}"


class UnknownSchemaError(Exception):
    """A message names a schema that was not read."""


@dataclass(frozen=True, slots=True)
class FramedRows:
    """Rows of a batch whose payloads are read alike: as `type`, or not, for the reason that it is."""

    rows: Numbers
    length: int
    """Bytes of the frame."""
    type: ProtobufType | str


def split_by_frame(values: pa.Array, schemas: SchemasByFrame, part: str) -> Iterator[FramedRows]:
    """Yield all rows of a batch by their frames. `part` is what the values are, for messages.

    Raise UnknownSchemaError for a frame that `schemas` does not have.
    """
    yield from _split(values, np.arange(len(values)), FRAME_BYTES + 1, schemas, part)


def _split(
    values: pa.Array,
    rows: Numbers,
    length: int,
    schemas: SchemasByFrame,
    part: str,
) -> Iterator[FramedRows]:
    """Yield rows by their first `length` bytes, or by more bytes where the frame is longer."""
    heads = pc.binary_slice(take_rows(values, rows), 0, length).dictionary_encode()
    codes = heads.indices.to_numpy()
    for code, head in enumerate(heads.dictionary.to_pylist()):
        mine = rows[codes == code]
        result = _read_head(head, length, schemas, part)
        if isinstance(result, int):
            yield from _split(values, mine, result, schemas, part)
        else:
            yield FramedRows(mine, length, result)


def _read_head(head: bytes, length: int, schemas: SchemasByFrame, part: str) -> ProtobufType | str | int:
    """Return the type of a message by its first bytes, why it has none, or how many bytes are needed."""
    schema_id = schema_id_of(head[:FRAME_BYTES])
    if schema_id is None:
        return _NO_FRAME.format(part=part)
    known = schemas.get(head[:FRAME_BYTES])
    if known is None:
        raise UnknownSchemaError(schema_id)
    if isinstance(known, str):
        return known
    place = _read_place(head[FRAME_BYTES:])
    if place is None:
        is_cut = len(head) == length < _MOST_BYTES
        return length + 1 if is_cut else _NO_PLACE.format(part=part, schema_id=schema_id)
    return known.get(place, f"schema {schema_id} has no message at {list(place)}")


def _read_place(data: bytes) -> tuple[int, ...] | None:
    """Return the place of a message, or None if it is not complete."""
    numbers: list[int] = []
    value = shift = 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:  # the last byte of the varint
            numbers.append((value >> 1) ^ -(value & 1))
            value = shift = 0
    if not numbers or shift or len(numbers) != numbers[0] + 1:
        return None
    return tuple(numbers[1:]) or (0,)
