"""Expressions of Spark's SQL that never fail for a row, and replacements for those that might."""

from __future__ import annotations

from sqlglot import exp

from headrace.pipeline.sql.dialects.translation import template

_TOTAL = (
    *(
        exp.Column,
        exp.Identifier,
        exp.Literal,
        exp.Null,
        exp.Boolean,
        exp.Paren,
        exp.Alias,
        exp.Dot,
        exp.Star,
        exp.DataType,
        exp.Var,
    ),
    *(exp.And, exp.Or, exp.Not, exp.Is, exp.Case, exp.If, exp.Coalesce, exp.Nullif, exp.Greatest, exp.Least),
    *(
        exp.EQ,
        exp.NEQ,
        exp.LT,
        exp.LTE,
        exp.GT,
        exp.GTE,
        exp.NullSafeEQ,
        exp.NullSafeNEQ,
        exp.Between,
        exp.In,
    ),
    *(
        exp.Concat,
        exp.ConcatWs,
        exp.DPipe,
        exp.Lower,
        exp.Upper,
        exp.Trim,
        exp.Length,
        exp.Substring,
        exp.Left,
        exp.Right,
        exp.Replace,
    ),
    *(
        exp.StartsWith,
        exp.EndsWith,
        exp.Contains,
        exp.Pad,
        exp.MD5,
        exp.SHA,
        exp.SHA2,
        exp.Hex,
        exp.LowerHex,
        exp.ToBase64,
    ),
    *(exp.Struct, exp.Array, exp.PropertyEQ, exp.RegexpSplit, exp.FromJson, exp.JSONFormat),
    *(exp.SafeAdd, exp.SafeSubtract, exp.SafeMultiply, exp.SafeDivide),
)
_NAMED = frozenset({"xxhash64", "hash", "crc32", "get", "try_mod"})
_INSTEAD: dict[type[exp.Expr], str] = {
    exp.Add: "try_add",
    exp.Sub: "try_subtract",
    exp.Mul: "try_multiply",
    exp.Div: "try_divide",
    exp.Mod: "try_mod",
}
_TEXTS = {exp.DType.TEXT, exp.DType.VARCHAR}


_REPEATABLE = (
    *(exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod, exp.Neg, exp.Abs),
    *(exp.Like, exp.ILike, exp.RegexpLike, exp.Escape, exp.Cast, exp.TryCast),
)
_REPEATABLE_NAMED = _NAMED | {"pmod", "mod"}


def is_repeatable(value: exp.Expr) -> bool:
    """Return whether an expression always has the same result for the same columns. Only True is certain."""
    return all(
        part.name.lower() in _REPEATABLE_NAMED
        if isinstance(part, exp.Anonymous)
        else isinstance(part, (*_TOTAL, *_REPEATABLE))
        for part in value.walk()
    )


def is_total(value: exp.Expr) -> bool:
    """Return whether an expression gives a value or NULL for every row. Only True is certain."""
    return all(_is_total(part) for part in value.walk())


def _is_total(part: exp.Expr) -> bool:
    if isinstance(part, exp.Anonymous):
        return part.name.lower() in _NAMED
    if isinstance(part, exp.Cast):
        return not _is_strict(part) or part.to.this in _TEXTS
    if isinstance(part, exp.Bracket):
        return bool(part.args.get("safe"))
    return isinstance(part, _TOTAL)


def _is_strict(cast: exp.Cast) -> bool:
    """Return whether a cast raises an error. The parser reads Spark's CAST as a TRY_CAST that is not safe."""
    return not (isinstance(cast, exp.TryCast) and cast.args.get("safe"))


def without_errors(value: exp.Expr) -> exp.Expr | None:
    """Return an equal expression that gives NULL instead of an error. None if there is none."""
    made = exp.Paren(this=value.copy())
    for part in list(made.walk(bfs=False))[::-1]:
        if isinstance(part, exp.Cast) and _is_strict(part) and part.to.this not in _TEXTS:
            part.replace(exp.TryCast(this=part.this, to=part.to, safe=True))
        elif isinstance(part, exp.TsOrDsToDate) and part.args.get("format") is None:
            part.replace(template("try_cast(_0 AS DATE)", part.this))
        elif isinstance(part, exp.Binary) and (name := _INSTEAD.get(type(part))):
            part.replace(template(f"{name}(_0, _1)", part.left, part.right))
    return made if is_total(made) else None
