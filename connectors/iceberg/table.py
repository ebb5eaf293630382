"""The target table: made where it is missing, checked where it is not."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from headrace.connectors.filters import quote_identifier
from headrace.connectors.iceberg.metadata import PRUNED
from headrace.connectors.lakehouse import add_columns, fit_columns
from headrace.connectors.schema_evolution import ADD_COLUMNS_HINT
from headrace.pipeline.errors import GuaranteeError, SchemaError, TargetError
from headrace.pipeline.types.arrow import spark_type

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_SMALL = re.compile(r"\b(TINYINT|SMALLINT)\b")
_UNSAFE = re.compile(r"(s3|s3a|s3n|gs|abfss?|wasbs?|oss)://", re.IGNORECASE)
_PROPERTIES = {
    "format-version": "2",
    # Otherwise small epochs would rewrite whole files of a large table.
    "write.merge.mode": "merge-on-read",
    # An epoch is three versions of the metadata.
    PRUNED: "true",
}


def check_warehouse(sink: str, place: str) -> None:
    """Raise GuaranteeError if two writers could both create the same table version.

    This is the case in stores whose rename replaces an existing file.
    """
    if _UNSAFE.match(place):
        msg = (
            f"an Iceberg table of a hadoop catalog at `{place}` cannot be written exactly once: the store"
            " has no atomic rename"
        )
        raise GuaranteeError(
            msg, hint="Use a local folder or HDFS as `warehouse`, or a `delta` sink.", node=sink
        )


def iceberg_type(kind: pa.DataType) -> str:
    """Return an Arrow type's column type as Spark DDL. Iceberg has no integers below 32 bits."""
    return _SMALL.sub("INT", spark_type(kind))


def create(sink: str, spark: SparkSession, path: str, schema: pa.Schema) -> None:
    """Create the table; a concurrent process may do the same.

    Raise SchemaError for a type that Iceberg lacks.
    """
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
        raise TargetError(
            msg, hint="Check `table_name`, and the rights in the warehouse.", node=sink
        ) from error


def check_columns(
    sink: str,
    spark: SparkSession,
    path: str,
    schema: pa.Schema,
    key: tuple[str, ...],
    find_new: Callable[[Iterable[str]], list[pa.Field]],
    *,
    add: bool,
) -> None:
    """Raise SchemaError if a column is missing, has another type, or is required but not in the rows.

    With `add`, add the columns of `find_new` first. Without it they may be missing.
    """
    wrong = fit_columns(
        lambda: spark.table(path).schema,
        schema,
        key,
        lambda kind: spark.sql(f"SELECT CAST(NULL AS {iceberg_type(kind)}) AS c").schema[0].dataType,
        find_new,
        partial(add_columns, spark, sink, path, iceberg_type) if add else None,
    )
    if wrong:
        msg = f"the Iceberg table {path} cannot take the rows: {'; '.join(wrong)}"
        hint = f"Change the table (ALTER TABLE), {ADD_COLUMNS_HINT}, or change the transform or `table_name`."
        raise SchemaError(msg, hint=hint, node=sink)
