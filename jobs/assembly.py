"""A pipeline file put together on one Spark session: its sources, its planner, and its sinks as the protocol sees them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from headrace.connectors import registry
from headrace.connectors.base import Delivery, Sink, SinkContext
from headrace.jobs.planner import Planner
from headrace.jobs.routes import Route, routes
from headrace.jobs.side_outputs import SideOutputs
from headrace.jobs.sources import LaneSource, lane_sources
from headrace.jobs.tables.memory import Known
from headrace.jobs.tables.opening import EVENT, open_tables
from headrace.pipeline import graph
from headrace.pipeline.advice import missing_keys
from headrace.pipeline.errors import PipelineFileError
from headrace.pipeline.file import PipelineFile
from headrace.pipeline.ledger import Ledger
from headrace.pipeline.records import Counts, Phase, Position, Record, SinkKey
from headrace.pipeline.settings import Settings

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


def node_types(file: PipelineFile) -> frozenset[str]:
    """All connector types that a file uses, phases of hybrid sources included."""
    model = file.model
    phases = {
        part.source_type
        for node in model.sources.values()
        if node.type == "hybrid"
        for part in (*node.bounded_sources, node.unbounded_source)
    }
    return frozenset(node.type for node in model.nodes().values()) | phases


class LaneSink:
    """A connector's sink as the protocol sees it.

    A sink that keeps no record (print, blackhole) is taken at the ledger's word: it is at-least-once, and says so.
    """

    def __init__(self, sink: Sink, schema: pa.Schema, key: SinkKey, columns: tuple[str, ...], ledger: Ledger) -> None:
        self.sink = sink
        self._schema = schema
        self._key = key
        self._columns = columns
        self._ledger = ledger
        self._exact = sink.capabilities.delivery is Delivery.EXACTLY_ONCE

    @property
    def fences(self) -> bool:
        """Whether the atomic act compares generations. A sink that keeps nothing has nothing to wait for."""
        return self.sink.capabilities.fences or not self._exact

    @property
    def upserts(self) -> bool:
        """Whether writing an epoch again leaves the same rows."""
        return not self._exact or (self.sink.capabilities.upsert and bool(self._columns))

    @property
    def keeps(self) -> bool:
        """Whether the target keeps the record."""
        return self._exact

    def prepare(self, generation: int) -> None:
        """See `Sink.prepare`."""
        self.sink.prepare(self._schema, generation)

    def record(self) -> Record | None:
        """See `Sink.record`."""
        return self.sink.record() if self._exact else self._remembered()

    def foreign_record(self) -> Record | None:
        """See `Sink.foreign_record`."""
        return self.sink.foreign_record() if self._exact else None

    def join(self, record: Record) -> Record:
        """See `Sink.join`."""
        return self.sink.join(record) if self._exact else record

    def count(self) -> tuple[Record | None, int] | None:
        """See `Sink.count`."""
        return self.sink.count() if self._exact else None

    def close(self) -> None:
        """See `Sink.close`."""
        self.sink.close()

    def _remembered(self) -> Record | None:
        state = self._ledger.state(self._key.name, self._key.lane)
        if state is None or self._key.sink not in state.sinks or state.sinks[self._key.sink].state == "left":
            return None
        last = next(self._ledger.epochs(state.name, state.lane, state.committed, state.committed), None)
        start: Position = last.plan.start if last else state.position
        end: Position = last.plan.end if last else state.position
        phase, digest = (last.plan.phase, last.plan.pipeline_hash) if last else (Phase.HISTORY, "")
        return Record(self._key, state.committed, state.generation, phase, None, start, end, digest, Counts(), Counts(), None)


class Assembly:
    """One version of a pipeline file on one session. Analysing its SQL happens when it is made.

    Raises SchemaError or UserError where sources, SQL and keys do not fit.
    """

    def __init__(self, file: PipelineFile, settings: Settings, spark: SparkSession) -> None:
        if settings.enforce_primary_keys and (keyless := list(missing_keys(file.model, file.place))):
            raise PipelineFileError(keyless)
        self.file = file
        self.settings = settings
        self.sources: dict[str, LaneSource] = lane_sources(file.model.sources, settings)
        self.planner = Planner(file, spark, self.sources, settings)
        self.side_outputs = SideOutputs(file.name, settings)

    @cached_property
    def routes(self) -> Mapping[str, Route]:
        """The way that history takes to each sink."""
        return routes(self.file, self.planner, self.sources)

    def open_sinks(self, uuid: str, lane: str, ledger: Ledger) -> Mapping[str, LaneSink]:
        """Fresh sinks of this file for one lane; they connect when they are prepared."""
        found: dict[str, LaneSink] = {}
        for name, node in self.file.model.sinks.items():
            key, schema, columns = SinkKey(uuid, self.file.name, lane, name), self.planner.schemas[name], self.planner.keys[name]
            sink = registry.open_sink(SinkContext(key, node, self.settings, schema, self.planner.spark, {"key": columns}))
            found[name] = LaneSink(sink, schema, key, columns, ledger)
        return found

    def open_tables(self, uuid: str, lane: str, ledger: Ledger, note: Callable[[str, int], None], *, former: bool = False) -> None:
        """Opens the dynamic tables for one lane, anew if they were open. `note` tells the ledger of a table in memory's first epoch.

        `former`: see `Known`. Raises UserError or TransientError, naming the node, before any epoch is planned with them.
        """
        state = ledger.state(self.file.name, lane)
        events = ledger.events(self.file.name, lane) if graph.tables(self.file.model) else []
        joined = frozenset(event["data"]["table"] for event in events if event["kind"] == EVENT)
        committed, generation = (state.committed, state.generation) if state else (0, 0)
        known = Known(committed, joined, note, generation, former=former)
        self._close_tables()
        self.planner.tables = open_tables(self.file.model, self.settings, self.planner.spark, pipeline=uuid, lane=lane, known=known)

    def open_former_tables(self, uuid: str, lane: str, ledger: Ledger, note: Callable[[str, int], None]) -> None:
        """The same for an earlier version of the file, whose epochs are only written again; nothing where they are open."""
        if not self.planner.tables and graph.tables(self.file.model):
            self.open_tables(uuid, lane, ledger, note, former=True)

    def close(self) -> None:
        """Lets go of the connections of sources and dynamic tables; sinks belong to the lane."""
        self._close_tables()
        self.side_outputs.close()
        for source in self.sources.values():
            source.close()

    def _close_tables(self) -> None:
        for table in self.planner.tables.values():
            table.close()


Assemble = Callable[[PipelineFile], Assembly]
