"""What is not done with numbers that Spark has no room for: it would take their digits for a text, or make doubles of them."""

from __future__ import annotations

from sqlglot import exp

from headrace.pipeline.errors import UserError
from headrace.pipeline.wide_kinds import (
    branches,
    decimal_of,
    held,
    holds_wide,
    is_wide_number,
    items_of,
    joined_lists,
    kind_of,
    wide_of_type,
)

_LOSES = "CAST it AS decimal(38, s) where its digits have room, or AS double where they may be lost."
_SPELLED = "For a number of up to 64 bits CAST it AS bigint; for the bytes of its digits, CAST it AS string."
_ORDERED: tuple[type[exp.Expr], ...] = (exp.LT, exp.LTE, exp.GT, exp.GTE, exp.Between, exp.Greatest, exp.Least)
_SORTED: tuple[type[exp.Expr], ...] = (exp.ArrayMax, exp.ArrayMin, exp.ArraySort)
_ROUNDED: tuple[type[exp.Expr], ...] = (
    exp.Round,
    exp.Ceil,
    exp.Floor,
    exp.Pow,
    exp.SafeAdd,
    exp.SafeSubtract,
    exp.SafeMultiply,
    exp.SafeDivide,
)
_SHIFTED: tuple[type[exp.Expr], ...] = (exp.BitwiseLeftShift, exp.BitwiseRightShift)
_SHIFTED_NAMES = ("shiftleft", "shiftright", "shiftrightunsigned")
_HEX: tuple[type[exp.Expr], ...] = (exp.Hex, exp.LowerHex)
_ROUNDED_NAMES = ("bround", "format_number", "positive", "try_mod")
_COMPUTED: tuple[type[exp.Expr], ...] = (exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod, exp.Neg, exp.Negative, exp.Abs)
_HOLDERS: tuple[type[exp.Expr], ...] = (
    exp.Array,
    exp.Struct,
    exp.Tuple,
    exp.PropertyEQ,
    exp.Bracket,
    exp.Dot,
    exp.VarMap,
    exp.Map,
    exp.Slice,
)
_HOLDER_NAMES = ("get", "zeroifnull", "nullifzero", "first_value")
_CHOICES: tuple[type[exp.Expr], ...] = (exp.Case, exp.If, exp.Coalesce, exp.Nvl2)


def check(node: exp.Expr) -> None:
    """Raises UserError, with the expression, for a node of one whose parts are rewritten already."""
    name = node.name.lower() if isinstance(node, exp.Anonymous) else ""
    arguments = list(node.iter_expressions())
    if isinstance(node, _ROUNDED) or name in _ROUNDED_NAMES:
        _refuse(node, arguments, "takes a double or a 64-bit integer, and `{}` is {}")
    elif isinstance(node, _SHIFTED) or name in _SHIFTED_NAMES:
        _refuse(node, arguments[:1], "moves the bits of `{}`, which is {}", "Multiply or divide it by a power of two.")
    elif isinstance(node, _HEX):
        _refuse(node, arguments, "spells the digits of `{}`, which is {}, as the bytes of a text", _SPELLED)
    elif isinstance(node, _COMPUTED) and any(decimal_of(one) is not None for one in arguments):
        _refuse(node, arguments, "computes with `{}`, which is {}: Spark has 38 digits")
    elif isinstance(node, (*_ORDERED, *_SORTED)):
        if isinstance(node, _SORTED) and wide_of_type(items_of(node.this)) is not None:
            return
        for one in arguments:
            if not is_wide_number(one) and (found := _found(one)) is not None:
                msg = f"`{node.sql(dialect='spark')}` would compare the digits of `{found.sql(dialect='spark')}` as a text"
                hint = "Compare the numbers themselves, with greatest or least for several, before they go into a list, a struct or a text."
                raise UserError(msg, hint=hint)


def _refuse(node: exp.Expr, arguments: list[exp.Expr], what: str, hint: str = _LOSES) -> None:
    for one in arguments:
        if (kind := decimal_of(one) or kind_of(one)) is not None:
            said = str(kind) if kind_of(one) is not None else f"a decimal of up to {kind.precision} digits"
            msg = f"`{node.sql(dialect='spark')}` {what.format(one.sql(dialect='spark'), said)}"
            raise UserError(msg, hint=hint)


def _found(node: exp.Expr) -> exp.Expr | None:
    """The first wide number that lies in a list, a struct or another value; None where none does."""
    if is_wide_number(node):
        return node
    if isinstance(node, _CHOICES):
        parts = branches(node)
    elif isinstance(node, (exp.Paren, exp.Alias, *_HOLDERS)) or (isinstance(node, exp.Anonymous) and node.name.lower() in _HOLDER_NAMES):
        parts = list(node.iter_expressions())
    else:
        return node if any(map(holds_wide, [held(node), *joined_lists(node)])) else None
    return next((found for part in parts if (found := _found(part)) is not None), None)
