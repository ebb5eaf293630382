"""Schemas between Arrow and Spark.

Numbers that Spark has no room for are strings there, with their type in the column's metadata.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

import pyarrow as pa
from pyarrow import types as kinds

from headrace.pipeline.sql.system_columns import OP, POS
from headrace.pipeline.types.arrow import parse_type, spark_type
from headrace.pipeline.types.int256 import WideInteger, digits, is_wide, storage_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructField, StructType

_KEY = "headrace.type"

POS_ARROW = pa.struct(
    [("source", pa.int32()), ("part", pa.int32()), ("off", pa.int64()), ("sub", pa.int64())]
)
"""`_gs_pos` as Arrow."""


def spark_schema(schema: pa.Schema) -> StructType:
    """Return Spark's columns for an Arrow schema.

    The analyzer keeps the metadata of columns that a statement passes through unchanged.
    """
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import StructField, StructType

    result = cast("StructType", from_arrow_schema(storage_schema(schema), prefer_timestamp_ntz=True))
    return StructType(
        [
            StructField(column.name, column.dataType, column.nullable, {_KEY: _name_of_type(field.type)})
            if is_wide(field.type)
            else column
            for column, field in zip(result, schema, strict=True)
        ]
    )


def spark_data_type(kind: pa.DataType) -> DataType:
    """Return the type of `pipeline.types.arrow.spark_type` as an object. Spark is not needed for it."""
    from pyspark.sql import types as T  # noqa: N812

    if kinds.is_dictionary(kind):
        return spark_data_type(kind.value_type)
    if kinds.is_struct(kind):
        return T.StructType([T.StructField(field.name, spark_data_type(field.type)) for field in kind])
    if kinds.is_map(kind):
        return T.MapType(spark_data_type(kind.key_type), spark_data_type(kind.item_type))
    if kinds.is_nested(kind):
        return T.ArrayType(spark_data_type(kind.value_type))
    return _read_ddl(spark_type(kind))


def _read_ddl(ddl: str) -> DataType:
    """Return a flat type of Spark. PySpark reads DDL only in the JVM."""
    from pyspark.sql import types as T  # noqa: N812

    if match := re.fullmatch(r"DECIMAL\((\d+),(\d+)\)", ddl):
        return T.DecimalType(int(match[1]), int(match[2]))
    flat: tuple[DataType, ...] = (
        *(T.ByteType(), T.ShortType(), T.IntegerType(), T.LongType(), T.FloatType(), T.DoubleType()),
        *(T.BooleanType(), T.StringType(), T.BinaryType(), T.DateType(), T.TimestampType()),
        *(T.TimestampNTZType(), T.DayTimeIntervalType()),
    )
    return next(one for one in flat if one.simpleString().upper() == ddl)


def row_schema(payload: pa.Schema) -> StructType:
    """Return Spark's columns for rows: the payload, `_gs_op` and `_gs_pos`."""
    from pyspark.sql.types import StructType

    return StructType([*spark_schema(payload).fields, *system_fields()])


@functools.cache
def system_fields() -> tuple[StructField, ...]:
    """Return `_gs_op` and `_gs_pos`. The JVM is not needed for them."""
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StringType, StructField

    return StructField(OP, StringType()), StructField(POS, from_arrow_type(POS_ARROW))


def row_columns(payload: pa.Schema) -> pa.Schema:
    """Return the Arrow columns of rows: the payload as rows store it, `_gs_op` and `_gs_pos`."""
    return pa.schema([*storage_schema(payload), (OP, pa.string()), (POS, POS_ARROW)])


def arrow_schema(columns: StructType) -> pa.Schema:
    """Return the Arrow schema of Spark's columns. Raise PySparkException for a type that Arrow lacks."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StringType

    result = to_arrow_schema(columns)
    wide = {
        column.name: parse_type(column.metadata[_KEY])
        for column in columns
        if _KEY in (column.metadata or {}) and isinstance(column.dataType, StringType)
    }
    return pa.schema([field.with_type(wide[field.name]) if field.name in wide else field for field in result])


def wide_columns(frames: Iterable[DataFrame]) -> dict[str, pa.DataType]:
    """Return the columns of frames with 256-bit integers or big decimals, by lower-case name."""
    result = {
        field.name.lower(): parse_type((field.metadata or {}).get(_KEY, "string"))
        for frame in frames
        for field in frame.schema
    }
    return {name: kind for name, kind in result.items() if is_wide(kind)}


def mark_column(frame: DataFrame, name: str, kind: pa.DataType | None) -> Column:
    """Return a column of a frame. With `kind`, mark it as a string column of such numbers."""
    column = frame[f"`{name}`"]
    return column if kind is None else column.alias(name, metadata={_KEY: _name_of_type(kind)})


def _name_of_type(kind: pa.DataType) -> str:
    return str(kind) if isinstance(kind, WideInteger) else f"decimal256({digits(kind)[0]}, {digits(kind)[1]})"
