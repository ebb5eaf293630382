"""The target table: made where it is missing, checked where it is not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from headrace.connectors.delta.rows import quoted
from headrace.pipeline.errors import GuaranteeError, SchemaError, TargetError
from headrace.pipeline.types import spark_type

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import DataType

_PARQUET_REFUSES = re.compile(r"[ ,;{}()\n\t=]")
_CHECKPOINT_EVERY = "50"
"""Commits. Delta's own 10 makes every tenth small epoch take several times as long; reading 50 small commits anew costs less."""
_UNSAFE = ("s3", "s3a", "s3n")
_WIDENS = {"tinyint": 1, "smallint": 2, "int": 3, "bigint": 4}


def check_location(sink: str, path: str, session: SparkSession) -> None:
    """Raises GuaranteeError where two writers could both make the same version: S3 without a log store that puts if absent."""
    scheme = path.split("://", 1)[0].lower() if "://" in path else ""
    store = session.conf.get(f"spark.delta.logStore.{scheme}.impl", "") if scheme in _UNSAFE else "local"
    if not store or store.endswith("S3SingleDriverLogStore"):
        msg = f"a Delta table at `{path}` needs a log store that puts a file only if it is absent"
        hint = f"Set spark.conf spark.delta.logStore.{scheme}.impl, for example to io.delta.storage.S3DynamoDBLogStore, with its jar."
        raise GuaranteeError(msg, hint=hint, node=sink)


def create(sink: str, session: SparkSession, path: str, schema: pa.Schema, key: tuple[str, ...]) -> None:
    """Makes the table; another process may do the same at the same moment. Raises TargetError where the place is taken.

    With a key it gets deletion vectors: without them every small epoch would write whole files of a large table anew.
    """
    from delta.tables import DeltaTable
    from pyspark.errors import AnalysisException

    builder = DeltaTable.createIfNotExists(session).location(path).property("delta.checkpointInterval", _CHECKPOINT_EVERY)
    if key:
        builder = builder.property("delta.enableDeletionVectors", "true")
    for column in schema:
        builder = builder.addColumn(column.name, spark_type(column.type), nullable=True)
    if any(_PARQUET_REFUSES.search(name) for column in schema for name in _names(column)):
        builder = builder.property("delta.columnMapping.mode", "name")
    try:
        builder.execute()
    except AnalysisException as error:
        msg = f"cannot make a Delta table at `{path}`: {str(error).splitlines()[0]}"
        raise TargetError(msg, hint="Choose an empty place, or a Delta table, as `path`.", node=sink) from error


def _names(field: pa.Field) -> Iterator[str]:
    """The field's name and those of all fields inside its type."""
    yield field.name
    for at in range(field.type.num_fields):
        yield from _names(field.type.field(at))


def check_columns(sink: str, session: SparkSession, path: str, schema: pa.Schema, key: tuple[str, ...]) -> None:
    """Raises SchemaError where the table lacks a column, has another type, or demands a column that no row brings."""
    table = session.read.format("delta").load(path).schema
    have = {field.name.lower(): field for field in table}
    wrong: list[str] = []
    for column in schema:
        field = have.get(column.name.lower())
        wanted = session.sql(f"SELECT CAST(NULL AS {spark_type(column.type)}) AS c").schema[0].dataType
        if field is None:
            wrong.append(f"column {quoted(column.name)} ({wanted.simpleString()}) is missing")
        elif not takes(field.dataType, wanted):
            wrong.append(f"column {quoted(column.name)} is {field.dataType.simpleString()}, the rows have {wanted.simpleString()}")
    brought = {name.lower() for name in schema.names}
    wrong += [
        f"column {quoted(field.name)} is NOT NULL and no row brings it"
        for field in table
        if not field.nullable and field.name.lower() not in brought
    ]
    wrong += [f"key column {quoted(name)} is not among the rows' columns" for name in key if name.lower() not in brought]
    if wrong:
        msg = f"the Delta table `{path}` cannot take the rows: {'; '.join(wrong)}"
        raise SchemaError(msg, hint="Change the table (ALTER TABLE), the transform's columns, or `path`.", node=sink)


def takes(table: DataType, rows: DataType) -> bool:
    """Whether a table's type holds every value of the rows' type."""
    from pyspark.sql import types as T  # noqa: N812

    if table == rows or table.simpleString() == rows.simpleString():
        return True
    mine, its = _WIDENS.get(rows.simpleString()), _WIDENS.get(table.simpleString())
    if mine and its:
        return mine <= its
    if isinstance(table, T.DecimalType) and isinstance(rows, T.DecimalType):
        return table.scale >= rows.scale and table.precision - table.scale >= rows.precision - rows.scale
    return isinstance(table, T.DoubleType) and isinstance(rows, T.FloatType)
