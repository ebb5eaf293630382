"""Discovers a pipeline's columns before it runs: from the file, from external systems, from Spark's analyzer.

Spark is started only if needed. What cannot be reached is left unchecked, with a reason by node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Self, cast

import pyarrow as pa

from headrace.connectors.lazy_session import LazySession
from headrace.connectors.source_base import BoundedSource
from headrace.jobs.explain.model import HistorySplits, SplitSummary
from headrace.jobs.planning.column_checks import missing_key, version_problems
from headrace.jobs.planning.compiled_pipeline import node_types
from headrace.jobs.planning.planner import PipelinePlanner
from headrace.jobs.planning.source_schemas import FixedSchemaSource
from headrace.jobs.sources.declared_columns import declared_columns
from headrace.jobs.sources.pipeline_source import PipelineSource, create_pipeline_sources
from headrace.jobs.spark.session import start_session, stop_session, without_optimizing_compiler
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import HeadraceError, ServiceError, SettingsError, TransientError
from headrace.pipeline.file.loader import PipelineFile
from headrace.pipeline.model import graph
from headrace.pipeline.model.error_outputs import with_errors
from headrace.pipeline.protocol import positions
from headrace.pipeline.types.arrow import spark_type

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OFFLINE = "not asked, --offline"
"""Why an external system was not read."""
_REACH = (TransientError, SettingsError, ServiceError)
"""Errors that keep an external system from being read although the file may be valid."""


def unreachable_reasons(problems: Mapping[str, HeadraceError]) -> dict[str, str]:
    """Return the reasons of systems that cannot be reached. Raise any other problem."""
    for problem in problems.values():
        if not isinstance(problem, _REACH):
            raise problem
    return {name: problem.message for name, problem in problems.items()}


@dataclass(slots=True)
class DiscoveredSchemas:
    """The schemas that were discovered.

    `payloads` of sources and `nodes` as Spark sees them, if known; `own` columns of histories by (source,
    phase). `arrow_transforms` are those that need no Spark where rows are in the driver; None if unknown.
    """

    payloads: dict[str, pa.Schema] = field(default_factory=dict)
    nodes: dict[str, pa.Schema] = field(default_factory=dict)
    own: dict[tuple[str, int], pa.Schema] = field(default_factory=dict)
    unchecked: dict[str, list[str]] = field(default_factory=dict)
    arrow_transforms: frozenset[str] | None = None
    plan: str = ""

    def columns(self, sources: Mapping[str, PipelineSource]) -> dict[str, dict[str, str]]:
        """Return the types of columns by node, if known.

        For sources at least those that the file declares.
        """
        known = {
            name: {column.name: spark_type(column.type) for column in schema}
            for name, schema in self.nodes.items()
        }
        return declared_columns(sources) | known


class SchemaDiscovery:
    """Discovers the schemas of one file and changes nothing. Closes what it opened."""

    def __init__(
        self,
        file: PipelineFile,
        settings: Settings,
        *,
        offline: bool,
        spark: SparkSession | None,
        unresolved: Mapping[str, str] | None = None,
    ) -> None:
        """`unresolved`: why the stream of a source is not resolved."""
        self._unresolved = unresolved or {}
        self.file = file
        self.sources: Mapping[str, PipelineSource] = create_pipeline_sources(file.model.sources, settings)
        self._settings = settings
        self._offline = offline
        self._spark = spark
        self._started = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for source in self.sources.values():
            source.close()
        if self._started and self._spark is not None:
            stop_session(self._spark)

    def _session(self) -> SparkSession:
        if self._spark is None:
            self._spark = start_session(without_optimizing_compiler(self._settings), node_types(self.file))
            self._started = True
        return self._spark

    def _lazy_session(self) -> SparkSession:
        """Return the session. If none was started, its first use starts it."""
        return self._spark or cast("SparkSession", LazySession(self._session))

    def _session_for(self, source: PipelineSource) -> SparkSession:
        """Return the session, which is lazy if the source may do without."""
        lone = all(part.capabilities.without_spark for part in source.bounded)
        return self._lazy_session() if lone else self._session()

    def columns(self, *, spark_plan: bool) -> DiscoveredSchemas:
        """Return the columns of all nodes that are known.

        Raises SchemaError or UserError if SQL or keys do not fit them.
        """
        schemas = DiscoveredSchemas()
        for name, source in self.sources.items():
            self._source(source, schemas)
            if name not in schemas.payloads:
                continue
            schemas.nodes[name] = schemas.payloads[name]
            self._check_key(name, schemas)
        self._transforms(schemas, spark_plan=spark_plan)
        self._sinks(schemas)
        return schemas

    def _source(self, source: PipelineSource, schemas: DiscoveredSchemas) -> None:
        unchecked = schemas.unchecked.setdefault(source.name, [])
        for phase, part in enumerate(source.bounded):
            what = f"columns of {_name_of_part(part)}"
            if self._offline:
                unchecked.append(f"{what}: {OFFLINE}")
                continue
            try:
                schemas.own[source.name, phase] = part.schema(self._session_for(source))
            except _REACH as error:
                unchecked.append(f"{what}: {error.message}")
        if self._offline and source.unbounded is not None and not source.unbounded.has_declared_columns:
            unchecked.append(f"columns of {source.name}: {OFFLINE}")
            return
        if source.unbounded is not None and not source.unbounded.is_resolved:
            unchecked.append(f"columns of the stream: {self._unresolved.get(source.name, OFFLINE)}")
        payload = source.payload(
            [schemas.own.get((source.name, phase)) for phase in range(len(source.bounded))]
        )
        if payload is not None:
            schemas.payloads[source.name] = payload

    def _transforms(self, schemas: DiscoveredSchemas, *, spark_plan: bool) -> None:
        """Spark's analyzer over those transforms whose sources are all known."""
        model = self.file.model
        names = [name for name in model.transforms if graph.inputs_of(model, name)]
        known = [
            name
            for name in names
            if all(source in schemas.payloads for source in graph.upstream_sources(model, name))
        ]
        for name in names:
            if name not in known:
                missing = [
                    source for source in graph.upstream_sources(model, name) if source not in schemas.payloads
                ]
                schemas.unchecked[name] = [f"SQL and types: the columns of `{missing[0]}` are not known"]
        if not known:
            return
        sources = {name: FixedSchemaSource(payload) for name, payload in schemas.payloads.items()}
        try:
            planner = PipelinePlanner(self.file, self._lazy_session(), sources, self._settings)
            schemas.nodes |= planner.schemas
            schemas.arrow_transforms = planner.arrow_transforms
            schemas.plan = planner.plan_text() if spark_plan else ""
        except ServiceError as error:
            schemas.unchecked |= {name: [f"SQL and types: {error.message}"] for name in known}

    def _sinks(self, schemas: DiscoveredSchemas) -> None:
        schemas.nodes |= with_errors(self.file.model, schemas.nodes)
        for name, sink in self.file.model.sinks.items():
            if (schema := schemas.nodes.get(sink.from_)) is None:
                schemas.unchecked[name] = [f"columns and types: those of `{sink.from_}` are not checked"]
            else:
                schemas.nodes[name] = schema
                self._check_key(name, schemas)

    def _check_key(self, name: str, schemas: DiscoveredSchemas) -> None:
        with self.file.locate_errors():
            for problem in (
                *missing_key(self.file, name, schemas.nodes[name].names),
                *version_problems(self.file, name, schemas.nodes[name]),
            ):
                raise problem

    def spreads(self, source: PipelineSource, key: Sequence[str]) -> str | None:
        """See `BoundedSource.spreads`. None if its system is not read or does not answer."""
        if self._offline:
            return None
        try:
            return source.bounded[0].explain_key_spread(key)
        except _REACH:
            return None

    def splits(self) -> HistorySplits:
        """Return the splits of history that a run would read if it started now."""
        pieces: list[SplitSummary] = []
        unchecked: dict[str, str] = {}
        for name, source in self.sources.items():
            if not source.bounded:
                continue
            try:
                pieces += self._pieces(source)
            except _REACH as error:
                unchecked[name] = error.message
        return HistorySplits(tuple(pieces), unchecked)

    def _pieces(self, source: PipelineSource) -> Iterator[SplitSummary]:
        foreseen = source.preview_splits(self._session_for(source))
        for key in positions.windows_of(self.file.model):
            for phase, part in enumerate(source.bounded):
                splits = foreseen(phase, positions.history_partition(self.file.model, key))
                ends = [(str(split["id"]), int(split.get("rows", 0))) for split in (splits[:1] + splits[-1:])]
                rows = sum(split.get("rows", 0) for split in splits)
                first, last = (ends[0], ends[1]) if ends else (None, None)
                yield SplitSummary(source.name, _name_of_part(part), key, len(splits), rows, first, last)


def _name_of_part(part: BoundedSource) -> str:
    described = part.describe()
    return f"{described['kind']} {described.get('table_name') or described.get('location')}"
