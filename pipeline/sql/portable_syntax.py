"""The syntax of portable SQL. Types of columns decide whether such a statement is portable."""

from __future__ import annotations

from sqlglot import exp

VALUES: tuple[type[exp.Expr], ...] = (
    *(exp.Column, exp.Paren, exp.Literal, exp.Neg, exp.Boolean, exp.Null, exp.Add, exp.Sub, exp.Mul, exp.Div),
    *(exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.Between, exp.In, exp.Like, exp.And, exp.Or),
    *(exp.Not, exp.Is, exp.Case, exp.If, exp.Coalesce, exp.Cast, exp.TryCast, exp.DPipe, exp.Concat),
)
"""The expressions that portable SQL may have."""
_CLAUSES: tuple[type[exp.Expr], ...] = (
    *(exp.Select, exp.From, exp.Where, exp.Table, exp.TableAlias, exp.Identifier, exp.Alias, exp.Star),
    *(exp.DataType, exp.DataTypeParam),
)


def has_portable_syntax(query: exp.Query) -> bool:
    """Return whether a statement has nothing but the syntax of portable SQL."""
    return isinstance(query, exp.Select) and all(type(part) in (*VALUES, *_CLAUSES) for part in query.walk())
