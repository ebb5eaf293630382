"""Small epochs of local tables, written from the driver.

A table qualifies if nothing but its columns decides how rows are stored: no partitions, no constraints, no
generated or renamed columns, no change feed. Every other table is written by Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.connectors.delta.arrow_merge import (
    EpochRows,
    WrittenFiles,
    align_columns,
    has_all_columns,
    select_candidates,
    upsert,
)
from headrace.connectors.delta.data_files import DataFile, write_data_file
from headrace.connectors.delta.deletion_vectors import UnknownVectorError
from headrace.connectors.delta.local_snapshot import LocalSnapshot
from headrace.connectors.keys import floats_in
from headrace.connectors.lakehouse_sink import LOOKUP_ROWS
from headrace.pipeline.protocol.epochs import Json, WriteCounts

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

_MAX_FILES = 20_000
"""The driver has some kilobytes of each file in memory."""
_LOOKUPS_PER_ROW = 20
"""Rows of files whose keys are read for each row of an epoch, at most."""
_DELETION_VECTORS = "delta.enableDeletionVectors"
_NEUTRAL = ("delta.checkpointInterval", "delta.logRetentionDuration", "delta.deletedFileRetentionDuration")
_NEUTRAL_FEATURES = {
    *("appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns"),
    *(
        "columnMapping",
        "identityColumns",
        "deletionVectors",
        "timestampNtz",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    ),
}
"""Features that do nothing until a table property or a column's metadata uses them."""


class ArrowWriter:
    """Writes data files of one local table and describes them as actions for the log."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._described: tuple[Json, Json] = ({}, {})
        self._schema: pa.Schema | None = None
        self._has_vectors = False

    def can_write(
        self, snapshot: LocalSnapshot, names: Sequence[str], key: tuple[str, ...], version: str | None
    ) -> bool:
        """Return whether the table qualifies for rows with these columns, whatever files it has."""
        schema = self.read_schema(snapshot)
        return schema is not None and (not key or self._can_upsert(schema, names, key, version))

    def write(
        self, rows: pa.Table, key: tuple[str, ...], version: str | None, snapshot: LocalSnapshot
    ) -> WrittenFiles | None:
        """Write rows to append, or with a key the last row of each key.

        `snapshot` is the version to change. Return None if the table does not qualify.
        """
        schema = self.read_schema(snapshot)
        if schema is None:
            return None
        if not key:
            return self._append(align_columns(rows, schema))
        if not self._can_upsert(schema, rows.schema.names, key, version):
            return None
        epoch = EpochRows.of(rows, schema, key, version)
        files = snapshot.read_files()
        candidates = select_candidates(files, epoch)
        if len(files) > _MAX_FILES or not are_readable(candidates, rows.num_rows):
            return None
        try:
            return upsert(self._folder, candidates, epoch)
        except UnknownVectorError:
            return None

    def _can_upsert(
        self, schema: pa.Schema, names: Sequence[str], key: tuple[str, ...], version: str | None
    ) -> bool:
        """Return whether Arrow finds and replaces rows of a table with this schema as Spark does.

        Spark keeps columns of updated rows that the epoch lacks, and has its own order of NaN and zeros.
        """
        compared = {name.lower() for name in (*key, *([version] if version else []))}
        floats = floats_in(schema, [name for name in schema.names if name.lower() in compared])
        return self._has_vectors and has_all_columns(names, schema) and not floats

    def _append(self, rows: pa.Table) -> WrittenFiles:
        count = rows.num_rows
        actions: list[Json] = [{"add": write_data_file(self._folder, rows)}] if count else []
        return WrittenFiles(actions, WriteCounts(count, count, 0, 0))

    def count_rows(self, snapshot: LocalSnapshot) -> int | None:
        """Return the number of rows of a version, or None if the log does not tell."""
        if self.read_schema(snapshot) is None:
            return None
        counts = [file.live_rows for file in snapshot.read_files()]
        return None if None in counts else sum(count for count in counts if count is not None)

    def read_schema(self, snapshot: LocalSnapshot) -> pa.Schema | None:
        """Return the table's columns, or None if the table does not qualify."""
        described = snapshot.metadata, snapshot.protocol
        if described != self._described:
            self._schema = _arrow_schema(snapshot) if _is_plain(snapshot) else None
            self._has_vectors = snapshot.read_properties().get(_DELETION_VECTORS) == "true"
            self._described = described
        return self._schema


def are_readable(files: Sequence[DataFile], rows: int) -> bool:
    """Return whether the driver can look for the keys of an epoch in files: local ones, not too many rows.

    The limit grows with the `rows` of the epoch, because Spark's MERGE takes longer for more of them, too.
    """
    counts = [file.physical_rows if file.is_local else None for file in files]
    limit = max(LOOKUP_ROWS, _LOOKUPS_PER_ROW * rows)
    return None not in counts and sum(count or 0 for count in counts) <= limit


def _is_plain(snapshot: LocalSnapshot) -> bool:
    settings = [name for name in snapshot.read_properties() if name.startswith("delta.")]
    protocol = snapshot.protocol
    features = {*protocol.get("readerFeatures", ()), *protocol.get("writerFeatures", ())}
    return (
        snapshot.version.exists
        and not snapshot.metadata.get("partitionColumns")
        and all(name in (*_NEUTRAL, _DELETION_VECTORS) for name in settings)
        and features <= _NEUTRAL_FEATURES
    )


def _arrow_schema(snapshot: LocalSnapshot) -> pa.Schema | None:
    """Return the columns as Arrow, or None for one that is required, has metadata, or has no Arrow type."""
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_type

    columns = snapshot.read_columns()
    if any(not column.nullable or column.metadata or _has_char(column.dataType) for column in columns):
        return None
    try:
        return pa.schema([(column.name, to_arrow_type(column.dataType)) for column in columns])
    except PySparkException:
        return None


def _has_char(kind: DataType) -> bool:
    """Return whether a text has a maximal length, which Spark checks."""
    return any(word in kind.simpleString() for word in ("char(", "varchar("))
