"""Columns of a pipeline's nodes and where they come from, read from its SQL without Spark.

Only for showing: what cannot be told from the file alone (a table whose columns it does not list) is left out.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import dagster as dg
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.lineage import lineage
from sqlglot.optimizer.annotate_types import annotate_types
from sqlglot.optimizer.qualify import qualify
from sqlglot.optimizer.scope import build_scope

from headrace.orchestration.pipelines import Physical
from headrace.pipeline import graph, sql
from headrace.pipeline.errors import SchemaError
from headrace.pipeline.nodes import PipelineModel
from headrace.pipeline.types import parse_type, spark_type

log = logging.getLogger(__name__)

Columns = dict[str, str]
"""Spark SQL type by column name, in order."""
Origins = Mapping[str, frozenset[tuple[str, str]]]
"""By column: the (node, column) pairs that it is computed from."""


class ColumnBook:
    """Columns and their origins for every node of one pipeline that they can be told for."""

    def __init__(self, model: PipelineModel) -> None:
        self._model = model
        self.columns: dict[str, Columns] = {}
        self._origins: dict[str, Origins] = {}
        for name, node in model.sources.items():
            if known := _source_columns(node):
                self.columns[name] = known
        for name in graph.in_order(model):
            self._transform(name)

    def schema(self, name: str) -> dg.TableSchema | None:
        """The columns of a node for people; a sink has those of what it reads. None where they are not known."""
        node = self._model.sinks[name].from_ if name in self._model.sinks else name
        if (found := self.columns.get(node)) is None:
            return None
        key = graph.key_of(self._model, name)
        return dg.TableSchema(
            columns=[
                dg.TableColumn(column, kind, constraints=dg.TableColumnConstraints(nullable=column not in key, other=[]))
                for column, kind in found.items()
            ]
        )

    def lineage(self, sink: str, sources: Mapping[str, tuple[Physical, ...]]) -> dg.TableColumnLineage | None:
        """The source columns behind each column of a sink, at the sources' physical keys. None where they are not known."""
        node = self._model.sinks[sink].from_
        if node not in self.columns:
            return None
        found = {
            column: [
                dg.TableColumnDep(asset_key=physical.key, column_name=origin)
                for source, origin in sorted(self._roots(node, column))
                for physical in sources[source]
            ]
            for column in self.columns[node]
        }
        return dg.TableColumnLineage(deps_by_column={column: deps for column, deps in found.items() if deps})

    def _roots(self, node: str, column: str) -> set[tuple[str, str]]:
        if node in self._model.sources:
            return {(node, column)}
        origins = self._origins.get(node, {}).get(column, frozenset())
        return {root for upstream, name in origins for root in self._roots(upstream, name)}

    def _transform(self, name: str) -> None:
        upstream = graph.inputs_of(self._model, name)
        if not all(node in self.columns for node in upstream):
            return
        schema: dict[str, Any] = {node: self.columns[node] for node in upstream}
        try:
            query = qualify(sql.parse(self._model.transforms[name].sql, node=name), schema=schema, dialect=sql.DIALECT)
            query = annotate_types(query, schema=schema, dialect=sql.DIALECT)
            origins = _origins(query, schema)
        except (SqlglotError, KeyError) as error:
            log.debug("columns not shown node=%s reason=%s", name, error)
            return
        self._origins[name] = origins
        self.columns[name] = {part.alias_or_name: _type_of(part) for part in query.selects}


def _source_columns(node: Any) -> Columns:
    """What the file says about a source: the stream's schema, which a hybrid source's history shares."""
    spoken = node.unbounded_source.schema_ if node.type == "hybrid" else getattr(node, "schema_", {})
    try:
        return {column: spark_type(parse_type(kind)) for column, kind in spoken.items()}
    except SchemaError:
        return {}


def _type_of(part: exp.Expr) -> str:
    kind = part.type
    return "" if kind is None or kind.is_type(exp.DType.UNKNOWN) else kind.sql(dialect=sql.DIALECT)


def _origins(query: Any, schema: dict[str, Any]) -> Origins:
    scope = build_scope(query)
    found = {}
    for part in query.selects:
        column = part.alias_or_name
        leaves = [leaf for leaf in lineage(column, query, schema=schema, dialect=sql.DIALECT, scope=scope).walk() if not leaf.downstream]
        found[column] = frozenset(
            (leaf.expression.name, exp.to_column(leaf.name).name)
            for leaf in leaves
            if isinstance(leaf.expression, exp.Table) and leaf.expression.name in schema
        )
    return found
