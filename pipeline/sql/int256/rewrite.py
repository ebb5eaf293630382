"""Operators on numbers of more than 38 digits.

Spark stores these as decimal strings, so operators become functions. `w + 1` is `u256_add(w, to_u256('1'))`,
`w < n` is `u256_compare(w, n) < 0`. Decimals are only compared. `_RULES` and `_NAMES` list the allowed
operators. All others are refused, because Spark would treat the digits as a string.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa
from sqlglot import exp

from headrace.pipeline.errors import UserError
from headrace.pipeline.functions import Group, distinct, function_of
from headrace.pipeline.sql.dialects.functions import template
from headrace.pipeline.sql.int256.types import (
    INTEGERS_256,
    common_type,
    element_type,
    infer_type,
    is_wide,
    list_type,
    literal_integer,
    literal_number,
    scale_of,
    type_of_wide,
    wide_of_type,
)
from headrace.pipeline.suggestions import suggest_closest
from headrace.pipeline.types.int256 import INT256, UINT256, WideInteger, plain_digits

Rule = Callable[[exp.Expr], exp.Expr | None]
"""Returns the rewritten node. None if it is refused."""

_ARITHMETIC: Mapping[type[exp.Expr], str] = {
    exp.Add: "add", exp.Sub: "sub", exp.Mul: "mul", exp.Div: "div", exp.IntDiv: "div", exp.Mod: "mod",
}  # fmt: skip
_GENERATORS = (exp.Aliases, exp.Explode, exp.Posexplode, exp.Inline, exp.Stack, exp.Unnest)
_INSTEAD = "Else CAST it AS decimal(38, {}) if the digits fit, AS double if digits may be lost, or AS string."
_ONE_TYPE = (
    "Give both the same type with CAST: uint256, int256 or bigint for the other, or decimal(38, s),"
    " double or string for both."
)


def is_cast_to_int256(node: exp.Expr) -> bool:
    """Return whether a node is CAST(… AS uint256) or CAST(… AS int256)."""
    return isinstance(node, exp.Cast) and node.to.this in INTEGERS_256


def takes_int256(node: exp.Expr) -> bool:
    """Return whether a node is a call of a function whose signature has 256-bit integers."""
    own = function_of(node) if isinstance(node, exp.Anonymous) else None
    return own is not None and (own.group is Group.WIDE or "int256" in own.signature)


def rewrite(node: exp.Expr) -> exp.Expr:
    """Return one node of an expression as Spark must read it. Its children are rewritten already.

    Raise UserError for an operator that would lose digits, or treat the digits as a string.
    """
    numbers = [part for part in node.iter_expressions() if is_wide(part)]
    if not numbers and not is_cast_to_int256(node):
        return node
    rule = _rule_by_name(node) if isinstance(node, exp.Anonymous) else _RULES.get(type(node))
    made = rule(node) if rule is not None else None
    if made is None:
        raise refuse_operator(node, numbers[0])
    return made


def refuse_operator(node: exp.Expr, number: exp.Expr) -> UserError:
    """Return the error for an operator that is not available for a number of more than 38 digits."""
    number = number.expression if isinstance(number, exp.PropertyEQ) else number
    wide = wide_of_type(infer_type(number))
    msg = f"`{_spell(node)}` is not available for `{_spell(number)}`, which is {_spell_type(number)}"
    if isinstance(node, exp.Anonymous):
        msg += suggest_closest(node.name.lower(), [one.name for one in distinct() if one.group is Group.WIDE])
    if isinstance(node, _GENERATORS):
        hint = "Write it as a LATERAL VIEW, or as `explode(…) AS name` for a list."
    elif wide is None:
        hint = "Take the number out of it first, or build it of CAST(… AS string)."
    elif isinstance(wide, WideInteger):
        functions = "i256_add, to_i256 …" if wide.signed else "u256_add, to_u256 …"
        hint = f"It has + - * / %, comparisons and the functions {functions}. {_INSTEAD.format(0)}"
    else:
        hint = f"A decimal of more than 38 digits is only compared. {_INSTEAD.format('s')}"
    return UserError(msg, hint=hint)


def _refuse_pair(node: exp.Expr, left: exp.Expr, right: exp.Expr) -> UserError:
    """Return the error for an operation on a wide number and a value of another type."""
    number, other = (left, right) if is_wide(left) else (right, left)
    what = (
        f"`{_spell(number)}`, which is {_spell_type(number)}, with `{_spell(other)}`, which is"
        f" {_spell_type(other)}"
    )
    return UserError(f"`{_spell(node)}` combines {what}", hint=_ONE_TYPE)


def _spell(node: exp.Expr) -> str:
    return node.sql(dialect="spark")


def _spell_type(node: exp.Expr) -> str:
    kind = infer_type(node)
    if (wide := wide_of_type(kind)) is not None:
        return str(wide)
    return (
        "of a type that cannot be inferred" if kind.this == exp.DType.UNKNOWN else kind.sql(dialect="spark")
    )


def _int256_of(node: exp.Expr) -> WideInteger | None:
    kind = wide_of_type(infer_type(node))
    return kind if isinstance(kind, WideInteger) else None


def _call(name: str, kind: exp.DataType | str, *arguments: exp.Expr) -> exp.Anonymous:
    result = exp.Anonymous(this=name, expressions=[argument.copy() for argument in arguments])
    result.type = exp.DataType.build(kind, dialect="spark")
    return result


def _to_int256(node: exp.Expr, kind: WideInteger) -> exp.Expr:
    """Return an operand as that type. A literal becomes its digits."""
    if _int256_of(node) == kind:
        return node
    digits = literal_integer(node)
    return _call(
        "to_i256" if kind.signed else "to_u256",
        type_of_wide(kind),
        node if digits is None else exp.Literal.string(str(digits)),
    )


def _compute(node: exp.Expr) -> exp.Expr:
    """Rewrite `+ - * / % DIV`. The result is signed if one side is signed or a negative literal."""
    sides = [node.this, node.expression]
    if (
        decimal := next((side for side in sides if is_wide(side) and _int256_of(side) is None), None)
    ) is not None:
        raise refuse_operator(node, decimal)
    if any(scale_of(side) != 0 for side in sides):
        raise _refuse_pair(node, *sides)
    is_signed = any(_int256_of(side) == INT256 or (literal_integer(side) or 0) < 0 for side in sides)
    kind = INT256 if is_signed else UINT256
    prefix = "i256" if kind.signed else "u256"
    return _call(
        f"{prefix}_{_ARITHMETIC[type(node)]}", type_of_wide(kind), *(_to_int256(side, kind) for side in sides)
    )


def _sign(node: exp.Expr) -> exp.Expr | None:
    """Rewrite unary minus and `abs`."""
    kind = _int256_of(node.this)
    if kind is None:
        return None
    if isinstance(node, exp.Abs) and not kind.signed:
        return node.this
    name = "i256_abs" if isinstance(node, exp.Abs) else "i256_neg"
    return _call(name, type_of_wide(INT256), _to_int256(node.this, INT256))


def _compare(node: exp.Expr, left: exp.Expr, right: exp.Expr) -> exp.Expr:
    """Return -1, 0 or 1, or NULL if one side is NULL.

    The sides are compared as integers, in the smaller unit of the two.
    """
    scales = [0 if isinstance(side.unnest(), exp.Null) else scale_of(side) for side in (left, right)]
    has_decimal = any(isinstance(wide_of_type(infer_type(side)), pa.Decimal256Type) for side in (left, right))
    scale = max(0 if one is None else one for one in scales)
    if None in scales or (scale and not has_decimal):
        raise _refuse_pair(node, left, right)
    name = "u256_compare" if _is_unsigned(left) and _is_unsigned(right) else "i256_compare"
    return _call(name, "INT", _units(left, scale), _units(right, scale))


def _is_unsigned(node: exp.Expr) -> bool:
    number = literal_integer(node)
    return number >= 0 if number is not None else _int256_of(node) == UINT256


def _units(side: exp.Expr, scale: int) -> exp.Expr:
    """Return the digits of a number without its point, with `scale` digits for those after the point."""
    if (number := literal_number(side)) is not None:
        numerator, denominator = number.as_integer_ratio()
        return exp.Literal.string(str(numerator * 10**scale // denominator))
    if not scale or isinstance(side.unnest(), exp.Null):
        return side
    digits = (
        "concat(regexp_extract(CAST(_0 AS STRING), '^-?[0-9]+', 0), rpad(regexp_extract(CAST(_0 AS"
        " STRING), '[.]([0-9]*)', 1), _1, '0'))"
    )
    return template(digits, side, exp.Literal.number(scale))


def _comparison(node: exp.Expr) -> exp.Expr:
    return type(node)(this=_compare(node, node.this, node.expression), expression=exp.Literal.number(0))


def _null_safe(node: exp.Expr) -> exp.Expr:
    """Rewrite `<=>`, `IS DISTINCT FROM` and `equal_null`, for which NULL equals NULL."""
    left, right = node.this, node.expression
    same = template(
        "(coalesce(_0 = 0, false) OR (_1 IS NULL AND _2 IS NULL))", _compare(node, left, right), left, right
    )
    return exp.not_(same) if isinstance(node, exp.NullSafeNEQ) else same


def _between(node: exp.Expr) -> exp.Expr:
    low, high = (_compare(node, node.this, node.args[key]) for key in ("low", "high"))
    either = " OR (_0 <= 0 AND _1 >= 0)" if node.args.get("symmetric") else ""
    return template(f"(_0 >= 0 AND _1 <= 0{either})", low, high)


def _in_list(node: exp.Expr) -> exp.Expr | None:
    equals = [
        exp.EQ(this=_compare(node, node.this, one), expression=exp.Literal.number(0))
        for one in node.expressions
    ]
    return exp.paren(exp.or_(*equals)) if equals else None


def _nullif(node: exp.Expr) -> exp.Expr:
    made = template(
        "CASE WHEN _0 = 0 THEN NULL ELSE _1 END", _compare(node, node.this, node.expression), node.this
    )
    made.type = infer_type(node.this)
    return made


def _cast(node: exp.Expr) -> exp.Expr | None:
    """Rewrite a cast. NULL stays NULL. A cast to a type that Spark knows reads the digits."""
    value, target = node.this, node.args["to"].this
    source, kind = _int256_of(value), INTEGERS_256.get(target)
    if kind is None:
        if source is None or target not in exp.DataType.TEXT_TYPES:
            return node
        return _call("i256_to_string" if source.signed else "u256_to_string", "STRING", value)
    if is_wide(value) and wide_of_type(value.type) is None:
        return None
    if node.args.get("safe") and scale_of(value) != 0 and not isinstance(value.unnest(), exp.Null):
        msg = f"`{_spell(node)}` cannot give NULL for a value that is not {kind}"
        raise UserError(
            msg, hint=f"Test the text first: CASE WHEN s RLIKE '^[0-9]+$' THEN CAST(s AS {kind}) END."
        )
    made = _to_int256(value, kind)
    if isinstance(value.unnest(), exp.Null):
        made = exp.cast(value, "STRING", dialect="spark")
    elif made is not value and literal_integer(value) is None:
        made = template("CASE WHEN _0 IS NULL THEN NULL ELSE _1 END", value, made)
    made.type = type_of_wide(kind)
    return made


def _choose(node: exp.Expr) -> exp.Expr | None:
    """Give all results of CASE, `if`, `coalesce`, `nvl2` and `array` one type.

    Integer literals take the type of the others.
    """
    if isinstance(node, exp.Case | exp.If) and node.this is not None and is_wide(node.this):
        return None
    results = _results(node)
    number = next((result for result in results if is_wide(result)), None)
    if number is None:
        return node
    wide = wide_of_type(number.type)
    for result in results:
        digits = literal_integer(result)
        if wide is not None and digits is not None and _has_room(digits, wide):
            result.replace(
                _to_int256(result, wide)
                if isinstance(wide, WideInteger)
                else exp.Literal.string(plain_digits(str(digits)))
            )
        elif common_type([infer_type(number), infer_type(result)]) is None:
            raise _refuse_pair(node, number, result)
    if (kind := common_type([infer_type(result) for result in results if is_wide(result)])) is None:
        return None
    node.type = list_type(kind) if isinstance(node, exp.Array) else kind
    return node


def _results(node: exp.Expr) -> list[exp.Expr]:
    """Return the possible results of a choice, or the items of a list."""
    if isinstance(node, exp.Case):
        results = [branch.args["true"] for branch in node.args["ifs"]] + [node.args.get("default")]
    elif isinstance(node, exp.If | exp.Nvl2):
        results = [node.args["true"], node.args.get("false")]
    else:
        results = [*([node.this] if isinstance(node, exp.Coalesce) else []), *node.expressions]
    return [result for result in results if result is not None]


def _has_room(number: int, kind: pa.DataType) -> bool:
    return isinstance(kind, WideInteger) or len(str(abs(number))) <= kind.precision - kind.scale


def _pass_on(node: exp.Expr) -> exp.Expr:
    """Pass on the type through parentheses and names."""
    node.type = infer_type(node.expression if isinstance(node, exp.PropertyEQ) else node.this)
    return node


def _build(node: exp.Expr) -> exp.Expr | None:
    """Set the type of a struct or a map from the types of its parts."""
    node.type = infer_type(node)
    return node if is_wide(node) and not any(part.is_star for part in node.expressions) else None


def _take(node: exp.Expr) -> exp.Expr | None:
    """Set the type of a list item, a map value or a struct field.

    Refuse it if the index or the keys of the map are wide numbers.
    """
    container, *index = (
        node.expressions if isinstance(node, exp.Anonymous) else [node.this, *node.expressions]
    )
    kind = infer_type(container)
    has_wide_keys = kind.this == exp.DType.MAP and wide_of_type(kind.expressions[0]) is not None
    if has_wide_keys or any(is_wide(part) or isinstance(part, exp.Slice) for part in index):
        return None
    node.type = infer_type(node)
    return node


def _explode(node: exp.Expr) -> exp.Expr | None:
    """Set the type of `explode` or `unnest` of one list in a SELECT list.

    Refuse it without an alias, because the column would lose its type.
    """
    lists = node.expressions or [node.this]
    kind = infer_type(lists[0])
    if isinstance(node.parent, exp.Select) or len(lists) != 1 or kind.this != exp.DType.ARRAY:
        return None
    node.type = element_type(kind)
    return node


def _take_numbers(node: exp.Expr) -> exp.Expr | None:
    """Allow functions of a number's digits, but not of a list, map or struct."""
    return (
        node
        if all(wide_of_type(part.type) is not None for part in node.iter_expressions() if is_wide(part))
        else None
    )


def _make_text(node: exp.Expr) -> exp.Expr | None:
    """Allow functions that make a string from the digits."""
    node.type = exp.DataType.build("STRING", dialect="spark")
    return _take_numbers(node)


def _is_null(node: exp.Expr) -> exp.Expr | None:
    return node if isinstance(node, exp.Anonymous) or isinstance(node.expression, exp.Null) else None


def _keep(node: exp.Expr) -> exp.Expr:
    return node


def _rules(rule: Rule, *kinds: type[exp.Expr]) -> dict[type[exp.Expr], Rule]:
    return dict.fromkeys(kinds, rule)


_RULES: Mapping[type[exp.Expr], Rule] = {
    **_rules(_compute, *_ARITHMETIC),
    **_rules(_sign, exp.Neg, exp.Negative, exp.Abs),
    **_rules(_comparison, exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE),
    **_rules(_null_safe, exp.NullSafeEQ, exp.NullSafeNEQ, exp.EqualNull),
    **_rules(_between, exp.Between),
    **_rules(_in_list, exp.In),
    **_rules(_nullif, exp.Nullif),
    **_rules(_cast, exp.Cast, exp.TryCast),
    **_rules(_choose, exp.Case, exp.If, exp.Coalesce, exp.Nvl2, exp.Array),
    **_rules(_pass_on, exp.Paren, exp.Alias, exp.PropertyEQ),
    **_rules(_build, exp.Struct, exp.VarMap),
    **_rules(_take, exp.Bracket, exp.Dot),
    **_rules(_explode, exp.Explode, exp.Unnest),
    **_rules(_take_numbers, exp.Length, exp.Like),
    **_rules(_make_text, exp.Concat, exp.DPipe, exp.Substring),
    **_rules(_is_null, exp.Is),
    **_rules(_keep, exp.ArraySize),
}
_NAMES: Mapping[str, Rule] = {
    "coalesce_meta": _choose, "get": _take, "explode_outer": _explode, "isnull": _is_null,
    "isnotnull": _is_null, "named_struct": _build, "array_size": _keep, "cardinality": _keep,
    "concat_ws": _make_text,
}  # fmt: skip


def _rule_by_name(call: exp.Anonymous) -> Rule | None:
    """Return the rule for a function that sqlglot does not know."""
    return _NAMES.get(call.name.lower()) or (_take_numbers if takes_int256(call) else None)
