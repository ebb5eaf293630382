"""Reads stored rows with Spark's own reader of parquet, which is faster than to pass them through Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import types as kinds

from headrace.connectors.files.locations import spark_pattern
from headrace.connectors.files.reader import GROUP, OFF, PART, FileRange
from headrace.connectors.files.schema import FileSchema
from headrace.connectors.files.source import Files
from headrace.connectors.filters import quote_identifier
from headrace.connectors.spark_types import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_METADATA = "_metadata"
"""Spark's column with the name of the file and the number of the row."""


class StoredFiles(Files):
    """Files that nothing changes after they are stored, so that no reader has to compare them with a pin.

    The name of a file is its place in the order of the files.
    """

    def _rows(
        self,
        spark: SparkSession,
        shape: FileSchema,
        tasks: Sequence[Sequence[FileRange]],
        needed: Sequence[str],
    ) -> DataFrame:
        """Return the needed columns with PART, GROUP and OFF. A file has one row group."""
        ranges = [piece for task in tasks for piece in task]
        is_whole = all(piece.file.groups is not None and len(piece.file.groups) <= 1 for piece in ranges)
        if not ranges or not is_whole or not _is_readable(shape.inner):
            return super()._rows(spark, shape, tasks, needed)
        fields = [field for field in shape.inner if field.name in needed]
        columns = spark_schema(pa.schema(fields or [shape.inner.field(0)]))
        reader = spark.read.schema(columns).option("datetimeRebaseMode", "CORRECTED")
        frame = reader.parquet(*(spark_pattern(piece.file.path) for piece in ranges))
        from pyspark.sql import functions as F  # noqa: N812

        number = F.substring_index(F.col(f"{_METADATA}.file_name"), ".", 1)
        return frame.select(
            *map(quote_identifier, columns.names),
            number.cast("int").alias(PART),
            F.lit(0).alias(GROUP),
            F.col(f"{_METADATA}.row_index").alias(OFF),
        )


def _is_readable(schema: pa.Schema) -> bool:
    """Return whether Spark's reader returns what Arrow does for columns of these types."""
    fits = (
        *(kinds.is_boolean, kinds.is_signed_integer, kinds.is_float32, kinds.is_float64, kinds.is_decimal128),
        *(kinds.is_string, kinds.is_binary, kinds.is_date32, kinds.is_timestamp),
    )
    return all(any(one(field.type) for one in fits) and field.name.lower() != _METADATA for field in schema)
