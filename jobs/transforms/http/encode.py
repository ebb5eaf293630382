"""Encodes rows as JSON by Spark's compiled writer: with nulls, bytes as hex, and wide numbers as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.pipeline.sql.system_columns import OP

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType

_OPTIONS = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


def row_json(payload: StructType, version: int) -> Column:
    """Return a row's JSON object: the payload and `_gs_op`.

    In version 1 they are under `data`, next to `metadata`.
    """
    from pyspark.sql import functions as F  # noqa: N812

    columns = [_plain(F.col(f"`{field.name}`"), field.dataType).alias(field.name) for field in payload.fields]
    data = F.struct(*columns, F.col(OP).alias(OP))
    if version:
        data = F.struct(F.struct(F.col(OP).alias("op")).alias("metadata"), data.alias("data"))
    return F.to_json(data, _OPTIONS)


def _plain(column: Column, kind: DataType) -> Column:
    """Return the column in values that JSON can express: bytes as hex, and null for NaN and infinity."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql import types as T  # noqa: N812

    if not _has(kind, (T.BinaryType, T.FloatType, T.DoubleType)):
        return column
    if isinstance(kind, T.BinaryType):
        return F.lower(F.hex(column))
    if isinstance(kind, T.ArrayType):
        inner = kind.elementType
        return F.transform(column, lambda item: _plain(item, inner))
    if isinstance(kind, T.MapType):
        value_type = kind.valueType
        return F.transform_values(column, lambda _, item: _plain(item, value_type))
    if isinstance(kind, T.StructType):
        parts = [
            _plain(column.getField(field.name), field.dataType).alias(field.name) for field in kind.fields
        ]
        return F.when(column.isNotNull(), F.struct(*parts))
    infinite = F.abs(column) == F.lit(float("inf"))
    return F.when(~F.isnan(column) & ~infinite, column)


def _has(kind: DataType, sought: tuple[type, ...]) -> bool:
    from pyspark.sql import types as T  # noqa: N812

    if isinstance(kind, T.StructType):
        return any(_has(field.dataType, sought) for field in kind.fields)
    if isinstance(kind, T.ArrayType):
        return _has(kind.elementType, sought)
    if isinstance(kind, T.MapType):
        return _has(kind.valueType, sought)
    return isinstance(kind, sought)
