"""The filter of a source: a predicate in Spark SQL over its columns, as the WHERE of a statement."""

from __future__ import annotations

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from headrace.pipeline.sql.dialects.spark import DIALECT

SOURCE = "_gs_rows"
"""The table that the statement reads. No column has its name, so `a.b` is always a field of a column."""


def format_filter(predicate: str) -> str:
    """Return the statement that selects the rows which pass a filter."""
    return f"SELECT * FROM {SOURCE} WHERE (\n{predicate}\n)"  # noqa: S608  parsed, and not run


def parse_filter(predicate: str) -> exp.Select | None:
    """Return the statement of `format_filter`, or None if the predicate is not one expression."""
    try:
        result = sqlglot.parse_one(format_filter(predicate), dialect=DIALECT)
    except SqlglotError:
        return None
    # `a) OR (b` is no predicate, although the statement is valid.
    where = result.args.get("where")
    return result if isinstance(result, exp.Select) and where and isinstance(where.this, exp.Paren) else None
