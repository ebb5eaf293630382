"""Which messages can be read with the reader schema.

A payload has the numbers of its fields and no types. A field with another type would be read as a wrong value
or be skipped, so the schema of each message is compared with the reader schema.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from headrace.connectors.kafka.protobuf.columns import payload_columns
from headrace.connectors.kafka.protobuf.schema import (
    MAP,
    MESSAGE,
    ProtobufField,
    ProtobufSchema,
    ProtobufType,
)
from headrace.pipeline.errors import SchemaError

_WIDER: Mapping[str, frozenset[str]] = {
    "bool": frozenset({"int32", "int64", "uint32", "uint64"}),
    "enum": frozenset({"int32", "int64"}),
    "int32": frozenset({"int64"}),
    "sint32": frozenset({"sint64"}),
    "uint32": frozenset({"uint64", "int64"}),
    "string": frozenset({"bytes"}),
}
"""The types that read all values of another type alike."""

ReadableMessages = Mapping[tuple[int, ...], ProtobufType | str]
"""By the place of a message in its schema: the type to read it with, or why it cannot be read."""


def resolve_values(schema: ProtobufSchema, reader: ProtobufType) -> ReadableMessages:
    """Return how the messages of a schema are read as values: those with the reader's name as the reader."""
    values: dict[tuple[int, ...], ProtobufType | str] = {}
    for place, one in schema.types.items():
        if one.name != reader.name:
            values[place] = f"the message is `{one.name}`, and the node reads `{reader.name}`"
        elif mismatch := find_mismatch(one, reader):
            values[place] = f"the message cannot be read with the reader schema: {mismatch}"
        else:
            values[place] = reader
    return values


def resolve_keys(schema: ProtobufSchema, columns: pa.Schema) -> ReadableMessages:
    """Return how the messages of a schema are read as keys: by the names of the key's columns."""
    result: dict[tuple[int, ...], ProtobufType | str] = {}
    wanted = {name.lower() for name in columns.names}
    for place, one in schema.types.items():
        fields = tuple(field for field in one.fields if field.name.lower() in wanted)
        of_key = ProtobufType(MESSAGE, one.name, fields)
        try:
            types = {field.name.lower(): field.type for field in payload_columns(of_key)}
        except SchemaError as error:
            result[place] = error.message
            continue
        other = [field for field in columns if types.get(field.name.lower(), field.type) != field.type]
        result[place] = f"field `{other[0].name}` of the key is no {other[0].type}" if other else of_key
    return result


def find_mismatch(writer: ProtobufType, reader: ProtobufType, path: str = "") -> str | None:
    """Return why messages of one type cannot be read as another, or None. Fields are found by number."""
    written = {one.number: one for one in writer.fields}
    for one in reader.fields:
        other = written.get(one.number)
        if other is not None and (result := _field_mismatch(other, one, f"{path}{one.name}")):
            return result
    return None


def _field_mismatch(writer: ProtobufField, reader: ProtobufField, path: str) -> str | None:
    fits = writer.is_repeated == reader.is_repeated and (
        writer.type.kind == reader.type.kind or reader.type.kind in _WIDER.get(writer.type.kind, ())
    )
    if not fits:
        return f"field `{path}` ({reader.number}) is {writer} there, and {reader} here"
    if reader.type.kind in (MESSAGE, MAP):
        return find_mismatch(writer.type, reader.type, f"{path}.")
    return None
