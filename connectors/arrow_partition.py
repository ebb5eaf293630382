"""The rows of a partition of history over Arrow, for sources that need no Spark."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute
from pyarrow import types as kinds

from headrace.pipeline.protocol.epochs import Json
from headrace.pipeline.protocol.partitions import PartitionGap, UnpartitionedRows

pc: Any = pyarrow.compute
"""Its functions are made at import, so type checkers do not see them."""

COUNTED_BYTES = 8 << 30
"""Rows of larger tables are counted by Spark: on a cluster, it has more processors."""
_MOMENT = pa.timestamp("us"), pa.timestamp("us", "UTC")


class UnknownBoundError(Exception):
    """Arrow and Spark may not mean the same by a bound. Never leaves the connectors."""


@dataclass(frozen=True, slots=True)
class ArrowPartition:
    """The rows whose `column` is in [start, end), or equals `start` if both are equal. Picklable."""

    column: str
    start: Any
    end: Any

    def contains(self, column: pa.Array) -> pa.Array:
        """Return for each value whether it is in the partition. NULL is in none."""
        start, end = (pa.scalar(bound, column.type) for bound in (self.start, self.end))
        if self.start == self.end:
            return pc.fill_null(pc.equal(column, start), fill_value=False)
        inside = pc.and_(pc.greater_equal(column, start), pc.less(column, end))
        return pc.fill_null(inside, fill_value=False)

    def bounds(self, kind: pa.DataType) -> tuple[Any, Any]:
        """Return start and end. Moments of a type with a zone have one."""
        if isinstance(kind, pa.TimestampType) and kind.tz is not None:
            return self.start.replace(tzinfo=UTC), self.end.replace(tzinfo=UTC)
        return self.start, self.end

    def may_contain(self, lowest: Any, highest: Any) -> bool:
        """Return whether a value between these may be in the partition. None is an unknown value."""
        if lowest is None or highest is None:
            return True
        lowest, highest = _without_zone(lowest), _without_zone(highest)
        if self.start == self.end:
            return lowest <= self.start <= highest
        return lowest < self.end and highest >= self.start


def find_partition(scope: Json, columns: pa.Schema) -> ArrowPartition | None:
    """Return the partition of a scope, or None if it has none.

    Raise UnknownBoundError if only Spark can apply the scope.
    """
    if scope["cut"]:
        raise UnknownBoundError
    if (window := scope["window"]) is None:
        return None
    if window["column"] not in columns.names:
        raise UnknownBoundError
    kind = columns.field(window["column"]).type
    start, end = (parse_bound(window[key], kind) for key in ("start", "end"))
    return ArrowPartition(window["column"], start, end)


def parse_bound(text: str, kind: pa.DataType) -> Any:
    """Return a bound of a partition as a Python value of the column's type.

    Raise UnknownBoundError if only Spark can.
    """
    try:
        if kinds.is_string(kind):
            return text
        if kinds.is_signed_integer(kind) and re.fullmatch(r"-?[0-9]{1,19}", text):
            return pa.scalar(int(text), kind).as_py()
        if kinds.is_date32(kind):
            return date.fromisoformat(text)
        if kind in _MOMENT:
            return datetime.fromisoformat(text)
    except (ValueError, OverflowError, pa.ArrowInvalid):
        raise UnknownBoundError from None
    raise UnknownBoundError


def count_gap(
    batches: Iterable[pa.RecordBatch], column: pa.Field, gap: PartitionGap
) -> UnpartitionedRows | None:
    """Count the values of a column that no partition has. Return None if only Spark can compare them."""
    try:
        find_outside = _find_outside(gap, column.type)
    except UnknownBoundError:
        return None
    nulls = outside = 0
    highest: Any = None
    for batch in batches:
        values = batch.column(column.name)
        nulls += values.null_count
        known = values.drop_null()
        result = known.filter(find_outside(known))
        if len(result):
            outside += len(result)
            last = pc.max(result).as_py()
            highest = last if highest is None else max(highest, last)
    return UnpartitionedRows(nulls, outside, "" if highest is None else _spell(highest))


def _find_outside(gap: PartitionGap, kind: pa.DataType) -> Callable[[pa.Array], pa.Array]:
    """Return a function that returns for each value whether it is in the gap."""
    if gap.values:
        values = pa.array([parse_bound(value, kind) for value in gap.values], kind)
        return lambda column: pc.invert(pc.is_in(column, value_set=values))
    bounds: Mapping[str, Any] = {
        name: pa.scalar(parse_bound(text, kind), kind)
        for name in ("start", "end", "before")
        if (text := getattr(gap, name))
    }

    def find(column: pa.Array) -> pa.Array:
        result = pc.greater_equal(column, bounds["start"])
        if "end" in bounds:
            result = pc.and_(result, pc.less(column, bounds["end"]))
        return pc.or_(result, pc.less(column, bounds["before"])) if "before" in bounds else result

    return find


def _spell(value: Any) -> str:
    """Return a value as Spark casts it to text."""
    if not isinstance(value, datetime):
        return str(value)
    text = _without_zone(value).isoformat(" ")
    return text.rstrip("0") if value.microsecond else text


def _without_zone(value: Any) -> Any:
    """Return a moment as one in UTC without a zone."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).replace(tzinfo=None)
    return value
