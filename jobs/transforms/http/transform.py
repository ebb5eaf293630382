"""A handler in the driver: its output columns, and the plan of its tasks."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
from pyarrow import types as kinds

from headrace.connectors.http.call_metrics import call_accumulator
from headrace.connectors.http.client import Service
from headrace.connectors.http.decode import ResponseDecoder
from headrace.connectors.http.encode import row_json
from headrace.connectors.http.endpoint import resolve_endpoint
from headrace.connectors.row_errors import row_error
from headrace.connectors.spark_types import arrow_schema, row_schema, spark_schema
from headrace.jobs.staging.pending_calls import PendingCall, waits_folder
from headrace.jobs.transforms.base import RowTransform, TransformContext
from headrace.jobs.transforms.http.task import HandlerTask
from headrace.pipeline.errors import SchemaError
from headrace.pipeline.model.handler import HandlerTransformConfig, override_types
from headrace.pipeline.model.http import redact_url
from headrace.pipeline.protocol import positions
from headrace.pipeline.protocol.epochs import EpochPlan, Phase
from headrace.pipeline.sql.system_columns import OP, POS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

_NOT_IN_TESTS = "a test asks no service"


class HandlerRows(RowTransform):
    """Sends the rows of one node, and returns the rows of the responses.

    No call is made before an epoch is computed.
    """

    def __init__(self, context: TransformContext) -> None:
        import httpx

        del httpx  # a missing package fails when the node is opened, not in the first task
        super().__init__(context)
        self._node: HandlerTransformConfig = context.node
        self._payload = arrow_schema(
            spark_schema(response_schema(context.name, context.node, context.schema))
        )
        names = self._payload.names
        shared = all(name in names and name in context.schema.names for name in context.key)
        self._key = tuple(names.index(name) for name in context.key) if shared else ()

    def rows(self, rows: DataFrame, plan: EpochPlan | None) -> DataFrame:
        """Return the rows of the responses. Raises UserError for a secret or a variable that is not set."""
        if plan is None:
            return rows.sparkSession.createDataFrame([], self._schema())
        if not self._context.pipeline():
            return self._rows_without_request(rows)
        task = self._task(plan)
        columns = [row_json(cast("StructType", _without_hidden(rows)), self._node.payload_version), OP, POS]
        sent = rows.select(*columns, *(f"`{self._payload.field(at).name}`" for at in self._key))
        # mapInArrow does not quote names, so columns travel by their place.
        numbered = sent.toDF(*(f"c{at}" for at in range(len(sent.columns))))
        result = self._spread(numbered, plan).mapInArrow(task, self._numbered_schema())
        return self._restore_names(result)

    def _spread(self, rows: DataFrame, plan: EpochPlan) -> DataFrame:
        """Return the rows in one partition per task, each in order.

        Partitions are blocks of offsets, so that every machine builds the same requests.
        """
        from pyspark.sql import functions as F  # noqa: N812

        size = 1 if self._node.one_row_per_request else self._node.batch_size
        order = ("c2", "c0")  # rows of a union may have the same position
        tasks = min(self._node.parallelism, max(1, -(-max_epoch_rows(plan) // size)))
        if tasks == 1:
            return rows.coalesce(1).sortWithinPartitions(*order)
        block = F.floor(F.col("c2.off") / F.lit(max(size, 100)))
        return rows.repartition(tasks, F.col("c2.source"), F.col("c2.part"), block).sortWithinPartitions(
            *order
        )

    def _task(self, plan: EpochPlan) -> HandlerTask:
        node, name = self._node, self._context.name
        prefix = f"{self._context.pipeline()}/{name}/{plan.number}"
        decoder = ResponseDecoder(self._payload, node.payload_version, node.one_row_per_request)
        return HandlerTask(
            self._service(),
            decoder,
            node.batch_size,
            prefix,
            self._key,
            call_accumulator(self._context.spark, name),
        )

    def _service(self) -> Service:
        node, name = self._node, self._context.name
        target = resolve_endpoint(name, node, self._context.settings)
        return Service(
            node=name,
            url=target.url,
            shown=redact_url(node.url),
            headers=target.headers,
            secrets=target.secrets,
            timeout=node.timeout.total_seconds(),
            retry_timeout=node.retry.timeout.total_seconds()
            if isinstance(node.retry.timeout, timedelta)
            else None,
            max_attempts=node.retry.max_attempts,
            concurrency=node.concurrency,
            circuit_failures=node.circuit_breaker.failures,
            circuit_reset_after=node.circuit_breaker.reset_after.total_seconds(),
            wait=PendingCall(waits_folder(self._context.settings, self._context.pipeline()), name),
        )

    def _rows_without_request(self, rows: DataFrame) -> DataFrame:
        """Return the columns.

        Reading a row raises an error that shows how a test gives the rows of the node.
        """
        hint = f"Give the rows that it would answer: `given: {{{self._context.name}: …}}`."
        refused = row_error(self._context.name, _NOT_IN_TESTS, hint)
        return rows.select(
            *(
                refused.cast(field.dataType).alias(field.name, metadata=field.metadata)
                for field in self._schema().fields
            )
        )

    # --- columns

    def _schema(self) -> StructType:
        return row_schema(self._payload)

    def _numbered_schema(self) -> StructType:
        from pyspark.sql.types import StructField, StructType

        return StructType(
            [StructField(f"c{at}", field.dataType) for at, field in enumerate(self._schema().fields)]
        )

    def _restore_names(self, rows: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812

        fields = self._schema().fields
        return rows.select(
            *(
                F.col(f"c{at}").alias(field.name, metadata=field.metadata or {})
                for at, field in enumerate(fields)
            )
        )


def response_schema(name: str, node: HandlerTransformConfig, inputs: pa.Schema) -> pa.Schema:
    """Return the columns of a response: sent ones that are not dropped, then new ones, with overridden types.

    Raises SchemaError for a type that cannot be read from JSON.
    """
    types: Mapping[str, Any] = override_types(node)
    fields = [
        field.with_type(types.get(field.name) or field.type)
        for field in inputs
        if types.get(field.name, field) is not None
    ]
    fields += [
        pa.field(column, kind)
        for column, kind in types.items()
        if column not in inputs.names and kind is not None
    ]
    for field in fields:
        if kinds.is_duration(field.type) or kinds.is_interval(field.type):
            msg = f"column `{field.name}` is a {field.type}, which JSON has no word for"
            hint = (
                f"Cast it to a number or a text before, or drop it: schema_override: {{{field.name}: null}}."
            )
            raise SchemaError(msg, hint=hint, node=name)
    if unknown := [column for column, kind in types.items() if kind is None and column not in inputs.names]:
        msg = f"`schema_override` drops `{unknown[0]}`, which is no column of `{node.from_}`"
        raise SchemaError(msg, hint=f"Columns: {', '.join(inputs.names)}.", node=name)
    return pa.schema(fields)


def max_epoch_rows(plan: EpochPlan) -> int:
    """Return an upper bound of the rows that an epoch reads.

    It depends on its plan alone, so it never changes.
    """
    if plan.phase is Phase.HISTORY:
        return sum(piece["split"].get("rows", 0) for piece in plan.splits)
    total = 0
    for name, end in plan.end.items():
        start = plan.start.get(name, {})
        before, after = start.get("stream", start.get("fence")), end.get("stream")
        if after is not None and before is not None:
            total += positions.offset_lag(before, after)
    return total


def _without_hidden(rows: DataFrame) -> StructType:
    from pyspark.sql.types import StructType

    return StructType([field for field in rows.schema.fields if field.name not in (OP, POS)])
