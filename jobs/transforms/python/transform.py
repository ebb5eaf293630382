"""The `python` transform over Spark's rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.connectors.row_errors import task_error
from headrace.connectors.spark_types import spark_schema
from headrace.connectors.user_functions import check_allowed, check_options, load_function
from headrace.jobs.transforms.base import RowTransform, TransformContext
from headrace.jobs.transforms.output_schema import final_schema, hidden_fields, with_hidden
from headrace.jobs.transforms.python.calls import PythonTransformTask
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import HeadraceError
from headrace.pipeline.model.transforms import PythonTransformConfig
from headrace.pipeline.protocol.epochs import EpochPlan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class PythonRows(RowTransform):
    """A python transform.

    It loads the function once when it is created, so that a wrong name fails before any row.
    """

    def __init__(self, context: TransformContext) -> None:
        super().__init__(context)
        node: PythonTransformConfig = context.node
        check_function(node, context.settings, context.name)
        payload = final_schema(context.name, node.schema_, context.schema)
        self._call = PythonTransformTask(context.name, node.function, node.options, payload, node.batch_size)
        self._hidden = with_hidden(payload)
        self._spark_schema = hidden_fields(spark_schema(payload))

    def rows(self, rows: DataFrame, plan: EpochPlan | None) -> DataFrame:
        """See `RowTransform`."""
        del plan
        return rows.mapInArrow(_task(self._call, self._hidden), self._spark_schema)


def check_function(node: PythonTransformConfig, settings: Settings, name: str) -> None:
    """Raise UserError for a function that is not allowed, is missing, or rejects the node's options."""
    check_allowed(node.function, settings.python_transforms.allow, name)
    check_options(load_function(node.function, name), node.function, node.options, name, "a batch and ", None)


def _task(
    call: PythonTransformTask, schema: pa.Schema
) -> Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]:
    """Return the function that each Spark task runs."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from call.rows(batches, schema)
        except HeadraceError as error:
            raise task_error(error) from None

    return run
