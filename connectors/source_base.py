"""The contracts of sources.

A source object is configuration: creating one opens nothing. Rows are Spark DataFrames, or Arrow batches for
bulk loads, with two columns in addition to the payload:

    _gs_op   string, never null: i, u or d
    _gs_pos  struct<source: int, part: int, off: bigint, sub: bigint>, never null: the order of rows, of which
    the
             last one wins; `sub` distinguishes rows that come from one row (`FAN_OUT`)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from headrace.pipeline.model.capabilities import SourceCapabilities
from headrace.pipeline.model.sources import OffsetTable
from headrace.pipeline.protocol.epochs import Json
from headrace.pipeline.protocol.partitions import HistoryPartition, PartitionGap, UnpartitionedRows
from headrace.pipeline.protocol.table_offsets import HandoffFilter, TableOffsets

if TYPE_CHECKING:
    import threading

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


class SplitReader(ABC):
    """Picklable: what a task calls to read one split. Opened on the worker."""

    splits: Sequence[Json]

    @abstractmethod
    def fetch(self, split: Json) -> Iterator[pa.RecordBatch]:
        """Return the split's payload rows as Arrow batches. The same split always returns the same rows."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A pinned state of a bounded source.

    `handle` is JSON that goes to the ledger; `pinned` says whether it holds still.
    """

    handle: Json
    is_stable: bool


UNREAD = Snapshot({"pinned": True, "unread": True}, is_stable=True)
"""What `describe_snapshot` returns where the snapshot is the result of reading the source."""


def preview_splits(window: HistoryPartition | None, rows: int) -> list[Json]:
    """Return the one split that previews `UNREAD`, of about so many rows."""
    return [{"id": f"{'' if window is None else window.key + '/'}00000", "rows": rows}]


class BoundedSource(ABC):
    """A source that ends by itself: a table, files."""

    capabilities: ClassVar[SourceCapabilities]

    @abstractmethod
    def schema(self, spark: SparkSession) -> pa.Schema:
        """Return the payload's schema, without `_gs_op` and `_gs_pos`.

        Called in every run and by `headrace validate`.
        """

    @abstractmethod
    def create_snapshot(self, spark: SparkSession, token: str) -> Snapshot:
        """Create the snapshot that splits read.

        Called once, before the first epoch; the ledger stores the handle of the snapshot. The same token
        returns the same snapshot, also in another process.
        """

    def watch_stop(self, stop: threading.Event) -> None:
        """Take the event that ends the run. A long `create_snapshot` then raises SnapshotStoppedError.

        Called once per run, before any other method.
        """

    def describe_snapshot(self, spark: SparkSession) -> Snapshot:
        """Return the snapshot that `create_snapshot` would create now, without creating it.

        `splits` of the result previews the splits of a run. Its rows must not be read.
        """
        raise NotImplementedError

    @abstractmethod
    def splits(
        self,
        spark: SparkSession,
        snapshot: Snapshot,
        window: HistoryPartition | None,
        cut: HandoffFilter | None,
    ) -> Sequence[Json]:
        """Return deterministic splits of the snapshot inside the partition, in a stable order.

        Called when a run reaches the partition; the ledger stores the result. Also called for previews. Each
        split has an estimate in `rows`, and in `bytes` where known.
        """

    @abstractmethod
    def read(
        self,
        spark: SparkSession,
        snapshot: Snapshot,
        splits: Sequence[Json],
        columns: Sequence[str] | None = None,
    ) -> DataFrame:
        """Return the rows of these splits with `_gs_op` and `_gs_pos`; `columns` limits the payload.

        Called once per attempt at an epoch. The same splits must give the same rows and positions at every
        call.
        """

    def read_table(
        self, snapshot: Snapshot, splits: Sequence[Json], columns: Sequence[str]
    ) -> pa.Table | None:
        """Return the rows of `read` in the driver, with the same positions, or None if Spark must read them.

        Called in place of `read` while no Spark session is started.
        """
        del snapshot, splits, columns
        return None

    def create_split_reader(
        self, snapshot: Snapshot, splits: Sequence[Json], query: str | None, key: Sequence[str] = ()
    ) -> SplitReader | None:
        """Return the reader that tasks read splits with, or None if the source has none.

        It returns rows that agree in `key` in the order of `_gs_pos`. `query` is SQL in the source's own
        dialect.
        """
        return None

    def explain_direct_obstacle(self) -> str:
        """Return why tasks cannot read the node's splits as Arrow, or an empty string.

        Called for sources with `SourceCapabilities.direct`.
        """
        return ""

    def explain_key_spread(self, key: Sequence[str]) -> str:
        """Return why rows that agree in `key` may be in several splits; "" if only very large keys are."""
        return "the source does not tell how it is cut"

    def keeps_together(self, splits: Sequence[Json], key: Sequence[str], *, ever: bool = False) -> bool:
        """Return whether all rows that agree in the columns of `key` are in one of these splits.

        With `ever`, also require that no split of another epoch has them.
        """
        return len(splits) <= 1 and not ever

    def read_end_offsets(self, table: OffsetTable, topic: str) -> Mapping[str, int]:
        """Return the largest offset plus one per partition from another table.

        Partitions that the table lacks are left out.
        """
        raise NotImplementedError

    def measure_offsets(
        self,
        spark: SparkSession,
        snapshot: Snapshot,
        table: OffsetTable,
        topic: str,
        since: Mapping[str, int],
    ) -> TableOffsets:
        """Return the offsets of a topic in the snapshot's rows, with the gaps at or above `since`.

        The node's filter is not applied.
        """
        raise NotImplementedError

    def has_nulls(self, spark: SparkSession, snapshot: Snapshot, column: str) -> bool:
        """Return whether rows of a snapshot may have NULL in a column."""
        del spark, snapshot, column
        return True

    def count_unpartitioned_rows(
        self, spark: SparkSession, snapshot: Snapshot, gap: PartitionGap, cut: HandoffFilter | None
    ) -> UnpartitionedRows:
        """Count the filtered rows with NULL in the partition column, and the rows in the gap.

        By default all rows are read for this.
        """
        from headrace.connectors.offsets import count_unpartitioned_rows

        splits = self.splits(spark, snapshot, None, cut)
        if not splits:
            return UnpartitionedRows()
        return count_unpartitioned_rows(self.read(spark, snapshot, splits, [gap.column]), gap)

    def check(self, spark: SparkSession, columns: Sequence[str]) -> None:
        """Check in the source system that the node's filter is valid and `columns` exist.

        This reads no rows and changes nothing. Raise UserError if the check fails, and TransientError if the
        system does not answer.
        """

    def release_snapshot(self, snapshot: Snapshot) -> None:
        """Drop what `create_snapshot` made. A second call does nothing.

        Nothing can be read from the snapshot afterwards.
        """

    def drop_stale_snapshots(self, owner: str, generation: int, keep: Sequence[Json]) -> None:
        """Drop the snapshots of `owner` up to this generation, except the handles in `keep`."""

    def newest_change_ms(self) -> int | None:
        """Return when the newest data arrived, in epoch milliseconds, without reading it. None if unknown."""
        return None

    def describe(self) -> Json:
        """Return the type, asset key parts and table name for users and Dagster, without secrets."""
        return {}

    def close(self) -> None:
        """Close the connections."""
