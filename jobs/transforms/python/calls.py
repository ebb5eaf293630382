"""Runs batches through a function of the user: the work of a Spark task, without Spark.

The function gets the payload and `_gs_op`. A column `_gs_row` in its result has the number of the input row
of each row; without it, rows correspond one to one. Positions follow from that, as for every transform
(`FAN_OUT`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute

from headrace.connectors.user_functions import describe_user_error, load_function
from headrace.pipeline.errors import DataError, SchemaError
from headrace.pipeline.sql.system_columns import FAN_OUT, OP, POS
from headrace.pipeline.types.int256 import is_wide, plain_columns, storage_schema

pc: Any = pyarrow.compute  # its functions are made at import, unseen by type checkers

ROW = "_gs_row"
_OPERATIONS = pa.array(["i", "u", "d"])


@dataclass(frozen=True, slots=True)
class PythonTransformTask:
    """The work of a python node. `schema` is the output payload in the types that rows have."""

    node: str
    function: str
    options: dict[str, Any]
    schema: pa.Schema
    batch: int | None

    def rows(self, batches: Iterable[pa.RecordBatch], hidden: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the output of the batches, with the system columns as in `hidden`. Raises UserError."""
        function = load_function(self.function, self.node)
        for whole in batches:
            for start in range(0, whole.num_rows, self.batch or whole.num_rows or 1):
                batch = whole.slice(start, self.batch or whole.num_rows)
                yield self._one(function, batch, hidden)

    def _one(self, function: Callable[..., Any], batch: pa.RecordBatch, hidden: pa.Schema) -> pa.RecordBatch:
        payload = batch.drop_columns([POS])
        try:
            result = function(payload, **self.options)
        except (Exception, SystemExit) as error:  # noqa: BLE001  errors of the user's function are reported; an exit would end the worker
            msg = (
                f"`{self.function}` failed on {self._rows(batch)}:"
                f" {describe_user_error(error, self.function.partition(':')[0])}"
            )
            raise DataError(
                msg, hint="Fix the function, or filter such rows out before it.", node=self.node
            ) from None
        if not isinstance(result, pa.RecordBatch | pa.Table):
            msg = f"`{self.function}` returned {type(result).__name__}"
            raise SchemaError(msg, hint="Return a pyarrow.RecordBatch or a pyarrow.Table.", node=self.node)
        table = pa.table(result) if isinstance(result, pa.RecordBatch) else result
        columns = [
            self._column(table, field, kind)
            for field, kind in zip(self.schema, storage_schema(self.schema), strict=True)
        ]
        rows = self._numbers(table, batch)
        return pa.RecordBatch.from_arrays(
            [*columns, self._operations(table, batch, rows), self._positions(batch, rows)], schema=hidden
        )

    def _rows(self, batch: pa.RecordBatch) -> str:
        first, last = batch.column(POS)[0].as_py(), batch.column(POS)[batch.num_rows - 1].as_py()
        return (
            f"{batch.num_rows} rows from partition {first['part']}, offset {first['off']} to partition"
            f" {last['part']}, offset {last['off']}"
        )

    def _column(self, table: pa.Table, field: pa.Field, kind: pa.Field) -> pa.Array:
        """One column of the result in its declared type; a cast that would lose something is refused."""
        if table.schema.get_field_index(field.name) < 0:
            twice = field.name in table.column_names
            msg = (
                f"`{self.function}` returned"
                f" {f'`{field.name}` twice' if twice else f'no column `{field.name}`'}"
            )
            hint = (
                f"It must return {', '.join(self.schema.names)}; it returned {', '.join(table.column_names)}."
            )
            raise SchemaError(msg, hint=hint, node=self.node)
        result = table.column(field.name).combine_chunks()
        result = result.combine_chunks() if isinstance(result, pa.ChunkedArray) else result
        result = result.storage if isinstance(result, pa.ExtensionArray) else result
        try:
            result = result if result.type == kind.type else pc.cast(result, kind.type)
            return plain_columns(result) if is_wide(field.type) else result
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            msg = (
                f"column `{field.name}` of what `{self.function}` returned is {result.type} and must be"
                f" {field.type}: {str(error).splitlines()[0]}"
            )
            raise DataError(
                msg, hint="Return the declared type, or correct `schema`.", node=self.node
            ) from None

    def _numbers(self, table: pa.Table, batch: pa.RecordBatch) -> pa.Array | None:
        """Return the index of the input row of each row. None if they are the same rows."""
        if ROW not in table.column_names:
            if table.num_rows == batch.num_rows:
                return None
            msg = (
                f"`{self.function}` made {table.num_rows} rows of {batch.num_rows} and does not say which"
                " became which"
            )
            hint = (
                f"Add a column `{ROW}` with the number of the input row, from 0; such as"
                " pyarrow.array(range(batch.num_rows)) filtered alike."
            )
            raise SchemaError(msg, hint=hint, node=self.node)
        result = table.column(ROW).combine_chunks()
        result = result.combine_chunks() if isinstance(result, pa.ChunkedArray) else result
        try:
            rows = pc.cast(result, pa.int64())
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            rows = None
        ends = pc.min_max(rows) if rows is not None and len(rows) else None
        good = (
            rows is not None
            and not rows.null_count
            and (ends is None or (ends["min"].as_py() >= 0 and ends["max"].as_py() < batch.num_rows))
        )
        if not good or rows is None:
            msg = (
                f"`{ROW}` of what `{self.function}` returned does not count the {batch.num_rows} input"
                " rows from 0"
            )
            raise SchemaError(
                msg,
                hint="It is a whole number from 0 to the number of rows less one, and never null.",
                node=self.node,
            )
        return rows

    def _operations(self, table: pa.Table, batch: pa.RecordBatch, rows: pa.Array | None) -> pa.Array:
        """Return the operations that the function returned, or else those of the input rows."""
        inherited = batch.column(OP) if rows is None else batch.column(OP).take(rows)
        if OP not in table.column_names:
            return inherited
        result = table.column(OP).combine_chunks()
        result = result.combine_chunks() if isinstance(result, pa.ChunkedArray) else result
        result = pc.coalesce(pc.cast(result, pa.string()), inherited)
        if len(result) and not pc.all(pc.is_in(result, value_set=_OPERATIONS)).as_py():
            msg = f"`{OP}` of what `{self.function}` returned must be i, u or d"
            raise DataError(msg, hint="Leave it out to keep the operation of the input row.", node=self.node)
        return result

    def _positions(self, batch: pa.RecordBatch, rows: pa.Array | None) -> pa.Array:
        pos = batch.column(POS)
        if rows is None:
            return pos
        taken = pos.take(rows)
        try:
            sub = pc.add_checked(pc.multiply_checked(taken.field("sub"), FAN_OUT), _ranks(rows))
        except pa.ArrowInvalid:
            msg = "more than three row-generating transforms in a chain; the limit is three"
            raise DataError(msg, hint="Do the work of two of them in one.", node=self.node) from None
        names = [field.name for field in pos.type]
        return pa.StructArray.from_arrays(
            [sub if name == "sub" else taken.field(name) for name in names], names=names
        )


def _ranks(rows: pa.Array) -> pa.Array:
    """Return how many rows of the same input row precede each: 0, 0, 1 for 4, 7, 4.

    Raises ArrowInvalid for FAN_OUT or more.
    """
    order = pc.sort_indices(
        pa.table({"row": rows, "at": pa.array(range(len(rows)), pa.int64())}),
        [("row", "ascending"), ("at", "ascending")],
    )
    by_row = rows.take(order)
    counts = pc.value_counts(by_row).field("counts")
    starts = pc.subtract(pc.cumulative_sum(counts), counts)
    parents = pc.list_parent_indices(
        pa.ListArray.from_arrays(
            pc.cast(pa.concat_arrays([starts, pa.array([len(rows)])]), pa.int32()), by_row
        )
    )
    inside = pc.subtract(pa.array(range(len(rows)), pa.int64()), starts.take(parents))
    if len(rows) and pc.max(inside).as_py() >= FAN_OUT:
        msg = "too many rows of one"
        raise pa.ArrowInvalid(msg)
    return inside.take(pc.sort_indices(order))
