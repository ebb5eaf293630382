"""A pipeline without its servers: the nodes that a test can compute, their columns, and their planner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.connectors.clickhouse.config import ClickHouseSourceConfig
from headrace.connectors.lazy_session import find_started_session
from headrace.jobs.planning.planner import PipelinePlanner
from headrace.jobs.planning.source_schemas import FixedSchemaSource
from headrace.jobs.testing.inputs import declared_schema, file_schema
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.file.loader import PipelineFile
from headrace.pipeline.model import graph, nodes
from headrace.pipeline.model.error_outputs import errors_outputs
from headrace.pipeline.sql.dynamic_tables import VALUE
from headrace.pipeline.testcases.loader import Case
from headrace.pipeline.testcases.rows import Rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


TABLE = pa.schema([(VALUE, pa.string())])
"""A dynamic table as rows."""


class SubgraphPlanners:
    """Planners on one session, each created once for all tests with the same columns."""

    def __init__(self, spark: SparkSession, settings: Settings) -> None:
        self._spark = spark
        self._settings = settings
        self._planners: dict[tuple[str, ...], PipelinePlanner] = {}

    def planner_for(
        self, case: Case, inputs: Mapping[str, Rows]
    ) -> tuple[PipelinePlanner, dict[str, pa.Schema]]:
        """Return the planner for a test, and the columns of every given node.

        A given transform becomes a source, so the nodes before it are not needed. Sources with unknown
        columns are left out, with all nodes that depend on them. Raises PipelineFileError for a given node
        with unknown columns, and SchemaError for SQL that does not fit the columns.
        """
        model = case.file.model
        roots: dict[str, pa.Schema] = {}
        for name, source in model.sources.items():
            schema = file_schema(name, source)
            if schema is None and name in inputs:
                schema = declared_schema(case, name, inputs[name])
            if schema is not None:
                roots[name] = schema
        for name in graph.in_order(model):
            if name in inputs:
                roots[name] = self._transform(case, name, inputs[name], roots)
        return self._planner(case.file, roots), {name: roots.get(name, TABLE) for name in inputs}

    def _transform(self, case: Case, name: str, rows: Rows, roots: Mapping[str, pa.Schema]) -> pa.Schema:
        """Return the columns of a given transform, from its `schema` in the test, its SQL, or its rows."""
        if case.node.given[name].schema_ is None and name in computable(case.file.model, roots):
            return self._planner(case.file, roots).schemas[name]
        return declared_schema(case, name, rows)

    def _planner(self, file: PipelineFile, roots: Mapping[str, pa.Schema]) -> PipelinePlanner:
        model = select_subgraph(file.model, roots)
        known = (
            file.path,
            file.hash,
            *model.nodes(),
            *(f"{name}: {schema}" for name, schema in roots.items()),
        )
        if known not in self._planners:
            sources = {name: FixedSchemaSource(roots[name]) for name in model.sources}
            planner = self._planners[known] = PipelinePlanner(
                replace(file, model=model), self._spark, sources, self._settings
            )
            if find_started_session(planner.spark) is not None:  # in pytest, by another test perhaps
                planner.spark.conf.set("spark.sql.session.timeZone", "UTC")
        return self._planners[known]


def computable(model: nodes.PipelineModel, roots: Mapping[str, Any]) -> set[str]:
    """Return the nodes whose rows can be computed from those of `roots`."""
    result = set(roots)
    for name in graph.in_order(model):
        if all(upstream in result for upstream in graph.inputs_of(model, name)):
            result.add(name)
    filled = {
        name
        for name, node in graph.dynamic_tables(model).items()
        if all(upstream in result for upstream in node.inputs(name))
    }
    errors = {name for name, output in errors_outputs(model).items() if output.node in result}
    return result | filled | {name for name, sink in model.sinks.items() if sink.from_ in result | errors}


def select_subgraph(model: nodes.PipelineModel, roots: Mapping[str, Any]) -> nodes.PipelineModel:
    """Return the part of a pipeline after `roots`. Transforms among them become sources with the same key.

    All dynamic tables stay. Those whose inputs are missing lose their SQL.
    """
    kept = computable(model, roots)
    tables = {
        name: node if name in kept else node.model_copy(update={"sql": None})
        for name, node in graph.dynamic_tables(model).items()
    }
    given_sources = {
        name: ClickHouseSourceConfig(table_name=name, primary_key=graph.key_of(model, name))
        for name in model.transforms
        if name in roots
    }
    return model.model_copy(
        update={
            "sources": {name: node for name, node in model.sources.items() if name in kept} | given_sources,
            "transforms": {
                name: node
                for name, node in model.transforms.items()
                if name in kept and name not in given_sources
            }
            | tables,
            "sinks": {name: node for name, node in model.sinks.items() if name in kept},
        }
    )
