"""The base of transforms that plugins write: Arrow batches in, Arrow batches out, in Spark's workers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute

from headrace.connectors.plugins.contract_checks import create_checked
from headrace.connectors.plugins.pickling import PickledPlugin, contract_error
from headrace.connectors.registry import plugin_context
from headrace.connectors.spark_types import arrow_schema, row_schema, spark_schema
from headrace.jobs.transforms.base import RowTransform, TransformContext
from headrace.pipeline.errors import DataError
from headrace.pipeline.plugins.runtime import PluginContext
from headrace.pipeline.sql.system_columns import FAN_OUT, HIDDEN, OP, POS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.pipeline.protocol.epochs import EpochPlan

pc: Any = pyarrow.compute  # its functions are made at import, unseen by type checkers


class ArrowTransform(RowTransform):
    """A transform of batches. It is sent to workers, so it must be picklable; open connections in `process`.

    Input and output batches have the payload, `_gs_op` and `_gs_pos`. Rows can be left out. Changed rows keep
    the two system columns. `fan_out` makes several rows from one. Spark chooses the size of batches: the
    result must not depend on which rows are in one batch.
    """

    def __init__(self, context: TransformContext) -> None:
        """Store the context. Opens nothing."""
        super().__init__(context)
        self.context: PluginContext = plugin_context(context.name, context.node, context.settings)
        self.options: Any = self.context.options

    def columns(self, payload: pa.Schema) -> pa.Schema:
        """Return the output payload for an input payload.

        By default they are the same. Raises UserError if there is none.
        """
        return payload

    @abstractmethod
    def process(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the output rows of these rows, in order."""

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_context"}

    def rows(self, rows: DataFrame, plan: EpochPlan | None) -> DataFrame:
        """See `RowTransform.rows`."""
        del plan
        result = self.context.found
        payload = self.columns(self._context.schema)
        if not isinstance(payload, pa.Schema):
            what = f"`columns` returned {type(payload).__name__}, and not pyarrow.Schema"
            raise contract_error(result, what, self.context.name)
        if hidden := [name for name in HIDDEN if name in payload.names]:
            raise contract_error(
                result,
                f"`columns` names the hidden column {hidden[0]}",
                self.context.name,
                "Say the payload alone.",
            )
        try:
            wanted = spark_schema(payload)
        except Exception as error:
            raise contract_error(
                result, f"`columns` has a type that Spark does not have: {error}", self.context.name
            ) from error
        whole = row_schema(payload)
        return rows.mapInArrow(
            _work(PickledPlugin(self, result, self.context.name), payload, arrow_schema(wanted)), whole
        )


def _work(
    shipped: PickledPlugin, payload: pa.Schema, wire: pa.Schema
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        worker: ArrowTransform = shipped.open()
        for batch in batches:
            for output in shipped.checked_batches("`process`", lambda batch=batch: [worker.process(batch)]):
                _check_hidden(shipped, batch, output)
                rows = shipped.fit_batch("`process`", output.drop_columns(list(HIDDEN)), payload).cast(wire)
                hidden = [output.column(name).cast(batch.schema.field(name).type) for name in HIDDEN]
                fields = [*wire, *(batch.schema.field(name) for name in HIDDEN)]
                yield pa.RecordBatch.from_arrays([*rows.columns, *hidden], schema=pa.schema(fields))

    return run


def _check_hidden(shipped: PickledPlugin, before: pa.RecordBatch, after: pa.RecordBatch) -> None:
    for name in HIDDEN:
        if name not in after.schema.names:
            shipped.refuse(
                f"`process` lost the hidden column `{name}`", "Pass `_gs_op` and `_gs_pos` on with each row."
            )
        if after.column(name).null_count:
            shipped.refuse(
                f"`process` gave rows with a null in `{name}`",
                "Rows that are new are made by headrace.fan_out.",
            )
    if set(after.column(OP).unique().to_pylist()) - {"i", "u", "d"}:
        shipped.refuse("`process` gave an operation other than i, u and d in `_gs_op`")
    same = after.column(POS).equals(before.column(POS))
    if not same and (twice := (after.num_rows - _places(after)) - (before.num_rows - _places(before))) > 0:
        shipped.refuse(
            f"`process` gave {twice} rows the `_gs_pos` of another",
            "Make several rows of one by headrace.fan_out.",
        )


def _places(batch: pa.RecordBatch) -> int:
    place = batch.column(POS)
    names = [field.name for field in place.type]
    return pa.table([place.field(name) for name in names], names=names).group_by(names).aggregate([]).num_rows


def fan_out(batch: pa.RecordBatch, rows: Sequence[int] | pa.Array) -> pa.RecordBatch:
    """Return a batch of the rows with these numbers. Repeated rows get distinct positions.

    Equal numbers must be adjacent: `fan_out(batch, [0, 0, 2])` has row 0 twice and row 2 once. Raises
    DataError if no position is left: for FAN_OUT rows from one row or more, or for more than three such
    transforms in a chain.
    """
    import numpy as np

    numbers = np.asarray(rows, dtype=np.int64)
    fresh = np.ones(len(numbers), dtype=bool)
    fresh[1:] = numbers[1:] != numbers[:-1]
    starts = np.flatnonzero(fresh)
    nth = np.arange(len(numbers)) - np.repeat(starts, np.diff(np.append(starts, len(numbers))))
    repeated = batch.take(pa.array(numbers))
    place = repeated.column(POS)
    parts = {field.name: place.field(field.name) for field in place.type}
    try:
        parts["sub"] = pc.add_checked(pc.multiply_checked(parts["sub"], FAN_OUT), nth)
    except pa.ArrowInvalid:
        msg = "more than three row-generating transforms in a chain; the limit is three"
        raise DataError(msg, hint="Do the work of two of them in one.") from None
    if len(nth) and int(nth.max()) >= FAN_OUT:
        msg = f"one row makes {int(nth.max()) + 1:,} rows or more; {FAN_OUT - 1:,} are possible"
        raise DataError(msg)
    renumbered = pa.StructArray.from_arrays(list(parts.values()), fields=list(place.type))
    return repeated.set_column(repeated.schema.get_field_index(POS), repeated.schema.field(POS), renumbered)


def open_plugin(context: TransformContext) -> RowTransform:
    """Return the transform of a plugin's node, with checks of its contract."""
    node = context.node
    return create_checked(
        lambda: node.plugin.make(context), RowTransform, node.installed, context.name, {"rows": _frame}
    )


def _frame(value: Any) -> str:
    columns = getattr(value, "columns", None)
    if columns is None:
        return f"{type(value).__name__}, and not a DataFrame"
    lost = [name for name in HIDDEN if name not in columns]
    return f"rows without the hidden column {' and '.join(lost)}" if lost else ""
