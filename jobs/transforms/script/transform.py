"""The `script` transform over Spark's rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.connectors.rowerrors import task_error
from headrace.connectors.spark_types import spark_schema
from headrace.jobs.transforms.base import RowTransform, TransformContext
from headrace.jobs.transforms.script.codec import shape
from headrace.jobs.transforms.script.host import Script
from headrace.jobs.transforms.script.vm import Limits, Program
from headrace.jobs.transforms.shape import final_schema, hidden_fields, with_hidden
from headrace.pipeline.errors import HeadraceError, SchemaError
from headrace.pipeline.records import EpochPlan
from headrace.pipeline.transforms import ScriptTransform
from headrace.pipeline.types import parse_type
from headrace.pipeline.typescript import javascript

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROWS = 100_000
"""That a script may make of one."""


class ScriptRows(RowTransform):
    """Loads the script once when it is made, so that what is wrong with it is told before any row."""

    def __init__(self, context: TransformContext) -> None:
        super().__init__(context)
        node: ScriptTransform = context.node
        self._payload = final_schema(context.name, node.schema_, context.schema)
        self._script = script_of(context.name, node, context.schema, self._payload, context)
        self._script.check()
        self._spark_schema = hidden_fields(spark_schema(self._payload))

    def rows(self, rows: DataFrame, plan: EpochPlan | None) -> DataFrame:
        """See `RowTransform`. `Date` stands at the epoch's planned time."""
        script = self._script.at(plan.planned_at) if plan is not None else self._script
        return rows.mapInArrow(_task(script, with_hidden(self._payload)), self._spark_schema)


def script_of(name: str, node: ScriptTransform, inputs: pa.Schema, payload: pa.Schema, context: TransformContext | None = None) -> Script:
    """The node as a task runs it. `payload` are the columns that come out. Raises UserError for TypeScript that cannot be stripped."""
    text_at = context.text_at if context else None
    source = javascript(node.script, node=name, at=text_at) if node.language == "typescript" else node.script
    outputs = {field.name: (parse_type(node.schema_[field.name]) if node.schema_ else field.type, field.type) for field in payload}
    try:
        made = shape(inputs, {column: kind for column, (kind, _) in outputs.items()}, node.schema_ or {})
    except SchemaError as error:
        error.node = name
        raise
    program = Program(source, made, node.deterministic, None)
    limits = Limits(node.timeout.total_seconds(), node.memory_limit, ROWS)
    return Script(name, program, limits, tuple(inputs.names), outputs, node.batch_size, context.key if context else (), text_at)


def _task(script: Script, schema: pa.Schema) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What each of Spark's tasks runs."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from script.rows(batches, schema)
        except HeadraceError as error:
            raise task_error(error) from None

    return run
