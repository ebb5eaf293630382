"""Lists, structs and maps on their way into `jsonb`: as JSON text that loses nothing and can be cast back.

Numbers keep all their digits, NaN and the infinities are the texts that Postgres casts to a float, dates and
times are ISO 8601 to the microsecond (with a zone: in UTC), binary is base64. Objects have text as keys, so a
map's keys become text by the same rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import types as kinds

from headrace.pipeline.errors import SchemaError
from headrace.pipeline.types.arrow import is_binary, is_nested

if TYPE_CHECKING:
    from pyspark.sql import Column

_LOCAL = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
_INSTANT = f"{_LOCAL}XXX"
_OPTIONS = {"ignoreNullFields": "false", "timestampFormat": _INSTANT, "timestampNTZFormat": _LOCAL}
"""Spark's own formats for times end at the millisecond."""


def check_keys(node: str, field: pa.Field) -> None:
    """Raise SchemaError for a map inside `field` whose keys have no string form."""
    for found in _maps(field.type):
        if is_nested(found.key_type) or is_binary(found.key_type):
            msg = (
                f"column '{field.name}' is {field.type}: keys of type {found.key_type} cannot be keys of"
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

    return f.to_json(_with_text_keys(column, kind), _OPTIONS)


def _maps(kind: pa.DataType) -> list[Any]:
    here = [kind] if kinds.is_map(kind) else []
    return here + [inner for member in _members(kind) for inner in _maps(member)]


def _members(kind: Any) -> list[pa.DataType]:
    if kinds.is_map(kind):
        return [kind.key_type, kind.item_type]
    return [kind.field(at).type for at in range(kind.num_fields)]


def _counted(kind: pa.DataType) -> bool:
    """Return whether Spark writes keys of this type as a number of days or microseconds."""
    return kinds.is_date(kind) or kinds.is_timestamp(kind)


def _with_text_keys(column: Column, kind: Any) -> Column:
    """Return the column with date and time keys as strings. Only types with such keys are rebuilt."""
    from pyspark.sql import functions as f

    if not any(_counted(found.key_type) for found in _maps(kind)):
        return column
    if kinds.is_map(kind):
        items = f.transform_values(column, lambda _, item: _with_text_keys(item, kind.item_type))
        return (
            f.transform_keys(items, lambda key, _: _key_text(key, kind.key_type))
            if _counted(kind.key_type)
            else items
        )
    if kinds.is_struct(kind):
        inner = [
            _with_text_keys(column.getField(member.name), member.type).alias(member.name) for member in kind
        ]
        return f.when(column.isNotNull(), f.struct(*inner))
    return f.transform(column, lambda item: _with_text_keys(item, kind.value_type))


def _key_text(key: Column, kind: Any) -> Column:
    from pyspark.sql import functions as f

    if kinds.is_date(kind):
        return key.cast("string")
    return f.date_format(key, _LOCAL if kind.tz is None else _INSTANT)
