"""The target table: created if it is missing, checked if it is not."""

from __future__ import annotations

import contextlib
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from headrace.connectors.delta.errors import is_conflict
from headrace.connectors.delta.local_log import LocalTableLog
from headrace.connectors.delta.table_log import TableLog
from headrace.connectors.filters import quote_identifier
from headrace.connectors.lakehouse import add_columns, fit_columns
from headrace.connectors.lazy_session import ensure_session
from headrace.connectors.schema_evolution import ADD_COLUMNS_HINT
from headrace.connectors.spark_types import spark_data_type
from headrace.pipeline.errors import GuaranteeError, SchemaError, TargetError
from headrace.pipeline.protocol.epochs import Json
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
    if scheme not in _UNSAFE:
        return
    store = session.conf.get(f"spark.delta.logStore.{scheme}.impl", "")
    if not store or store.endswith("S3SingleDriverLogStore"):
        msg = f"a Delta table at `{path}` needs a log store that puts a file only if it is absent"
        hint = (
            f"Set spark.conf spark.delta.logStore.{scheme}.impl, for example to"
            " io.delta.storage.S3DynamoDBLogStore, with its jar."
        )
        raise GuaranteeError(msg, hint=hint, node=sink)


def create_local(log: LocalTableLog, schema: pa.Schema, key: tuple[str, ...]) -> None:
    """Create a local table without Spark, as `create` does; a concurrent process may do the same.

    Leave a folder alone in which something else is, and columns that only Delta's own classes take or refuse.
    """
    from pyspark.sql.types import StructField, StructType

    names = [name for column in schema for name in _names(column)]
    if any(_PARQUET_REFUSES.search(name) for name in names):
        return
    if len({name.lower() for name in schema.names}) < len(schema.names):
        return
    fields = [StructField(column.name, spark_data_type(column.type)) for column in schema]
    types = StructType(fields).simpleString()
    try:
        if "interval" in types or any(entry.name != "_delta_log" for entry in log.folder.iterdir()):
            return
    except FileNotFoundError:
        pass
    except OSError:
        return
    features = ["deletionVectors"] if key else []
    features += ["timestampNtz"] if "timestamp_ntz" in types else []
    protocol: Json = {"minReaderVersion": 1, "minWriterVersion": 2}
    if features:
        protocol = {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": features,
            "writerFeatures": [*features, "invariants", "appendOnly"],
        }
    metadata = {
        "id": str(uuid.uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": StructType(fields).json(),
        "partitionColumns": [],
        "configuration": _properties(key),
        "createdTime": int(time.time() * 1000),
    }
    with contextlib.suppress(OSError):  # `create` names the reason
        log.create(metadata, protocol)


def _properties(key: tuple[str, ...]) -> dict[str, str]:
    """Return the properties of a new table."""
    properties = {"delta.checkpointInterval": _CHECKPOINT_EVERY}
    return {**properties, "delta.enableDeletionVectors": "true"} if key else properties


def create(sink: str, session: SparkSession, path: str, schema: pa.Schema, key: tuple[str, ...]) -> None:
    """Create the table; a concurrent process may do the same. Raise TargetError if the path is taken.

    A table with a primary key uses deletion vectors. Without them, every small epoch would rewrite whole
    files of a large table.
    """
    from delta.tables import DeltaTable
    from pyspark.errors import AnalysisException

    builder = DeltaTable.createIfNotExists(ensure_session(session)).location(path)
    for name, value in _properties(key).items():
        builder = builder.property(name, value)
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
    log: TableLog,
    schema: pa.Schema,
    key: tuple[str, ...],
    find_new: Callable[[Iterable[str]], list[pa.Field]],
    *,
    add: bool,
) -> None:
    """Raise SchemaError if a column is missing, has another type, or is required but not in the rows.

    With `add`, add the columns of `find_new` first. Without it they may be missing.
    """
    adding = partial(add_columns, session, sink, f"delta.{quote_identifier(path)}", spark_type)
    wrong = fit_columns(
        lambda: log.snapshot().read_columns(), schema, key, spark_data_type, find_new, adding if add else None
    )
    if wrong:
        msg = f"the Delta table `{path}` cannot take the rows: {'; '.join(wrong)}"
        hint = f"Change the table (ALTER TABLE), {ADD_COLUMNS_HINT}, or change the transform or `path`."
        raise SchemaError(msg, hint=hint, node=sink)
