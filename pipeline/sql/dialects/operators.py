"""Operators, literals, list items and types of other dialects in Spark's SQL, one tree node at a time."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from sqlglot import exp

from headrace.pipeline.errors import UserError
from headrace.pipeline.sql.dialects.functions import SLICED, template
from headrace.pipeline.sql.dialects.patterns import similar
from headrace.pipeline.sql.dialects.types import ARROW_TYPES

_UNITS = ("YEAR", "QUARTER", "MONTH", "WEEK", "DAY", "HOUR", "MINUTE", "SECOND", "MILLISECOND", "MICROSECOND")
_CAPITALS = (
    r"array_join(transform(split(lower(_0), '(?<![\\p{L}\\p{N}])(?=[\\p{L}\\p{N}])'),"
    " hr_x -> concat(upper(left(hr_x, 1)), substr(hr_x, 2))), '')"
)
_BARE_DECIMAL = "DECIMAL(38, 10)"
_WIDER = {
    "INT128": "DECIMAL(38, 0)",
    "UINT128": "DECIMAL(38, 0)",
    "UBIGINT": "DECIMAL(20, 0)",
    "UINT": "BIGINT",
    "USMALLINT": "INT",
}
"""Spark's replacements for types that it lacks."""


def translate_node(part: exp.Expr, dialect: str) -> exp.Expr:
    """Return one node of the tree in Spark's SQL. Its children are translated already.

    Raise UserError if there is no equivalent.
    """
    rule = _RULES.get(type(part))
    return rule(part, dialect) if rule else part


def _explode(call: exp.Explode, dialect: str) -> exp.Expr:
    """Return `unnest` in a SELECT list as Unnest. sqlglot reads it as Spark's `explode`.

    Spark's `explode` has another column name and must be alone in the list.
    """
    del dialect
    return call if isinstance(call.parent, exp.Lateral | exp.Table) else exp.Unnest(expressions=[call.this])


def _concat(call: exp.Concat, dialect: str) -> exp.Expr:
    """Return a call that skips NULLs."""
    del dialect
    return exp.Anonymous(this="concat_ws", expressions=[exp.Literal.string(""), *call.expressions])


def _like_pattern(call: exp.RegexpLike | exp.RegexpILike, dialect: str) -> exp.Expr:
    del dialect
    flags = "i" if isinstance(call, exp.RegexpILike) else _text(call.args.get("flag"))
    return exp.RegexpLike(
        this=call.this, expression=_prefix_flags(call.expression, flags) if flags else call.expression
    )


def _replace(call: exp.RegexpReplace, dialect: str) -> exp.Expr:
    if dialect == "postgres" and "g" not in _text(call.args.get("modifiers")):
        msg = "regexp_replace without the flag 'g' replaces the first match alone, which Spark cannot"
        raise UserError(msg, hint="Add the flag 'g', or cut the text with regexp_like and substr.")
    if dialect != "postgres":
        return call
    flags, by = _text(call.args.get("modifiers")).replace("g", ""), call.args["replacement"]
    if set(flags) - {"i"}:
        msg = f"the flags `{flags}` of regexp_replace cannot be written in Spark's SQL"
        raise UserError(msg, hint="Allowed: g, i.")
    if isinstance(by, exp.Literal):
        by = exp.Literal.string(re.sub(r"\\\\|\\[0-9&]|[\\$]", _group, by.name))
    return template("regexp_replace(_0, _1, _2)", call.this, _prefix_flags(call.expression, flags), by)


def _is_place(arg: exp.Expr) -> bool:
    """Return whether the argument is a literal integer above 0, or a string."""
    return isinstance(arg, exp.Literal) and arg.name != "0"


def _substring(call: exp.Substring, dialect: str) -> exp.Expr:
    """Count positions before the first letter. Spark would count from the end there."""
    start, length = call.args.get("start"), call.args.get("length")
    del dialect
    if start is None or _is_place(start):
        return call
    if length is None:
        return template("substr(_0, CASE WHEN _1 < 1 THEN 1 ELSE _1 END)", call.this, start)
    cut = "CASE WHEN _1 < 1 THEN _2 + _1 - 1 ELSE _2 END"
    return template(f"substr(_0, CASE WHEN _1 < 1 THEN 1 ELSE _1 END, {cut})", call.this, start, length)


def _end(call: exp.Left | exp.Right, dialect: str) -> exp.Expr:
    """Drop letters for a negative count. Spark returns an empty string there."""
    count = call.expression
    del dialect
    if isinstance(count, exp.Literal):
        return call
    name = "left" if isinstance(call, exp.Left) else "right"
    return template(f"{name}(_0, CASE WHEN _1 < 0 THEN char_length(_0) + _1 ELSE _1 END)", call.this, count)


def _initcap(call: exp.Initcap, dialect: str) -> exp.Expr:
    """Start a word after any character that is no letter or digit. In Spark words start after blanks."""
    del dialect
    return template(_CAPITALS, call.this)


def _unit(call: exp.TimestampTrunc | exp.DateTrunc, dialect: str) -> exp.Expr:
    """Refuse a unit that Spark does not know. Spark would return NULL."""
    del dialect
    name = _text(call.args.get("unit")).upper()
    if name not in _UNITS:
        msg = f"date_trunc to `{name.lower()}` cannot be written in Spark's SQL"
        raise UserError(msg, hint=f"Allowed: {', '.join(_UNITS).lower()}.")
    return call


def _group(match: re.Match[str]) -> str:
    """Return a group, a backslash or a dollar in the spelling of Java's replacements."""
    text = match[0]
    if text[1:] and text[1:] != "\\":
        return "$0" if text[1] == "&" else f"${text[1]}"
    return f"\\{text[0]}"


def _cut(call: exp.Cast, dialect: str) -> exp.Expr:
    """Cut or pad a string to the length of its type, as Postgres does. Spark ignores the length in a CAST."""
    kind = call.to
    if dialect != "postgres" or kind.this not in (exp.DType.VARCHAR, exp.DType.CHAR) or not kind.expressions:
        return call
    name = "rpad" if kind.this == exp.DType.CHAR else "left"
    return template(
        f"{name}(CAST(_0 AS STRING), _1)", call.this, exp.Literal.number(kind.expressions[0].name)
    )


def _extract(call: exp.Extract, dialect: str) -> exp.Expr:
    """Return seconds since 1970 with their fraction, or the day of the week from Sunday, which is 0."""
    del dialect
    if call.name.upper() == "EPOCH":
        return template("CAST(CAST(_0 AS TIMESTAMP) AS DOUBLE)", call.expression)
    return (
        template("(dayofweek(_0) - 1)", call.expression)
        if call.name.upper() in ("DOW", "DAYOFWEEK")
        else call
    )


def _from_unix(call: exp.UnixToTime, dialect: str) -> exp.Expr:
    """Keep the fraction of the seconds."""
    del dialect
    return call if call.args.get("scale") is not None else template("CAST(_0 AS TIMESTAMP)", call.this)


def _equal(node: exp.EQ, dialect: str) -> exp.Expr:
    """Translate `x = ANY(list)`."""
    del dialect
    several = node.expression
    if isinstance(several, exp.Any) and not isinstance(several.this, exp.Query):
        return template("array_contains(_0, _1)", several.this.unnest(), node.this)
    return node


def _division(node: exp.Div, dialect: str) -> exp.Expr:
    """Mark a division in which integers give an integer. `sql.types` decides where that is."""
    del dialect
    node.set("typed", True)
    return node


def _text(node: exp.Expr | None) -> str:
    return node.name if node is not None else ""


def _prefix_flags(pattern: exp.Expr, flags: str) -> exp.Expr:
    """Return a pattern with its flags as a prefix, as Java reads them."""
    prefix = f"(?{flags})" if flags else ""
    if isinstance(pattern, exp.Literal):
        return exp.Literal.string(prefix + pattern.name)
    return template("concat(_0, _1)", exp.Literal.string(prefix), pattern)


def _item(bracket: exp.Bracket, dialect: str) -> exp.Expr:
    """Return an item: `xs[1]` is the first, a missing one is NULL. A quoted name is a field or a map key."""
    (index,) = bracket.expressions if len(bracket.expressions) == 1 else (None,)
    if index is None or (isinstance(index, exp.Literal) and index.is_string):
        return bracket
    if isinstance(index, exp.Slice):
        first = index.this or exp.Literal.number(1)
        if index.args.get("step") is not None:
            msg = "a slice with a step cannot be written in Spark's SQL"
            raise UserError(msg, hint="Write it with filter and a lambda.")
        if index.expression is None:
            return template("slice(_0, _1, greatest(array_size(_0) - _1 + 1, 0))", bracket.this, first)
        if _is_place(first) and _is_place(index.expression):
            return template("slice(_0, _1, greatest(_2 - _1 + 1, 0))", bracket.this, first, index.expression)
        if dialect == "postgres":
            first = template("(CASE WHEN _0 < 1 THEN 1 ELSE _0 END)", first)
            return template("slice(_0, _1, greatest(_2 - _1 + 1, 0))", bracket.this, first, index.expression)
        return template(SLICED, bracket.this, first, index.expression)
    if dialect == "postgres" and isinstance(index, exp.Neg):
        msg = f"`{bracket.sql(dialect='postgres')}` is no item: Postgres does not count from the end"
        raise UserError(msg, hint="Use array_reverse(list)[1], or the dialect `datafusion`, which counts so.")
    return template("try_element_at(_0, _1)", bracket.this, index)


def _type(kind: exp.DataType, dialect: str) -> exp.Expr:
    del dialect
    name = kind.this.value if isinstance(kind.this, exp.DType) else str(kind.this)
    if name == "USERDEFINED":
        known = ARROW_TYPES.get(str(kind.args.get("kind", "")).lower())
        return exp.DataType.build(known, dialect="spark") if known else kind
    if name == "DECIMAL" and not kind.expressions:
        return exp.DataType.build(_BARE_DECIMAL, dialect="spark")
    if name in _WIDER:
        return exp.DataType.build(_WIDER[name], dialect="spark")
    if name in ("JSON", "JSONB"):
        return exp.DataType.build("STRING", dialect="spark")
    if name in ("TIME", "TIMETZ"):
        msg = "Spark's SQL has no type for a time of day"
        raise UserError(msg, hint="Keep it as text: CAST(column AS VARCHAR).")
    return kind


_RULES: Mapping[type[exp.Expr], Callable[[Any, str], exp.Expr]] = {
    exp.Explode: _explode,
    exp.Concat: _concat,
    exp.Bracket: _item,
    exp.DataType: _type,
    exp.RegexpLike: _like_pattern,
    exp.RegexpILike: _like_pattern,
    exp.RegexpReplace: _replace,
    exp.Extract: _extract,
    exp.UnixToTime: _from_unix,
    exp.EQ: _equal,
    exp.SimilarTo: similar,
    exp.Div: _division,
    exp.Initcap: _initcap,
    exp.Substring: _substring,
    exp.Left: _end,
    exp.Right: _end,
    exp.TimestampTrunc: _unit,
    exp.DateTrunc: _unit,
    exp.Cast: _cut,
}
