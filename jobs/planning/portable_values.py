"""Values of portable SQL: expressions with their types in Spark, and operations on two of them.

Types have the names of ClickHouse.
"""

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
_KINDS = {kind: arrow for arrow, kind in _ARROW.items()}
_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{1,6})?")
_FIRST_YEAR, _LAST_YEAR = 1900, 2299  # what Date32 and DateTime64 hold


class UntranslatableError(Exception):
    """A part of the statement is not in the whitelist."""


def leave_out(what: object) -> UntranslatableError:
    """Return the error for a part that is not portable. It never leaves this package."""
    return UntranslatableError(repr(what))


@dataclass(frozen=True, slots=True)
class Expression:
    """An operation on other expressions, and the type of its result. Picklable.

    A literal has the type `number`, `text` or `null`. `text` is the name of a column, or a literal.
    """

    operation: str
    kind: str
    arguments: tuple[Expression, ...] = ()
    text: str = ""

    @property
    def literal(self) -> bool:
        """Written out in the statement, and not typed yet."""
        return self.kind in _LITERALS


NOTHING = Expression("null", NULL)


def present_arguments(node: exp.Expr) -> list[str]:
    """Return the arguments of a node that are set. The parser adds empty ones."""
    return [key for key, value in node.args.items() if value]


def boolean(operation: str, *arguments: Expression) -> Expression:
    """Return an operation whose result is true, false or null."""
    return Expression(operation, "Bool", arguments)


def kind_of(arrow: pa.DataType) -> str:
    """Return the type of a column of an Arrow type.

    OTHER for one that expressions must not use.
    """
    if is_wide(arrow):
        return OTHER
    if pa.types.is_decimal(arrow):
        return f"Decimal({arrow.precision}, {arrow.scale})"
    return _ARROW.get(arrow, OTHER)


def arrow_of(kind: str) -> pa.DataType:
    """Return the Arrow type of a type that `kind_of` returns, except OTHER."""
    if is_decimal_kind(kind):
        precision, scale = precision_and_scale(kind)
        return pa.decimal128(precision, scale)
    return _KINDS[kind]


def literal(node: exp.Literal) -> Expression:
    """Return text or a number that is written out."""
    if node.is_string:
        return Expression("text", TEXT, text=node.this)
    if not re.fullmatch(r"\d+(\.\d*)?([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?", node.this):
        raise leave_out(node)
    return Expression("number", NUMBER, text=node.this)


def integer_kind(expression: Expression) -> str:
    """Return Spark's type of a whole number that is written out."""
    if not re.fullmatch(r"-?\d+", expression.text) or not -(2**63) < int(expression.text) < 2**63:
        raise leave_out(expression)
    return "Int32" if -(2**31) <= int(expression.text) < 2**31 else "Int64"


def to_integer(expression: Expression) -> Expression:
    """Return a whole number that is written out in its type."""
    return Expression("number", integer_kind(expression), text=expression.text)


def ensure_type(expression: Expression, kind: str) -> Expression:
    """Return a nullable value of that type, which `expression` must be, or become without loss."""
    if kind in (NULL, OTHER):
        raise leave_out(expression)
    if kind == "Float64" and expression.kind == NUMBER:
        return double(expression)
    return Expression("cast", kind, (expression,))


def double(expression: Expression) -> Expression:
    """Return a Float64, exactly as Spark makes a double of `expression`."""
    if expression.kind == "Float64":
        return expression
    if expression.kind == NUMBER and math.isfinite(float(expression.text)):
        return Expression("double", "Float64", text=repr(float(expression.text)))
    if expression.kind in (*INTS, "Float32"):
        return Expression("cast", "Float64", (expression,))
    raise leave_out(expression)


def cast_without_loss(expression: Expression, kind: str, *, any_year: bool) -> Expression:
    """Return a cast that neither fails nor rounds. `any_year`: dates are not only of the years 0 to 9999."""
    if expression.kind in (NULL, TEXT) or expression.kind == kind:
        return ensure_type(expression, kind)
    if expression.kind == NUMBER:
        if kind == "Float64":
            return double(expression)
        expression = to_integer(expression)
    widens = expression.kind in INTS and kind in INTS and INTS.index(expression.kind) <= INTS.index(kind)
    exact = kind == "Float64" and expression.kind in (*INTS, "Float32")
    # Other years are written in different ways.
    plain_years = expression.kind == "Date32" and not any_year
    written = kind == "String" and (expression.kind in INTS or plain_years)
    if not (widens or exact or written):
        raise leave_out(expression)
    return ensure_type(expression, kind)


def common(expressions: Sequence[Expression]) -> str:
    """Return the common type of several results.

    Integers widen. A literal takes the type of the others if that is unambiguous.
    """
    kinds = {one.kind for one in expressions if not one.literal}
    numbers = [one for one in expressions if one.kind == NUMBER]
    texts = any(one.kind == TEXT for one in expressions)
    if kinds == {"Float64"} and not texts:
        return "Float64"
    kinds |= {integer_kind(one) for one in numbers} | ({"String"} if texts else set())
    if kinds and kinds <= set(INTS):
        return max(kinds, key=INTS.index)
    if len(kinds) != 1:
        raise leave_out(expressions)
    return kinds.pop()


_FLIPPED: dict[type, type] = {exp.LT: exp.GT, exp.LTE: exp.GTE}
_OPERATIONS: dict[type, str] = {
    exp.EQ: "equal", exp.NEQ: "not_equal", exp.LT: "less", exp.LTE: "less_equal", exp.GT: "greater",
    exp.GTE: "greater_equal",
}  # fmt: skip


def compare(how: type, left: Expression, right: Expression) -> Expression:
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
    return boolean(_OPERATIONS[how], left, right)


def _meeting(literal: Expression, kind: str) -> Expression:
    """Return a literal in the type that it is compared with."""
    if literal.kind == NUMBER and kind in INTS:
        return to_integer(literal)
    if literal.kind == NUMBER and is_decimal_kind(kind):
        return decimal_literal(literal, kind)
    if literal.kind == TEXT and kind == "String":
        return Expression("text", kind, text=literal.text)
    if literal.kind == TEXT and kind in ("Date32", TIMESTAMP):
        return to_timestamp_literal(literal, kind)
    raise leave_out(literal)


def is_decimal_kind(kind: str) -> bool:
    """Return whether a type is a decimal."""
    return kind.startswith("Decimal")


def decimal_literal(expression: Expression, kind: str) -> Expression:
    """Return a number that is written out in a decimal type that has it exactly."""
    precision, scale = precision_and_scale(kind)
    value = Decimal(expression.text)
    if value != value.quantize(Decimal(1).scaleb(-scale)) or abs(value) >= Decimal(10) ** (precision - scale):
        raise leave_out(expression)
    return Expression("constant", kind, text=f"{value:f}")


def precision_and_scale(kind: str) -> tuple[int, int]:
    """Return precision and scale of a decimal type."""
    precision, scale = re.findall(r"\d+", kind)
    return int(precision), int(scale)


def to_timestamp_literal(literal: Expression, kind: str) -> Expression:
    """Return a date or timestamp literal that is written in full.

    Other spellings are ambiguous and are left out.
    """
    text = literal.text
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
    return Expression("constant", kind, text=text)


def _compare_floats(how: type, left: Expression, right: Expression) -> Expression:
    """Return a comparison as Spark compares: NaN equals NaN and is above every other number."""
    for one, other in ((left, right), (right, left)):
        # A float meets an integer as a float or as a double, by Spark's mode: only where that is the same.
        if one.kind == "Float32" and (
            other.kind in INTS or (other.kind == NUMBER and not _fits_float(other.text))
        ):
            raise leave_out(other)
    if how in _FLIPPED:
        how, left, right = _FLIPPED[how], right, left
    a, b = double(left), double(right)
    if how in (exp.GT, exp.GTE):
        return boolean(f"float_{_OPERATIONS[how]}", a, b)
    equal = boolean("float_equal", a, b)
    return equal if how is exp.EQ else boolean("not", equal)


def _fits_float(text: str) -> bool:
    """Return whether a literal is an integer that a Float32 stores exactly, or is not an integer.

    Spark compares the latter as doubles.
    """
    value = float(text)
    return not re.fullmatch(r"-?\d+", text) or (
        abs(value) < 2**100 and struct.unpack("f", struct.pack("f", value))[0] == int(text)
    )
