"""The target table: made where it is missing, checked where it is not."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from headrace.connectors.delta.errors import is_conflict
from headrace.connectors.filters import quote_identifier
from headrace.connectors.lakehouse import fit_columns
from headrace.connectors.schema_evolution import ADD_COLUMNS_HINT
from headrace.pipeline.errors import GuaranteeError, SchemaError, TargetError
from headrace.pipeline.types.arrow import spark_type

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_PARQUET_REFUSES = re.compile(r"[ ,;{}()\n\t=]")
_CHECKPOINT_EVERY = "50"
"""Commits.

Delta's own 10 makes every tenth small epoch take several times as long; reading 50 small commits again costs
less.
"""
_ATTEMPTS = 3
_PAUSE_SECONDS = 0.5
_BEING_CREATED = "DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION"
"""Delta's error for a folder with files and no log.

Another process that creates the table causes it until its first commit.
"""
_UNSAFE = ("s3", "s3a", "s3n")


def check_location(sink: str, path: str, session: SparkSession) -> None:
    """Raise GuaranteeError if two writers could both create the same table version.

    This is the case on S3 without a log store that puts a file only if it is absent.
    """
    scheme = path.split("://", 1)[0].lower() if "://" in path else ""
    store = session.conf.get(f"spark.delta.logStore.{scheme}.impl", "") if scheme in _UNSAFE else "local"
    if not store or store.endswith("S3SingleDriverLogStore"):
        msg = f"a Delta table at `{path}` needs a log store that puts a file only if it is absent"
        hint = (
            f"Set spark.conf spark.delta.logStore.{scheme}.impl, for example to"
            " io.delta.storage.S3DynamoDBLogStore, with its jar."
        )
        raise GuaranteeError(msg, hint=hint, node=sink)


def create(sink: str, session: SparkSession, path: str, schema: pa.Schema, key: tuple[str, ...]) -> None:
    """Create the table; a concurrent process may do the same. Raise TargetError if the path is taken.

    A table with a primary key uses deletion vectors. Without them, every small epoch would rewrite whole
    files of a large table.
    """
    from delta.tables import DeltaTable
    from pyspark.errors import AnalysisException

    builder = (
        DeltaTable.createIfNotExists(session)
        .location(path)
        .property("delta.checkpointInterval", _CHECKPOINT_EVERY)
    )
    if key:
        builder = builder.property("delta.enableDeletionVectors", "true")
    for column in schema:
        builder = builder.addColumn(column.name, spark_type(column.type), nullable=True)
    if any(_PARQUET_REFUSES.search(name) for column in schema for name in _names(column)):
        builder = builder.property("delta.columnMapping.mode", "name")
    try:
        for rest in reversed(range(_ATTEMPTS)):
            try:
                builder.execute()
                break
            except Exception as error:
                if not rest or not (is_conflict(error) or _BEING_CREATED in str(error)):
                    raise
                time.sleep(_PAUSE_SECONDS)
    except AnalysisException as error:
        msg = f"cannot make a Delta table at `{path}`: {str(error).splitlines()[0]}"
        raise TargetError(
            msg, hint="Choose an empty place, or a Delta table, as `path`.", node=sink
        ) from error


def _names(field: pa.Field) -> Iterator[str]:
    """Yield the field's name and the names of all fields inside its type."""
    yield field.name
    for at in range(field.type.num_fields):
        yield from _names(field.type.field(at))


def check_columns(
    sink: str,
    session: SparkSession,
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
    table = f"delta.{quote_identifier(path)}"
    if wrong := fit_columns(session, sink, table, schema, key, spark_type, find_new, add=add):
        msg = f"the Delta table `{path}` cannot take the rows: {'; '.join(wrong)}"
        hint = f"Change the table (ALTER TABLE), {ADD_COLUMNS_HINT}, or change the transform or `path`."
        raise SchemaError(msg, hint=hint, node=sink)
