"""A frame over rows of the driver through a parquet file.

Spark reads the file by generated code, at about three times the rows per second of a local relation. A small
table is not worth a job. Only a Spark with a local master sees the file.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types as kinds

from headrace.connectors.local_relation import frame_of_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructField, StructType

_LEAST_ROWS = 5_000
"""Smaller tables are local relations."""


def frame_through_file(spark: SparkSession, table: pa.Table, schema: StructType, folder: Path) -> DataFrame:
    """Return a frame of rows in the driver, in their order. `folder` must stay until the frame was used."""
    if table.num_rows < _LEAST_ROWS or not all(map(_is_stored, table.schema.types)):
        return frame_of_table(spark, table, schema)
    # By number, because Spark takes no names that differ in case alone.
    columns = [str(number) for number in range(table.num_columns)]
    path = folder / "rows.parquet"
    # One row group is read by one task, which keeps the order.
    pq.write_table(table.rename_columns(columns), path, compression="none", row_group_size=table.num_rows)
    stored = type(schema)([_rename(field, name) for field, name in zip(schema, columns, strict=True)])
    reader = spark.read.schema(stored).option("datetimeRebaseMode", "CORRECTED")
    return reader.parquet(path.as_uri()).toDF(*table.column_names)


def _rename(field: StructField, name: str) -> StructField:
    return type(field)(name, field.dataType, field.nullable, field.metadata)


def _is_stored(kind: pa.DataType) -> bool:
    """Return whether Spark reads the same values from a parquet file."""
    if kinds.is_struct(kind):
        return all(_is_stored(field.type) for field in kind)
    if kinds.is_timestamp(kind):
        return kind.unit == "us"
    return (
        kinds.is_signed_integer(kind)
        or kind in {pa.bool_(), pa.float32(), pa.float64(), pa.string(), pa.binary(), pa.date32()}
        or kinds.is_decimal128(kind)
    )
