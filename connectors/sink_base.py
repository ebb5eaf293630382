"""The contract of sinks.

A sink object is configuration: creating one opens nothing. A run calls, in this order: `prepare` once at the
start, `record` to compare the target with the ledger, `register` if the target has no record yet, `write`
once per attempt at an epoch, `close`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.connectors.claimable import Claimable
from headrace.connectors.frame import EpochFrame
from headrace.connectors.source_base import SplitReader
from headrace.pipeline.errors import UserError
from headrace.pipeline.model import graph
from headrace.pipeline.model.capabilities import SinkCapabilities
from headrace.pipeline.plugins.runtime import PluginContext
from headrace.pipeline.protocol.claims import TargetClaimant
from headrace.pipeline.protocol.epochs import CommitRecord, EpochPlan, Json, SinkKey, WriteCounts
from headrace.pipeline.protocol.partitions import HistoryPartition

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from headrace.connectors.content import TargetContent
    from headrace.connectors.table_maintenance import TableMaintenance
    from headrace.connectors.target_query import TargetQuery


@dataclass(frozen=True, slots=True)
class SinkContext:
    """The arguments of a sink: its identity, its node, the settings, and a Spark session if it needs one.

    `extra` has the sink's primary key (`key`), and of its file the names of all sinks (`sinks`) and the nodes
    of the unbounded sources (`streams`). In a run it has the note of calls that the sink waits for (`wait`).
    """

    key: SinkKey
    node: Any
    settings: Any
    schema: pa.Schema
    spark: SparkSession | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def owner(self) -> TargetClaimant:
        """The claimant of the sink's target. `extra` names the sinks of the same file."""
        return TargetClaimant(self.key, graph.is_shared(self.node), frozenset(self.extra.get("sinks", ())))

    @property
    def plugin(self) -> PluginContext:
        """The plugin's context. Only available for a plugin's node."""
        return self.extra["plugin"]


class Sink(Claimable, ABC):
    """One target, opened for one lane. Not shared between threads.

    Subclasses say in their docstring which delivery they give and what their atomic act is. `write` must be a
    compare-and-set from epoch N-1 to N under the generation that `prepare` announced.
    """

    capabilities: ClassVar[SinkCapabilities]

    def __init__(self, context: SinkContext) -> None:
        """Store the context without opening a connection."""
        self._context = context

    @abstractmethod
    def prepare(self, schema: pa.Schema, generation: int) -> None:
        """Check the connection, the rights and the target, then fence older generations.

        Called once per run, after the run got the lease and before it reads or writes records for epochs.
        Create a missing target if the sink can. Remove what crashed attempts left (staging tables, attempt
        files). Raise TargetError or SchemaError if the target cannot take `schema`, TransientError if the
        target cannot be reached, and FencedError if a newer generation has already prepared it.
        """

    @abstractmethod
    def record(self) -> CommitRecord | None:
        """Return the commit record of this pipeline and sink from the target system, or None without one.

        Called at the start of a run after `prepare`, and by audits and repairs without `prepare`. It changes
        nothing.
        """

    @abstractmethod
    def register(self, record: CommitRecord) -> CommitRecord:
        """Write the first record and return it with `baseline` set to the number of rows in the target.

        Called at the start of a run for a sink without a record, and for a sink that a replay sets back.
        The record replaces any other record of this sink key, including one of a higher epoch; a replay uses
        this to set a sink back. The write is a compare-and-set: raise FencedError if the record has a newer
        generation or changed in the meantime.
        """

    @abstractmethod
    def write(self, plan: EpochPlan, frame: EpochFrame) -> WriteCounts:
        """Write the epoch's rows and record in one atomic step. Raise FencedError for an older generation.

        Called once per attempt at an epoch, also by a later run whose predecessor failed between the sink and
        the ledger. If the
        target already has the epoch, return the counts of its record and write nothing.
        """

    def validate_target(self) -> None:
        """Check that an existing target takes rows of the context's schema under its primary key.

        This creates and fences nothing. Raise TargetError or SchemaError if the target does not fit, and
        TransientError if the system does not answer.
        """

    def truncate(self) -> None:
        """Remove all rows from the target in one atomic step, and keep the record.

        Raise FencedError for a generation older than the one that `prepare` announced, and UserError if the
        sink cannot do this (`SinkCapabilities.can_truncate`).
        """
        msg = "Headrace cannot empty this target"
        raise UserError(
            msg,
            hint="Empty it yourself, then `headrace reset FILE --keep-targets`.",
            node=self._context.key.sink,
        )

    def has_partial_epoch(self, plan: EpochPlan) -> bool:
        """Return whether the target has rows of this epoch without its record.

        This can be true only for a sink that writes an epoch in several steps. It is called before rows are
        recomputed that such a sink may already contain.
        """
        del plan
        return False

    def count_refused_rows(self) -> int:
        """Return the rows that the target refused and that are stored elsewhere (`on_error: dead_letter`)."""
        return 0

    def find_conflicting_record(self) -> CommitRecord | None:
        """Return a record of the same pipeline name and sink under another UUID, or None."""
        return None

    def read_row_count(self) -> tuple[CommitRecord | None, int] | None:
        """Return the record and the target's row count from one snapshot, or None if the sink cannot know."""
        return None

    def content(self, schema: pa.Schema, folder: Path, limit: int | None = None) -> TargetContent | None:
        """Return the record and the rows of one snapshot, but no rows if there are more than `limit`.

        The sink may write files to `folder`. Return None without a record, or if the sink cannot read its
        target.
        """
        del schema, folder, limit
        return None

    def query_target(self) -> TargetQuery | None:
        """Return read-only SQL over one snapshot of the target, or None if there is no table."""
        return None

    def read_keys(self, partition: HistoryPartition | None, folder: Path) -> DataFrame:
        """Return the keys of the target's rows in a partition, or of all rows, from one snapshot.

        `partition.column` is a column of the target. The sink may write files to `folder`, which the result
        reads. Called only for a sink with `SinkCapabilities.reads_keys`, after `check_readable_keys`.
        """
        del partition, folder
        raise NotImplementedError

    def check_readable_keys(self) -> None:
        """Raise GuaranteeError if `read_keys` cannot return keys of this sink's types.

        Called at the start of a refresh, before its epochs are planned.
        """

    def open_maintenance(self) -> TableMaintenance:
        """Return the maintenance of the target's files. Raise TargetError if there is no target.

        Called only for a sink with `SinkCapabilities.maintains_files`.
        """
        raise NotImplementedError

    def describe(self) -> Json:
        """Return type, asset key parts, table name and location for users and Dagster, without secrets.

        `asset_key` is the type and the name. `scope` has the outer parts of the address, such as the server.
        Dagster puts them into the key if two targets have one name.
        """
        return {}

    def close(self) -> None:
        """Close the connections. Called once, also after errors."""


class DirectSink(Sink):
    """A sink that Spark tasks load during a backfill, one split per task."""

    @abstractmethod
    def write_direct(
        self, plan: EpochPlan, fetch: SplitReader, spark: SparkSession, *, keys_spread: bool = False
    ) -> WriteCounts | None:
        """Load each split as Arrow in its own task, then set the record.

        Called once per epoch of history instead of `write`. Return None, with nothing changed, if `write`
        must write the epoch. With `keys_spread`, several splits may have rows of one key, of which the last
        one stays: that is only for a sink with `SinkCapabilities.orders_splits`.
        """
