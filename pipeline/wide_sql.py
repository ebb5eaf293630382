"""Operators beside 256-bit integers. To Spark these are text of decimal digits, so each operator becomes the function that computes.

`w + 1` is `u256_add(w, to_u256('1'))`, `w < n` is `u256_compare(w, n) < 0`. AND, OR and functions of text are left alone, and so is
equality with a text that is no number. What would lose digits, such as `w * 1.5`, is an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from sqlglot import exp

from headrace.pipeline.dialect_functions import template
from headrace.pipeline.errors import UserError
from headrace.pipeline.functions import function_of
from headrace.pipeline.wide import INT256, UINT256, WideInteger

KINDS: Mapping[object, WideInteger] = {exp.DType.UINT256: UINT256, exp.DType.INT256: INT256}
_ARITHMETIC: dict[type[exp.Expr], str] = {exp.Add: "add", exp.Sub: "sub", exp.Mul: "mul", exp.Div: "div", exp.IntDiv: "div", exp.Mod: "mod"}
_COMPARISONS: tuple[type[exp.Expr], ...] = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE)
_NAMES = {"uint256": UINT256, "int256": INT256}
_WHOLE = re.compile(r"[+-]?\d+(\.0*)?")
_INEXACT = (exp.DType.FLOAT, exp.DType.DOUBLE, exp.DType.DECIMAL)


def type_of_wide(kind: WideInteger) -> exp.DataType:
    """As sqlglot names it."""
    return exp.DataType.build("INT256" if kind.signed else "UINT256", dialect="clickhouse")


def is_wide_cast(node: exp.Expr) -> bool:
    """CAST(... AS UINT256) and its kin."""
    return isinstance(node, exp.Cast) and node.to.this in KINDS


def kind_of(node: exp.Expr | None) -> WideInteger | None:
    """The 256-bit type of an expression, by its functions and by the types of its columns; None for every other."""
    if node is None or isinstance(node, exp.Query):
        return None
    if isinstance(node, exp.Paren | exp.Alias):
        return kind_of(node.this)
    if isinstance(node, exp.Anonymous):
        own = function_of(node)
        return _agreed(node.expressions) if node.name.lower() == "coalesce_meta" else _NAMES.get(own.result) if own else None
    if isinstance(node, exp.Case | exp.If | exp.Coalesce):
        return _agreed(_branches(node))
    return KINDS.get(node.type.this) if node.type is not None and isinstance(node, exp.Column) else None


def _agreed(parts: Sequence[exp.Expr]) -> WideInteger | None:
    """The type of several results: the signed one where both are there. A result that is none of them, and no number, is of another type."""
    kinds = {kind_of(part) for part in parts if not isinstance(part.unnest(), exp.Null)}
    found = {kind for kind in kinds if kind is not None}
    if not found or not all(kind_of(part) is not None or _is_whole(part) or isinstance(part.unnest(), exp.Null) for part in parts):
        return None
    return found.pop() if len(found) == 1 else INT256


def _branches(node: exp.Expr) -> list[exp.Expr]:
    """The expressions that a choice gives one of."""
    if isinstance(node, exp.Coalesce):
        return [node.this, *node.expressions]
    parts = [branch.args["true"] for branch in node.args["ifs"]] + [node.args.get("default")] if isinstance(node, exp.Case) else [
        node.args["true"], node.args.get("false")
    ]  # fmt: skip
    return [part for part in parts if part is not None]


def _number(node: exp.Expr) -> str | None:
    """The digits of a whole number that is written out, as a number or in quotes; None for everything else."""
    bare = node.unnest()
    if isinstance(bare, exp.Neg) and isinstance(bare.this, exp.Literal) and not bare.this.is_string and _WHOLE.fullmatch(bare.this.name):
        return f"-{bare.this.name}".split(".", maxsplit=1)[0]
    if isinstance(bare, exp.Literal) and _WHOLE.fullmatch(bare.name):
        return bare.name.removeprefix("+").split(".", maxsplit=1)[0]
    return None


def _is_whole(node: exp.Expr) -> bool:
    return _number(node) is not None or (node.type is not None and node.type.this in exp.DataType.SIGNED_INTEGER_TYPES)


def rewritten(node: exp.Expr) -> exp.Expr:
    """One node of an expression, whose own parts are rewritten already. Raises UserError for what would lose digits."""
    if type(node) in _ARITHMETIC and isinstance(node, exp.Binary):
        return _computed(node)
    if isinstance(node, exp.Cast):
        return _cast(node)
    if isinstance(node, exp.Neg) and kind_of(node.this) is not None:
        return _call("i256_neg", _operand(node.this, INT256))
    if isinstance(node, exp.Abs) and (kind := kind_of(node.this)) is not None:
        return _call("i256_abs", node.this) if kind.signed else node.this
    if isinstance(node, exp.Case | exp.If | exp.Coalesce | exp.Nullif):
        return _choice(node)
    return _condition(node)


def _condition(node: exp.Expr) -> exp.Expr:
    """Comparisons of every form, and the largest and smallest of several."""
    if type(node) in _COMPARISONS and isinstance(node, exp.Binary):
        return _compared(node)
    if isinstance(node, exp.NullSafeEQ | exp.NullSafeNEQ) and _are_wide(node.left, node.right):
        same = template("(coalesce(_0 = 0, false) OR (_1 IS NULL AND _2 IS NULL))", _compare(node.left, node.right), node.left, node.right)
        return same if isinstance(node, exp.NullSafeEQ) else exp.not_(same)
    if isinstance(node, exp.Between) and _are_wide(node.this, node.args["low"], node.args["high"]):
        low, high = _compare(node.this, node.args["low"]), _compare(node.this, node.args["high"])
        return template("(_0 >= 0 AND _1 <= 0)", low, high)
    if isinstance(node, exp.In) and node.expressions and _are_wide(node.this, *node.expressions):
        return exp.paren(exp.or_(*(template("_0 = 0", _compare(node.this, one)) for one in node.expressions)))
    if isinstance(node, exp.Greatest | exp.Least) and _are_wide(node.this, *node.expressions):
        sign = ">=" if isinstance(node, exp.Greatest) else "<="
        found = node.this
        for other in node.expressions:
            said = f"CASE WHEN _0 IS NULL THEN _1 WHEN _1 IS NULL THEN _0 WHEN _2 {sign} 0 THEN _0 ELSE _1 END"
            kind = _target(found, other)
            found = template(said, _operand(found, kind), _operand(other, kind), _compare(found, other))
        return found
    return node


def _are_wide(*nodes: exp.Expr) -> bool:
    return any(kind_of(node) is not None for node in nodes)


def _call(name: str, *arguments: exp.Expr) -> exp.Anonymous:
    return exp.Anonymous(this=name, expressions=[argument.copy() for argument in arguments])


def _computed(node: exp.Binary) -> exp.Expr:
    left, right = node.left, node.right
    if not _are_wide(left, right) or any(isinstance(side.unnest(), exp.Null | exp.Interval) for side in (left, right)):
        return node
    _exact(node, left, right)
    kind = _target(left, right)
    prefix = "i256" if kind.signed else "u256"
    return _call(f"{prefix}_{_ARITHMETIC[type(node)]}", _operand(left, kind), _operand(right, kind))


def _target(left: exp.Expr, right: exp.Expr) -> WideInteger:
    """The type to compute in: signed where one side is, or where a negative number is written."""
    signed = [kind.signed for side in (left, right) if (kind := kind_of(side)) is not None]
    negative = any((_number(side) or "").startswith("-") for side in (left, right))
    return INT256 if any(signed) or negative else UINT256


def _operand(node: exp.Expr, kind: WideInteger) -> exp.Expr:
    """A side of an operator as that type."""
    name = "to_i256" if kind.signed else "to_u256"
    if isinstance(node.unnest(), exp.Null) or kind_of(node) == kind:
        return node
    digits = _number(node)
    return _call(name, exp.Literal.string(digits)) if digits is not None else _call(name, node)


def _exact(whole: exp.Expr, *sides: exp.Expr) -> None:
    """Raises UserError where one side is a number with a fraction: the other would lose its digits."""
    for side in sides:
        bare = side.unnest()
        fraction = isinstance(bare, exp.Literal) and not bare.is_string and _number(bare) is None
        kind = side.type.this if side.type is not None and kind_of(side) is None else None
        if fraction or (kind in _INEXACT and _number(side) is None):
            msg = f"`{whole.sql(dialect='spark')}` puts a 256-bit integer beside a number with a fraction"
            raise UserError(msg, hint="Say which it is to be: CAST the integer AS double, or the other one with to_u256 or to_i256.")


def _compare(left: exp.Expr, right: exp.Expr) -> exp.Expr:
    """-1, 0 or 1, NULL where one side is. Signed where the sign of a side is not known."""
    signed = any(not _is_natural(side) for side in (left, right))
    sides = [exp.Literal.string(digits) if (digits := _number(side)) is not None else side for side in (left, right)]
    return _call("i256_compare" if signed else "u256_compare", *sides)


def _is_natural(node: exp.Expr) -> bool:
    digits = _number(node)
    return not digits.startswith("-") if digits is not None else kind_of(node) == UINT256


def _is_text(node: exp.Expr) -> bool:
    bare = node.unnest()
    return (isinstance(bare, exp.Literal) and bare.is_string and _number(bare) is None) or (
        kind_of(node) is None and node.type is not None and node.type.this in exp.DataType.TEXT_TYPES
    )


def _compared(node: exp.Binary) -> exp.Expr:
    left, right = node.left, node.right
    if not _are_wide(left, right) or (isinstance(node, exp.EQ | exp.NEQ) and (_is_text(left) or _is_text(right))):
        return node
    _exact(node, left, right)
    return type(node)(this=_compare(left, right), expression=exp.Literal.number(0))


def _cast(node: exp.Cast) -> exp.Expr:
    kind = kind_of(node.this)
    if (wanted := KINDS.get(node.to.this)) is not None:
        return _operand(node.this, wanted)
    if kind is not None and node.to.this in exp.DataType.TEXT_TYPES:
        return _call("i256_to_string" if kind.signed else "u256_to_string", node.this)
    return node


def _choice(node: exp.Expr) -> exp.Expr:
    """CASE, if, coalesce, nullif: what is compared is compared as numbers, and written numbers take the type of the other results."""
    if isinstance(node, exp.Nullif):
        if not _are_wide(node.this, node.expression):
            return node
        return template("CASE WHEN _0 = 0 THEN NULL ELSE _1 END", _compare(node.this, node.expression), node.this)
    if isinstance(node, exp.Case) and node.this is not None and _are_wide(node.this, *(branch.this for branch in node.args["ifs"])):
        for branch in node.args["ifs"]:
            branch.set("this", _compared(exp.EQ(this=node.this.copy(), expression=branch.this.copy())))
        node.set("this", None)
    kind = kind_of(node)
    for part in _branches(node) if kind is not None else ():
        if kind_of(part) != kind and not isinstance(part.unnest(), exp.Null):
            part.replace(_operand(part, kind))  # type: ignore[arg-type]
    return node
