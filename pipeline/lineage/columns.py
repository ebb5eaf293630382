"""The source columns of every column of a pipeline, with the expressions between them. It reads only the SQL.

A SELECT of a per-row transform reads one relation, because joins are refused. A name therefore has one
meaning and needs no schema. Only `*` needs the columns. Names are compared case-insensitively and shown as
they are written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.annotate_types import annotate_types
from sqlglot.optimizer.qualify import qualify

from headrace.pipeline.lineage.relations import (
    ColumnLineage,
    LineageError,
    LineageReader,
    LineageStep,
    Origin,
    Relation,
)
from headrace.pipeline.model import graph
from headrace.pipeline.model.error_outputs import errors_outputs
from headrace.pipeline.model.nodes import PipelineModel
from headrace.pipeline.model.transforms import DynamicTableConfig
from headrace.pipeline.sql import statements
from headrace.pipeline.sql.dynamic_tables import VALUE
from headrace.pipeline.types.arrow import spark_type

Schemas = Mapping[str, Mapping[str, str]]
"""The Spark SQL type of every column in order, by node. Empty if only the name is known."""


@dataclass(frozen=True, slots=True)
class NodeLineage:
    """The columns of a node in order.

    `unknown` is the reason if columns are missing, or empty if all are listed.
    """

    columns: Mapping[str, ColumnLineage]
    types: Mapping[str, str]
    unknown: str = ""


def lineage(model: PipelineModel, schemas: Schemas) -> dict[str, NodeLineage]:
    """Return the lineage of every node.

    Args:
        model: the pipeline.
        schemas: the known columns of nodes. Those of a transform give its columns their true names and types.
    """
    relations: dict[str, Relation] = {}
    reasons: dict[str, str] = {}
    types: dict[str, Mapping[str, str]] = {}
    for name in model.sources:
        known = schemas.get(name)
        relations[name] = Relation(
            [(column, ColumnLineage((Origin(name, column),))) for column in known or ()],
            open_source="" if known else name,
        )
        types[name] = known or {}
    outputs = errors_outputs(model)
    for name, output in outputs.items():
        types[name] = {field.name: spark_type(field.type) for field in output.schema}
        relations[name] = Relation([(column, ColumnLineage(())) for column in types[name]])
    for name in graph.in_order(model):
        if poor := next((upstream for upstream in graph.inputs_of(model, name) if upstream in reasons), None):
            reasons[name] = reasons[poor]
            continue
        try:
            query = _query_of(model, name)
            relations[name] = _with_spark_names(
                LineageReader(name, relations).query(query, {}, None), name, schemas.get(name)
            )
        except LineageError as error:
            reasons[name] = f"transform `{name}`: {error}"
            continue
        names = [column for column, _ in relations[name].columns]
        known = schemas.get(name)
        kinds = (
            list(known.values())
            if known
            else _types(query, {upstream: types[upstream] for upstream in graph.inputs_of(model, name)})
        )
        types[name] = dict(zip(names, kinds if len(kinds) == len(names) else [""] * len(names), strict=True))
    rows = {
        name: model.sinks[name].from_ if name in model.sinks else name
        for name in model.nodes()
        if name not in graph.dynamic_tables(model)
    }
    rows |= dict(zip(outputs, outputs, strict=True))
    by_node = {name: _node_lineage(node, relations, reasons, types) for name, node in rows.items()}
    return by_node | {
        name: _lineage_of_table(node, name, relations, reasons)
        for name, node in graph.dynamic_tables(model).items()
    }


def _lineage_of_table(
    node: DynamicTableConfig, name: str, relations: Mapping[str, Relation], reasons: Mapping[str, str]
) -> NodeLineage:
    """Return the one column of a dynamic table, if SQL fills it."""
    if node.sql is None:
        return NodeLineage({VALUE: ColumnLineage(())}, {VALUE: "STRING"})
    if poor := next((upstream for upstream in node.inputs(name) if upstream in reasons), None):
        return NodeLineage({}, {}, reasons[poor])
    try:
        ((_, value),) = LineageReader(name, relations).query(node.query(name), {}, None).columns
    except LineageError as error:
        return NodeLineage({}, {}, f"dynamic table `{name}`: {error}")
    return NodeLineage({VALUE: value}, {VALUE: "STRING"})


def _query_of(model: PipelineModel, name: str) -> exp.Query:
    node = model.transforms[name]
    if node.type != "sql":
        msg = f"what a {node.type} makes of its rows is not in the file"
        raise LineageError(msg)
    return node.query(name)


def _node_lineage(
    name: str, relations: Mapping[str, Relation], reasons: Mapping[str, str], types: Schemas
) -> NodeLineage:
    if name in reasons:
        return NodeLineage({}, {}, reasons[name])
    result = relations[name]
    unknown = "" if result.complete else f"the columns of `{result.unknown()}` are not known"
    return NodeLineage(dict(result.columns), types[name], unknown)


def _with_spark_names(relation: Relation, node: str, known: Mapping[str, str] | None) -> Relation:
    """Return the relation with Spark's names. An item for several columns becomes one entry per column."""
    several = [place for place, (name, _) in enumerate(relation.columns) if name == "*"]
    if known is None or not relation.complete:
        if several:
            msg = "how many columns one of its items stands for is not known"
            raise LineageError(msg)
        return relation
    columns, names = list(relation.columns), list(known)
    if len(several) == 1 and len(names) >= len(columns) - 1:
        place, more = several[0], len(names) - len(columns) + 1
        spread = columns[place][1]
        columns[place : place + 1] = [
            (name, _relabel_step(spread, node, name)) for name in names[place : place + more]
        ]
    if len(columns) != len(names):
        msg = "it has other columns than its SELECT list says"
        raise LineageError(msg)
    return Relation([(name, derived) for name, (_, derived) in zip(names, columns, strict=True)])


def _relabel_step(spread: ColumnLineage, node: str, name: str) -> ColumnLineage:
    *before, own = spread.steps
    return ColumnLineage(spread.origins, (*before, LineageStep(node, name, own.expression)))


def _types(query: exp.Query, inputs: Schemas) -> list[str]:
    """Return the types of a statement's columns in order. Empty if they need Spark."""
    if not all(inputs.values()) or any(not kind for columns in inputs.values() for kind in columns.values()):
        return []
    schema: dict[str, Any] = {node: dict(columns) for node, columns in inputs.items()}
    try:
        known = annotate_types(
            qualify(query.copy(), schema=schema, dialect=statements.DIALECT),
            schema=schema,
            dialect=statements.DIALECT,
        )
    except (SqlglotError, KeyError):
        return []
    return [_spell_type(part) for part in known.selects]


def _spell_type(part: exp.Expr) -> str:
    kind = part.type
    return "" if kind is None or kind.is_type(exp.DType.UNKNOWN) else kind.sql(dialect=statements.DIALECT)
