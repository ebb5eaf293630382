"""The base of sources that cannot be read twice: their rows are stored once, and epochs read what is stored.

The stored rows are parquet files, which the `file` source reads.
"""

from __future__ import annotations

import json
import threading
from abc import abstractmethod
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.connectors.files.config import FileSourceConfig
from headrace.connectors.filters import apply_filter, check_columns
from headrace.connectors.kafka.json_decoder import payload_schema
from headrace.connectors.source_base import UNREAD, BoundedSource, Snapshot, SplitReader, preview_splits
from headrace.connectors.spark_types import mark_column, spark_schema
from headrace.connectors.staged.folder import drop_folder, drop_folders, read_metadata, store_rows
from headrace.connectors.staged.stoppable import read_until_stopped
from headrace.connectors.staged.stored_files import StoredFiles
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import DataError, SchemaError, SettingsError, UserError
from headrace.pipeline.model.sources import OffsetTable
from headrace.pipeline.protocol.epochs import Json
from headrace.pipeline.protocol.partitions import HistoryPartition, PartitionGap, UnpartitionedRows
from headrace.pipeline.protocol.table_offsets import HandoffFilter, TableOffsets
from headrace.pipeline.sql.system_columns import HIDDEN
from headrace.pipeline.types.int256 import is_wide, storage_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_UNIQUE = b"headrace.unique_keys"
_PREVIEW_ROWS = 10_000
"""Rows of the split that a preview shows: the number is unknown before the source is read."""


class StagedSource(BoundedSource):
    """A source that is read once, by the driver, when its snapshot is created.

    The snapshot is a folder with a copy of all rows. It is complete or does not exist, so a crash reads the
    source again from the beginning or not at all. Every row is an insert.
    """

    def __init__(self, node: Any, settings: Settings, ordinal: int = 0, name: str = "") -> None:
        """Create the source without reading anything. `name` is the node's name in errors."""
        self.node = node
        self.settings = settings
        self.name = name or node.type
        self._ordinal = ordinal
        self._root = settings.staging_folder / "snapshots"
        self._files: StoredFiles | None = None
        self.stop = threading.Event()
        """Says that the run must end. A retry need not wait then."""

    @abstractmethod
    def read_batches(self) -> Generator[pa.RecordBatch | pa.Table]:
        """Return all rows in order, with the columns of `declared_schema`. Called once for a snapshot.

        It runs in a thread of its own, which is abandoned if it blocks while the run must end.
        """

    @property
    def declared_schema(self) -> pa.Schema:
        """The columns of `schema`, in the file's order."""
        return payload_schema(self.name, self.node.schema_, metadata=False)

    @property
    def unique_keys(self) -> tuple[tuple[str, ...], ...]:
        """Lists of columns that no two rows agree in. They are stored with the rows."""
        return ()

    @property
    def row_filter(self) -> str | None:
        """The predicate in Spark SQL for the stored rows."""
        return self.node.filter

    def schema(self, spark: SparkSession) -> pa.Schema:
        """Return the declared columns that the node reads. Calls no other system."""
        del spark
        declared = self.declared_schema
        if absent := [name for name in self.node.columns if name not in declared.names]:
            msg = f"`schema` has no column {', '.join(absent)}"
            raise SchemaError(msg, hint=f"It has: {', '.join(declared.names)}.", node=self.name)
        return pa.schema([declared.field(name) for name in self.node.columns or declared.names])

    def check(self, spark: SparkSession, columns: Sequence[str]) -> None:
        """Check filter and columns against the declared columns, and that workers reach the stored rows."""
        self._check_folder()
        declared = self.declared_schema
        check_columns(declared.names, [*self.node.columns, *columns], f"{self.node.type} source", self.name)
        if self.row_filter:
            apply_filter(spark.createDataFrame([], spark_schema(declared)), self.row_filter, self.name)

    def watch_stop(self, stop: threading.Event) -> None:
        """See `BoundedSource.watch_stop`."""
        self.stop = stop

    def create_snapshot(self, spark: SparkSession, token: str) -> Snapshot:
        """Read the source and store its rows in a folder of this token. A bucket is refused."""
        if bucket := self.settings.staging.bucket:
            msg = f"rows of a `{self.node.type}` source need a folder, and `staging.path` is {bucket}"
            raise UserError(msg, hint="Set a folder that all hosts share.", node=self.name)
        self.check(spark, ())
        schema = pa.schema(storage_schema(self.declared_schema), {_UNIQUE: json.dumps(self.unique_keys)})
        folder = store_rows(self._root, token, schema, self._tables(schema), self.name)
        return self._reader(folder).create_snapshot(spark, token)

    def describe_snapshot(self, spark: SparkSession) -> Snapshot:
        """Return a snapshot of one split of unknown size. The source is not read."""
        del spark
        return UNREAD

    def splits(
        self,
        spark: SparkSession,
        snapshot: Snapshot,
        window: HistoryPartition | None,
        cut: HandoffFilter | None,
    ) -> Sequence[Json]:
        """Return row groups of the stored rows, with exact row counts."""
        if snapshot == UNREAD:
            return preview_splits(window, _PREVIEW_ROWS)
        result = self._reader_of(snapshot).splits(spark, snapshot, window, cut)
        unique = json.loads(read_metadata(Path(snapshot.handle["root"])).get(_UNIQUE, b"[]"))
        return [{**split, "unique": unique} for split in result] if unique else result

    def read(
        self,
        spark: SparkSession,
        snapshot: Snapshot,
        splits: Sequence[Json],
        columns: Sequence[str] | None = None,
    ) -> DataFrame:
        """Return the stored rows of these splits. `_gs_pos` is a row's number."""
        frame = self._reader_of(snapshot).read(spark, snapshot, splits, columns)
        wide = {field.name: field.type for field in self.declared_schema if is_wide(field.type)}
        if not wide:
            return frame
        names = [name for name in frame.columns if name not in HIDDEN]
        return frame.select(*[mark_column(frame, name, wide.get(name)) for name in names], *HIDDEN)

    def read_table(
        self, snapshot: Snapshot, splits: Sequence[Json], columns: Sequence[str]
    ) -> pa.Table | None:
        """See `BoundedSource.read_table`. Spark marks the texts of wide numbers."""
        if any(is_wide(field.type) for field in self.declared_schema):
            return None
        return self._reader_of(snapshot).read_table(snapshot, splits, columns)

    def explain_direct_obstacle(self) -> str:
        """See `BoundedSource.explain_direct_obstacle`."""
        return "Spark applies its filter" if self.row_filter else ""

    def create_split_reader(
        self, snapshot: Snapshot, splits: Sequence[Json], query: str | None, key: Sequence[str] = ()
    ) -> SplitReader | None:
        """Return a reader of the stored rows."""
        return self._reader_of(snapshot).create_split_reader(snapshot, splits, query, key)

    def explain_key_spread(self, key: Sequence[str]) -> str:
        """See `BoundedSource.explain_key_spread`."""
        return "" if _is_unique(self.unique_keys, key) else "stored rows are cut by their number"

    def keeps_together(self, splits: Sequence[Json], key: Sequence[str], *, ever: bool = False) -> bool:
        """See `BoundedSource.keeps_together`. Uses the stored keys: the source may have later ones."""
        unique = all(_is_unique(split.get("unique", ()), key) for split in splits)
        return unique or super().keeps_together(splits, key, ever=ever)

    def measure_offsets(
        self,
        spark: SparkSession,
        snapshot: Snapshot,
        table: OffsetTable,
        topic: str,
        since: Mapping[str, int],
    ) -> TableOffsets:
        """See `BoundedSource.measure_offsets`."""
        return self._reader_of(snapshot).measure_offsets(spark, snapshot, table, topic, since)

    def has_nulls(self, spark: SparkSession, snapshot: Snapshot, column: str) -> bool:
        """See `BoundedSource.has_nulls`."""
        return self._reader_of(snapshot).has_nulls(spark, snapshot, column)

    def count_unpartitioned_rows(
        self, spark: SparkSession, snapshot: Snapshot, gap: PartitionGap, cut: HandoffFilter | None
    ) -> UnpartitionedRows:
        """See `BoundedSource.count_unpartitioned_rows`."""
        return self._reader_of(snapshot).count_unpartitioned_rows(spark, snapshot, gap, cut)

    def release_snapshot(self, snapshot: Snapshot) -> None:
        """Remove the stored rows."""
        drop_folder(self._root, snapshot.handle.get("root", ""))

    def drop_stale_snapshots(self, owner: str, generation: int, keep: Sequence[Json]) -> None:
        """Remove stored rows of `owner` up to this generation, and what a crash left of an attempt."""
        drop_folders(self._root, owner, generation, [handle.get("root", "") for handle in keep])

    def describe(self) -> Json:
        """Return the type and an asset key of the source itself."""
        return {"kind": self.node.type, "asset_key": [self.node.type, self.name]}

    def close(self) -> None:
        """Clear the cached file list."""
        if self._files is not None:
            self._files.close()
            self._files = None

    def _check_folder(self) -> None:
        """Raise SettingsError on a cluster whose hosts may not share the folder of stored rows."""
        master = self.settings.spark.master
        if master.startswith("local") or self.settings.staging.path is not None:
            return
        msg = f"the rows of a {self.node.type} source are stored in `staging.path`, which is not set"
        hint = f"Set it to a folder that this host and all workers of {master} share."
        raise SettingsError(msg, hint=hint, node=self.name)

    def _tables(self, schema: pa.Schema) -> Iterator[pa.Table]:
        for rows in read_until_stopped(self.read_batches, self.stop, self.name):
            yield pa.table([rows.column(name) for name in schema.names], schema=schema)

    def _reader_of(self, snapshot: Snapshot) -> StoredFiles:
        return self._reader(Path(snapshot.handle["root"]))

    def _reader(self, folder: Path) -> StoredFiles:
        """Return the reader of the stored rows."""
        if self._files is None or self._files.node.path != str(folder):
            node = FileSourceConfig(
                path=str(folder),
                format="parquet",
                mode="bounded",
                columns=self.node.columns,
                filter=self.row_filter,
            )
            self._files = StoredFiles(node, self.settings, self._ordinal, self.name)
        return self._files


def _is_unique(unique_keys: Iterable[Sequence[str]], key: Sequence[str]) -> bool:
    """Return whether no two rows agree in the columns of `key`."""
    return any(set(columns) <= set(key) for columns in unique_keys)


def cast_column(
    node: str, column: pa.Array | pa.ChunkedArray, field: pa.Field, origin: str
) -> pa.ChunkedArray:
    """Return a column in its declared type. Raise DataError if values would be lost."""
    wanted = storage_schema(pa.schema([field])).field(0).type
    values = column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])
    if isinstance(values.type, pa.ExtensionType):
        values = pa.chunked_array([chunk.storage for chunk in values.chunks], values.type.storage_type)
    try:
        return values if values.type == wanted else values.cast(wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        reason = str(error).splitlines()[0]
        msg = f"column `{field.name}` of {origin} is {values.type} and must be {field.type}: {reason}"
        raise DataError(msg, hint="Return the declared type, or correct `schema`.", node=node) from None
