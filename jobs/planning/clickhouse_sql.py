"""Writes portable SQL as ClickHouse SQL."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
from sqlglot import exp

from headrace.connectors.clickhouse.reader import SPLIT
from headrace.connectors.clickhouse.types import quote
from headrace.jobs.planning.portable_sql import parse_portable
from headrace.jobs.planning.portable_values import Expression


def translate(sql: str, source_name: str, schema: pa.Schema, over: str = SPLIT) -> str | None:
    """Return the ClickHouse statement over the rows of one split, or None if its meaning may differ there.

    Args:
        sql: a transform in Spark SQL.
        source_name: the only node that it may read.
        schema: the payload of that node as Spark sees it.
        over: what the statement reads from in ClickHouse: the split, or the translation of the previous
            transform in brackets.
    """
    result = parse_portable(sql, source_name, schema)
    if result is None:
        return None
    # Two levels, so that no alias hides a column from an expression.
    inner = ", ".join(
        f"{_write(value)} AS _headrace_out_{place}" for place, (_, value) in enumerate(result.outputs)
    )
    outer = ", ".join(
        f"_headrace_out_{place} AS {quote(name)}" for place, (name, _) in enumerate(result.outputs)
    )
    condition = f" WHERE {_write(result.condition)}" if result.condition else ""
    return f"SELECT {outer} FROM (SELECT {inner} FROM {over}{condition})"  # noqa: S608  every part is from the whitelist


_SIGNS = {
    "add": "+", "subtract": "-", "multiply": "*", "divide": "/", "equal": "=", "not_equal": "!=", "less": "<",
    "less_equal": "<=", "greater": ">", "greater_equal": ">=", "and": "AND", "or": "OR", "like": "LIKE",
}  # fmt: skip
_TEMPLATES = {
    "double": "CAST({text} AS Float64)", "constant": "CAST('{text}' AS {kind})", "number": "{text}",
    "boolean": "{text}", "null": "NULL", "cast": "CAST({0} AS Nullable({kind}))", "negate": "(-{0})",
    "not": "(NOT {0})", "is_null": "isNull({0})",
    "float_greater": "(({0} > {1}) OR (isNaN({0}) AND NOT isNaN({1})))",
    "float_greater_equal": "(({0} >= {1}) OR (isNaN({0}) AND isNotNull({1})))",
    "float_equal": "(({0} = {1}) OR (isNaN({0}) AND isNaN({1})))", "coalesce": "coalesce({listed})",
    "concat": "concat({listed})", "trim": "trimBoth({0})", "length": "lengthUTF8({0})",
    "remainder": "({0} % {1})",
}  # fmt: skip


def _write(expression: Expression) -> str:
    """Return an expression in ClickHouse SQL."""
    if expression.operation in _WRITERS:
        return _WRITERS[expression.operation](expression)
    arguments = [_write(one) for one in expression.arguments]
    if sign := _SIGNS.get(expression.operation):
        return f"({f' {sign} '.join(arguments)})"
    return _TEMPLATES[expression.operation].format(
        *arguments, text=expression.text, kind=expression.kind, listed=", ".join(arguments)
    )


def _write_case(expression: Expression) -> str:
    parts = [_write(one) for one in expression.arguments]
    branches = len(parts) // 2
    pairs = " ".join(
        f"WHEN {when} THEN {then}" for when, then in zip(parts[:branches], parts[branches:-1], strict=True)
    )
    return f"(CASE {pairs} ELSE {parts[-1]} END)"


_WRITERS: dict[str, Callable[[Expression], str]] = {
    "column": lambda result: quote(result.text),
    "text": lambda result: exp.Literal.string(result.text).sql(dialect="clickhouse"),
    "case": _write_case,
}
