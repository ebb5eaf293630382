"""The upsert of a small epoch into a local Delta table, computed in Arrow.

MERGE by Spark runs thirteen jobs, whatever the number of rows. This reads the key columns of the data files
that can have a key of the epoch, marks the rows that change in deletion vectors, and writes the new rows as
one file. Nothing is visible before the caller commits the actions.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
from pyarrow import parquet

from headrace.connectors.delta.data_files import DataFile, dump_statistics, may_contain, write_data_file
from headrace.connectors.delta.deletion_vectors import read_deletion_vector, write_deletion_vectors
from headrace.connectors.lakehouse_rows import bounds_of
from headrace.connectors.versions import ENDED
from headrace.pipeline.protocol.epochs import Json, WriteCounts
from headrace.pipeline.sql.system_columns import OP

if TYPE_CHECKING:
    from pyroaring import BitMap64

pc: Any = pyarrow.compute
"""Its functions are made at import, so type checkers do not see them."""
_SOURCE, _FILE, _ROW, _VERSION = "__source", "__file", "__row", "__version"
_LOOKUP_BATCH = 1_000_000
"""Rows of files whose keys are compared at a time, about. Each comparison hashes the keys of the epoch."""
_MATCHES = pa.schema([(_SOURCE, pa.int64()), (_FILE, pa.int64()), (_ROW, pa.int64())])


@dataclass(frozen=True, slots=True)
class EpochRows:
    """The rows of an epoch for a table: one per key, in the table's columns and types.

    `deletes` marks rows that delete their key. `ended` marks keys whose row in the table does not count,
    whatever its version is; None without a version column.
    """

    rows: pa.Table
    key: tuple[str, ...]
    deletes: np.ndarray
    version: str | None = None
    ended: np.ndarray | None = None

    @classmethod
    def of(cls, last: pa.Table, schema: pa.Schema, key: tuple[str, ...], version: str | None) -> EpochRows:
        """Return the rows of `lakehouse_rows.collect_last_rows` for a table with the columns of `schema`."""
        named = {field.name.lower(): field.name for field in schema}
        deletes = _booleans(pc.equal(last[OP], "d"))
        ended = _booleans(last[ENDED]) if version is not None else None
        return cls(
            align_columns(last, schema),
            tuple(named[name.lower()] for name in key),
            deletes,
            named[version.lower()] if version is not None else None,
            ended,
        )


@dataclass(frozen=True, slots=True)
class WrittenFiles:
    """The file actions for the log, and the row counts, of files that were written."""

    actions: list[Json]
    counts: WriteCounts


def has_all_columns(names: Sequence[str], schema: pa.Schema) -> bool:
    """Return whether rows with these columns have all columns of a table."""
    return {name.lower() for name in schema.names} <= {name.lower() for name in names}


def align_columns(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows in the columns and types of a table. A column that the rows lack is null."""
    brought = {name.lower(): name for name in rows.schema.names}
    columns = [
        rows[brought[field.name.lower()]].cast(field.type)
        if field.name.lower() in brought
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def select_candidates(files: Sequence[DataFile], epoch: EpochRows) -> list[DataFile]:
    """Return the files that can have a key of the epoch, by their statistics."""
    if not epoch.rows.num_rows:
        return []
    bounds = bounds_of(epoch.rows, epoch.key).items()
    return [
        file
        for file in files
        if all(may_contain(file.statistics, name, low, high) for name, (low, high) in bounds)
    ]


def upsert(folder: Path, candidates: Sequence[DataFile], epoch: EpochRows) -> WrittenFiles:
    """Write the files of an upsert into the table's folder. A delete of a missing key does nothing.

    `candidates` are all files that can have a key of the epoch; each has a row count in its statistics. With
    a version, a row in the table that is newer than the epoch's row stays. The counts are those of MERGE.
    """
    vectors = _read_vectors(folder, candidates)
    matches = _find_matches(candidates, epoch, vectors)
    source = matches[_SOURCE].to_numpy()
    wins = _find_wins(matches, epoch)
    deletes = epoch.deletes[source]
    inserts = ~epoch.deletes
    inserts[source] = False
    written = np.concatenate([source[wins & ~deletes], np.flatnonzero(inserts)])
    actions = _mark_removed(
        folder, candidates, vectors, matches[_FILE].to_numpy()[wins], matches[_ROW].to_numpy()[wins]
    )
    if len(written):
        actions.append({"add": write_data_file(folder, epoch.rows.take(pa.array(written)))})
    counts = WriteCounts(
        epoch.rows.num_rows, int(inserts.sum()), int((wins & ~deletes).sum()), int((wins & deletes).sum())
    )
    return WrittenFiles(actions, counts)


def has_keys(folder: Path, candidates: Sequence[DataFile], keys: pa.Table) -> bool:
    """Return whether the table has a row with one of these keys. `candidates` are as for `upsert`."""
    epoch = EpochRows(keys, tuple(keys.schema.names), np.zeros(keys.num_rows, dtype=bool))
    return _find_matches(candidates, epoch, _read_vectors(folder, candidates)).num_rows > 0


def _read_vectors(folder: Path, files: Sequence[DataFile]) -> dict[int, BitMap64]:
    """Return the removed rows of files, by the index of the file."""
    return {
        at: read_deletion_vector(folder, file.deletion_vector)
        for at, file in enumerate(files)
        if file.deletion_vector is not None
    }


def _find_matches(candidates: Sequence[DataFile], epoch: EpochRows, vectors: dict[int, BitMap64]) -> pa.Table:
    """Return the live rows of the files whose key is in the epoch: file, position, and the epoch's row."""
    wanted = epoch.rows.select(list(epoch.key))
    numbered = wanted.append_column(_SOURCE, pa.array(np.arange(wanted.num_rows)))
    fields = list(_MATCHES)
    if epoch.version is not None:
        fields.append(pa.field(_VERSION, epoch.rows.schema.field(epoch.version).type))
    schema = pa.schema(fields)
    tables = [schema.empty_table()]
    for live in _read_live_keys(candidates, epoch, vectors):
        near = live
        for name in epoch.key:
            near = near.filter(pc.is_in(near[name], value_set=epoch.rows[name], skip_nulls=True))
        # A join costs time for each key of the epoch, also without a match.
        if near.num_rows:
            result = near.join(numbered, list(epoch.key), join_type="inner", coalesce_keys=True)
            tables.append(result.select(schema.names).cast(schema))
    return pa.concat_tables(tables).combine_chunks()


def _read_live_keys(
    candidates: Sequence[DataFile], epoch: EpochRows, vectors: dict[int, BitMap64]
) -> Iterator[pa.Table]:
    """Yield the key columns, the position and the version of live rows, of many files at a time."""
    pending: list[pa.Table] = []
    rows = 0
    for at, file in enumerate(candidates):
        pending.append(_read_file_keys(file, at, epoch, vectors.get(at)))
        rows += pending[-1].num_rows
        if rows >= _LOOKUP_BATCH:
            yield pa.concat_tables(pending)
            pending, rows = [], 0
    if pending:
        yield pa.concat_tables(pending)


def _read_file_keys(file: DataFile, at: int, epoch: EpochRows, removed: BitMap64 | None) -> pa.Table:
    """Return the rows of one file for `_read_live_keys`. A column that was added later is null."""
    columns = [*epoch.key, *([epoch.version] if epoch.version not in (None, *epoch.key) else [])]
    with parquet.ParquetFile(file.path, coerce_int96_timestamp_unit="us") as reader:
        stored = set(reader.schema_arrow.names)
        table = reader.read(columns=[name for name in columns if name in stored], use_threads=False)
        count = reader.metadata.num_rows
    schema = pa.schema([epoch.rows.schema.field(name) for name in columns])
    table = pa.table(
        [table[name] if name in stored else pa.nulls(count) for name in columns], names=columns
    ).cast(schema)
    table = table.append_column(_ROW, pa.array(np.arange(count)))
    table = table.append_column(_FILE, pa.repeat(pa.scalar(at, pa.int64()), count))
    if epoch.version is not None:
        table = table.append_column(_VERSION, table[epoch.version])
    if removed is not None:
        live = np.ones(count, dtype=bool)
        live[np.fromiter(removed, dtype=np.int64, count=len(removed))] = False
        table = table.filter(pa.array(live))
    return table


def _find_wins(matches: pa.Table, epoch: EpochRows) -> np.ndarray:
    """Return which matches the epoch's row replaces or deletes."""
    source = matches[_SOURCE].to_numpy()
    if epoch.version is None or epoch.ended is None:
        return np.ones(len(source), dtype=bool)
    brought = epoch.rows[epoch.version].take(matches[_SOURCE])
    older = pc.or_kleene(pc.is_null(matches[_VERSION]), pc.less_equal(matches[_VERSION], brought))
    return epoch.ended[source] | _booleans(pc.fill_null(older, fill_value=False))


def _mark_removed(
    folder: Path,
    candidates: Sequence[DataFile],
    vectors: dict[int, BitMap64],
    files: np.ndarray,
    rows: np.ndarray,
) -> list[Json]:
    """Return the actions that remove rows from files. A file without rows left is removed itself."""
    from pyroaring import BitMap64

    changed: dict[int, BitMap64] = {}
    for at in np.unique(files):
        changed[int(at)] = BitMap64(rows[files == at]) | vectors.get(int(at), BitMap64())
    kept = {
        candidates[at].add["path"]: removed
        for at, removed in changed.items()
        if len(removed) < (candidates[at].physical_rows or 0)
    }
    written = write_deletion_vectors(folder, kept)
    now = int(time.time() * 1000)
    actions: list[Json] = []
    for at in changed:
        add = candidates[at].add
        actions.append({"remove": _describe_removal(add, now)})
        if descriptor := written.get(add["path"]):
            actions.append({"add": _describe_remainder(candidates[at], descriptor)})
    return actions


def _describe_removal(add: Json, now: int) -> Json:
    names = ("path", "partitionValues", "size", "deletionVector", "stats", "tags")
    kept = {name: add[name] for name in names if add.get(name) is not None}
    return {**kept, "deletionTimestamp": now, "dataChange": True, "extendedFileMetadata": True}


def _describe_remainder(file: DataFile, descriptor: Json) -> Json:
    loose = dump_statistics({**file.statistics, "tightBounds": False})
    return {**file.add, "deletionVector": descriptor, "stats": loose, "dataChange": True}


def _booleans(column: pa.ChunkedArray) -> np.ndarray:
    """Return a boolean column for NumPy, where an empty column would have another type."""
    return np.asarray(column.to_numpy(), dtype=bool)
