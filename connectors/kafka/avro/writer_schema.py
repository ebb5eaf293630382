"""The Avro schemas of messages that a sink writes, from its columns.

Every field may be null and is null by default, so a new column is a compatible change. `to_avro` of Spark
writes these types from Spark's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import types as kinds

from headrace.connectors.avro.schema import spell_path
from headrace.connectors.spark_types import spark_schema
from headrace.pipeline.errors import SchemaError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLAIN: Mapping[str, Any] = {
    "BooleanType": "boolean",
    "ByteType": "int",
    "ShortType": "int",
    "IntegerType": "int",
    "LongType": "long",
    "FloatType": "float",
    "DoubleType": "double",
    "StringType": "string",
    "BinaryType": "bytes",
    "DateType": {"type": "int", "logicalType": "date"},
    "TimestampType": {"type": "long", "logicalType": "timestamp-micros"},
    "TimestampNTZType": {"type": "long", "logicalType": "local-timestamp-micros"},
}
"""Avro's types by the names of Spark's."""


def write_message_schema(
    schema: pa.Schema, columns: Sequence[str], *, topic: str, name: str, key: Sequence[str] = ()
) -> str:
    """Return the schema of a record with some columns of `schema`, as JSON.

    `name` is that of the record, in a namespace by the topic. Its `doc` has the primary key, if there is one.
    Raise SchemaError for a column that Avro cannot name or carry.
    """
    for field in schema:
        if kinds.is_duration(field.type) or kinds.is_interval(field.type):
            raise _column_error((field.name,), f"cannot carry {field.type}")
    writer = _SchemaWriter()
    record = writer.write_record(spark_schema(pa.schema([schema.field(one) for one in columns])), name, ())
    result = {"type": "record", "name": name, "namespace": _namespace(topic)}
    result |= {"doc": json.dumps({"primaryKeys": list(key)})} if key else {}
    return json.dumps(result | {"fields": record["fields"]}, separators=(",", ":"), ensure_ascii=False)


class _SchemaWriter:
    """Writes one schema. Records inside of it have names of their own."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def write_record(self, columns: StructType, name: str, path: tuple[str, ...]) -> Any:
        while name in self._names:
            name += "_"
        self._names.add(name)
        fields = []
        for column in columns:
            inner = (*path, column.name)
            if _NAME.fullmatch(column.name) is None:
                raise _column_error(inner, f"cannot have a field `{column.name}`")
            kind = self._write(column.dataType, f"{name}_{column.name}", inner)
            fields.append({"name": column.name, "type": ["null", kind], "default": None})
        return {"type": "record", "name": name, "fields": fields}

    def _write(self, kind: DataType, name: str, path: tuple[str, ...]) -> Any:
        from pyspark.sql import types as t

        if isinstance(kind, t.StructType):
            return self.write_record(kind, name, path)
        if isinstance(kind, t.ArrayType):
            inner = self._write(kind.elementType, f"{name}_item", (*path, "[]"))
            return {"type": "array", "items": ["null", inner]}
        if isinstance(kind, t.MapType):
            inner = self._write(kind.valueType, f"{name}_value", (*path, "{}"))
            return {"type": "map", "values": ["null", inner]}
        if isinstance(kind, t.DecimalType):
            digits = {"precision": kind.precision, "scale": kind.scale}
            return {"type": "bytes", "logicalType": "decimal"} | digits
        result = _PLAIN.get(type(kind).__name__)
        if result is None:
            raise _column_error(path, f"cannot carry {kind.simpleString()}")
        return result


def _namespace(topic: str) -> str:
    """Return a topic's name as a namespace of Avro."""
    parts = [part for part in re.sub(r"[^A-Za-z0-9_.]", "_", topic).split(".") if part]
    return ".".join(part if _NAME.fullmatch(part) else f"_{part}" for part in parts)


def _column_error(path: tuple[str, ...], what: str) -> SchemaError:
    msg = f"column `{spell_path(path)}`: Avro messages {what}"
    hint = "Avro's names have letters, digits and `_`. Rename or convert the column in a transform."
    return SchemaError(msg, hint=hint)
