"""The target table: made where it is missing, checked where it is not."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from headrace.connectors.filters import quote_identifier
from headrace.connectors.lakehouse import find_schema_mismatches
from headrace.pipeline.errors import GuaranteeError, SchemaError, TargetError
from headrace.pipeline.types.arrow import spark_type

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_SMALL = re.compile(r"\b(TINYINT|SMALLINT)\b")
_UNSAFE = re.compile(r"(s3|s3a|s3n|gs|abfss?|wasbs?|oss)://", re.IGNORECASE)
_PROPERTIES = {
    "format-version": "2",
    # Small epochs would else write whole files of a large table anew.
    "write.merge.mode": "merge-on-read",
    # An epoch is three versions of the metadata. Old ones go late: a process that slept inside its commit points readers at the version
    # that it meant to make, and they find the newest from there as long as none in between is missing.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "500",
}


def check_warehouse(sink: str, place: str) -> None:
    """Raises GuaranteeError where two writers could both make the same version: stores without a rename that refuses to replace."""
    if _UNSAFE.match(place):
        msg = f"an Iceberg table of a hadoop catalog at `{place}` cannot be written exactly once: the store has no atomic rename"
        raise GuaranteeError(msg, hint="Use a local folder or HDFS as `warehouse`, or a `delta` sink.", node=sink)


def iceberg_type(kind: pa.DataType) -> str:
    """The column type of an Arrow type, as Spark's DDL: Iceberg has no integers below 32 bits."""
    return _SMALL.sub("INT", spark_type(kind))


def create(sink: str, spark: SparkSession, path: str, schema: pa.Schema) -> None:
    """Makes the table; another process may do the same at the same moment. Raises SchemaError for a type that Iceberg lacks."""
    from pyspark.errors import PySparkException

    columns = ", ".join(f"{quote_identifier(field.name)} {iceberg_type(field.type)}" for field in schema)
    properties = ", ".join(f"'{key}' = '{value}'" for key, value in _PROPERTIES.items())
    try:
        spark.sql(f"CREATE TABLE IF NOT EXISTS {path} ({columns}) USING iceberg TBLPROPERTIES ({properties})")
    except PySparkException as error:
        if "INTERVAL" in columns:
            names = ", ".join(field.name for field in schema if "INTERVAL" in iceberg_type(field.type))
            msg = f"Iceberg has no type for the columns {names}"
            raise SchemaError(msg, hint="Cast them in a transform.", node=sink) from error
        msg = f"cannot make the Iceberg table {path}: {str(error).splitlines()[0]}"
        raise TargetError(msg, hint="Check `table_name`, and the rights in the warehouse.", node=sink) from error


def check_columns(sink: str, spark: SparkSession, path: str, schema: pa.Schema, key: tuple[str, ...]) -> None:
    """Raises SchemaError where the table lacks a column, has another type, or demands a column that no row brings."""
    wanted = {column.name: iceberg_type(column.type) for column in schema}
    if wrong := find_schema_mismatches(spark, spark.table(path).schema, wanted, key):
        msg = f"the Iceberg table {path} cannot take the rows: {'; '.join(wrong)}"
        raise SchemaError(msg, hint="Change the table (ALTER TABLE), the transform's columns, or `table_name`.", node=sink)
