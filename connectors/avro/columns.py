"""The columns of an Avro record, as Arrow has them."""

from __future__ import annotations

import json

import pyarrow as pa

from headrace.connectors.avro.schema import AvroType, spell_path
from headrace.connectors.field_names import check_distinct
from headrace.pipeline.errors import SchemaError
from headrace.pipeline.types.int256 import SPARK_DIGITS, UINT256, is_wide

BIG_DECIMAL_DIGITS = 76
"""Of Arrow's largest decimal. Whole numbers of two more digits are 256-bit integers."""
_INTEGER_DIGITS = 78

_PRIMITIVES = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
}
_LOGICAL = {
    "date": pa.date32(),
    "time-millis": pa.string(),
    "time-micros": pa.string(),
    "timestamp-millis": pa.timestamp("us", tz="UTC"),
    "timestamp-micros": pa.timestamp("us", tz="UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
    "uuid": pa.string(),
}
"""Other logical types keep their underlying type: nanoseconds are int64, a duration is binary."""


def record_columns(record: AvroType) -> pa.Schema:
    """Return the columns of a record, all nullable.

    Raise SchemaError, naming the field, for a type that no column can represent.
    """
    check_distinct(one.name for one in record.fields)
    return pa.schema([pa.field(one.name, _column_type(one.type, (one.name,))) for one in record.fields])


def _column_type(kind: AvroType, path: tuple[str, ...]) -> pa.DataType:
    if kind.kind in ("union", "null"):
        raise _column_error(path, f"is a {kind}" if kind.kind == "union" else "has no type but null")
    if kind.logical == "big-decimal":
        raise _column_error(path, "is a big-decimal, whose values have different scales")
    if kind.is_decimal:
        return _decimal_type(kind, path)
    if kind.kind == "array":
        return pa.list_(pa.field("element", _column_type(kind.item_type, (*path, "[]"))))
    if kind.kind == "map":
        return pa.map_(pa.string(), _column_type(kind.item_type, (*path, "{}")))
    if kind.kind == "record":
        if not kind.fields:
            raise _column_error(path, "is a record without fields")
        return pa.struct(
            [pa.field(one.name, _column_type(one.type, (*path, one.name))) for one in kind.fields]
        )
    return _LOGICAL.get(kind.logical, _PRIMITIVES[kind.kind])


def _decimal_type(kind: AvroType, path: tuple[str, ...]) -> pa.DataType:
    if kind.precision <= SPARK_DIGITS:
        return pa.decimal128(kind.precision, kind.scale)
    if kind.precision <= BIG_DECIMAL_DIGITS:
        result: pa.DataType = pa.decimal256(kind.precision, kind.scale)
    elif kind.precision <= _INTEGER_DIGITS and kind.scale == 0:
        result = UINT256
    else:
        raise _column_error(
            path,
            f"is {kind}; the largest are {BIG_DECIMAL_DIGITS} digits, and {_INTEGER_DIGITS} with scale 0",
        )
    if len(path) > 1 and is_wide(result):
        raise _column_error(
            path, f"is {kind} inside of another type; there the largest has {SPARK_DIGITS} digits"
        )
    return result


def _column_error(path: tuple[str, ...], what: str) -> SchemaError:
    return SchemaError(f"field `{spell_path(path)}` {what}")


def key_of_doc(doc: str) -> tuple[str, ...]:
    """Return the primary key that a record's `doc` declares, such as {"primaryKeys": ["id"]}, or ()."""
    try:
        result = json.loads(doc)
    except ValueError:
        return ()
    names = result.get("primaryKeys") if isinstance(result, dict) else None
    return tuple(names) if isinstance(names, list) and all(isinstance(name, str) for name in names) else ()
