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

from headrace.pipeline.hidden import FAN_OUT, HIDDEN, OP, POS, POS_TYPE
from headrace.pipeline.nodes import OffsetTable
from headrace.pipeline.plugins.host import PluginContext
from headrace.pipeline.records import Counts, EpochPlan, Json, Record, SinkKey

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = ("FAN_OUT", "HIDDEN", "OP", "POS", "POS_TYPE")


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
    direct: bool = False
    """Takes Arrow from a task without Spark's rows in between (`DirectSink`)."""
    without_spark: bool = False
    """`check` needs no session; None will do."""


@dataclass(frozen=True, slots=True)
class SourceCapabilities:
    """What a source can do."""

    bounded: bool
    pinned: bool = False
    """`pin` gives a snapshot that stays the same while the source is written to."""
    direct: bool = False
    job_mode: bool = True
    without_spark: bool = False
    """`schema`, `look` and `splits` need no session; None will do."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The rows of one epoch for one sink.

    `rows` has the payload columns plus `_gs_op` and `_gs_pos`. `schema` is the payload as Arrow, `key` the sink's
    primary key (empty: append). `estimate` is an upper bound of the rows where one is known: sinks choose the driver
    path or the worker path by it. `spark` is the session that owns `rows`. `likely` is how many rows there are if
    programs and lists make one of each, where that is no bound.
    """

    rows: DataFrame
    schema: pa.Schema
    key: tuple[str, ...]
    estimate: int | None
    spark: SparkSession
    likely: int | None = None

    def few(self, rows: DataFrame, limit: int) -> pa.Table | None:
        """`rows`, as many as the frame's, in the driver; None where they are more than `limit`.

        Where their number is not known it is looked at, unless they are likely more: what is looked at in vain is computed again.
        """
        if self.estimate is not None:
            return rows.toArrow() if self.estimate <= limit else None
        if self.likely is not None and self.likely > limit:
            return None
        table = rows.limit(limit + 1).toArrow()
        return table if table.num_rows <= limit else None


class Sink(ABC):
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
    def record(self) -> Record | None:
        """The record of this lane and sink, asked from the outside system itself; None if it holds none."""

    @abstractmethod
    def join(self, record: Record) -> Record:
        """Writes the first record. The sink fills in `baseline` (rows in the target now); returns what it wrote.

        It replaces whatever record this key had, also one of a higher epoch: that is how a replay sets a sink back. A
        compare-and-set all the same: raises FencedError over a record of a newer generation, or one that changed meanwhile.
        """

    @abstractmethod
    def write(self, plan: EpochPlan, frame: Frame) -> Counts:
        """Writes all rows of the epoch and its record in one atomic act; raises FencedError for an older generation."""

    def check(self) -> None:
        """Proves that a target which is there already takes rows of the context's schema under its key; makes and fences nothing.

        Raises TargetError or SchemaError if not, TransientError where nobody answers.
        """

    def began(self, plan: EpochPlan) -> bool:
        """Whether rows of this epoch are in the target although its record is not: a sink that writes an epoch in several acts knows.

        Asked where rows that such a sink may hold some of would have to be computed anew.
        """
        del plan
        return False

    def foreign_record(self) -> Record | None:
        """A record that the target holds for the same pipeline name and sink under another UUID, else None."""
        return None

    def count(self) -> tuple[Record | None, int] | None:
        """The record and the number of rows in the target, read in one snapshot; None where the sink cannot know."""
        return None

    def describe(self) -> Json:
        """For people and Dagster: kind, asset key parts, table name, location. No secrets."""
        return {}

    def close(self) -> None:
        """Lets go of connections. Called once, also after errors."""


class DirectSink(Sink):
    """A sink that tasks can load by themselves during a backfill, split by split."""

    @abstractmethod
    def write_direct(self, plan: EpochPlan, fetch: SplitFetch, spark: SparkSession) -> Counts:
        """Each task fetches one split as Arrow and loads it under the marker (epoch, split); then the record is set."""


class SplitFetch(ABC):
    """Picklable: what a task calls to read one split. Opened on the worker."""

    splits: Sequence[Json]

    @abstractmethod
    def fetch(self, split: Json) -> Iterator[pa.RecordBatch]:
        """The split's rows as Arrow batches, payload columns only; the same split always gives the same rows."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A pinned state of a bounded source. `handle` is JSON that goes to the ledger; `pinned` says whether it holds still."""

    handle: Json
    pinned: bool


@dataclass(frozen=True, slots=True)
class Window:
    """A range of history by one column, [start, end), as literals of that column's type. `key` names it ('2013-01-01')."""

    key: str
    column: str
    start: str
    end: str


class BoundedSource(ABC):
    """A source that ends by itself: a table, files."""

    capabilities: ClassVar[SourceCapabilities]

    @abstractmethod
    def schema(self, spark: SparkSession) -> pa.Schema:
        """The payload's schema, without `_gs_op` and `_gs_pos`."""

    @abstractmethod
    def pin(self, spark: SparkSession, token: str) -> Snapshot:
        """Fixes the state that splits read. The same token gives the same snapshot again, also in another process."""

    def look(self, spark: SparkSession) -> Snapshot:
        """What `pin` would fix now, without making anything. `splits` of it foresee those of a run; its rows are not to be read."""
        raise NotImplementedError

    @abstractmethod
    def splits(self, spark: SparkSession, snapshot: Snapshot, window: Window | None, cut: Cut | None) -> Sequence[Json]:
        """Deterministic pieces of the snapshot inside the window, in a stable order, each with an estimate in `rows`."""

    @abstractmethod
    def read(self, spark: SparkSession, snapshot: Snapshot, splits: Sequence[Json], columns: Sequence[str] | None = None) -> DataFrame:
        """The rows of these splits with `_gs_op` and `_gs_pos`; `columns` narrows the payload to what is needed."""

    def direct(self, snapshot: Snapshot, splits: Sequence[Json], query: str | None) -> SplitFetch | None:
        """What a task reads splits with on the direct path, or None. `query` is the transform in the source's own SQL."""
        return None

    def fence(self, table: OffsetTable, topic: str) -> Mapping[str, int]:
        """The first offset per partition that history does not hold, as its offset table says; partitions it lacks are left out."""
        raise NotImplementedError

    def check(self, spark: SparkSession, columns: Sequence[str]) -> None:
        """Asks the system whether the node's filter holds and `columns` are there; reads no rows and changes nothing.

        Raises UserError for what does not hold, TransientError where nobody answers.
        """

    def unpin(self, snapshot: Snapshot) -> None:
        """Gives back what `pin` made, once the history is complete."""

    def describe(self) -> Json:
        """For people and Dagster: kind, asset key parts, table name. No secrets."""
        return {}

    def close(self) -> None:
        """Lets go of connections."""


@dataclass(frozen=True, slots=True)
class Cut:
    """How history ends exactly where the stream begins: rows whose offset is at or behind the fence of their partition.

    `fence` maps the partition number, as text, to the first offset that the stream reads; history keeps `offset < fence`
    and rows without an offset.
    """

    partition_column: str
    offset_column: str
    fence: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one stream epoch may take."""

    rows: int = 100_000
    per_partition: int | None = None


class UnboundedSource(ABC):
    """A source that never ends: a topic, a change log. Positions are JSON: {"topic_id": …, "offsets": {"0": 12, …}}."""

    capabilities: ClassVar[SourceCapabilities]

    @abstractmethod
    def schema(self) -> pa.Schema:
        """The payload's schema, without `_gs_op` and `_gs_pos`."""

    @abstractmethod
    def initial(self) -> Json:
        """Where a stream without history starts (`starting_offsets`)."""

    @abstractmethod
    def latest(self, after: Json, limits: Limits) -> Json:
        """The furthest position that one epoch after `after` may reach; equal to `after` when there is nothing new.

        Raises RetentionError when `after` is no longer held, TargetError when the topic was removed or made anew.
        """

    @abstractmethod
    def read(self, spark: SparkSession, start: Json, end: Json) -> DataFrame:
        """The rows in [start, end) with `_gs_op` and `_gs_pos`."""

    def fence_at(self, moment_ms: int) -> Json:
        """The position of the first row at or after a wall-clock time."""
        raise NotImplementedError

    def earliest(self) -> Json:
        """The position of the first row that the source still holds."""
        raise NotImplementedError

    def end(self) -> Json:
        """The position behind the last row that exists now: what "caught up" is measured against."""
        raise NotImplementedError

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
    def plugin(self) -> PluginContext:
        """What a plugin's sink is made of, beside the rest. Only there for a plugin's node."""
        return self.extra["plugin"]
