"""The `script` transform over Spark's rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.connectors.row_errors import task_error
from headrace.connectors.spark_types import spark_schema
from headrace.jobs.transforms.base import RowTransform, TransformContext
from headrace.jobs.transforms.output_schema import final_schema, hidden_fields, with_hidden
from headrace.jobs.transforms.script.decode import shape
from headrace.jobs.transforms.script.encode import encode_columns
from headrace.jobs.transforms.script.executor import Script
from headrace.jobs.transforms.script.process import Program, ScriptLimits
from headrace.pipeline.errors import FileLocation, HeadraceError, SchemaError
from headrace.pipeline.file.typescript import javascript
from headrace.pipeline.model.transforms import ScriptTransformConfig
from headrace.pipeline.protocol.epochs import EpochPlan
from headrace.pipeline.types.arrow import parse_type
from headrace.pipeline.types.int256 import storage_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROWS = 100_000
"""The maximum number of output rows per row."""


class ScriptRows(RowTransform):
    """A script transform.

    It loads the script once when it is created, so that errors appear before any row.
    """

    def __init__(self, context: TransformContext) -> None:
        super().__init__(context)
        node: ScriptTransformConfig = context.node
        self._payload = final_schema(context.name, node.schema_, context.schema)
        self._script = script_of(
            context.name, node, context.schema, self._payload, key=context.key, text_at=context.text_at
        )
        self._script.check()
        self._spark_schema = hidden_fields(spark_schema(self._payload))

    def rows(self, rows: DataFrame, plan: EpochPlan | None) -> DataFrame:
        """See `RowTransform`. `Date` is fixed at the time of the plan."""
        script = self._script.at(plan.planned_at) if plan is not None else self._script
        return rows.mapInArrow(_task(script, with_hidden(self._payload)), self._spark_schema)


def script_of(
    name: str,
    node: ScriptTransformConfig,
    inputs: pa.Schema,
    payload: pa.Schema,
    *,
    key: tuple[str, ...] = (),
    text_at: FileLocation | None = None,
) -> Script:
    """Return the script that a task runs. `payload` are the output columns.

    Raises UserError for TypeScript whose types cannot be removed.
    """
    _check_inputs(name, inputs)
    source = javascript(node.script, node=name, at=text_at) if node.language == "typescript" else node.script
    outputs = {
        field.name: (parse_type(node.schema_[field.name]) if node.schema_ else field.type, field.type)
        for field in payload
    }
    try:
        column_specs = shape(
            inputs, {column: kind for column, (kind, _) in outputs.items()}, node.schema_ or {}
        )
    except SchemaError as error:
        error.node = name
        raise
    program = Program(source, column_specs, node.deterministic, None)
    limits = ScriptLimits(node.timeout.total_seconds(), node.memory_limit, ROWS)
    return Script(name, program, limits, tuple(inputs.names), outputs, node.batch_size, key, text_at)


def _check_inputs(name: str, inputs: pa.Schema) -> None:
    for field in storage_schema(inputs):
        try:
            encode_columns([pa.array([], field.type)])
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            msg = f"column `{field.name}` has the type {field.type}, which a script cannot be given"
            raise SchemaError(
                msg, hint="Cast it in a sql transform before, such as CAST(x AS string).", node=name
            ) from None


def _task(
    script: Script, schema: pa.Schema
) -> Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]:
    """Return the function that each Spark task runs."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from script.rows(batches, schema)
        except HeadraceError as error:
            raise task_error(error) from None

    return run
