"""The rows that a sink must have, computed in the driver for small samples.

Spark only reads the sources and runs the SQL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute

from headrace.connectors.content import TargetContent
from headrace.connectors.keys import canonical
from headrace.connectors.local_relation import frame_of_table
from headrace.jobs.checks.content.compare import ContentDifference, normal
from headrace.jobs.checks.content.expected import rows_after_sql, rows_at_sink, rows_by_sql, union_of
from headrace.jobs.checks.content.inputs import TIER, WINDOW, SourceRows
from headrace.jobs.checks.content.tables import compare_tables, keys_of, last_rows, plain_types, rows_of_keys
from headrace.jobs.planning.planner import PipelinePlanner
from headrace.pipeline.model import graph
from headrace.pipeline.protocol.epochs import EpochPlan
from headrace.pipeline.sql.system_columns import HIDDEN, OP, POS

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
    planner: PipelinePlanner, sink: str, source: str, found: SourceRows, plan: EpochPlan
) -> ExpectedSample:
    """See `expected_by_key`."""
    node, key = planner.file.model.sinks[sink], graph.key_of(planner.file.model, sink)
    read = union_of(found)
    filtered = node.from_ in planner.retractions.marked
    last, unclear = last_rows(read.toArrow(), key, getattr(node, "version_column", None), filtered=filtered)
    rows = rows_by_sql(planner, sink, source, frame_of_table(planner.spark, last, read.schema), plan)
    made, types = _collected(rows)
    keys, streamed = (keys_of(last, key, streamed=streamed) for streamed in (False, True))
    return ExpectedSample(made, types, keys, None if found.complete else streamed, unclear)


def sample_at_sink(
    planner: PipelinePlanner, sink: str, inputs: list[SourceRows], plan: EpochPlan
) -> ExpectedSample:
    """See `expected_at_sink`."""
    model = planner.file.model
    key, version = graph.key_of(model, sink), getattr(model.sinks[sink], "version_column", None)
    if not key:
        return ExpectedSample(*_collected(rows_at_sink(planner, sink, inputs, plan)))
    read, types = _collected(rows_after_sql(planner, sink, inputs, plan))
    last, unclear = last_rows(read, key, version)
    live = last.filter(pc.not_equal(last[OP], "d")).drop_columns([*HIDDEN, TIER, WINDOW])
    keys, streamed = (keys_of(last, key, streamed=streamed) for streamed in (False, True))
    payload = {name: types[name] for name in live.column_names}
    return ExpectedSample(
        live, payload, keys, None if all(one.complete for one in inputs) else streamed, unclear
    )


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
    found: Any = content.table if content.table is not None else content.rows
    if not content.is_whole and (decided is None or (found := content.lookup(decided)) is None):
        return None
    if not isinstance(found, pa.Table):
        found = normal(found, columns, sample.types).toArrow()
    wanted = sample.rows.select(columns)
    found = canonical(found.select(columns).cast(plain_types(wanted.schema)), key)
    return compare_tables(rows_of_keys(wanted, key, decided), rows_of_keys(found, key, decided), key)


def _collected(rows: DataFrame) -> tuple[pa.Table, dict[str, Any]]:
    """Return the rows, nested values as text, and their types."""
    types = {field.name: field.dataType for field in rows.schema.fields}
    payload = [name for name in rows.columns if name != POS]
    return normal(rows, payload, types, keep=[POS] if POS in rows.columns else []).toArrow(), types
