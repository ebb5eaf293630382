"""The contracts of connectors.

A source or sink object is cheap configuration: making one opens nothing. The connection lives in what `open` returns.
Rows travel as Spark DataFrames (or Arrow, on the direct path) with two columns beside the payload:

    _gs_op   string, never null: i, u or d
    _gs_pos  struct<source: int, part: int, off: bigint, sub: bigint>, never null: the order that "last one wins" means;
             `sub` tells rows apart that were made of one row (`FAN_OUT`)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.connectors.claimable import Claimable
from headrace.connectors.frame import EpochFrame
from headrace.connectors.stall import Stall
from headrace.pipeline.errors import UserError
from headrace.pipeline.model import graph
from headrace.pipeline.model.nodes import OffsetTable
from headrace.pipeline.plugins.runtime import PluginContext
from headrace.pipeline.protocol.claims import TargetClaimant
from headrace.pipeline.protocol.epochs import CommitRecord, EpochPlan, Json, SinkKey, WriteCounts
from headrace.pipeline.protocol.partitions import HistoryPartition, UnpartitionedRows
from headrace.pipeline.protocol.table_offsets import HandoffFilter, Range, TableOffsets
from headrace.pipeline.sql.system_columns import FAN_OUT, HIDDEN, OP, POS, POS_TYPE

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from headrace.connectors.content import TargetContent

__all__ = ("FAN_OUT", "HIDDEN", "OP", "POS", "POS_TYPE", "HandoffFilter")


class Delivery(StrEnum):
    """What a sink can promise for its own target."""

    EXACTLY_ONCE = "exactly_once"
    AT_LEAST_ONCE = "at_least_once"


class Visibility(StrEnum):
    """The smallest whole that a reader of the target sees."""

    EPOCH = "epoch"
    SPLIT = "split"
    PARTITION = "partition"
    ROW = "row"


@dataclass(frozen=True, slots=True)
class SinkCapabilities:
    """What a sink can do. The planner, the docs table and the shared test suite read it."""

    delivery: Delivery
    upsert: bool = False
    delete: bool = False
    visibility: Visibility = Visibility.ROW
    creates_target: bool = False
    fences: bool = False
    """Compares generations in its atomic act. Where not, a newcomer also waits out lease plus commit timeout."""
    counts_changes: bool = False
    """Knows how many rows were inserted, updated and deleted."""
    can_truncate: bool = False
    """Can remove all rows of its target (`Sink.empty`)."""
    direct: bool = False
    """Takes Arrow from a task without Spark's rows in between (`DirectSink`)."""
    without_spark: bool = False
    """`check` needs no session; None will do."""
    versions: bool = False
    """Keeps the row with the highest `version_column` of its node, see `connectors.versions`."""


@dataclass(frozen=True, slots=True)
class SourceCapabilities:
    """What a source can do."""

    bounded: bool
    stable_snapshot: bool = False
    """`pin` gives a snapshot that stays the same while the source is written to."""
    direct: bool = False
    job_mode: bool = True
    without_spark: bool = False
    """`schema`, `look` and `splits` need no session; None will do."""


class Sink(Claimable, ABC):
    """One target, opened for one lane. Not shared between threads.

    Subclasses say in their docstring which delivery they give and what their atomic act is. `write` must be a
    compare-and-set from epoch N-1 to N under the generation that `prepare` announced.
    """

    capabilities: ClassVar[SinkCapabilities]

    def __init__(self, context: SinkContext) -> None:
        """Keeps the context; opens nothing."""
        self._context = context

    @abstractmethod
    def prepare(self, schema: pa.Schema, generation: int) -> None:
        """Proves connection, rights and target (creating it where the sink does), then fences older generations.

        Sweeps what crashed attempts left (staging tables, attempt files). Raises TargetError or SchemaError when the
        target cannot take `schema`, TransientError when it cannot be reached, FencedError when a newer generation has
        been here.
        """

    @abstractmethod
    def record(self) -> CommitRecord | None:
        """The record of this lane and sink, asked from the outside system itself; None if it holds none."""

    @abstractmethod
    def register(self, record: CommitRecord) -> CommitRecord:
        """Writes the first record. The sink fills in `baseline` (rows in the target now); returns what it wrote.

        It replaces whatever record this key had, also one of a higher epoch: that is how a replay sets a sink back. A
        compare-and-set all the same: raises FencedError over a record of a newer generation, or one that changed meanwhile.
        """

    @abstractmethod
    def write(self, plan: EpochPlan, frame: EpochFrame) -> WriteCounts:
        """Writes all rows of the epoch and its record in one atomic act; raises FencedError for an older generation."""

    def validate_target(self) -> None:
        """Proves that a target which is there already takes rows of the context's schema under its key; makes and fences nothing.

        Raises TargetError or SchemaError if not, TransientError where nobody answers.
        """

    def truncate(self) -> None:
        """Remove all rows from the target, keeping the record, in one act under the generation that `prepare` announced.

        Raises FencedError for an older generation, UserError where the sink cannot do this (`SinkCapabilities.empties`).
        """
        msg = "Headrace cannot empty this target"
        raise UserError(msg, hint="Empty it yourself, then `headrace reset FILE --keep-targets`.", node=self._context.key.sink)

    def has_partial_epoch(self, plan: EpochPlan) -> bool:
        """Whether rows of this epoch are in the target although its record is not: a sink that writes an epoch in several acts knows.

        Asked where rows that such a sink may hold some of would have to be computed anew.
        """
        del plan
        return False

    def find_conflicting_record(self) -> CommitRecord | None:
        """A record that the target holds for the same pipeline name and sink under another UUID, else None."""
        return None

    def read_row_count(self) -> tuple[CommitRecord | None, int] | None:
        """The record and the number of rows in the target, read in one snapshot; None where the sink cannot know."""
        return None

    def content(self, schema: pa.Schema, folder: Path, limit: int | None = None) -> TargetContent | None:
        """Record and rows of one snapshot, no rows beyond `limit`; `folder` keeps files. None without a record, or if the sink cannot."""
        del schema, folder, limit
        return None

    def describe(self) -> Json:
        """For people and Dagster: kind, asset key parts, table name, location. No secrets."""
        return {}

    def close(self) -> None:
        """Lets go of connections. Called once, also after errors."""


class DirectSink(Sink):
    """A sink that tasks can load by themselves during a backfill, split by split."""

    @abstractmethod
    def write_direct(self, plan: EpochPlan, fetch: SplitReader, spark: SparkSession) -> WriteCounts:
        """Each task fetches one split as Arrow and loads it under the marker (epoch, split); then the record is set."""


class SplitReader(ABC):
    """Picklable: what a task calls to read one split. Opened on the worker."""

    splits: Sequence[Json]

    @abstractmethod
    def fetch(self, split: Json) -> Iterator[pa.RecordBatch]:
        """The split's rows as Arrow batches, payload columns only; the same split always gives the same rows."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A pinned state of a bounded source. `handle` is JSON that goes to the ledger; `pinned` says whether it holds still."""

    handle: Json
    is_stable: bool


class BoundedSource(ABC):
    """A source that ends by itself: a table, files."""

    capabilities: ClassVar[SourceCapabilities]

    @abstractmethod
    def schema(self, spark: SparkSession) -> pa.Schema:
        """The payload's schema, without `_gs_op` and `_gs_pos`."""

    @abstractmethod
    def create_snapshot(self, spark: SparkSession, token: str) -> Snapshot:
        """Fixes the state that splits read. The same token gives the same snapshot again, also in another process."""

    def describe_snapshot(self, spark: SparkSession) -> Snapshot:
        """What `pin` would fix now, without making anything. `splits` of it foresee those of a run; its rows are not to be read."""
        raise NotImplementedError

    @abstractmethod
    def splits(self, spark: SparkSession, snapshot: Snapshot, window: HistoryPartition | None, cut: HandoffFilter | None) -> Sequence[Json]:
        """Deterministic pieces of the snapshot inside the window, in a stable order, each with an estimate in `rows`, and in `bytes` where known."""

    @abstractmethod
    def read(self, spark: SparkSession, snapshot: Snapshot, splits: Sequence[Json], columns: Sequence[str] | None = None) -> DataFrame:
        """The rows of these splits with `_gs_op` and `_gs_pos`; `columns` narrows the payload to what is needed."""

    def create_split_reader(
        self, snapshot: Snapshot, splits: Sequence[Json], query: str | None, key: Sequence[str] = ()
    ) -> SplitReader | None:
        """What a task reads splits with, or None: rows that agree in `key` by `_gs_pos`, through `query` in the source's own SQL."""
        return None

    def explain_key_spread(self, key: Sequence[str]) -> str:
        """Return why rows that agree in `key` may lie in several splits; "" where they do not, but for a key of very many rows."""
        return "the source does not tell how it is cut"

    def keeps_together(self, splits: Sequence[Json], key: Sequence[str], *, ever: bool = False) -> bool:
        """Return whether rows that agree in the columns of `key` lie in one of these splits; with `ever`, in no split of another epoch."""
        return len(splits) <= 1 and not ever

    def read_end_offsets(self, table: OffsetTable, topic: str) -> Mapping[str, int]:
        """The offset after the largest one per partition, as another table says; partitions that it lacks are left out."""
        raise NotImplementedError

    def measure_offsets(
        self, spark: SparkSession, snapshot: Snapshot, table: OffsetTable, topic: str, since: Mapping[str, int]
    ) -> TableOffsets:
        """Return which offsets of a topic the rows of a snapshot have, with the gaps at or above `since`. The filter does not count."""
        raise NotImplementedError

    def has_nulls(self, spark: SparkSession, snapshot: Snapshot, column: str) -> bool:
        """Whether rows of a snapshot may have NULL in a column."""
        del spark, snapshot, column
        return True

    def count_unpartitioned_rows(
        self, spark: SparkSession, snapshot: Snapshot, window: HistoryPartition, cut: HandoffFilter | None
    ) -> UnpartitionedRows:
        """Rows inside filter and cut that have NULL in the window's column, and rows in the window; without `end` it is open."""
        del spark, snapshot, window, cut
        return UnpartitionedRows()

    def check(self, spark: SparkSession, columns: Sequence[str]) -> None:
        """Asks the system whether the node's filter holds and `columns` are there; reads no rows and changes nothing.

        Raises UserError for what does not hold, TransientError where nobody answers.
        """

    def release_snapshot(self, snapshot: Snapshot) -> None:
        """Drop what `pin` made. Nothing can be read from the snapshot afterwards; a second call does nothing."""

    def drop_stale_snapshots(self, owner: str, generation: int, keep: Sequence[Json]) -> None:
        """Drop what `pin` made for tokens of `owner` and no later generation, except the handles in `keep`."""

    def describe(self) -> Json:
        """For people and Dagster: kind, asset key parts, table name. No secrets."""
        return {}

    def close(self) -> None:
        """Lets go of connections."""


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """How much one stream epoch may take."""

    rows: int = 100_000
    per_partition: int | None = None
    bytes: int | None = None


class UnboundedSource(ABC):
    """A source that never ends: a topic, a change log. Positions are JSON: {"topic_id": …, "offsets": {"0": 12, …}}."""

    capabilities: ClassVar[SourceCapabilities]
    marks: bool = False
    """Whether rows that fail the node's filter are marked (`pipeline.lineage.retractions`) instead of left out."""

    @abstractmethod
    def schema(self) -> pa.Schema:
        """The payload's schema, without `_gs_op` and `_gs_pos`."""

    @abstractmethod
    def initial_offsets(self) -> Json:
        """Where a stream without history starts (`starting_offsets`)."""

    @abstractmethod
    def next_end_offsets(self, after: Json, limits: ReadLimits) -> Json:
        """The furthest position that one epoch after `after` may reach; equal to `after` when there is nothing new.

        Raises RetentionError when `after` is no longer held, TargetError when the topic was removed or made anew.
        """

    @abstractmethod
    def read(self, spark: SparkSession, start: Json, end: Json) -> DataFrame:
        """The rows in [start, end) with `_gs_op` and `_gs_pos`."""

    def estimate_bytes(self, start: Json, end: Json, most: int) -> int | None:
        """About how many bytes [start, end) holds, `most` being what an epoch may hold; None where unknown. Reads no rows with Spark."""
        del start, end, most
        return None

    def offsets_for_time(self, moment_ms: int) -> Json:
        """The position of the first row at or after a wall-clock time."""
        raise NotImplementedError

    def earliest_offsets(self) -> Json:
        """The position of the first row that the source still holds."""
        raise NotImplementedError

    def find_filled_gaps(self, gaps: Mapping[str, Sequence[Range]]) -> Mapping[str, int]:
        """Return the place of the first gap per partition that has rows here, or that cannot be looked at; others are left out."""
        return dict.fromkeys(gaps, 0)

    def ordered_start(self, position: Json) -> Json:
        """Return the position that a stream starts at, with what the source needs to keep the order of keys that moved before."""
        return position

    def end_offsets(self) -> Json:
        """The position after the last row that can be read now."""
        raise NotImplementedError

    def high_watermarks(self) -> Json:
        """The position after the last row that exists now, readable or not: what "caught up" is measured against."""
        return self.end_offsets()

    def stalls(self, at: Json) -> Sequence[Stall]:
        """The partitions that `at` has read to the end of what can be read, while further rows wait."""
        del at
        return ()

    def stall_limit(self) -> float:
        """How many seconds a stall lasts at most, if it ends by itself."""
        return 0.0

    def lags(self, at: Json) -> Mapping[str, int] | None:
        """How many offsets lie between `at` and the end, by partition; None where unknown."""
        return None

    def backlog(self, at: Json) -> int | None:
        """The sum of `lags`."""
        lags = self.lags(at)
        return None if lags is None else sum(lags.values())

    def check_filter(self, spark: SparkSession) -> None:
        """Raises UserError where the node's filter does not fit its columns. Asks no other system."""

    def check(self) -> None:
        """Asks the system whether it has what the node names. Raises UserError if not, TransientError where nobody answers."""

    def commit(self, position: Json) -> None:
        """Tells the source's own tools how far the lane is (Kafka: group offsets). Never read back."""

    def describe(self) -> Json:
        """For people and Dagster: kind, asset key parts, topic. No secrets."""
        return {}

    def close(self) -> None:
        """Lets go of connections."""


@dataclass(frozen=True, slots=True)
class SinkContext:
    """What a sink is opened with: its identity, its node from the file, the settings, and a session if it needs one."""

    key: SinkKey
    node: Any
    settings: Any
    schema: pa.Schema
    spark: SparkSession | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def owner(self) -> TargetClaimant:
        """The sink as one that claims its target. `extra` names the sinks of the same file."""
        return TargetClaimant(self.key, graph.is_shared(self.node), frozenset(self.extra.get("sinks", ())))

    @property
    def plugin(self) -> PluginContext:
        """What a plugin's sink is made of, beside the rest. Only there for a plugin's node."""
        return self.extra["plugin"]
