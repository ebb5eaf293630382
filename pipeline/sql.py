"""The SQL of transforms: what it reads, what is allowed in it, and the hidden columns added to it.

A per-row transform is a projection, a filter, or a union all of such. Joins, aggregates, windows, sort, limit and
distinct need state across rows; they are refused with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, ClassVar

import sqlglot
from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ParseError, TokenError

from headrace.pipeline import functions
from headrace.pipeline.errors import UserError
from headrace.pipeline.wide import WideInteger


class HeadraceSpark(Spark):
    """Spark 4's SQL. The library reads 'It''s' as two literals side by side, so that the quote would be lost without a word."""

    class Tokenizer(Spark.Tokenizer):
        """A doubled quote inside a literal is one quote."""

        STRING_ESCAPES: ClassVar[list[str]] = ["\\", "'", '"']

    class Parser(Spark.Parser):
        """The names of our own functions stay as they are written."""

        FUNCTIONS: ClassVar[dict[str, Callable[..., Any]]] = {**Spark.Parser.FUNCTIONS, **functions.parsed_names("spark")}
        FUNCTION_PARSERS: ClassVar[dict[str, Callable[..., Any]]] = functions.with_clauses(Spark.Parser.FUNCTION_PARSERS)


DIALECT = HeadraceSpark
_REFUSED: dict[type, str] = {
    exp.Join: "a join",
    exp.AggFunc: "an aggregate",
    exp.Group: "GROUP BY",
    exp.Having: "HAVING",
    exp.Window: "a window function",
    exp.Order: "ORDER BY",
    exp.Limit: "LIMIT",
    exp.Distinct: "DISTINCT",
    exp.Lateral: "LATERAL VIEW",
    exp.Explode: "explode",
    exp.Intersect: "INTERSECT",
    exp.Except: "EXCEPT",
}


@lru_cache(maxsize=256)
def _parsed(text: str) -> exp.Query:
    if not text.strip():
        msg = "a sql transform is one SELECT statement, and this is empty"
        raise UserError(msg, hint="Write one, such as SELECT * FROM and the name of a source.")
    try:
        statements = [statement for statement in sqlglot.parse(text, dialect=DIALECT) if statement is not None]
    except (ParseError, TokenError) as error:
        details = getattr(error, "errors", None)
        reason = (
            f"{details[0]['description']} at line {details[0]['line']}, column {details[0]['col']}"
            if details
            else "a quote or a comment is opened and never closed"
        )
        msg = f"failed to parse SQL: {reason}"
        raise UserError(msg, hint="--- SQL ---\n" + text.strip()) from None
    except RecursionError:
        msg = "failed to parse SQL: it is nested too deeply"
        raise UserError(msg, hint="Give parts of it to transforms of their own.") from None
    if len(statements) != 1 or not isinstance(statements[0], exp.Query):
        msg = "a sql transform is one SELECT statement"
        raise UserError(msg, hint="--- SQL ---\n" + text.strip())
    return statements[0]


def parse(text: str, *, node: str = "") -> exp.Query:
    """The statement, checked. Raises UserError for what cannot be parsed or is not allowed in a per-row transform."""
    try:
        found = _parsed(text)
    except UserError as error:
        error.node = node
        raise
    for part in found.walk():
        what = next((name for kind, name in _REFUSED.items() if isinstance(part, kind)), None)
        if what is None and isinstance(part, exp.Union) and part.args.get("distinct"):
            what = "UNION without ALL"
        if (
            what is None
            and isinstance(part, exp.Subquery | exp.In | exp.Exists)
            and part.find_ancestor(exp.Where)
            and part.find(exp.Select)
        ):
            what = "a subquery in WHERE"
        if what:
            msg = f"unsupported plan: {what} is not possible in a per-row transform"
            hint = "It needs rows beyond the one at hand. Do it in the target, or in a view over it."
            raise UserError(msg, hint=hint, node=node)
    return found.copy()


def tables(text: str, *, node: str = "") -> tuple[str, ...]:
    """The nodes that the statement reads, in order of appearance, without those that its own WITH defines."""
    found = parse(text, node=node)
    own = {cte.alias for cte in found.find_all(exp.CTE)}
    names = dict.fromkeys(_table_name(table) for table in found.find_all(exp.Table))
    return tuple(name for name in names if name not in own)


def table_uses(text: str, *, node: str = "") -> dict[str, int]:
    """How many SELECTs read each node: an upper bound of how often one input row can appear in the result."""
    names = [_table_name(table) for table in parse(text, node=node).find_all(exp.Table)]
    own = len(names) - sum(name in tables(text, node=node) for name in names)
    return {name: names.count(name) * max(1, own) for name in tables(text, node=node)}


def _table_name(table: exp.Table) -> str:
    return ".".join(part.name for part in table.parts)


def with_hidden(
    text: str | exp.Query,
    hidden: Sequence[str],
    *,
    now: datetime | None = None,
    rename: dict[str, str] | None = None,
    node: str = "",
) -> str:
    """The statement with the hidden columns carried through every SELECT, functions expanded, clocks fixed, and tables renamed.

    `now` is the epoch's planned time: `now()` and its kin mean that, so that a replay computes the same rows.
    """
    found = parse(text, node=node) if isinstance(text, str) else text.copy()
    functions.expand(found, node=node, now=now)
    own = {cte.alias for cte in found.find_all(exp.CTE)}
    for select in _row_selects(found):
        present = {column.alias_or_name for column in select.expressions}
        star = any(column.is_star for column in select.expressions)
        for column in hidden:
            if column not in present and not star:
                select.append("expressions", exp.column(column, quoted=True))
    for table in list(found.find_all(exp.Table)):
        name = _table_name(table)
        if rename and name in rename and name not in own:
            alias = table.alias or table.name
            table.replace(exp.alias_(exp.to_table(rename[name], dialect=DIALECT), alias, table=True, quoted=True))
    if now is not None:
        _fix_clocks(found, now)
    return found.sql(dialect=DIALECT)


def wide_outputs(text: str, columns: Mapping[str, WideInteger], *, node: str = "") -> dict[str, WideInteger]:
    """The output columns, in lower case, that are 256-bit integers and no plain columns of the inputs."""
    return functions.wide_outputs(parse(text, node=node), dict(columns))


def _row_selects(query: exp.Query) -> Iterator[exp.Select]:
    """The SELECTs whose rows are rows of the result (all, since joins and subqueries in WHERE are refused)."""
    yield from query.find_all(exp.Select)


def _fix_clocks(query: exp.Query, now: datetime) -> None:
    stamp = now.astimezone(UTC)
    moment = exp.cast(exp.Literal.string(stamp.strftime("%Y-%m-%d %H:%M:%S.%f+00:00")), "timestamp", dialect=DIALECT)
    day = exp.cast(exp.Literal.string(stamp.strftime("%Y-%m-%d")), "date", dialect=DIALECT)
    for call in list(query.find_all(exp.CurrentTimestamp, exp.CurrentDate, exp.Anonymous)):
        name = call.name.lower() if isinstance(call, exp.Anonymous) else ""
        if isinstance(call, exp.CurrentTimestamp) or name in ("now", "localtimestamp"):
            call.replace(moment.copy())
        elif isinstance(call, exp.CurrentDate) or name == "curdate":
            call.replace(day.copy())


def impure(text: str) -> tuple[str, ...]:
    """Functions in the statement that give other values when an epoch is replayed."""
    names = {"rand", "randn", "random", "uuid", "monotonically_increasing_id", "spark_partition_id", "input_file_name", "shuffle"}
    found = (
        part.sql_name().lower() if isinstance(part, exp.Func) and not isinstance(part, exp.Anonymous) else part.name.lower()
        for part in parse(text).find_all(exp.Func)
    )
    return tuple(dict.fromkeys(name for name in found if name in names))
