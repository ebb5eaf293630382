"""The rows that a sink must have, computed in the driver for small samples.

Spark reads sources and runs SQL only where the driver cannot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute

from headrace.connectors.content import TargetContent
from headrace.connectors.keys import canonical
from headrace.connectors.lazy_session import ensure_session
from headrace.connectors.local_relation import frame_of_table
from headrace.connectors.spark_types import row_schema, spark_schema
from headrace.jobs.checks.content.compare import ContentDifference, normal
from headrace.jobs.checks.content.expected import rows_after_sql, rows_at_sink, rows_by_sql, union_of
from headrace.jobs.checks.content.inputs import STREAM, TIER, WINDOW, SourceRows, stream_filter
from headrace.jobs.checks.content.tables import (
    add_order,
    compare_tables,
    keys_of,
    last_rows,
    plain_types,
    rows_of_keys,
)
from headrace.jobs.planning.planner import PipelinePlanner
from headrace.jobs.planning.stream_filters import StreamFilter
from headrace.jobs.sources.pipeline_source import stream_node
from headrace.jobs.sources.source_batch import read_in_driver
from headrace.jobs.transforms.retractions import SinkBoundary
from headrace.pipeline.model import graph
from headrace.pipeline.protocol.epochs import EpochPlan
from headrace.pipeline.sql.system_columns import HIDDEN, OP, POS
from headrace.pipeline.types.arrow import is_nested

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pc: Any = pyarrow.compute
"""Its functions are made at import, so type checkers do not see them."""
DRIVER_ROWS = 100_000
"""A sample of more rows is compared by Spark's workers."""


@dataclass(frozen=True, slots=True)
class ExpectedSample:
    """`rows` have the sink's payload, `types` as Spark has them.

    `decided` are the keys whose state is known; None: all keys are.
    """

    rows: pa.Table
    types: Mapping[str, Any]
    keys: pa.Table | None = None
    """All keys that have an order, those of deleted rows included."""
    decided: pa.Table | None = None
    unclear: int = 0

    @property
    def columns(self) -> Sequence[str]:
        """The columns of the sink."""
        return self.rows.column_names


def sample_by_key(
    planner: PipelinePlanner,
    sink: str,
    source: str,
    source_rows: SourceRows,
    plan: EpochPlan,
    *,
    by_arrow: bool,
) -> ExpectedSample:
    """See `expected_by_key`. `by_arrow`: Arrow computes the SQL if it can."""
    node, key = planner.file.model.sinks[sink], graph.key_of(planner.file.model, sink)
    filtered = node.from_ in planner.retractions.marked
    read = source_rows.find_local_rows()
    if read is None:
        ensure_session(planner.spark)
        read = union_of(source_rows).toArrow()
    last, unclear = last_rows(read, key, getattr(node, "version_column", None), filtered=filtered)
    computed = _compute_rows(planner, sink, source, last) if by_arrow else None
    made, types = computed or _collect(
        rows_by_sql(planner, sink, source, _create_frame(planner, source, last), plan)
    )
    keys, streamed = (keys_of(last, key, streamed=streamed) for streamed in (False, True))
    return ExpectedSample(made, types, keys, None if source_rows.complete else streamed, unclear)


def _create_frame(planner: PipelinePlanner, source: str, rows: pa.Table) -> DataFrame:
    from pyspark.sql.types import IntegerType

    columns = row_schema(planner.source_schemas[source]).add(TIER, IntegerType()).add(WINDOW, IntegerType())
    return frame_of_table(ensure_session(planner.spark), rows, columns)


def _compute_rows(
    planner: PipelinePlanner, sink: str, source: str, last: pa.Table
) -> tuple[pa.Table, dict[str, Any]] | None:
    """Return what `rows_by_sql` and `_collected` return, without Spark. None if that needs Spark."""
    live = last.filter(pc.not_equal(last[OP], "d"))
    if stream_filter(planner.file.model.sources[source]):
        live = _filter_stream(planner, source, live)
        if live is None:
            return None
    rows = _compute_node(planner, sink, {source: live.drop_columns([TIER, WINDOW])})
    if rows is None:
        return None
    boundary = SinkBoundary(planner.file.model, planner.retractions, planner.keys)
    passed = boundary.visible_local_rows(planner.file.model.sinks[sink].from_, rows)
    return _payload_of(passed), _types_of(planner, sink)


def _filter_stream(planner: PipelinePlanner, source: str, rows: pa.Table) -> pa.Table | None:
    """Return the rows of history, and those of the stream that pass its filter. None if that needs Spark."""
    node = stream_node(planner.file.model.sources[source])
    is_streamed = pc.equal(rows[TIER], STREAM)
    arrow_filter = StreamFilter(node, planner.source_schemas[source])
    passed = arrow_filter.compute(rows.filter(is_streamed), marks=False)
    return None if passed is None else pa.concat_tables([rows.filter(pc.invert(is_streamed)), passed])


def _compute_node(planner: PipelinePlanner, sink: str, tables: Mapping[str, pa.Table]) -> pa.Table | None:
    """Return the rows of the sink's node over rows of sources, or None if that needs Spark."""
    schema = planner.schemas[sink]
    if any(is_nested(field.type) for field in schema):
        return None
    readings = {
        name: read_in_driver(rows, planner.source_schemas[name], planner.spark)
        for name, rows in tables.items()
    }
    return planner.compute_local_rows(readings).get(planner.file.model.sinks[sink].from_)


def _payload_of(rows: pa.Table) -> pa.Table:
    """Return the payload of rows that are no deletes."""
    return rows.filter(pc.not_equal(rows[OP], "d")).drop_columns(list(HIDDEN))


def _types_of(planner: PipelinePlanner, sink: str) -> dict[str, Any]:
    """Return the types of the sink's columns in Spark."""
    return {field.name: field.dataType for field in spark_schema(planner.schemas[sink]).fields}


def sample_at_sink(
    planner: PipelinePlanner, sink: str, inputs: list[SourceRows], plan: EpochPlan, *, by_arrow: bool
) -> ExpectedSample:
    """See `expected_at_sink` and `sample_by_key`."""
    model = planner.file.model
    key, version = graph.key_of(model, sink), getattr(model.sinks[sink], "version_column", None)
    arriving = _compute_at_sink(planner, sink, inputs) if by_arrow else None
    if arriving is None:
        ensure_session(planner.spark)
    if not key:
        if arriving is None:
            return ExpectedSample(*_collect(rows_at_sink(planner, sink, inputs, plan)))
        return ExpectedSample(_payload_of(arriving), _types_of(planner, sink))
    if arriving is not None:
        read, types = add_order(arriving, inputs), _types_of(planner, sink)
    else:
        read, types = _collect(rows_after_sql(planner, sink, inputs, plan))
    last, unclear = last_rows(read, key, version)
    live = last.filter(pc.not_equal(last[OP], "d")).drop_columns([*HIDDEN, TIER, WINDOW])
    keys, streamed = (keys_of(last, key, streamed=streamed) for streamed in (False, True))
    payload = {name: types[name] for name in live.column_names}
    return ExpectedSample(
        live, payload, keys, None if all(one.complete for one in inputs) else streamed, unclear
    )


def _compute_at_sink(planner: PipelinePlanner, sink: str, inputs: list[SourceRows]) -> pa.Table | None:
    """Return the rows that arrive at a sink, without Spark. None if that needs Spark."""
    tables = {}
    for one in inputs:
        if not one.pieces:
            continue
        rows = one.find_local_rows()
        if rows is None:
            return None
        tables[one.name] = rows.drop_columns([TIER, WINDOW])
    rows = _compute_node(planner, sink, tables)
    boundary = SinkBoundary(planner.file.model, planner.retractions, planner.keys)
    return None if rows is None else boundary.local_rows(sink, rows)


def compare_sample(
    sample: ExpectedSample, content: TargetContent, key: Sequence[str], *, whole: bool
) -> ContentDifference | None:
    """Return how the target differs from a sample; None where its rows cannot be looked up.

    `whole`: all rows of the target came from the epochs that are compared.
    """
    columns = [name for name in sample.columns if name in content.columns]
    decided = sample.decided
    if key and decided is None and (sample.unclear or not whole or not content.is_whole):
        decided = sample.keys
    result: Any = content.table if content.table is not None else content.rows
    if not content.is_whole and (decided is None or (result := content.lookup(decided)) is None):
        return None
    if not isinstance(result, pa.Table):
        result = normal(result, columns, sample.types).toArrow()
    wanted = sample.rows.select(columns)
    result = canonical(result.select(columns).cast(plain_types(wanted.schema)), key)
    return compare_tables(rows_of_keys(wanted, key, decided), rows_of_keys(result, key, decided), key)


def _collect(rows: DataFrame) -> tuple[pa.Table, dict[str, Any]]:
    """Return the rows, nested values as text, and their types."""
    types = {field.name: field.dataType for field in rows.schema.fields}
    payload = [name for name in rows.columns if name != POS]
    return normal(rows, payload, types, keep=[POS] if POS in rows.columns else []).toArrow(), types
