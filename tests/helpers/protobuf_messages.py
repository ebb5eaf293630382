"""Protobuf messages for tests, in Confluent's frame. Google's own library encodes them."""

from __future__ import annotations

import struct
from typing import Any

from google.protobuf import message_factory

from headrace.connectors.kafka.protobuf.schema import parse_schema


def message_class(text: str, name: str) -> Any:
    """Returns the class of a message of a `.proto` file."""
    return next(
        message_factory.GetMessageClass(one)
        for one in parse_schema(text).messages.values()
        if one.full_name == name
    )


def frame(schema_id: int, payload: bytes, *place: int) -> bytes:
    """Returns a message: a 0, the id, the place of the message in its schema, the payload."""
    numbers = (
        b"".join(_varint(one) for one in (len(place), *place)) if any(place) or len(place) > 1 else b"\0"
    )
    return struct.pack(">bI", 0, schema_id) + numbers + payload


def _varint(value: int) -> bytes:
    value <<= 1
    result = b""
    while value & ~0x7F:
        result += bytes([value & 0x7F | 0x80])
        value >>= 7
    return result + bytes([value])
