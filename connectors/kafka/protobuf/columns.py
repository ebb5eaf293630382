"""The columns of a Protobuf message, as Arrow has them."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from headrace.connectors.field_names import check_distinct
from headrace.connectors.kafka.protobuf.schema import (
    GROUP,
    MAP,
    MESSAGE,
    RECURSION,
    ProtobufField,
    ProtobufType,
)
from headrace.pipeline.errors import SchemaError

SCALARS: Mapping[str, pa.DataType] = {
    "double": pa.float64(),
    "float": pa.float32(),
    "int32": pa.int32(),
    "sint32": pa.int32(),
    "sfixed32": pa.int32(),
    "int64": pa.int64(),
    "sint64": pa.int64(),
    "sfixed64": pa.int64(),
    "uint32": pa.int64(),
    "fixed32": pa.int64(),
    "uint64": pa.decimal128(20, 0),
    "fixed64": pa.decimal128(20, 0),
    "bool": pa.bool_(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "enum": pa.string(),
}
"""The type of a column by that of its field. No type of Spark is unsigned."""
TIMESTAMP = "google.protobuf.Timestamp"
WRAPPERS = frozenset(
    f"google.protobuf.{kind}Value"
    for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
"""Messages with one scalar, which may be NULL."""


def payload_columns(message: ProtobufType) -> pa.Schema:
    """Return the columns of a message, all nullable.

    Raise SchemaError, naming the field, for a type that no column can represent.
    """
    check_distinct(one.name for one in message.fields)
    return pa.schema([pa.field(one.name, field_type(one, (one.name,))) for one in message.fields])


def field_type(field: ProtobufField, path: tuple[str, ...] = ()) -> pa.DataType:
    """Return the type of a field's values. `path` has the names of the fields around it and its own."""
    kind = field.type
    if kind.kind == MAP:
        key, value = kind.fields
        return pa.map_(field_type(key), field_type(value, (*path, "{}")))
    if field.is_repeated:
        return pa.list_(pa.field("element", _type(kind, (*path, "[]"))))
    return _type(kind, path)


def _type(kind: ProtobufType, path: tuple[str, ...]) -> pa.DataType:
    if kind.name == TIMESTAMP:
        return pa.timestamp("us", tz="UTC")
    refused = {RECURSION: f"a `{kind.name}` inside of itself", GROUP: "a group"}.get(kind.kind)
    if kind.kind == MESSAGE and not kind.fields:
        refused = f"a message without fields, `{kind.name}`"
    if refused is not None:
        msg = f"field `{'.'.join(path)}` is {refused}"
        raise SchemaError(msg)
    if kind.kind != MESSAGE:
        return SCALARS[kind.kind]
    if kind.name in WRAPPERS:
        return SCALARS[kind.fields[0].type.kind]
    return pa.struct([pa.field(one.name, field_type(one, (*path, one.name))) for one in kind.fields])
