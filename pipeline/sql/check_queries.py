"""The SQL of checks: one SELECT over the table of a sink, in the dialect of its system."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, TokenError

from headrace.pipeline.errors import UserError
from headrace.pipeline.sql.dialects.spark import DIALECT

TARGET = "target"
"""The name of the sink's table in the SQL of a check."""
_DIALECTS: Mapping[str, Any] = {"spark": DIALECT, "postgres": "postgres", "clickhouse": "clickhouse"}
_EXAMPLE = f"Example: SELECT id FROM {TARGET} WHERE amount < 0"  # noqa: S608  a text for people
_TITLES = {"spark": "Spark", "postgres": "Postgres", "clickhouse": "ClickHouse"}


def check_query(text: str, dialect: str) -> None:
    """Raise UserError unless the text is one SELECT that reads the sink's table."""
    hint = _EXAMPLE
    try:
        statements = [one for one in sqlglot.parse(text, dialect=_DIALECTS[dialect]) if one is not None]
    except ParseError as error:
        first = error.errors[0]
        msg = (
            f"failed to parse the SQL of {_TITLES[dialect]}: {first['description']} at line {first['line']},"
            f" column {first['col']}"
        )
        raise UserError(msg, hint=hint) from None
    except (TokenError, RecursionError):
        msg = f"failed to parse the SQL of {_TITLES[dialect]}: a quote or a comment is not closed"
        raise UserError(msg, hint=hint) from None
    if len(statements) != 1 or not isinstance(statements[0], exp.Query) or _writes(statements[0]):
        msg = "a check is one SELECT statement"
        raise UserError(msg, hint=hint)
    tables = {table.name.lower() for table in statements[0].find_all(exp.Table) if not table.db}
    if TARGET not in tables:
        msg = f"does not read `{TARGET}`, the table of the sink"
        raise UserError(msg, hint=hint)


def _writes(query: exp.Query) -> bool:
    return any(query.find_all(exp.Insert, exp.Update, exp.Delete, exp.Merge, exp.Into))
