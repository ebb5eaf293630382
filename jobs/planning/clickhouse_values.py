"""Values of a translated transform: ClickHouse SQL with its type in Spark, and operations on two values."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal

import pyarrow as pa
from sqlglot import exp

from headrace.pipeline.types.int256 import is_wide

INTS = ("Int8", "Int16", "Int32", "Int64")
FLOATS = ("Float32", "Float64")
TIMESTAMP = "DateTime64(6, 'UTC')"
NUMBER, TEXT, NULL, OTHER = "number", "text", "null", "other"
_LITERALS = (NUMBER, TEXT, NULL)
_ARROW = {
    pa.int8(): "Int8", pa.int16(): "Int16", pa.int32(): "Int32", pa.int64(): "Int64", pa.float32(): "Float32",
    pa.float64(): "Float64", pa.bool_(): "Bool", pa.string(): "String", pa.date32(): "Date32",
    pa.timestamp("us", "UTC"): TIMESTAMP,
}  # fmt: skip
_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{1,6})?")
_FIRST_YEAR, _LAST_YEAR = 1900, 2299  # what Date32 and DateTime64 hold


class UntranslatableError(Exception):
    """A part of the statement is not in the whitelist."""


def leave_out(what: object) -> UntranslatableError:
    """Return the error for a part that cannot be translated. It never leaves this package."""
    return UntranslatableError(repr(what))


@dataclass(frozen=True, slots=True)
class TypedSql:
    """SQL for ClickHouse and its type. A literal has the type `number`, `text` or `null`."""

    sql: str
    kind: str

    @property
    def literal(self) -> bool:
        """Written out in the statement, and not typed yet."""
        return self.kind in _LITERALS


def kind_of(arrow: pa.DataType) -> str:
    """Return the ClickHouse type of a column of an Arrow type.

    OTHER for one that expressions must not use.
    """
    if is_wide(arrow):
        return OTHER
    if pa.types.is_decimal(arrow):
        return f"Decimal({arrow.precision}, {arrow.scale})"
    return _ARROW.get(arrow, OTHER)


def literal(node: exp.Literal) -> TypedSql:
    """Text or a number that is written out."""
    if node.is_string:
        return TypedSql(node.sql(dialect="clickhouse"), TEXT)
    if not re.fullmatch(r"\d+(\.\d*)?([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?", node.this):
        raise leave_out(node)
    return TypedSql(node.this, NUMBER)


def integer_kind(found: TypedSql) -> str:
    """Spark's type of a whole number that is written out."""
    if not re.fullmatch(r"-?\d+", found.sql) or not -(2**63) < int(found.sql) < 2**63:
        raise leave_out(found)
    return "Int32" if -(2**31) <= int(found.sql) < 2**31 else "Int64"


def typed(found: TypedSql, kind: str) -> str:
    """`found` as a nullable value of that type, which it must be, or become without loss."""
    if kind in (NULL, OTHER):
        raise leave_out(found)
    if kind == "Float64" and found.kind == NUMBER:
        return double(found)
    return f"CAST({found.sql} AS Nullable({kind}))"


def double(found: TypedSql) -> str:
    """`found` as a Float64, exactly as Spark makes a double of it."""
    if found.kind == "Float64":
        return found.sql
    if found.kind == NUMBER and math.isfinite(float(found.sql)):
        return f"CAST({float(found.sql)!r} AS Float64)"
    if found.kind in (*INTS, "Float32"):
        return f"CAST({found.sql} AS Nullable(Float64))"
    raise leave_out(found)


def common(found: Sequence[TypedSql]) -> str:
    """Return the common type of several results.

    Integers widen. A literal takes the type of the others if that is unambiguous.
    """
    kinds = {one.kind for one in found if not one.literal}
    numbers = [one for one in found if one.kind == NUMBER]
    texts = any(one.kind == TEXT for one in found)
    if kinds == {"Float64"} and not texts:
        return "Float64"
    kinds |= {integer_kind(one) for one in numbers} | ({"String"} if texts else set())
    if kinds and kinds <= set(INTS):
        return max(kinds, key=INTS.index)
    if len(kinds) != 1:
        raise leave_out(found)
    return kinds.pop()


_FLIPPED: dict[type, type] = {exp.LT: exp.GT, exp.LTE: exp.GTE}
_SIGNS: dict[type, str] = {exp.EQ: "=", exp.NEQ: "!=", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">="}


def compare(how: type, left: TypedSql, right: TypedSql) -> TypedSql:
    """Return a comparison of equal types, of integers, of floats, or with a literal.

    `how` is sqlglot's class of it.
    """
    if left.literal and right.literal:
        raise leave_out(left)
    if left.kind in FLOATS or right.kind in FLOATS:
        return _compare_floats(how, left, right)
    if left.literal:
        left = _meeting(left, right.kind)
    if right.literal:
        right = _meeting(right, left.kind)
    both_whole = left.kind in INTS and right.kind in INTS
    if (
        left.kind == OTHER
        or not (left.kind == right.kind or both_whole)
        or (left.kind == "Bool" and how not in (exp.EQ, exp.NEQ))
    ):
        raise leave_out(left)
    return TypedSql(f"({left.sql} {_SIGNS[how]} {right.sql})", "Bool")


def _meeting(literal: TypedSql, kind: str) -> TypedSql:
    """Return a literal in the type that it is compared with."""
    if literal.kind == NUMBER and kind in INTS:
        return TypedSql(literal.sql, integer_kind(literal))
    if literal.kind == NUMBER and kind.startswith("Decimal"):
        precision, scale = (int(part) for part in re.findall(r"\d+", kind))
        value = Decimal(literal.sql)
        if value != value.quantize(Decimal(1).scaleb(-scale)) or abs(value) >= Decimal(10) ** (
            precision - scale
        ):
            raise leave_out(literal)
        return TypedSql(f"CAST('{value:f}' AS {kind})", kind)
    if literal.kind == TEXT and kind == "String":
        return TypedSql(literal.sql, kind)
    if literal.kind == TEXT and kind in ("Date32", TIMESTAMP):
        return to_timestamp_literal(literal, kind)
    raise leave_out(literal)


def to_timestamp_literal(literal: TypedSql, kind: str) -> TypedSql:
    """Return a date or timestamp literal that is written in full.

    Other spellings are ambiguous and are left out.
    """
    text = literal.sql[1:-1]
    shape = _DAY if kind == "Date32" or _DAY.fullmatch(text) else _MOMENT
    if not shape.fullmatch(text):
        raise leave_out(literal)
    try:
        year = date.fromisoformat(text).year if shape is _DAY else datetime.fromisoformat(text).year
    except ValueError as error:
        raise leave_out(literal) from error
    if not _FIRST_YEAR < year < _LAST_YEAR:
        raise leave_out(literal)
    if kind == TIMESTAMP and shape is _DAY:
        text += " 00:00:00"
    return TypedSql(f"CAST('{text}' AS {kind})", kind)


def _compare_floats(how: type, left: TypedSql, right: TypedSql) -> TypedSql:
    """As Spark compares: NaN equals NaN and is above every other number."""
    for one, other in ((left, right), (right, left)):
        # A float meets an integer as a float or as a double, by Spark's mode: only where that is the same.
        if one.kind == "Float32" and (
            other.kind in INTS or (other.kind == NUMBER and not _fits_float(other.sql))
        ):
            raise leave_out(other)
    if how in _FLIPPED:
        how, left, right = _FLIPPED[how], right, left
    a, b = double(left), double(right)
    if how is exp.GT:
        return TypedSql(f"(({a} > {b}) OR (isNaN({a}) AND NOT isNaN({b})))", "Bool")
    if how is exp.GTE:
        return TypedSql(f"(({a} >= {b}) OR (isNaN({a}) AND isNotNull({b})))", "Bool")
    equal = f"(({a} = {b}) OR (isNaN({a}) AND isNaN({b})))"
    return TypedSql(equal if how is exp.EQ else f"(NOT {equal})", "Bool")


def _fits_float(text: str) -> bool:
    """Return whether a literal is an integer that a Float32 stores exactly, or is not an integer.

    Spark compares the latter as doubles.
    """
    value = float(text)
    return not re.fullmatch(r"-?\d+", text) or (
        abs(value) < 2**100 and struct.unpack("f", struct.pack("f", value))[0] == int(text)
    )
