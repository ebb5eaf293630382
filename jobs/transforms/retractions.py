"""Marked rows (`pipeline.lineage.retractions`) in Spark.

A source marks rows that its filter rejects; a sink deletes their keys.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute

from headrace.connectors import registry
from headrace.connectors.filters import quote_identifier
from headrace.pipeline.errors import GuaranteeError, SchemaError
from headrace.pipeline.file.loader import PipelineFile
from headrace.pipeline.lineage.retractions import Retractions, kept_columns, retractions
from headrace.pipeline.model import graph
from headrace.pipeline.model.nodes import PipelineModel
from headrace.pipeline.sql.filter_marking import EMPTIED
from headrace.pipeline.sql.system_columns import OP, ORDINALS_PER_NODE, POS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.jobs.transforms.base import RowTransform
    from headrace.pipeline.model.sinks import SinkConfig
    from headrace.pipeline.protocol.epochs import EpochPlan


pc: Any = pyarrow.compute
"""Its functions are made at import, so type checkers do not see them."""


def retractions_of(model: PipelineModel) -> Retractions:
    """Return the retractions of a pipeline whose sink types are known."""
    return retractions(model, lambda name: registry.sink_class(model.sinks[name]).capabilities.upsert)


def shared_problems(file: PipelineFile, retractions: Retractions) -> Iterator[GuaranteeError]:
    """Yield the sinks that share a target and would delete keys of another pipeline by a filter."""
    for sink in retractions.sinks:
        nodes = retractions.marking_nodes(file.model, sink) if graph.is_shared(file.model.sinks[sink]) else []
        if nodes:
            conditions = file.hide_variables(
                "; ".join(f"`{node}` ({retractions.filtering[node]})" for node in nodes)
            )
            msg = (
                f"it shares its target, and a row that {conditions} leaves out is a delete of its key,"
                " which may be a row of another pipeline"
            )
            hint = (
                "Filter in one sql transform by columns that arrive in the sink's key unchanged, such as"
                " `WHERE region = 'eu'` with `region`"
                " in `primary_key`; or write both inputs by one pipeline, with UNION ALL and without `share`."
            )
            yield GuaranteeError(msg, hint=hint, node=sink, keys=("share",))


def without_marked(frame: DataFrame) -> DataFrame:
    """Return the rows that passed all filters."""
    from pyspark.sql import functions as F  # noqa: N812

    return frame.where(F.col(f"{POS}.sub") >= 0)


def _passes(table: pa.Table) -> Any:
    """Return whether each row passed all filters."""
    return pc.greater_equal(pc.struct_field(table[POS], "sub"), 0)


def follows_updates(node: SinkConfig) -> bool:
    """Return whether an update that a filter rejects deletes the row.

    Not if the sink ignores some updates.
    """
    return getattr(node, "on_conflict", "update") == "update" and not getattr(node, "update_where", {})


class SinkBoundary:
    """Return the rows that a sink gets of the rows of its node."""

    def __init__(
        self, model: PipelineModel, retractions: Retractions, keys: dict[str, tuple[str, ...]]
    ) -> None:
        self._model = model
        self._found = retractions
        self._keys = keys

    def rows(self, sink: str, frame: DataFrame) -> DataFrame:
        """With marked rows as deletes of their keys, or without them."""
        node = self._model.sinks[sink]
        if node.from_ not in self._found.marked:
            return frame
        if sink not in self._found.sinks:
            return without_marked(frame)
        return self._deletes(node, frame, self._keys[sink], self._found.sinks[sink])

    def local_rows(self, sink: str, table: pa.Table) -> pa.Table:
        """Return the rows that `rows` returns, from rows in the driver."""
        node = self._model.sinks[sink]
        passed = _passes(table)
        if node.from_ not in self._found.marked or pc.all(passed).as_py() is not False:
            return table
        if sink not in self._found.sinks:
            return table.filter(passed)
        return self._local_deletes(node, table, self._keys[sink], self._found.sinks[sink])

    def visible_rows(self, node: str, frame: DataFrame) -> DataFrame:
        """Return the visible rows of a node: a sink's input, elsewhere the rows that passed all filters."""
        if node in self._model.sinks:
            return self.rows(node, frame)
        return without_marked(frame) if node in self._found.marked else frame

    def visible_local_rows(self, node: str, table: pa.Table) -> pa.Table:
        """Return the rows that `visible_rows` returns, from rows in the driver."""
        if node in self._model.sinks:
            return self.local_rows(node, table)
        if node not in self._found.marked:
            return table
        return table.filter(_passes(table))

    def _deletes(
        self, node: SinkConfig, frame: DataFrame, key: tuple[str, ...], others: Collection[str]
    ) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812

        sub, source = F.col(f"{POS}.sub"), F.col(f"{POS}.source")
        keyed = F.lit(True)
        for name in key:
            keyed = keyed & F.col(quote_identifier(name)).isNotNull()
        # A delete without its key is an error like any other; an update that was left out and has none was
        # never in the target.
        deletes = keyed | ((F.col(OP) == "d") & (sub > EMPTIED))
        if not follows_updates(node):
            deletes = deletes & (F.col(OP) == "d")
        if others:
            places = [place for place, name in enumerate(self._model.sources) if name in others]
            deletes = deletes & ~F.floor(source / ORDINALS_PER_NODE).isin(places)
        kept = {name.lower() for name in (*key, *kept_columns(node))}
        columns = [
            F.col(quote_identifier(field.name))
            if field.name.lower() in kept
            else F.when(sub >= 0, F.col(quote_identifier(field.name))).alias(
                field.name, metadata=field.metadata or {}
            )
            for field in frame.schema.fields
            if field.name not in (OP, POS)
        ]
        operation = F.when(sub < 0, F.lit("d")).otherwise(F.col(OP)).alias(OP)
        return frame.where((sub >= 0) | deletes).select(*columns, operation, POS)

    def _local_deletes(
        self, node: SinkConfig, table: pa.Table, key: tuple[str, ...], others: Collection[str]
    ) -> pa.Table:
        """Return the rows of `_deletes`, from rows in the driver."""
        keyed = functools.reduce(pc.and_, [pc.is_valid(table[name]) for name in key])
        deleted = pc.equal(table[OP], "d")
        deletes = pc.or_(keyed, pc.and_(deleted, pc.greater(pc.struct_field(table[POS], "sub"), EMPTIED)))
        if not follows_updates(node):
            deletes = pc.and_(deletes, deleted)
        if others:
            sources = pc.divide(pc.struct_field(table[POS], "source"), ORDINALS_PER_NODE)
            places = [place for place, name in enumerate(self._model.sources) if name in others]
            excluded = pc.is_in(sources, pa.array(places, sources.type))
            deletes = pc.and_(deletes, pc.invert(excluded))
        passed = pc.greater_equal(pc.struct_field(table[POS], "sub"), 0)
        table = table.filter(pc.or_(passed, deletes))
        passed = pc.greater_equal(pc.struct_field(table[POS], "sub"), 0)
        kept = {name.lower() for name in (*key, *kept_columns(node))} | {POS}
        columns = {
            name: table[name]
            if name.lower() in kept
            else pc.if_else(passed, table[name], pa.scalar(None, table[name].type))
            for name in table.column_names
        }
        return pa.table(columns | {OP: pc.if_else(passed, table[OP], "d")})


def bypass_marked_rows(
    transform: RowTransform,
    name: str,
    upstream: str,
    frame: DataFrame,
    plan: EpochPlan | None,
    retractions: Retractions,
) -> DataFrame:
    """Return the output of a program, which gets only rows that passed all filters.

    Marked rows bypass it with their key columns. Raises SchemaError if the program changes the type of a key
    column.
    """
    from pyspark.sql import functions as F  # noqa: N812

    if upstream not in retractions.marked:
        return transform.rows(frame, plan)
    output = transform.rows(without_marked(frame), plan)
    if name not in retractions.needs:
        return output
    input_fields, needed = (
        {field.name.lower(): field for field in frame.schema.fields},
        retractions.needs[name],
    )
    columns = []
    for field in output.schema.fields:
        before = input_fields.get(field.name.lower())
        if field.name in (OP, POS):
            continue
        if field.name.lower() in needed and (before is None or before.dataType != field.dataType):
            was = before.dataType.simpleString() if before is not None else "missing"
            msg = (
                f"key column `{field.name}` is {was} in `{upstream}` and {field.dataType.simpleString()}"
                " here, so filters before it cannot delete"
            )
            raise SchemaError(msg, hint="Put the filter into a sql transform after this node.", node=name)
        value = (
            F.col(quote_identifier(before.name))
            if before is not None and field.name.lower() in needed
            else F.lit(None).cast(field.dataType)
        )
        columns.append(value.alias(field.name, metadata=field.metadata or {}))
    return output.unionByName(frame.where(F.col(f"{POS}.sub") < 0).select(*columns, OP, POS))
