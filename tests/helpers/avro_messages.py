"""Avro by hand: encodes and decodes values for a schema as JSON, in Confluent's frame.

It shares no code with the product.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any


def frame(schema_id: int, payload: bytes) -> bytes:
    """Returns a message: a 0, the id, the payload."""
    return struct.pack(">bI", 0, schema_id) + payload


def encode(schema: Any, value: Any) -> bytes:
    """Returns a value in Avro's binary form. A value of a union is (index of its branch, value)."""
    kind = schema["type"] if isinstance(schema, dict) else schema
    if isinstance(kind, list):
        branch, inner = value
        return _long(branch) + encode(kind[branch], inner)
    if isinstance(kind, dict):
        return encode(kind, value)
    if kind in _PRIMITIVES:
        return _PRIMITIVES[kind](value)
    return _COMPLEX[kind](schema, value)


def decode(schema: Any, data: bytes) -> Any:
    """Returns the value of Avro's binary form. The branch of a union is left out."""
    value, rest = _read(schema, data)
    assert not rest, rest
    return value


def _read(schema: Any, data: bytes) -> tuple[Any, bytes]:
    kind = schema["type"] if isinstance(schema, dict) else schema
    if isinstance(kind, list):
        branch, rest = _read_long(data)
        return _read(kind[branch], rest)
    if isinstance(kind, dict):
        return _read(kind, data)
    if kind == "null":
        return None, data
    if kind in ("int", "long"):
        return _read_long(data)
    if kind == "string":
        size, rest = _read_long(data)
        return rest[:size].decode(), rest[size:]
    assert kind == "record", kind
    result = {}
    for field in schema["fields"]:
        result[field["name"]], data = _read(field["type"], data)
    return result, data


def _read_long(data: bytes) -> tuple[int, bytes]:
    value = 0
    for place, byte in enumerate(data):
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), data[place + 1 :]
    raise AssertionError(data)


def _text(value: str | bytes) -> bytes:
    data = value if isinstance(value, bytes) else value.encode()
    return _long(len(data)) + data


def _blocks(items: list[bytes]) -> bytes:
    return (_long(len(items)) + b"".join(items) if items else b"") + b"\0"


def record(*fields: Any, name: str = "row", **more: Any) -> dict[str, Any]:
    """Returns a record schema of (name, type) or of whole fields."""
    made = [
        dict(zip(("name", "type"), field, strict=True)) if isinstance(field, tuple) else field
        for field in fields
    ]
    return {"type": "record", "name": name, "fields": made, **more}


def number(value: int, size: int | None = None) -> bytes:
    """Returns a big-endian two's complement number, as short as can be or of `size` bytes."""
    return value.to_bytes(size or (value + (value < 0)).bit_length() // 8 + 1, "big", signed=True)


def _long(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    result = b""
    while value & ~0x7F:
        result += bytes([value & 0x7F | 0x80])
        value >>= 7
    return result + bytes([value])


_PRIMITIVES: dict[str, Callable[[Any], bytes]] = {
    "null": lambda _: b"",
    "boolean": lambda value: b"\1" if value else b"\0",
    "int": _long,
    "long": _long,
    "float": lambda value: struct.pack("<f", value),
    "double": lambda value: struct.pack("<d", value),
    "string": _text,
    "bytes": _text,
}
_COMPLEX: dict[str, Callable[[Any, Any], bytes]] = {
    "fixed": lambda _, value: value,
    "enum": lambda schema, value: _long(schema["symbols"].index(value)),
    "array": lambda schema, value: _blocks([encode(schema["items"], item) for item in value]),
    "map": lambda schema, value: _blocks(
        [_text(key) + encode(schema["values"], item) for key, item in value.items()]
    ),
    "record": lambda schema, value: b"".join(
        encode(field["type"], value[field["name"]]) for field in schema["fields"]
    ),
}
