"""The contract of unbounded sources. For their rows see `source_base`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.connectors.stall import Stall
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.model.capabilities import SourceCapabilities
from headrace.pipeline.protocol.epochs import Json
from headrace.pipeline.protocol.table_offsets import Range

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """How much one stream epoch may take."""

    rows: int = 100_000
    per_partition: int | None = None
    bytes: int | None = None


class UnboundedSource(ABC):
    """A source that never ends: a topic, a change log.

    Positions are JSON: {"topic_id": …, "offsets": {"0": 12, …}}.
    """

    capabilities: ClassVar[SourceCapabilities]
    marks: bool = False
    """Whether rows that fail the node's filter are marked (`pipeline.lineage.retractions`), not dropped."""

    @classmethod
    def resolve(cls, name: str, node: Any, settings: Settings) -> Any:
        """Return the node with everything that decides its columns and that another system has now.

        Called once at the start of a run, for the file only: the result is a part of the stored pipeline, so
        that an epoch is read in the same way later. Raise UserError or TransientError.
        """
        del name, settings
        return node

    @property
    def is_resolved(self) -> bool:
        """Whether `schema` can be called: the node has what `resolve` adds."""
        return True

    @property
    def has_declared_columns(self) -> bool:
        """Whether `schema` asks no other system and reads no data."""
        return True

    @abstractmethod
    def schema(self) -> pa.Schema:
        """Return the payload's schema, without `_gs_op` and `_gs_pos`.

        Called in every run and by `headrace validate`.
        """

    @abstractmethod
    def initial_offsets(self) -> Json:
        """Return the position where a stream without history starts (`starting_offsets`).

        Called once, before the first epoch.
        """

    def resume(self, position: Json) -> None:
        """Take a position that the stream continues from.

        Called before the methods that return an end. A source needs it whose positions list what was read.
        """
        del position

    @abstractmethod
    def next_end_offsets(self, after: Json, limits: ReadLimits) -> Json:
        """Return the furthest end position of one epoch after `after`, or `after` if there is nothing new.

        Called before each epoch of the stream.
        Raise RetentionError if the source no longer has `after`, and TargetError if the topic was removed or
        recreated.
        """

    def has_rows(self, start: Json, end: Json) -> bool:
        """Return whether the rows in [start, end) are still those of the plan. False only if it is certain.

        Called for an epoch that an earlier run left open. If no target has rows of it, it is planned again.
        """
        del start, end
        return True

    @abstractmethod
    def read(self, spark: SparkSession, start: Json, end: Json) -> DataFrame:
        """Return the rows in [start, end) with `_gs_op` and `_gs_pos`.

        Called once per attempt at an epoch. The same range must give the same rows and positions at every
        call.
        """

    def read_with_errors(self, spark: SparkSession, start: Json, end: Json) -> DataFrame | pa.Table:
        """Return the rows in [start, end) before the node's filter, with `connectors.dead_letters.ERROR`.

        Called in place of `read` for a node with `on_error: dead_letter`. The same range must reject the same
        rows at every call.
        """
        raise NotImplementedError

    def read_table(self, spark: SparkSession, start: Json, end: Json) -> pa.Table | None:
        """Return the rows of `read` as Arrow, before the node's filter. Return None to have `read` called.

        For a range that the driver reads faster than Spark starts a job.
        """
        del spark, start, end
        return None

    def filter_rows(self, rows: DataFrame) -> DataFrame:
        """Return the rows that pass the node's filter, as `read` returns them."""
        return rows

    def estimate_bytes(self, start: Json, end: Json, most: int) -> int | None:
        """Estimate the bytes in [start, end), or return None if unknown. Reads no rows with Spark.

        `most` is the maximum of an epoch.
        """
        del start, end, most
        return None

    def offsets_for_time(self, moment_ms: int) -> Json:
        """Return the position of the first row at or after a wall-clock time."""
        raise NotImplementedError

    def earliest_offsets(self) -> Json:
        """Return the position of the first row that the source still has."""
        raise NotImplementedError

    def readable_offsets(self, at: Json) -> Json:
        """Return the position of the first row whose rows up to `at` can all be read."""
        del at
        return self.earliest_offsets()

    def find_filled_gaps(self, gaps: Mapping[str, Sequence[Range]]) -> Mapping[str, int]:
        """Return per partition the index of the first gap that has rows here or cannot be read.

        Other partitions are left out.
        """
        return dict.fromkeys(gaps, 0)

    def ordered_start(self, position: Json) -> Json:
        """Return the start position with the data that the source needs to order keys moved before it."""
        return position

    def end_offsets(self) -> Json:
        """Return the position after the last row that can be read now."""
        raise NotImplementedError

    def high_watermarks(self) -> Json:
        """Return the position after the last row that exists now, readable or not.

        Lag is measured against it.
        """
        return self.end_offsets()

    def stalls(self, at: Json) -> Sequence[Stall]:
        """Return the partitions where `at` is at the end of the readable rows although more rows follow."""
        del at
        return ()

    def stall_limit(self) -> float:
        """Return the longest time in seconds that a stall lasts if it ends by itself."""
        return 0.0

    def lags(self, at: Json) -> Mapping[str, int] | None:
        """Return the number of offsets between `at` and the end by partition, or None if unknown."""
        return None

    def backlog(self, at: Json) -> int | None:
        """Return the sum of `lags`."""
        lags = self.lags(at)
        return None if lags is None else sum(lags.values())

    def check_filter(self, spark: SparkSession) -> None:
        """Raise UserError if the node's filter does not fit its columns. Calls no other system."""

    def check(self) -> None:
        """Check that the source system has what the node names.

        Raise UserError if not, and TransientError if the system does not answer.
        """

    def commit(self, position: Json) -> None:
        """Report the position to the source's own tools (Kafka: group offsets). Never read back."""

    def is_compacted(self) -> bool:
        """Return whether rows may disappear before the earliest offset, or whether this is unknown."""
        return True

    def newest_change_ms(self) -> int | None:
        """Return when the newest data arrived, in epoch milliseconds, without reading it. None if unknown."""
        return None

    def describe(self) -> Json:
        """Return the type, asset key parts and topic for users and Dagster, without secrets."""
        return {}

    def close(self) -> None:
        """Close the connections."""
