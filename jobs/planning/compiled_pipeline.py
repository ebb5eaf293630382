"""A pipeline file compiled on one Spark session: its sources, its planner, and its sinks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from headrace.connectors import registry
from headrace.connectors.sink_base import Sink, SinkContext
from headrace.jobs.dynamic_tables.factory import EVENT, open_tables
from headrace.jobs.dynamic_tables.memory import CommittedTables
from headrace.jobs.planning.load_path import LoadPath, plan_load_paths
from headrace.jobs.planning.planner import PipelinePlanner
from headrace.jobs.planning.stream_filters import create_stream_filter
from headrace.jobs.sources.pipeline_source import PipelineSource, create_pipeline_sources
from headrace.jobs.sources.side_outputs import SideOutputs
from headrace.jobs.staging.pending_calls import PendingCall, waits_folder
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import PipelineFileError
from headrace.pipeline.file.loader import PipelineFile
from headrace.pipeline.model import graph
from headrace.pipeline.model.capabilities import Delivery
from headrace.pipeline.protocol.claims import Claim
from headrace.pipeline.protocol.epochs import CommitRecord, SinkKey, WriteCounts
from headrace.pipeline.protocol.ledger import Ledger
from headrace.pipeline.validation.warnings import missing_keys

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


def node_types(file: PipelineFile) -> frozenset[str]:
    """Return all connector types that a file uses, including the phases of hybrid sources."""
    model = file.model
    phases = {
        part.source_type
        for node in model.sources.values()
        if node.type == "hybrid"
        for part in (*node.bounded_sources, node.unbounded_source)
    }
    return frozenset(node.type for node in model.nodes().values()) | phases


def target_text(described: Mapping[str, Any]) -> str:
    """Return a target's name for messages, from the result of `Sink.describe`."""
    named = (
        described.get("location")
        if described.get("kind") == "delta"
        else described.get("table_name") or described.get("location")
    )
    what = "topic" if "topic" in described else "table"
    return f"the {described.get('kind', '')} {what} `{named}`" if named else "the target"


class PipelineSink:
    """A sink of a connector as the coordinator sees it.

    A sink without commit records (print, blackhole) takes the record of the ledger. It is at-least-once.
    """

    def __init__(self, sink: Sink, context: SinkContext, ledger: Ledger, file: str) -> None:
        self.sink = sink
        self._schema = context.schema
        self._key = context.key
        self._columns: tuple[str, ...] = context.extra["key"]
        self._owner = context.owner
        self._ledger = ledger
        self._file = file
        self._exact = sink.capabilities.delivery is Delivery.EXACTLY_ONCE

    @property
    def supports_fencing(self) -> bool:
        """Whether the atomic act compares generations.

        A sink without a target has no earlier writes to wait for.
        """
        return self.sink.capabilities.fences or not self._exact

    @property
    def is_idempotent(self) -> bool:
        """Whether writing an epoch again leaves the same rows."""
        return not self._exact or (self.sink.capabilities.upsert and bool(self._columns))

    @property
    def stores_record(self) -> bool:
        """Whether the target keeps the record."""
        return self._exact

    def prepare(self, generation: int) -> None:
        """See `Sink.prepare`."""
        self.sink.prepare(self._schema, generation)

    def prepare_version(self, schema: pa.Schema, generation: int) -> None:
        """Prepare the target for rows of another version of the file, if these have other columns."""
        if schema != self._schema:
            self._schema = schema
            self.sink.prepare(schema, generation)

    def record(self) -> CommitRecord | None:
        """See `Sink.record`."""
        return self.sink.record() if self._exact else self._recall_record()

    def find_conflicting_record(self) -> CommitRecord | None:
        """See `Sink.find_conflicting_record`."""
        return self.sink.find_conflicting_record() if self._exact else None

    def refuse_rivals(self) -> None:
        """Raise SinkStateError if another pipeline claims the target.

        A sink without commit records has no claims.
        """
        if self._exact:
            self._owner.refuse(self.sink.claims(), target_text(self.sink.describe()), file=self._file)

    def release_rivals(self) -> Sequence[Claim]:
        """End the claims of other pipelines to the target; return them."""
        rivals = self._owner.rivals(self.sink.claims()) if self._exact else []
        if rivals:
            self.sink.release(rivals)
        return rivals

    def others(self) -> Sequence[Claim]:
        """Return the claims of other sinks to the target, whether shared or not."""
        claims = list(self.sink.claims()) if self._exact else []
        former = self._owner.former(claims)
        return [claim for claim in claims if claim.key != self._key and claim not in former]

    def register(self, record: CommitRecord) -> CommitRecord:
        """See `Sink.register`."""
        return self.sink.register(record) if self._exact else record

    def truncate(self) -> None:
        """See `Sink.truncate`."""
        if self._exact:
            self.sink.truncate()

    def read_row_count(self) -> tuple[CommitRecord | None, int] | None:
        """See `Sink.read_row_count`."""
        return self.sink.read_row_count() if self._exact else None

    def close(self) -> None:
        """See `Sink.close`."""
        self.sink.close()

    def _recall_record(self) -> CommitRecord | None:
        state = self._ledger.state(self._key.name, self._key.lane)
        if state is None or self._key.sink not in state.sinks or state.sinks[self._key.sink].state == "left":
            return None
        last = next(self._ledger.epochs(state.name, state.lane, state.committed, state.committed), None)
        if last is None:
            return CommitRecord.for_registration(
                self._key, state.generation, state.committed, state.ended, "", None
            )
        before = CommitRecord.for_registration(
            self._key, state.generation, state.committed - 1, last.plan.start, "", None
        )
        return before.after_epoch(last.plan, state.generation, WriteCounts())


class CompiledPipeline:
    """One version of a pipeline file on one session. Its SQL is analysed at creation.

    Raises SchemaError or UserError if sources, SQL and keys do not fit.
    """

    def __init__(self, file: PipelineFile, settings: Settings, spark: SparkSession) -> None:
        if settings.enforce_primary_keys and (keyless := list(missing_keys(file.model, file.place))):
            raise PipelineFileError(keyless)
        self.file = file
        self.settings = settings
        self.sources: dict[str, PipelineSource] = create_pipeline_sources(file.model.sources, settings)
        self.planner = PipelinePlanner(file, spark, self.sources, settings)
        for name, source in self.sources.items():
            if source.unbounded is not None:
                source.unbounded.marks = marks = name in self.planner.retractions.marked
                source.filter_table = create_stream_filter(source, marks=marks)
        self.side_outputs = SideOutputs(file.name, settings)

    @cached_property
    def load_paths(self) -> Mapping[str, LoadPath]:
        """The load path of history to each sink."""
        return plan_load_paths(self.file, self.planner, self.sources, self.settings)

    def open_sinks(self, uuid: str, lane: str, ledger: Ledger) -> Mapping[str, PipelineSink]:
        """Return new sinks of this file for one pipeline. They connect when they are prepared."""
        result: dict[str, PipelineSink] = {}
        for name, node in self.file.model.sinks.items():
            key, schema, columns = (
                SinkKey(uuid, self.file.name, lane, name),
                self.planner.schemas[name],
                self.planner.keys[name],
            )
            extra = {
                "key": columns,
                "sinks": tuple(self.file.model.sinks),
                "streams": graph.streams_of(self.file.model),
                "wait": PendingCall(waits_folder(self.settings, uuid), name),
            }
            context = SinkContext(key, node, self.settings, schema, self.planner.spark, extra)
            result[name] = PipelineSink(registry.open_sink(context), context, ledger, self.file.path)
        return result

    def open_tables(
        self, uuid: str, lane: str, ledger: Ledger, note: Callable[[str, int], None], *, former: bool = False
    ) -> None:
        """Open the dynamic tables for one pipeline; reopen them if they were open.

        `note` records in the ledger the first epoch of a table in memory. `former`: see `CommittedTables`.
        Raises UserError or TransientError, naming the node, before any epoch is planned with them.
        """
        state = ledger.state(self.file.name, lane)
        events = ledger.events(self.file.name, lane) if graph.dynamic_tables(self.file.model) else []
        joined = frozenset(event["data"]["table"] for event in events if event["kind"] == EVENT)
        committed, generation = (state.committed, state.generation) if state else (0, 0)
        known = CommittedTables(committed, joined, note, generation, former=former)
        self._close_tables()
        self.planner.tables = open_tables(
            self.file.model, self.settings, self.planner.spark, pipeline=uuid, lane=lane, known=known
        )

    def open_former_tables(
        self, uuid: str, lane: str, ledger: Ledger, note: Callable[[str, int], None]
    ) -> None:
        """Open the dynamic tables for an earlier version of the file, whose epochs are only written again.

        Does nothing if they are open.
        """
        if not self.planner.tables and graph.dynamic_tables(self.file.model):
            self.open_tables(uuid, lane, ledger, note, former=True)

    def close(self) -> None:
        """Close the connections of sources, side outputs and dynamic tables. Sinks stay open."""
        self._close_tables()
        self.side_outputs.close()
        for source in self.sources.values():
            source.close()

    def _close_tables(self) -> None:
        for table in self.planner.tables.values():
            table.close()
