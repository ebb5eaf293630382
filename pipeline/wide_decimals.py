"""Decimals of 39 to 76 digits in a statement: compared to the digit, and chosen between. Nothing is computed with them."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
from sqlglot import exp

from headrace.pipeline.dialect_functions import template
from headrace.pipeline.errors import UserError
from headrace.pipeline.wide import plain_digits
from headrace.pipeline.wide_kinds import decimal_of, has_room, kind_of, told, written

HINT = "Give them one type: CAST(… AS decimal(38, s)) where the digits have room, CAST(… AS double) where they may be lost."


def compare(left: exp.Expr, right: exp.Expr) -> exp.Expr:
    """-1, 0 or 1, NULL where one side is: whole numbers of the smallest unit are compared. Raises UserError for a side that is none."""
    scales = [_scale(side) for side in (left, right)]
    if None in scales:
        msg = f"`{left.sql(dialect='spark')}` is compared with `{right.sql(dialect='spark')}`, and one of the two is {_shown(left, right)}"
        raise UserError(msg, hint=f"The other must be a whole number or a decimal. {HINT}")
    scale = max(scale for scale in scales if scale is not None)
    return exp.Anonymous(this="i256_compare", expressions=[_units(side, scale) for side in (left, right)])


def operand(node: exp.Expr, kind: pa.Decimal256Type) -> exp.Expr:
    """A result of a choice as that type. Raises UserError for another one, and for a number without room."""
    number = written(node)
    if number is not None and has_room(number, kind):
        return exp.Literal.string(plain_digits(f"{number:f}"))
    if decimal_of(node) == kind or isinstance(node.unnest(), exp.Null):
        return node
    msg = f"`{node.sql(dialect='spark')}` stands beside a column of type {kind}"
    raise UserError(msg, hint=HINT)


def _scale(side: exp.Expr) -> int | None:
    """The digits behind the point that a side can have; None where it is no exact number."""
    if isinstance(side.unnest(), exp.Null) or kind_of(side) is not None:
        return 0
    if (number := written(side)) is not None:
        return max(0, -int(number.as_tuple().exponent))
    if (kind := decimal_of(side)) is not None:
        return kind.scale
    found = told(side)
    if found.this in exp.DataType.SIGNED_INTEGER_TYPES:
        return 0
    exact = found.this == exp.DType.DECIMAL and len(found.expressions) == 2
    return int(found.expressions[1].name) if exact else None


def _units(side: exp.Expr, scale: int) -> exp.Expr:
    """A side as the digits of a whole number, with `scale` digits for those behind the point."""
    if (number := written(side)) is not None:
        return exp.Literal.string(_shifted(number, scale))
    said = "concat(regexp_extract(CAST(_0 AS STRING), '^-?[0-9]+', 0), rpad(regexp_extract(CAST(_0 AS STRING), '[.]([0-9]*)', 1), _1, '0'))"
    return template(said, side, exp.Literal.number(scale))


def _shifted(number: Decimal, scale: int) -> str:
    sign, digits, exponent = number.as_tuple()
    units = int("".join(map(str, digits)) or "0") * 10 ** (scale + int(exponent))
    return f"-{units}" if sign and units else str(units)


def _shown(*sides: exp.Expr) -> str:
    return next(str(kind) for side in sides if (kind := decimal_of(side)) is not None)
