"""The syntax of portable SQL. Types of columns decide whether such a statement is portable."""

from __future__ import annotations

from sqlglot import exp

VALUES: tuple[type[exp.Expr], ...] = (
    *(exp.Column, exp.Paren, exp.Literal, exp.Neg, exp.Boolean, exp.Null, exp.Add, exp.Sub, exp.Mul, exp.Div),
    *(exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.Between, exp.In, exp.Like, exp.And, exp.Or),
    *(exp.Not, exp.Is, exp.Case, exp.If, exp.Coalesce, exp.Cast, exp.TryCast, exp.DPipe, exp.Concat),
    *(exp.Nullif, exp.Trim, exp.Length, exp.Mod),
)
"""The expressions that portable SQL may have."""
GUARDED_VALUES: tuple[type[exp.Expr], ...] = (
    *(exp.Upper, exp.Lower, exp.Substring, exp.Left, exp.Replace, exp.ConcatWs, exp.StartsWith, exp.EndsWith),
    *(exp.Contains, exp.Abs, exp.Round, exp.Floor, exp.Ceil, exp.Greatest, exp.Least, exp.Nvl2),
    *(exp.Year, exp.Quarter, exp.Month, exp.Day, exp.DayOfMonth, exp.DayOfWeek, exp.Hour, exp.Minute),
    *(exp.Second, exp.TsOrDsToDate, exp.DateDiff, exp.TimestampTrunc, exp.DateTrunc, exp.Anonymous),
)
"""More of them, which are portable only for rows in the driver."""
GUARDED_CALLS = frozenset({"timestamp_seconds", "timestamp_millis", "timestamp_micros"})
"""The functions of `exp.Anonymous`, of which sqlglot knows no meaning."""
_CLAUSES: tuple[type[exp.Expr], ...] = (
    *(exp.Select, exp.From, exp.Where, exp.Table, exp.TableAlias, exp.Identifier, exp.Alias, exp.Star),
    *(exp.DataType, exp.DataTypeParam, exp.Var),
)


def has_portable_syntax(query: exp.Query, *, guarded: bool) -> bool:
    """Return whether a statement has nothing but the syntax of portable SQL.

    `guarded`: its rows are in the driver.
    """
    allowed = {*VALUES, *_CLAUSES, *(GUARDED_VALUES if guarded else ())}
    return isinstance(query, exp.Select) and all(
        type(part) in allowed and (not isinstance(part, exp.Anonymous) or part.name.lower() in GUARDED_CALLS)
        for part in query.walk()
    )
