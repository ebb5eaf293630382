"""Nodes with portable SQL: their columns are known, and rows in the driver are computed, without Spark."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from headrace.jobs.planning.arrow_sql import ArrowSelect, UnprovenValuesError
from headrace.jobs.planning.column_checks import has_types
from headrace.jobs.planning.portable_sql import parse_portable
from headrace.jobs.planning.portable_values import OTHER
from headrace.jobs.planning.sql_nodes import SqlNodePlanner
from headrace.jobs.sources.source_batch import SourceBatch
from headrace.jobs.spark.columns import payload_of
from headrace.jobs.staging.determinism import nondeterminism_reason
from headrace.pipeline.errors import DataError
from headrace.pipeline.file.loader import PipelineFile
from headrace.pipeline.model import graph
from headrace.pipeline.model.error_outputs import errors_outputs
from headrace.pipeline.sql import statements
from headrace.pipeline.sql.portable_syntax import has_portable_syntax
from headrace.pipeline.types.int256 import is_wide

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


class PortableNodes:
    """The sql nodes of a pipeline that Arrow computes as Spark would."""

    def __init__(self, file: PipelineFile, sql_nodes: SqlNodePlanner) -> None:
        self._file = file
        self._sql_nodes = sql_nodes
        self._rejecting = {output.node for output in errors_outputs(file.model).values()}
        self._selects: dict[str, ArrowSelect | None] = {}
        self._columns: dict[str, pa.Schema] = {}

    def find_columns(self, name: str, frames: Mapping[str, DataFrame]) -> pa.Schema | None:
        """Return the payload of a sql node, or None if only Spark computes it.

        `frames` are those of its inputs. Raise UserError if its SQL cannot be compiled.
        """
        if name not in self._selects:
            self._selects[name] = self._plan(name, frames)
        return self._columns.get(name)

    def compute(
        self, nodes: Collection[str], readings: Mapping[str, SourceBatch], marked: Collection[str]
    ) -> dict[str, pa.Table]:
        """Return the rows of nodes, and of those upstream of them, that Arrow computes in the driver.

        `marked` are sources whose filters mark rows, of which their tables know nothing.
        """
        found: dict[str, pa.Table | None] = {
            name: None if name in marked else batch.table for name, batch in readings.items()
        }
        wanted = {name for node in nodes for name in self._upstream(node)}
        for name in graph.in_order(self._file.model):
            if name in wanted:
                found[name] = self._compute_node(name, found)
        wanted |= {*nodes, *self._file.model.sources} & readings.keys()
        return {name: rows for name, rows in found.items() if rows is not None and name in wanted}

    def _upstream(self, node: str) -> Iterator[str]:
        """Yield a transform and all transforms upstream of it."""
        if node in self._file.model.transforms:
            yield node
            for upstream in graph.inputs_of(self._file.model, node):
                yield from self._upstream(upstream)

    def _compute_node(self, name: str, found: Mapping[str, pa.Table | None]) -> pa.Table | None:
        select = self._selects.get(name)
        if select is None:
            return None
        (upstream,) = graph.inputs_of(self._file.model, name)
        rows = found.get(upstream)
        if rows is None or not has_types(rows, select.schema):
            return None
        try:
            return select.compute_epoch(rows, marks=self._sql_nodes.find_marking(name) is not None)
        except UnprovenValuesError:
            return None

    def _plan(self, name: str, frames: Mapping[str, DataFrame]) -> ArrowSelect | None:
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
        found = ArrowSelect(name, select, payload)
        try:
            self._columns[name] = found.read_schema()
        except (UnprovenValuesError, DataError):  # of a literal
            return None
        return found
