"""Computes portable SQL over Arrow batches, in the tasks of a bulk copy and for small epochs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute

from headrace.connectors.arrow_batches import cast_batch
from headrace.connectors.source_base import SplitReader
from headrace.jobs.planning.arrow_functions import GUARDED, UnprovenValuesError
from headrace.jobs.planning.portable_sql import PortableSelect
from headrace.jobs.planning.portable_values import Expression, arrow_of
from headrace.pipeline.errors import DataError
from headrace.pipeline.protocol.epochs import Json
from headrace.pipeline.sql.filter_marking import FAILED
from headrace.pipeline.sql.system_columns import OP, POS

pc: Any = pyarrow.compute
"""Its functions are made at import, so type checkers do not see them."""
_JOB_ROWS, _JOB_BYTES = 131_072, 32 << 20
"""About the rows and bytes of a Spark job for batches that Arrow leaves to Spark. A job costs 0.1 s more."""


@dataclass(frozen=True, slots=True)
class ArrowSelect:
    """A transform of a pipeline file over the columns of `schema`. Picklable."""

    node: str
    select: PortableSelect
    schema: pa.Schema
    guarded: bool = False
    """Whether Spark decides about values that Arrow does not compute."""

    def compute(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of a batch.

        Raise UnprovenValuesError if only Spark can compute them, or DataError for an integer that overflows.
        """
        batch = cast_batch(batch, self.schema, self.node)
        try:
            batch = _filter(self.select.condition, batch)
            return pa.RecordBatch.from_arrays(self._compute_columns(batch), names=self._names)
        except pa.ArrowInvalid as error:
            if self.guarded:
                raise UnprovenValuesError(self.node) from error
            msg = f"a result of its SQL is too large for its integer type: {error}"
            raise DataError(msg, node=self.node, hint="Cast an operand: CAST(column AS BIGINT).") from error

    def compute_epoch(self, rows: pa.Table, *, marks: bool) -> pa.Table:
        """Return rows of an epoch, which have the types of `schema`, with the system columns.

        With `marks`, mark rows that the filter drops, see `headrace.pipeline.sql.filter_marking`. Raise
        UnprovenValuesError if only Spark can compute the rows.
        """
        result = []
        try:
            for kept in filter_rows(rows, self.select, marks=marks):
                columns = [*self._compute_columns(kept), kept.column(OP), kept.column(POS)]
                result.append(pa.RecordBatch.from_arrays(columns, names=[*self._names, OP, POS]))
        except pa.ArrowInvalid as error:
            raise UnprovenValuesError(self.node) from error
        return pa.Table.from_batches(result)

    def read_schema(self) -> pa.Schema:
        """Return the columns of the result."""
        return self.compute(pa.RecordBatch.from_pylist([], self.schema)).schema

    @property
    def _names(self) -> list[str]:
        return [name for name, _ in self.select.outputs]

    def _compute_columns(self, batch: pa.RecordBatch) -> list[pa.Array]:
        return [_array(value, batch) for _, value in self.select.outputs]


@dataclass
class TransformedSplits(SplitReader):
    """Reads splits and computes transforms over them, in order.

    `compute_by_spark` does that for batches with values that Arrow leaves to Spark, for several in a row
    together. It cannot be pickled.
    """

    reader: SplitReader
    transforms: tuple[ArrowSelect, ...]
    compute_by_spark: Callable[[Sequence[pa.RecordBatch]], Sequence[pa.RecordBatch]] | None = None
    splits: Sequence[Json] = field(init=False)

    def __post_init__(self) -> None:
        """Take the splits of the reader."""
        self.splits = self.reader.splits

    def fetch(self, split: Json) -> Iterator[pa.RecordBatch]:
        """Return the rows of a split after the last transform.

        Raise UnprovenValuesError if only Spark can compute them and there is no `compute_by_spark`.
        """
        compute_by_spark = self.compute_by_spark
        if compute_by_spark is None:
            yield from map(self._compute, self.reader.fetch(split))
            return
        waiting: list[pa.RecordBatch] = []
        for batch in self.reader.fetch(split):
            try:
                computed = self._compute(batch)
            except UnprovenValuesError:
                computed = None
                waiting.append(batch)
            if waiting and (computed is not None or _is_large(waiting)):
                yield from compute_by_spark(waiting)
                waiting = []
            if computed is not None:
                yield computed
        if waiting:
            yield from compute_by_spark(waiting)

    def _compute(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return functools.reduce(lambda rows, one: one.compute(rows), self.transforms, batch)


def filter_rows(rows: pa.Table, select: PortableSelect, *, marks: bool) -> Iterator[pa.RecordBatch]:
    """Yield the rows that pass a condition, at least one batch.

    With `marks`, mark the rows that do not pass, and drop those that it drops permanently. Raise ArrowInvalid
    or UnprovenValuesError if only Spark can compute the condition.
    """
    for batch in rows.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], rows.schema)]:
        kept = _filter(select.lasting if marks else select.condition, batch)
        if marks and select.condition is not None:
            positions = _mark_positions(kept.column(POS), _array(select.condition, kept))
            kept = kept.set_column(kept.schema.get_field_index(POS), POS, positions)
        yield kept


def _is_large(batches: Sequence[pa.RecordBatch]) -> bool:
    """Return whether batches are worth a Spark job."""
    return (
        sum(batch.num_rows for batch in batches) >= _JOB_ROWS
        or sum(batch.nbytes for batch in batches) >= _JOB_BYTES
    )


def _filter(condition: Expression | None, batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch if condition is None else batch.filter(_array(condition, batch))


def _mark_positions(positions: pa.StructArray, passes: pa.Array) -> pa.StructArray:
    """Mark the positions of rows that do not pass. Rows that are marked already keep their mark."""
    sub = positions.field("sub")
    keeps = pc.or_(pc.less(sub, 0), pc.fill_null(passes, fill_value=False))
    parts = {field.name: positions.field(field.name) for field in positions.type}
    parts["sub"] = pc.if_else(keeps, sub, pa.scalar(FAILED, sub.type))
    return pa.StructArray.from_arrays(list(parts.values()), fields=list(positions.type))


def _array(expression: Expression, batch: pa.RecordBatch) -> pa.Array:
    """Return a value for each row."""
    value = _evaluate(expression, batch)
    if isinstance(value, pa.Scalar):
        return pa.repeat(value, batch.num_rows)
    return value.combine_chunks() if isinstance(value, pa.ChunkedArray) else value


def _evaluate(expression: Expression, batch: pa.RecordBatch) -> Any:
    """Return the values of an expression, or a scalar that all rows have."""
    if special := _SPECIAL.get(expression.operation):
        return special(expression, batch)
    if guarded := GUARDED.get(expression.operation):
        return guarded(expression, *(_array(one, batch) for one in expression.arguments))
    return _OPERATIONS[expression.operation](*(_evaluate(one, batch) for one in expression.arguments))


def _cast(expression: Expression, batch: pa.RecordBatch) -> Any:
    # Only integers above 2^53 lose anything, as a double, as they do in Spark.
    return pc.cast(_evaluate(expression.arguments[0], batch), arrow_of(expression.kind), safe=False)


def _case(expression: Expression, batch: pa.RecordBatch) -> Any:
    parts = [_array(one, batch) for one in expression.arguments]
    branches = len(parts) // 2
    conditions = pa.StructArray.from_arrays(parts[:branches], [str(at) for at in range(branches)])
    return pc.case_when(conditions, *parts[branches:])


def _remainder(dividend: Any, divisor: Any) -> Any:
    return pc.subtract(dividend, pc.multiply(pc.divide(dividend, divisor), divisor))


def _constant(expression: Expression, _: pa.RecordBatch) -> pa.Scalar:
    kind = arrow_of(expression.kind)
    if pa.types.is_decimal(kind):
        return pa.scalar(Decimal(expression.text), kind)
    if pa.types.is_date(kind):
        return pa.scalar(date.fromisoformat(expression.text), kind)
    return pa.scalar(datetime.fromisoformat(expression.text).replace(tzinfo=UTC), kind)


def _float_greater(a: Any, b: Any) -> Any:
    return pc.or_kleene(pc.greater(a, b), pc.and_kleene(pc.is_nan(a), pc.invert(pc.is_nan(b))))


def _float_greater_equal(a: Any, b: Any) -> Any:
    return pc.or_kleene(pc.greater_equal(a, b), pc.and_kleene(pc.is_nan(a), pc.is_valid(b)))


def _float_equal(a: Any, b: Any) -> Any:
    return pc.or_kleene(pc.equal(a, b), pc.and_kleene(pc.is_nan(a), pc.is_nan(b)))


_SPECIAL: dict[str, Callable[[Expression, pa.RecordBatch], Any]] = {
    "column": lambda result, batch: batch.column(result.text),
    "text": lambda result, _: pa.scalar(result.text, pa.string()),
    "number": lambda result, _: pa.scalar(int(result.text), pa.int64()),
    "double": lambda result, _: pa.scalar(float(result.text), pa.float64()),
    "boolean": lambda result, _: pa.scalar(result.text == "true"),
    "null": lambda *_: pa.scalar(None, pa.null()),
    "constant": _constant,
    "cast": _cast,
    "case": _case,
}
_OPERATIONS: dict[str, Callable[..., Any]] = {
    "and": lambda *parts: functools.reduce(pc.and_kleene, parts),
    "or": lambda *parts: functools.reduce(pc.or_kleene, parts),
    "not": pc.invert,
    "negate": pc.negate,
    "is_null": pc.is_null,
    "coalesce": pc.coalesce,
    "concat": lambda *parts: pc.binary_join_element_wise(*parts, "", null_handling="emit_null"),
    "like": lambda text, pattern: pc.match_like(text, pattern.as_py()),
    "float_greater": _float_greater,
    "float_greater_equal": _float_greater_equal,
    "float_equal": _float_equal,
    "trim": lambda text: pc.utf8_trim(text, characters=" "),
    "length": pc.utf8_length,
    "remainder": _remainder,
    **{
        name: getattr(pc, name)
        for name in (
            *("add", "subtract", "multiply", "divide", "add_checked", "subtract_checked", "multiply_checked"),
            *("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"),
        )
    },
}
