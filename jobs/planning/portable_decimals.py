"""Decimals of portable SQL, with the types that Spark gives to literals, operands and results.

Only Arrow computes them: ClickHouse has other rules. Results with more than 38 digits are left out, because
Spark gives up digits there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal

from sqlglot import exp

from headrace.jobs.planning.portable_values import (
    INTS,
    NULL,
    NUMBER,
    Expression,
    decimal_literal,
    ensure_type,
    integer_kind,
    is_decimal_kind,
    leave_out,
    precision_and_scale,
)

_MOST_DIGITS = 38
INTEGER_DIGITS: Mapping[str, int] = dict(zip(INTS, (3, 5, 10, 20), strict=True))
"""The digits that Spark gives to integers that meet decimals."""


def is_decimal(expression: Expression) -> bool:
    """Return whether an expression has a decimal type."""
    return is_decimal_kind(expression.kind)


def decimal_kind(precision: int, scale: int) -> str:
    """Return the name of a decimal type. Raise UntranslatableError for one that does not exist."""
    if not 0 <= scale <= precision <= _MOST_DIGITS or not precision:
        raise leave_out((precision, scale))
    return f"Decimal({precision}, {scale})"


def to_decimal(expression: Expression, kind: str) -> Expression:
    """Return a literal, an integer or a decimal in a decimal type that has room for it."""
    if expression.kind == NUMBER:
        _literal_digits(expression)  # refuses an exponent
        return decimal_literal(expression, kind)
    return ensure_type(expression, kind)


def cast_exactly(expression: Expression, kind: str) -> Expression:
    """Return a cast to a decimal type that has room for all values."""
    precision, scale = precision_and_scale(kind)
    digits, places = (scale, scale) if expression.kind == NUMBER else _digits(expression)
    if places > scale or digits - places > precision - scale:
        raise leave_out(expression)
    return to_decimal(expression, kind)


def widen(expressions: Sequence[Expression]) -> str:
    """Return the type that has room for all values of results of a choice, or of sides of a comparison.

    A whole number that is written out counts as an integer.
    """
    sizes = []
    for one in expressions:
        if one.kind == NULL:
            continue
        if one.kind == NUMBER and re.fullmatch(r"-?\d+", one.text):
            sizes.append((INTEGER_DIGITS[integer_kind(one)], 0))
        else:
            sizes.append(_digits(one))
    scale = max(scale for _, scale in sizes)
    return decimal_kind(max(precision - places for precision, places in sizes) + scale, scale)


def compute(node: exp.Binary, left: Expression, right: Expression) -> Expression:
    """Return a sum, a difference or a product of which one side at least is a decimal."""
    (p1, s1), (p2, s2) = _digits(left), _digits(right)
    if isinstance(node, exp.Mul):
        kind, operation = decimal_kind(p1 + p2 + 1, s1 + s2), "multiply"
    else:
        scale = max(s1, s2)
        kind = decimal_kind(max(p1 - s1, p2 - s2) + scale + 1, scale)
        operation = "add" if isinstance(node, exp.Add) else "subtract"
    sides = (to_decimal(left, decimal_kind(p1, s1)), to_decimal(right, decimal_kind(p2, s2)))
    return Expression(operation, kind, sides)


def _digits(expression: Expression) -> tuple[int, int]:
    """Return precision and scale of an operand. A literal has those of its digits."""
    if expression.kind == NUMBER:
        return _literal_digits(expression)
    if expression.kind in INTS:
        return INTEGER_DIGITS[expression.kind], 0
    if not is_decimal(expression):
        raise leave_out(expression)
    return precision_and_scale(expression.kind)


def _literal_digits(expression: Expression) -> tuple[int, int]:
    """Return precision and scale of a literal. With an exponent it is a double, which is left out."""
    if not re.fullmatch(r"-?(\d+(\.\d*)?|\.\d+)", expression.text):
        raise leave_out(expression)
    parts = Decimal(expression.text).as_tuple()
    scale = -int(parts.exponent)
    return max(len(parts.digits), scale), scale
