"""The rows that a sink must have. A window function over the rows of a source computes them.

The order of epochs is not used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import reduce
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from headrace.jobs.checks.content.inputs import (
    HISTORY,
    RENEWED,
    STREAM,
    TIER,
    WINDOW,
    SourceRows,
    stream_filter,
)
from headrace.jobs.planning.planner import PipelinePlanner
from headrace.jobs.sources.source_batch import SourceBatch
from headrace.jobs.transforms.retractions import SinkBoundary, without_marked
from headrace.pipeline.lineage.columns import lineage
from headrace.pipeline.model import graph
from headrace.pipeline.protocol.epochs import EpochPlan
from headrace.pipeline.sql.system_columns import HIDDEN, OP, ORDINALS_PER_NODE, POS
from headrace.pipeline.types.arrow import spark_type

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_LAST = "_hr_last"


@dataclass(frozen=True, slots=True)
class ExpectedRows:
    """`rows` have the sink's payload.

    `decided` are the keys whose state is known, those without a row included; None: all keys are.
    """

    rows: DataFrame
    decided: DataFrame | None
    keys: DataFrame | None = None
    """All keys that have an order, those of deleted rows included."""
    cached: DataFrame | None = None
    """The frames to unpersist after the comparison."""
    unclear: int = 0
    """Keys left out because their rows lie in different partitions of a topic."""

    @property
    def columns(self) -> Sequence[str]:
        """The columns of the sink."""
        return self.rows.columns


def passes_key(planner: PipelinePlanner, sink: str) -> str | None:
    """Return the one source whose key reaches the sink unchanged, one row for one row. None if there is none.

    For such a sink the last row of a key can be chosen before any SQL runs.
    """
    model = planner.file.model
    sources, key = graph.upstream_sources(model, sink), graph.key_of(model, sink)
    if len(sources) != 1 or not key or graph.key_of(model, sources[0]) != key:
        return None
    name: str = model.sinks[sink].from_
    while name not in model.sources:
        node: Any = model.transforms[name]
        inputs = graph.inputs_of(model, name)
        if node.type != "sql" or len(inputs) != 1 or _fans_out(node, name) or _reads_operation(node, name):
            return None
        name = inputs[0]
    schemas = {
        node: {field.name: spark_type(field.type) for field in planner.source_schemas[node]}
        for node in planner.source_schemas
    }
    sink_lineage = lineage(model, schemas)[sink]
    copied = {
        column: [(one.node, one.column) for one in sink_lineage.columns[column].origins]
        for column in key
        if column in sink_lineage.columns
    }
    same = all(
        copied.get(column) == [(sources[0], column)] and not sink_lineage.columns[column].steps
        for column in key
    )
    return sources[0] if same else None


def expected_by_key(
    planner: PipelinePlanner, sink: str, source: str, source_rows: SourceRows, plan: EpochPlan
) -> ExpectedRows:
    """Return the last row of each key of the source, and the result of the pipeline's SQL for these rows."""
    from pyspark.sql import functions as F  # noqa: N812

    key = graph.key_of(planner.file.model, sink)
    node = planner.file.model.sinks[sink]
    filtered = node.from_ in planner.retractions.marked
    last, unclear = _last(
        union_of(source_rows), key, getattr(node, "version_column", None), filtered=filtered
    )
    last = last.persist()
    keys = last.select(*[f"`{name}`" for name in key])
    decided = (
        None
        if source_rows.complete
        else last.where(F.col(TIER) >= STREAM).select(*[f"`{name}`" for name in key])
    )
    return ExpectedRows(rows_by_sql(planner, sink, source, last, plan), decided, keys, last, unclear)


def expected_at_sink(
    planner: PipelinePlanner, sink: str, inputs: list[SourceRows], plan: EpochPlan
) -> ExpectedRows:
    """Return the last row of each key after the SQL, or all rows for a sink without a key."""
    from pyspark.sql import functions as F  # noqa: N812

    model = planner.file.model
    key, node = graph.key_of(model, sink), model.sinks[sink]
    if not key:
        return ExpectedRows(rows_at_sink(planner, sink, inputs, plan), None)
    last, unclear = _last(
        rows_after_sql(planner, sink, inputs, plan), key, getattr(node, "version_column", None)
    )
    last = last.persist()
    complete = all(one.complete for one in inputs)
    decided = None if complete else last.where(F.col(TIER) >= STREAM).select(*[f"`{name}`" for name in key])
    keys = last.select(*[f"`{name}`" for name in key])
    return ExpectedRows(
        last.where(F.col(OP) != "d").drop(*HIDDEN, TIER, WINDOW), decided, keys, last, unclear
    )


def rows_by_sql(
    planner: PipelinePlanner, sink: str, source: str, last: DataFrame, plan: EpochPlan
) -> DataFrame:
    """Return what the pipeline's SQL makes of the last rows of a source."""
    from pyspark.sql import functions as F  # noqa: N812

    model = planner.file.model
    names = [f"`{name}`" for name in planner.source_schemas[source].names]
    live = last.where(F.col(OP) != "d")
    if predicate := stream_filter(model.sources[source]):
        live = live.where((F.col(TIER) != STREAM) | F.expr(f"({predicate}\n)"))
    frames = planner.nodes({source: SourceBatch(live.select(*names, OP, POS), None)}, plan)
    return without_marked(frames[model.sinks[sink].from_]).where(F.col(OP) != "d").drop(*HIDDEN)


def rows_after_sql(
    planner: PipelinePlanner, sink: str, inputs: list[SourceRows], plan: EpochPlan
) -> DataFrame:
    """Return all rows that come to a sink with a key, with what orders them."""
    from pyspark.sql import functions as F  # noqa: N812

    history = RENEWED if any(one.renewed for one in inputs) else HISTORY
    tier = F.when(F.col(f"{POS}.source") % ORDINALS_PER_NODE == ORDINALS_PER_NODE - 1, STREAM).otherwise(
        history
    )
    return _at_boundary(planner, sink, inputs, plan).withColumn(TIER, tier).withColumn(WINDOW, F.lit(0))


def rows_at_sink(planner: PipelinePlanner, sink: str, inputs: list[SourceRows], plan: EpochPlan) -> DataFrame:
    """Return the rows that a sink without a key must hold."""
    from pyspark.sql import functions as F  # noqa: N812

    return _at_boundary(planner, sink, inputs, plan).where(F.col(OP) != "d").drop(*HIDDEN)


def _at_boundary(planner: PipelinePlanner, sink: str, inputs: list[SourceRows], plan: EpochPlan) -> DataFrame:
    model = planner.file.model
    readings = {one.name: SourceBatch(union_of(one).drop(TIER, WINDOW), None) for one in inputs if one.pieces}
    return SinkBoundary(model, planner.retractions, planner.keys).rows(
        sink, planner.nodes(readings, plan)[model.sinks[sink].from_]
    )


def reads_the_clock(planner: PipelinePlanner, sink: str, plan: EpochPlan) -> bool:
    """Whether a value depends on when an epoch was planned: then the statement differs between two times."""
    before = _texts(planner, sink, plan)
    return before != _texts(
        planner, sink, replace(plan, planned_at=plan.planned_at + timedelta(days=400, seconds=1))
    )


def _texts(planner: PipelinePlanner, sink: str, plan: EpochPlan) -> dict[str, str]:
    planner.nodes({}, plan)
    upstream = _upstream_nodes(planner, sink)
    return {name: text for name, text in planner.texts.items() if name in upstream}


def _upstream_nodes(planner: PipelinePlanner, name: str) -> set[str]:
    model = planner.file.model
    return {name}.union(*(_upstream_nodes(planner, upstream) for upstream in graph.inputs_of(model, name)))


def union_of(source_rows: SourceRows) -> DataFrame:
    """Return the rows of an input in one frame."""
    return reduce(
        lambda one, other: one.unionByName(other), [one.create_frame() for one in source_rows.pieces]
    )


def _last(
    rows: DataFrame, key: tuple[str, ...], version: str | None, *, filtered: bool = False
) -> tuple[DataFrame, int]:
    """One row for each key: of the highest version where there is one, of the latest place otherwise.

    Keys without an order are left out. A sink does not keep the version of a delete: a later row with a lower
    version is written, unless both are in one epoch. So a key whose winner is a delete has no order if such a
    row follows. `filtered` means that any winner can be a delete by a filter.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    columns = [F.col(f"`{name}`") for name in key]
    place: list[Column] = [
        F.col(TIER),
        F.col(f"{POS}.source"),
        F.col(WINDOW),
        F.col(f"{POS}.part"),
        F.col(f"{POS}.off"),
        F.col(f"{POS}.sub"),
    ]
    by_key = Window.partitionBy(*columns)
    versions = []
    if version:  # a delete without a version ends the rows before it
        ended = F.max(F.when((F.col(OP) == "d") & F.col(f"`{version}`").isNull(), F.struct(*place))).over(
            by_key
        )
        rows = rows.withColumn("_hr_ended", ended).where(
            F.col("_hr_ended").isNull() | (F.struct(*place) >= F.col("_hr_ended"))
        )
        rows, versions = rows.drop("_hr_ended"), [F.col(f"`{version}`").desc_nulls_last()]
    parts = F.size(
        F.collect_set(F.when(F.col(TIER) == STREAM, F.struct(f"{POS}.source", f"{POS}.part"))).over(by_key)
    )
    ranked = rows.withColumn(
        _LAST, F.row_number().over(by_key.orderBy(*versions, *(one.desc() for one in place)))
    )
    newest = F.max(F.when(F.col(OP) != "d", F.struct(*place))).over(by_key)
    follows = F.coalesce(newest > F.struct(*place), F.lit(False)) | (parts > 1)
    deletes = F.lit(True) if filtered else F.col(OP) == "d"
    unordered = deletes & follows if version else parts > 1
    ranked = ranked.withColumn("_hr_unordered", unordered).where(F.col(_LAST) == 1)
    unclear = ranked.where(F.col("_hr_unordered")).count()
    return ranked.where(~F.col("_hr_unordered")).drop(_LAST, "_hr_unordered"), unclear


def _reads_operation(node: Any, name: str) -> bool:
    """Return whether a statement decides by the operation, so that the last row of a key may not count."""
    return any(column.name.lower() == OP for column in node.query(name).find_all(exp.Column))


def _fans_out(node: Any, name: str) -> bool:
    from headrace.pipeline.sql import statements

    return statements.multiplies(node.sql, node=name, dialect=node.dialect) or any(
        times > 1 for times in statements.table_uses(node.sql, node=name, dialect=node.dialect).values()
    )
