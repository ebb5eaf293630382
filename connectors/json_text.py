"""Columns as JSON text that loses nothing.

Numbers keep all their digits, NaN and the infinities are text, dates and times are ISO 8601 to the
microsecond (with a zone: in UTC), binary is base64, or hexadecimal after `plain_values`. Objects have text as
keys, so a map's keys become text by the same rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import types as kinds

from headrace.pipeline.errors import SchemaError
from headrace.pipeline.types.arrow import is_binary, is_nested

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

_LOCAL = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
_INSTANT = f"{_LOCAL}XXX"
JSON_OPTIONS = {"ignoreNullFields": "false", "timestampFormat": _INSTANT, "timestampNTZFormat": _LOCAL}
"""Options of `to_json`. Spark's own formats for times end at the millisecond."""


def check_keys(node: str, field: pa.Field) -> None:
    """Raise SchemaError for a map inside `field` whose keys have no string form."""
    for result in _maps(field.type):
        if is_nested(result.key_type) or is_binary(result.key_type):
            msg = (
                f"column '{field.name}' is {field.type}: keys of type {result.key_type} cannot be keys of"
                " a JSON object"
            )
            raise SchemaError(
                msg,
                node=node,
                hint="Turn them into text in a transform, or the map into a list: map_entries(…).",
            )


def as_json(column: Column, kind: pa.DataType) -> Column:
    """Return a nested column as a JSON string; NULL stays NULL."""
    from pyspark.sql import functions as f

    return f.to_json(with_text_keys(column, kind), JSON_OPTIONS)


def plain_values(column: Column, kind: DataType, *, finite: bool = False) -> Column:
    """Return the column with bytes as hexadecimal text. With `finite`, NaN and the infinities are null."""
    from pyspark.sql import functions as f
    from pyspark.sql import types as t

    sought = (t.BinaryType, t.FloatType, t.DoubleType) if finite else (t.BinaryType,)
    if not _has(kind, sought):
        return column
    if isinstance(kind, t.BinaryType):
        return f.lower(f.hex(column))
    if isinstance(kind, t.ArrayType):
        inner = kind.elementType
        return f.transform(column, lambda item: plain_values(item, inner, finite=finite))
    if isinstance(kind, t.MapType):
        value_type = kind.valueType
        return f.transform_values(column, lambda _, item: plain_values(item, value_type, finite=finite))
    if isinstance(kind, t.StructType):
        parts = [
            plain_values(column.getField(field.name), field.dataType, finite=finite).alias(field.name)
            for field in kind.fields
        ]
        return f.when(column.isNotNull(), f.struct(*parts))
    infinite = f.abs(column) == f.lit(float("inf"))
    return f.when(~f.isnan(column) & ~infinite, column)


def _has(kind: DataType, sought: tuple[type, ...]) -> bool:
    from pyspark.sql import types as t

    if isinstance(kind, t.StructType):
        return any(_has(field.dataType, sought) for field in kind.fields)
    if isinstance(kind, t.ArrayType):
        return _has(kind.elementType, sought)
    if isinstance(kind, t.MapType):
        return _has(kind.valueType, sought)
    return isinstance(kind, sought)


def _maps(kind: pa.DataType) -> list[Any]:
    here = [kind] if kinds.is_map(kind) else []
    return here + [inner for member in _members(kind) for inner in _maps(member)]


def _members(kind: Any) -> list[pa.DataType]:
    if kinds.is_map(kind):
        return [kind.key_type, kind.item_type]
    return [kind.field(at).type for at in range(kind.num_fields)]


def _is_number_key(kind: pa.DataType) -> bool:
    """Return whether Spark writes keys of this type as a number of days or microseconds."""
    return kinds.is_date(kind) or kinds.is_timestamp(kind)


def with_text_keys(column: Column, kind: Any, *, of_numbers: bool = False) -> Column:
    """Return the column with date and time keys as strings, and with `of_numbers` all keys.

    `to_json` writes the other keys as text itself. Only types with such keys are rebuilt.
    """
    from pyspark.sql import functions as f

    def is_rebuilt(key: Any) -> bool:
        return _is_number_key(key) or (of_numbers and not kinds.is_string(key))

    def rebuild(part: Column, part_kind: Any) -> Column:
        return with_text_keys(part, part_kind, of_numbers=of_numbers)

    if not any(is_rebuilt(result.key_type) for result in _maps(kind)):
        return column
    if kinds.is_map(kind):
        items = f.transform_values(column, lambda _, item: rebuild(item, kind.item_type))
        return (
            f.transform_keys(items, lambda key, _: _key_text(key, kind.key_type))
            if is_rebuilt(kind.key_type)
            else items
        )
    if kinds.is_struct(kind):
        inner = [rebuild(column.getField(member.name), member.type).alias(member.name) for member in kind]
        return f.when(column.isNotNull(), f.struct(*inner))
    return f.transform(column, lambda item: rebuild(item, kind.value_type))


def _key_text(key: Column, kind: Any) -> Column:
    from pyspark.sql import functions as f

    if not kinds.is_timestamp(kind):
        return key.cast("string")
    return f.date_format(key, _LOCAL if kind.tz is None else _INSTANT)
