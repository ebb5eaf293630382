"""Operators beside numbers that Spark has no room for. To Spark these are text of decimal digits, so each operator becomes a function.

`w + 1` is `u256_add(w, to_u256('1'))`, `w < n` is `u256_compare(w, n) < 0`; decimals of more than 38 digits are compared, and not
computed with. AND, OR and functions of text are left alone, and equality with a text that is no number is that of texts. What would
lose digits, such as `w * 1.5`, or compare digits as a text, is an error.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from headrace.pipeline import wide_decimals
from headrace.pipeline.dialect_functions import template
from headrace.pipeline.errors import UserError
from headrace.pipeline.wide import INT256, UINT256, WideInteger
from headrace.pipeline.wide_kinds import (
    KINDS,
    agreed,
    agreed_decimal,
    branches,
    decimal_of,
    is_whole,
    is_whole_decimal,
    is_wide_number,
    kind_of,
    told,
    type_of_wide,
    whole_number,
)
from headrace.pipeline.wide_lists import of_list
from headrace.pipeline.wide_refused import check

_ARITHMETIC: dict[type[exp.Expr], str] = {exp.Add: "add", exp.Sub: "sub", exp.Mul: "mul", exp.Div: "div", exp.IntDiv: "div", exp.Mod: "mod"}
_COMPARISONS: tuple[type[exp.Expr], ...] = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE)
_INEXACT = (exp.DType.FLOAT, exp.DType.DOUBLE, exp.DType.DECIMAL)
_FEW = 3
_ZERO = {
    "zeroifnull": lambda value, zero: exp.Coalesce(this=value, expressions=[zero]),
    "nullifzero": lambda value, zero: exp.Nullif(this=value, expression=zero),
}
_DIGITS = "'^-?[0-9]+$'"


def is_wide_cast(node: exp.Expr) -> bool:
    """CAST(... AS UINT256) and its kin."""
    return isinstance(node, exp.Cast) and node.to.this in KINDS


def rewritten(node: exp.Expr) -> exp.Expr:
    """One node of an expression, whose own parts are rewritten already.

    Raises UserError for what would lose digits, and for what Spark would compare as text.
    """
    check(node)
    if type(node) in _ARITHMETIC and isinstance(node, exp.Binary):
        return _computed(node)
    if isinstance(node, exp.Cast):
        return _cast(node)
    if isinstance(node, exp.Neg | exp.Negative | exp.Abs) and (kind := kind_of(node.this)) is not None:
        return _signed(node, kind)
    if isinstance(node, exp.Case | exp.If | exp.Coalesce | exp.Nullif | exp.Nvl2 | exp.DecodeCase | exp.Array):
        return _choice(node)
    if isinstance(node, exp.Anonymous) and node.name.lower() in _ZERO and len(node.expressions) == 1 and _are_wide(*node.expressions):
        return _choice(_ZERO[node.name.lower()](node.expressions[0].copy(), exp.Literal.number(0)))
    return of_list(_condition(node), _compare, lambda value, like: _alike(value, like, node)[0])


def _signed(node: exp.Expr, kind: WideInteger) -> exp.Expr:
    """The number with the other sign, or without one."""
    if not isinstance(node, exp.Abs):
        return _call("i256_neg", _operand(node.this, INT256))
    return _call("i256_abs", node.this) if kind.signed else node.this


def _condition(node: exp.Expr) -> exp.Expr:
    """Comparisons of every form, and the largest and smallest of several."""
    if type(node) in _COMPARISONS and isinstance(node, exp.Binary):
        return _compared(node)
    if isinstance(node, exp.NullSafeEQ | exp.NullSafeNEQ | exp.EqualNull) and _are_wide(node.this, node.expression):
        same = _same(node.this, node.expression)
        return exp.not_(same) if isinstance(node, exp.NullSafeNEQ) else same
    if isinstance(node, exp.Between) and _are_wide(node.this, node.args["low"], node.args["high"]):
        low, high = _compare(node.this, node.args["low"]), _compare(node.this, node.args["high"])
        either = " OR (_0 <= 0 AND _1 >= 0)" if node.args.get("symmetric") else ""
        return template(f"(_0 >= 0 AND _1 <= 0{either})", low, high)
    if isinstance(node, exp.In) and node.expressions and _are_wide(node.this, *node.expressions):
        return exp.paren(exp.or_(*(_compared(exp.EQ(this=node.this.copy(), expression=one.copy())) for one in node.expressions)))
    if isinstance(node, exp.Greatest | exp.Least) and _are_wide(node.this, *node.expressions):
        return _furthest(node)
    return node


def _furthest(node: exp.Greatest | exp.Least) -> exp.Expr:
    """The largest or smallest of several; NULLs are passed over."""
    several = [node.this, *node.expressions]
    if len(several) > _FEW and agreed(several) is not None:  # each further one would double the expression
        listed = _choice(exp.Array(expressions=[one.copy() for one in several]))
        return of_list((exp.ArrayMax if isinstance(node, exp.Greatest) else exp.ArrayMin)(this=listed), _compare, lambda value, _: value)
    sign = ">=" if isinstance(node, exp.Greatest) else "<="
    found = node.this
    for other in node.expressions:
        said = f"CASE WHEN _0 IS NULL THEN _1 WHEN _1 IS NULL THEN _0 WHEN _2 {sign} 0 THEN _0 ELSE _1 END"
        found = template(said, *_alike(found, other, node), _compare(found, other))
    return found


def _are_wide(*nodes: exp.Expr) -> bool:
    return any(is_wide_number(node) for node in nodes)


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
    negative = any((whole_number(side) or "").startswith("-") for side in (left, right))
    return INT256 if any(signed) or negative else UINT256


def _operand(node: exp.Expr, kind: WideInteger) -> exp.Expr:
    """A side of an operator as that type."""
    name = "to_i256" if kind.signed else "to_u256"
    if isinstance(node.unnest(), exp.Null) or kind_of(node) == kind:
        return node
    digits = whole_number(node)
    return _call(name, exp.Literal.string(digits)) if digits is not None else _call(name, node)


def _chosen(node: exp.Expr, kind: WideInteger) -> exp.Expr:
    """A value as that type where nothing is computed with it: NULL stays NULL."""
    found = _operand(node, kind)
    return found if found is node or whole_number(node) is not None else template("CASE WHEN _0 IS NULL THEN NULL ELSE _1 END", node, found)


def _alike(left: exp.Expr, right: exp.Expr, whole: exp.Expr) -> tuple[exp.Expr, exp.Expr]:
    """Two values of which one is chosen by `whole`, in one type."""
    if (kind := decimal_of(left) or decimal_of(right)) is not None:
        return wide_decimals.operand(left, kind), wide_decimals.operand(right, kind)
    _exact(whole, left, right)
    target = _target(left, right)
    return _chosen(left, target), _chosen(right, target)


def _exact(whole: exp.Expr, *sides: exp.Expr) -> None:
    """Raises UserError where one side is a number with a fraction: the other would lose its digits."""
    for side in sides:
        bare = side.unnest()
        fraction = isinstance(bare, exp.Literal) and not bare.is_string and whole_number(bare) is None
        if fraction or (kind_of(side) is None and whole_number(side) is None and _inexact(side)):
            msg = f"`{whole.sql(dialect='spark')}` puts a 256-bit integer beside a number with a fraction"
            raise UserError(msg, hint="Say which it is to be: CAST the integer AS double, or the other one with to_u256 or to_i256.")


def _inexact(side: exp.Expr) -> bool:
    kind = told(side)
    return kind.this in _INEXACT and not is_whole_decimal(kind)


def _compare(left: exp.Expr, right: exp.Expr) -> exp.Expr:
    """-1, 0 or 1, NULL where one side is. Signed where the sign of a side is not known."""
    if decimal_of(left) is not None or decimal_of(right) is not None:
        return wide_decimals.compare(left, right)
    _exact(exp.Tuple(expressions=[left.copy(), right.copy()]), left, right)
    signed = any(not _is_natural(side) for side in (left, right))
    sides = [exp.Literal.string(digits) if (digits := whole_number(side)) is not None else side for side in (left, right)]
    return _call("i256_compare" if signed else "u256_compare", *sides)


def _same(left: exp.Expr, right: exp.Expr) -> exp.Expr:
    """Equality for which NULL is a value."""
    return template("(coalesce(_0 = 0, false) OR (_1 IS NULL AND _2 IS NULL))", _compare(left, right), left, right)


def _is_natural(node: exp.Expr) -> bool:
    digits = whole_number(node)
    return not digits.startswith("-") if digits is not None else kind_of(node) == UINT256


def _is_text(node: exp.Expr) -> bool:
    bare = node.unnest()
    if isinstance(bare, exp.Literal):
        return bare.is_string and whole_number(bare) is None
    return not is_wide_number(node) and told(node).this in exp.DataType.TEXT_TYPES


def _compared(node: exp.Binary) -> exp.Expr:
    left, right = node.left, node.right
    if not _are_wide(left, right):
        return node
    decimal = decimal_of(left) is not None or decimal_of(right) is not None
    if isinstance(node, exp.EQ | exp.NEQ) and not decimal and (_is_text(left) or _is_text(right)):
        return _equals_text(node)
    if not decimal:
        _exact(node, left, right)
    return type(node)(this=_compare(left, right), expression=exp.Literal.number(0))


def _equals_text(node: exp.Binary) -> exp.Expr:
    """Equality with a text: that of numbers where the text is one, such as `007`, else that of texts."""
    wide, text = (node.left, node.right) if is_wide_number(node.left) else (node.right, node.left)
    if isinstance(text.unnest(), exp.Literal):
        return node
    same = template(f"CASE WHEN _0 RLIKE {_DIGITS} THEN _1 = 0 ELSE _2 = _0 END", text, _call("i256_compare", wide, text), wide)
    return exp.paren(same if isinstance(node, exp.EQ) else exp.not_(same))


def _cast(node: exp.Cast) -> exp.Expr:
    kind = kind_of(node.this)
    if (wanted := KINDS.get(node.to.this)) is not None:
        if isinstance(node.this.unnest(), exp.Null):
            node.set("to", exp.DataType.build("STRING", dialect="spark"))
            node.type = type_of_wide(wanted)
            return node
        if isinstance(node, exp.TryCast) and kind_of(node.this) is None and not is_whole(node.this):
            msg = f"`{node.sql(dialect='spark')}` cannot give NULL for what is no {wanted}"
            raise UserError(msg, hint=f"Say which texts are numbers: CASE WHEN s RLIKE '^[0-9]+$' THEN CAST(s AS {wanted}) END.")
        return _chosen(node.this, wanted)
    if kind is not None and node.to.this in exp.DataType.TEXT_TYPES:
        return _call("i256_to_string" if kind.signed else "u256_to_string", node.this)
    return node


def _choice(node: exp.Expr) -> exp.Expr:
    """CASE, if, coalesce, nullif: what is compared is compared as numbers, and written numbers take the type of the other results."""
    if isinstance(node, exp.Nullif):
        if not _are_wide(node.this, node.expression):
            return node
        return template("CASE WHEN _0 = 0 THEN NULL ELSE _1 END", _compare(node.this, node.expression), node.this)
    if isinstance(node, exp.DecodeCase):
        return _decoded(node)
    if isinstance(node, exp.Case) and node.this is not None and _are_wide(node.this, *(branch.this for branch in node.args["ifs"])):
        for branch in node.args["ifs"]:
            branch.set("this", _compared(exp.EQ(this=node.this.copy(), expression=branch.this.copy())))
        node.set("this", None)
    parts = branches(node)
    if (kind := agreed(parts)) is not None:
        for part in parts:
            if kind_of(part) != kind and not isinstance(part.unnest(), exp.Null):
                part.replace(_chosen(part, kind))
    elif (decimal := agreed_decimal(parts)) is not None:
        for part in parts:
            part.replace(wide_decimals.operand(part, decimal))
    elif _are_wide(*parts):
        _texts_only(node, parts)
    return node


def _decoded(node: exp.DecodeCase) -> exp.Expr:
    """`decode(value, one, its result, ..., otherwise)`, for which NULL equals NULL."""
    value, *rest = node.expressions
    searched = rest[: len(rest) // 2 * 2 : 2]
    if not _are_wide(value, *searched):
        return node
    found = exp.Case(default=rest[-1].copy() if len(rest) % 2 else None)
    for one, result in zip(searched, rest[1::2], strict=True):
        found = found.when(_same(value, one), result)
    return _choice(found)


def _texts_only(node: exp.Expr, parts: Sequence[exp.Expr]) -> None:
    """Raises UserError where Spark would make another number of a choice between a wide number and something else."""
    kinds = [kind_of(part) or decimal_of(part) for part in parts]
    at = next(at for at, kind in enumerate(kinds) if kind is not None)
    texts = [_is_text(part) for part in parts]
    for part, wide, text in zip(parts, kinds, texts, strict=True):
        other = wide != kinds[at] and not any(texts) if wide is not None else not (text or isinstance(part.unnest(), exp.Null))
        if other:
            kind_said = f"a {kind}" if (kind := _said(part)) else "of a type that cannot be told"
            msg = (
                f"`{node.sql(dialect='spark')}` is `{parts[at].sql(dialect='spark')}`, of type {kinds[at]}, or `{part.sql(dialect='spark')}`,"
                f" which is {kind_said}"
            )
            raise UserError(msg, hint=f"{wide_decimals.HINT} For a text, CAST all of them AS STRING." if kind else _untold(part))


def _said(node: exp.Expr) -> str:
    """The type of an expression in words; empty where it cannot be told."""
    kind = kind_of(node) or decimal_of(node)
    found = told(node)
    return str(kind) if kind is not None else "" if found.this == exp.DType.UNKNOWN else found.sql(dialect="spark")


def _untold(node: exp.Expr) -> str:
    text = node.sql(dialect="spark")
    return f"Say it: CAST({text} AS BIGINT) or AS decimal(38, 0) for a whole number, CAST({text} AS STRING) for a text."
