"""The target table: made where it is missing, checked where it is not."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from headrace.connectors.delta.table import takes
from headrace.connectors.scope import quoted
from headrace.pipeline.errors import GuaranteeError, SchemaError, TargetError
from headrace.pipeline.types import spark_type

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

    columns = ", ".join(f"{quoted(field.name)} {iceberg_type(field.type)}" for field in schema)
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
    have = {field.name.lower(): field for field in spark.table(path).schema}
    wrong: list[str] = []
    for column in schema:
        field = have.get(column.name.lower())
        wanted = spark.sql(f"SELECT CAST(NULL AS {iceberg_type(column.type)}) AS c").schema[0].dataType
        if field is None:
            wrong.append(f"column {quoted(column.name)} ({wanted.simpleString()}) is missing")
        elif not takes(field.dataType, wanted):
            wrong.append(f"column {quoted(column.name)} is {field.dataType.simpleString()}, the rows have {wanted.simpleString()}")
    brought = {name.lower() for name in schema.names}
    wrong += [
        f"column {quoted(field.name)} is NOT NULL and no row brings it"
        for name, field in have.items()
        if not field.nullable and name not in brought
    ]
    wrong += [f"key column {quoted(name)} is not among the rows' columns" for name in key if name.lower() not in brought]
    if wrong:
        msg = f"the Iceberg table {path} cannot take the rows: {'; '.join(wrong)}"
        raise SchemaError(msg, hint="Change the table (ALTER TABLE), the transform's columns, or `table_name`.", node=sink)
