"""Builds an explanation: the graph, the columns, how history is read, and the guarantee of every sink."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.jobs.explain import descriptions
from headrace.jobs.explain.model import ExplainedColumn, ExplainedNode, ExplainedTarget, Explanation
from headrace.jobs.explain.order import order_of
from headrace.jobs.explain.schemas import DiscoveredSchemas, SchemaDiscovery, unreachable_reasons
from headrace.jobs.planning.load_path import (
    Columns,
    LoadPath,
    carried_key,
    copies_in_driver,
    plan_load_path,
    refuses_overflow,
)
from headrace.jobs.planning.resolution import try_resolving
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.file.loader import PipelineFile
from headrace.pipeline.lineage.columns import lineage
from headrace.pipeline.model import graph
from headrace.pipeline.model.error_outputs import errors_name, errors_outputs
from headrace.pipeline.protocol import positions
from headrace.pipeline.protocol.partitions import partition_length

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def explain(
    file: PipelineFile,
    settings: Settings,
    *,
    offline: bool = False,
    splits: bool = False,
    spark_plan: bool = False,
    spark: SparkSession | None = None,
) -> Explanation:
    """Read the sources' schemas and describe the pipeline. Nothing is changed.

    Systems that cannot be reached, or must not be (`offline`), are left unchecked.

    Args:
        file: the pipeline.
        settings: connections.
        offline: open no connection.
        splits: also list the splits of history that a run would read. No snapshot is created.
        spark_plan: also include Spark's plans of the SQL.
        spark: the session to use. By default one is started, and stopped again, if the SQL or a source needs
            it.

    Raises:
        UserError: the file's SQL or keys do not fit the sources.
    """
    unresolved = {}
    if not offline:
        file, problems = try_resolving(file, settings)
        unresolved = unreachable_reasons(problems)
    with SchemaDiscovery(file, settings, offline=offline, spark=spark, unresolved=unresolved) as lookup:
        columns = lookup.columns(spark_plan=spark_plan)
        model = file.model
        return Explanation(
            name=file.name,
            pipeline_hash=file.hash,
            offline=offline,
            nodes=tuple(_ExplanationBuilder(file, settings, lookup, columns).nodes()),
            partitions=(
                model.partitions.column,
                partition_length(model.partitions),
                tuple(positions.windows_of(model)),
            )
            if model.partitions
            else None,
            splits=lookup.splits() if splits else None,
            spark_plan=columns.plan if spark_plan else None,
        )


class _ExplanationBuilder:
    """Builds the explanation of each node."""

    def __init__(
        self, file: PipelineFile, settings: Settings, lookup: SchemaDiscovery, schemas: DiscoveredSchemas
    ) -> None:
        self._file = file
        self._model = file.model
        self._settings = settings
        self._lookup = lookup
        self._found = schemas
        self._errors = errors_outputs(file.model)
        self._columns = schemas.columns(lookup.sources)
        self._lineage = lineage(file.model, self._columns)

    def nodes(self) -> Iterator[ExplainedNode]:
        for name, node in self._model.sources.items():
            parts, notes = (
                descriptions.parts_of(name, node, self._settings),
                descriptions.notes_of(self._model, name),
            )
            yield replace(self._node(name, "source"), parts=parts, notes=notes)
            yield from self._errors_of(name)
        for name in graph.in_order(self._model):
            yield replace(
                self._node(name, "transform"),
                notes=descriptions.program_of(self._model.transforms[name])
                + descriptions.staged_of(self._model, name)
                + self._engine_of(name),
            )
            yield from self._errors_of(name)
        for name, node in graph.dynamic_tables(self._model).items():
            askers = tuple(
                other
                for other in self._model.transforms
                if name in graph.looked_up_tables(self._model, other)
            )
            yield replace(
                self._node(name, "table"),
                asked_by=askers,
                notes=descriptions.table_notes(node, self._settings),
            )
        for name in self._model.sinks:
            yield replace(self._node(name, "sink"), target=self._target(name))

    def _engine_of(self, name: str) -> tuple[tuple[str, str], ...]:
        """Return what computes SQL whose columns are known."""
        arrow = self._found.arrow_transforms
        if arrow is None or name not in self._found.nodes or self._model.transforms[name].type != "sql":
            return ()
        engine = "by Arrow for rows in the driver, else by Spark" if name in arrow else "by Spark"
        return (("computed", engine),)

    def _errors_of(self, name: str) -> Iterator[ExplainedNode]:
        """Yield the errors output of a node, if it has one."""
        if (output := errors_name(name)) in self._errors:
            yield self._node(output, "errors")

    def _target(self, sink: str) -> ExplainedTarget:
        def spreads(source: str, key: Sequence[str]) -> str | None:
            known = self._found.own.get((source, 0)) is not None
            return self._lookup.spreads(self._lookup.sources[source], key) if known else None

        def find_carried_key(source: str) -> Sequence[str]:
            return carried_key(self._model, self._found.nodes, sink, source)

        order = order_of(self._model, sink, spreads, find_carried_key)
        return descriptions.describe_target(self._file, self._settings, sink, self._load_path(sink), order)

    def _load_path(self, sink: str) -> LoadPath | None:
        """Return the load path of history to a sink, or None if no history reaches it."""
        sources = self._lookup.sources
        is_empty = graph.reads_errors(self._model, sink) and not graph.rejecting_transforms(self._model, sink)
        if is_empty or not any(sources[name].bounded for name in graph.upstream_sources(self._model, sink)):
            return None
        columns = Columns(
            self._found.payloads,
            self._found.nodes,
            lambda source: self._found.own.get((source.name, 0)),
            self._lookup.spreads,
            refuses_overflow(self._settings),
            copies_in_driver(self._settings),
        )
        return plan_load_path(self._file, columns, sources, sink)

    def _node(self, name: str, kind: str) -> ExplainedNode:
        lineage = self._lineage[name]
        known = self._columns.get(name) or lineage.types
        unchecked = list(self._found.unchecked.get(name, ()))
        if (
            lineage.unknown
            and kind != "source"
            and not any(lineage.unknown in reason for reason in unchecked)
        ):
            unchecked.append(f"lineage: {lineage.unknown}")
        return ExplainedNode(
            name=name,
            kind=kind,
            type=self._model.nodes()[name].type if kind != "errors" else "errors",
            inputs=tuple(
                other
                for other in (*self._model.nodes(), *self._errors)
                if other in graph.inputs_of(self._model, name)
            ),
            key=graph.key_of(self._model, name),
            key_from=graph.key_sources(self._model, name),
            columns=tuple(ExplainedColumn(column, type_) for column, type_ in known.items()),
            complete=name in self._columns or not lineage.unknown,
            lineage=lineage.columns,
            unchecked=tuple(unchecked),
        )
