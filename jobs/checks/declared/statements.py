"""The SQL of declared checks: one statement with the aggregates of all checks, and samples of violations.

Postgres, ClickHouse and Spark run the same text, apart from literals and a few functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

from headrace.connectors.target_query import ColumnKind, QueryColumn, TargetQuery
from headrace.pipeline.errors import UserError
from headrace.pipeline.model.checks import Bound, FreshnessCheckConfig, SinkCheckConfig
from headrace.pipeline.sql.check_queries import TARGET
from headrace.pipeline.suggestions import suggest_closest

_NUMBERS = (ColumnKind.INTEGER, ColumnKind.DECIMAL, ColumnKind.FLOAT)
_MOMENTS = (ColumnKind.TIMESTAMP, ColumnKind.LOCAL_TIMESTAMP)
_LARGEST = 2**63 - 1
"""ClickHouse reads larger numbers as floats."""


@dataclass(frozen=True, slots=True)
class CheckStatements:
    """The aggregates of a check over all rows, and the SELECT of rows with violations, without a limit."""

    aggregates: tuple[str, ...]
    violations: str = ""


def build_statements(check: SinkCheckConfig, query: TargetQuery, key: Sequence[str]) -> CheckStatements:
    """Return the SQL of a check without `sql`. Raise UserError if it does not fit the target's columns."""
    columns = [_find_column(query, column) for column, _ in check.columns]
    names = [query.quote(name) for name, _ in check.columns]
    match check.rule:
        case "not_null":
            return _filter_statements(query, key, check, " OR ".join(f"{name} IS NULL" for name in names))
        case "unique":
            return _unique(query, names)
        case "range" if check.range:
            low, high = check.range.bounds
            return _filter_statements(query, key, check, _outside(query, names[0], columns[0], low, high))
        case "freshness" if check.freshness:
            return CheckStatements((_newest(query, check.freshness, names[0], columns[0]),))
    return CheckStatements(())


def scan(query: TargetQuery, aggregates: Sequence[str]) -> str:
    """Return the statement that computes the number of rows and all aggregates in one pass."""
    return f"SELECT {', '.join(('count(*)', *aggregates))} FROM {query.table}"  # noqa: S608  names are quoted


def count_rows_of(query: TargetQuery, text: str) -> str:
    """Return the statement that counts the rows of a check's own SQL."""
    return _over_target(query, text, "count(*)")


def sample_rows_of(query: TargetQuery, text: str, limit: int) -> str:
    """Return the statement that reads some rows of a check's own SQL."""
    return f"{_over_target(query, text, '*')} LIMIT {limit}"


def _over_target(query: TargetQuery, text: str, what: str) -> str:
    text = text.strip().rstrip(";")
    # The line break ends a comment in the last line.
    return f"WITH {TARGET} AS (SELECT * FROM {query.table}) SELECT {what} FROM (\n{text}\n) AS violations"  # noqa: S608  the file's own SQL


def _find_column(query: TargetQuery, name: str) -> QueryColumn:
    if name in query.columns:
        return query.columns[name]
    close = suggest_closest(name, query.columns)
    msg = f"column `{name}` is not in the target{close}"
    raise UserError(msg, hint=f"Columns: {', '.join(query.columns)}.")


def _filter_statements(
    query: TargetQuery, key: Sequence[str], check: SinkCheckConfig, condition: str
) -> CheckStatements:
    known = [column for column in key if column in query.columns]
    shown = dict.fromkeys([*known, *(column for column, _ in check.columns)])
    select = ", ".join(map(query.quote, shown))
    violations = f"SELECT {select} FROM {query.table} WHERE {condition}"  # noqa: S608  names are quoted
    return CheckStatements((_count_if(query, condition),), violations)


def _unique(query: TargetQuery, names: Sequence[str]) -> CheckStatements:
    known, listed = " AND ".join(f"{name} IS NOT NULL" for name in names), ", ".join(names)
    if query.dialect == "clickhouse":
        distinct = f"uniqExactIf(tuple({listed}), {known})"
    elif query.dialect == "postgres" and len(names) > 1:
        distinct = f"count(DISTINCT ROW({listed})) FILTER (WHERE {known})"
    else:
        distinct = f"count(DISTINCT {listed})"
    violations = (
        f"SELECT {listed}, count(*) AS occurrences FROM {query.table} WHERE {known} GROUP BY {listed}"  # noqa: S608  names are quoted
        " HAVING count(*) > 1 ORDER BY count(*) DESC"
    )
    return CheckStatements((_count_if(query, known), distinct), violations)


def _count_if(query: TargetQuery, condition: str) -> str:
    if query.dialect == "clickhouse":
        return f"countIf({condition})"
    return f"count(*) FILTER (WHERE {condition})"


def _outside(
    query: TargetQuery, name: str, column: QueryColumn, low: Bound | None, high: Bound | None
) -> str:
    conditions = [
        f"{name} {sign} {_literal(query, column, bound, key)}"
        for sign, bound, key in (("<", low, "min"), (">", high, "max"))
        if bound is not None
    ]
    if column.kind is ColumnKind.FLOAT or (column.kind is ColumnKind.DECIMAL and query.dialect == "postgres"):
        function = {"postgres": f"{name} = 'NaN'", "clickhouse": f"isNaN({name})", "spark": f"isnan({name})"}
        conditions.append(function[query.dialect])
    return f"({' OR '.join(conditions)})"


def _literal(query: TargetQuery, column: QueryColumn, bound: Bound, key: str) -> str:
    """Return a limit as SQL of a type that compares exactly with the column's."""
    if isinstance(bound, Decimal) and column.kind in _NUMBERS:
        return _number(query, column, bound, key)
    if isinstance(bound, date) and not isinstance(bound, datetime) and column.kind is ColumnKind.DATE:
        return f"toDate32('{bound}')" if query.dialect == "clickhouse" else f"DATE '{bound}'"
    if isinstance(bound, date) and column.kind in _MOMENTS:
        moment = bound if isinstance(bound, datetime) else datetime.combine(bound, time(), UTC)
        return _moment(query, column, moment.astimezone(UTC))
    wanted = (
        "a number"
        if column.kind in _NUMBERS
        else "a date"
        if column.kind is ColumnKind.DATE
        else "a date or timestamp"
    )
    if column.kind is ColumnKind.OTHER:
        msg = "a range needs a number, date or timestamp column, and this one"
    else:
        msg = f"`{key}` must be {wanted}, because the column"
    msg = f"{msg} is of type `{column.type}`"
    raise UserError(msg)


def _number(query: TargetQuery, column: QueryColumn, bound: Decimal, key: str) -> str:
    if column.kind is ColumnKind.FLOAT:
        return f"CAST('{bound}' AS {column.type})"
    if column.kind is ColumnKind.INTEGER:
        bound = bound.to_integral_value(ROUND_CEILING if key == "min" else ROUND_FLOOR)
    text = f"{bound:f}"
    if query.dialect == "clickhouse":
        if column.kind is ColumnKind.INTEGER:
            return text if abs(bound) <= _LARGEST else f"toInt256('{text}')"
        return f"toDecimal256('{text}', {len(text.partition('.')[2])})"
    if query.dialect == "spark" and "." in text:
        return f"{text}BD"
    return text


def _moment(query: TargetQuery, column: QueryColumn, moment: datetime) -> str:
    text = moment.replace(tzinfo=None).isoformat(" ", "microseconds")
    if query.dialect == "clickhouse":
        return f"toDateTime64('{text}', 6, 'UTC')"
    if column.kind is ColumnKind.LOCAL_TIMESTAMP:
        return f"{'TIMESTAMP_NTZ' if query.dialect == 'spark' else 'TIMESTAMP'} '{text}'"
    return f"TIMESTAMP '{text}+00:00'" if query.dialect == "spark" else f"TIMESTAMPTZ '{text}+00'"


def _newest(query: TargetQuery, check: FreshnessCheckConfig, name: str, column: QueryColumn) -> str:
    """Return the newest value in seconds since 1970, NULL without rows."""
    if column.kind is not ColumnKind.DATE and column.kind not in _MOMENTS:
        msg = f"`{check.column}` is of type `{column.type}`; freshness needs a date or timestamp column"
        raise UserError(msg)
    if query.dialect == "clickhouse":
        return f"toUnixTimestamp64Milli(toDateTime64(maxOrNull({name}), 3, 'UTC')) / 1000"
    if query.dialect == "spark":
        return f"unix_micros(CAST(max({name}) AS timestamp)) / 1000000"
    return f"extract(epoch FROM max({name}))"
