"""Nodes with portable SQL: their columns are known, and rows in the driver are computed, without Spark."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.jobs.planning.arrow_functions import UnprovenValuesError
from headrace.jobs.planning.arrow_sql import ArrowSelect
from headrace.jobs.planning.column_checks import has_types
from headrace.jobs.planning.portable_sql import parse_portable
from headrace.jobs.planning.portable_values import OTHER
from headrace.jobs.planning.sql_nodes import SqlNodePlanner
from headrace.jobs.sources.source_batch import SourceBatch
from headrace.jobs.spark.columns import payload_of
from headrace.jobs.staging.determinism import nondeterminism_reason
from headrace.pipeline.errors import DataError
from headrace.pipeline.file.loader import PipelineFile
from headrace.pipeline.model.error_outputs import errors_outputs
from headrace.pipeline.sql import statements
from headrace.pipeline.sql.portable_syntax import has_portable_syntax
from headrace.pipeline.types.int256 import is_wide

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class _PortableNode:
    """A sql node that Arrow computes from the rows of one node.

    `marks`: it keeps the rows that its filter drops, and marks them.
    """

    select: ArrowSelect
    columns: pa.Schema
    upstream: str
    marks: bool


class PortableNodes:
    """The sql nodes of a pipeline that Arrow computes as Spark would."""

    def __init__(self, file: PipelineFile, sql_nodes: SqlNodePlanner) -> None:
        self._file = file
        self._sql_nodes = sql_nodes
        self._rejecting = {output.node for output in errors_outputs(file.model).values()}
        self._nodes: dict[str, _PortableNode | None] = {}

    def find_columns(self, name: str, frames: Mapping[str, DataFrame]) -> pa.Schema | None:
        """Return the payload of a sql node, or None if only Spark computes it.

        `frames` are those of its inputs. Raise UserError if its SQL cannot be compiled.
        """
        if name not in self._nodes:
            self._nodes[name] = self._plan(name, frames)
        node = self._nodes[name]
        return None if node is None else node.columns

    @property
    def names(self) -> frozenset[str]:
        """The sql nodes that Arrow computes, of those whose columns are known."""
        return frozenset(name for name, node in self._nodes.items() if node is not None)

    def compute(self, nodes: Collection[str], readings: Mapping[str, SourceBatch]) -> dict[str, pa.Table]:
        """Return the rows that are in the driver: of sources, and of nodes that Arrow computes from them.

        These are `nodes` and the nodes upstream of them.
        """
        result = {name: batch.table for name, batch in readings.items() if batch.table is not None}
        for name in nodes:
            self._add_rows(name, result)
        return result

    def _add_rows(self, name: str, tables: dict[str, pa.Table]) -> None:
        """Add the rows of a node, and of those upstream of it, to `tables` if Arrow computes them."""
        node = self._nodes.get(name)
        if name in tables or node is None:
            return
        self._add_rows(node.upstream, tables)
        rows = tables.get(node.upstream)
        if rows is not None and has_types(rows, node.select.schema):
            with suppress(UnprovenValuesError):
                tables[name] = node.select.compute_epoch(rows, marks=node.marks)

    def _plan(self, name: str, frames: Mapping[str, DataFrame]) -> _PortableNode | None:
        node: Any = self._file.model.transforms[name]
        inputs = statements.table_uses(node.sql, node=name, dialect=node.dialect)
        if (
            len(inputs) != 1
            or name in self._rejecting
            or not has_portable_syntax(node.query(name), guarded=True)
            or nondeterminism_reason(self._file.model, name)
            or not self._sql_nodes.is_plain(name)
        ):
            return None
        (upstream,) = inputs
        payload = payload_of(frames[upstream])
        names = {column.lower() for column in payload.names}
        if len(names) < len(payload) or any(is_wide(field.type) for field in payload):
            return None
        marking = self._sql_nodes.find_marking(name)
        text = node.spark_sql(name)
        select = parse_portable(text, upstream, payload, any_year=True, guarded=True, marking=marking)
        if select is None or any(value.kind == OTHER for _, value in select.outputs):
            return None
        result = ArrowSelect(name, select, payload)
        try:
            return _PortableNode(result, result.read_schema(), upstream, marks=marking is not None)
        except (UnprovenValuesError, DataError):  # of a literal
            return None
