"""The SQL of transforms: its inputs, the allowed statements, and the system columns added to it.

A per-row transform is a projection, a filter, an unnest, or a UNION ALL of these. Joins, aggregates, windows,
sort, limit and distinct need state across rows. They are refused with the reason (`unsupported`). Statements
in other dialects are handled in Spark's SQL (`dialects`): Spark runs the statement that `parse` returns.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache

import sqlglot
from sqlglot import TokenType, exp
from sqlglot.errors import SqlglotError

from headrace.pipeline import functions
from headrace.pipeline.errors import UserError
from headrace.pipeline.sql import unsupported
from headrace.pipeline.sql.dialects.spark import DIALECT
from headrace.pipeline.sql.dialects.translation import read, translate_to_spark
from headrace.pipeline.sql.filter_marking import Marker, Marking
from headrace.pipeline.sql.generators import fans_out, spread
from headrace.pipeline.sql.system_columns import add_system_columns, branches

__all__ = ("DIALECT",)


@lru_cache(maxsize=256)
def _parse_checked(text: str, dialect: str) -> exp.Query:
    result = read(text, dialect)
    unsupported.check(result)
    return translate_to_spark(result, dialect)


def parse(text: str, *, node: str = "", dialect: str = "spark") -> exp.Query:
    """Return the statement in Spark's SQL, checked.

    Raise UserError for a statement that cannot be parsed, is not allowed in a per-row transform, or has no
    equivalent in Spark's SQL.
    """
    try:
        return _parse_checked(text, dialect).copy()
    except UserError as error:
        raise type(error)(error.message, hint=error.hint, node=node) from None


def spark_text(text: str, *, node: str = "", dialect: str = "spark") -> str:
    """Return the statement in Spark's SQL, as a string. One in Spark's SQL is returned unchanged."""
    return text if dialect == "spark" else parse(text, node=node, dialect=dialect).sql(dialect=DIALECT)


def input_nodes(text: str, *, node: str = "", dialect: str = "spark") -> tuple[str, ...]:
    """Return the nodes that the statement reads, in order of appearance. Exclude names of its own WITH."""
    result = parse(text, node=node, dialect=dialect)
    own = {cte.alias for cte in result.find_all(exp.CTE)}
    return tuple(name for name in dict.fromkeys(_table_names(result)) if name not in own)


def table_uses(text: str, *, node: str = "", dialect: str = "spark") -> dict[str, int]:
    """Return how many SELECTs read each node.

    Unless `multiplies`, this is an upper bound of how often one input row can appear in the result.
    """
    read_ = input_nodes(text, node=node, dialect=dialect)
    names = _table_names(parse(text, node=node, dialect=dialect))
    own = len(names) - sum(name in read_ for name in names)
    return {name: names.count(name) * max(1, own) for name in read_}


def multiplies(text: str, *, node: str = "", dialect: str = "spark") -> bool:
    """Return whether one row can become any number of rows."""
    return fans_out(parse(text, node=node, dialect=dialect))


def _table_names(query: exp.Query) -> list[str]:
    return [
        _table_name(table) for table in query.find_all(exp.Table) if isinstance(table.this, exp.Identifier)
    ]


def _table_name(table: exp.Table) -> str:
    return ".".join(part.name for part in table.parts)


def compile_statement(
    text: str | exp.Query,
    hidden: Sequence[str],
    *,
    now: datetime | None = None,
    rename: dict[str, str] | None = None,
    node: str = "",
    sources: Mapping[str, Collection[str]] | None = None,
    marking: Marking | None = None,
) -> str:
    """Return the statement with system columns in every SELECT.

    Functions are expanded, clocks fixed and tables renamed.

    Args:
        text: in Spark's SQL, or the result of `parse`.
        hidden: `system_columns.HIDDEN`, or some of it.
        now: the epoch's planned time, which clocks return. A replay computes the same rows.
        rename: views by the names of nodes.
        node: the node of the statement, for errors.
        sources: the sources upstream of each node that it reads. By default each node counts as one.
        marking: marks and keeps rows that a WHERE drops (see `retractions`). By default they are dropped.

    Raise UserError if the statement sets a system column to an invalid value.
    """
    result = parse(text, node=node) if isinstance(text, str) else text.copy()
    functions.expand(result, node=node, now=now)
    own = {cte.alias for cte in result.find_all(exp.CTE)}
    among = branches(result, sources or {})
    try:
        marker = Marker(result, marking, node) if marking else None
        for select in list(result.find_all(exp.Select)):
            branch = among.get(id(select))
            numbers, marks = marker.mark(select, branch) if marker else (spread(select), None)
            functions.number_generated_rows(select, numbers)
            add_system_columns(select, hidden, numbers, node, branch, marks)
    except UserError as error:
        raise type(error)(error.message, hint=error.hint, node=node) from None
    for named in result.find_all(exp.CTE, exp.Subquery, exp.Table):
        alias = named.args.get("alias")
        if alias is not None and alias.args.get("columns"):
            alias.set(
                "columns", [*alias.columns, *(exp.to_identifier(column, quoted=True) for column in hidden)]
            )
    for table in list(result.find_all(exp.Table)):
        name = _table_name(table)
        if rename and name in rename and name not in own:
            table.set(
                "alias",
                table.args.get("alias") or exp.TableAlias(this=exp.to_identifier(table.name, quoted=True)),
            )
            for key in ("db", "catalog"):
                table.set(key, None)
            table.set("this", exp.to_identifier(rename[name], quoted=True))
    if now is not None:
        _fix_clocks(result, now)
    return result.sql(dialect=DIALECT)


_CLOCKS = (exp.CurrentTimestamp, exp.Localtimestamp, exp.CurrentDate, exp.Anonymous)
_WORDS = re.compile(r"\s*(now|today|tomorrow|yesterday)\b\s*(.*?)\s*", re.IGNORECASE)
"""Strings that become a changing timestamp, with an optional time zone after them."""
_DAYS = {"yesterday": -1, "today": 0, "tomorrow": 1}
_INTO_TIMES = ("to_timestamp_ntz", "to_timestamp_ltz", "try_to_timestamp", "try_to_date")
"""Functions that cast and that the parser does not know."""
_TIMES = {
    exp.DType.DATE,
    exp.DType.TIMESTAMP,
    exp.DType.TIMESTAMPTZ,
    exp.DType.TIMESTAMPLTZ,
    exp.DType.TIMESTAMPNTZ,
}


def is_relative_timestamp(text: str) -> bool:
    """Return whether a string becomes a changing timestamp when Spark casts it to a timestamp."""
    return _WORDS.fullmatch(text) is not None


def may_have_relative_timestamps(text: str) -> bool:
    """Return whether a statement may contain such a string. Only False is certain."""
    return re.search(rf"['\"]{_WORDS.pattern}['\"]", text, re.IGNORECASE) is not None


def _fix_clocks(query: exp.Query, now: datetime) -> None:
    stamp = now.astimezone(UTC)
    moment = exp.cast(
        exp.Literal.string(stamp.strftime("%Y-%m-%d %H:%M:%S.%f+00:00")), "timestamp", dialect=DIALECT
    )
    day = exp.cast(exp.Literal.string(stamp.strftime("%Y-%m-%d")), "date", dialect=DIALECT)
    for call in list(query.find_all(*_CLOCKS)):
        if (clock_type := _clock_type(call)) is not None:
            call.replace((moment if clock_type == "moment" else day).copy())
    for word, text in list(_clock_words(query)):
        days = _DAYS.get(word.lower())
        text.replace(
            exp.Literal.string(
                f"{stamp:%Y-%m-%d %H:%M:%S.%f}"
                if days is None
                else f"{stamp + timedelta(days=days):%Y-%m-%d}"
            )
        )


def _clock_type(call: exp.Expr) -> str | None:
    """Return the type of a clock's result: "moment" or "day". None for other calls."""
    name = call.name.lower() if isinstance(call, exp.Anonymous) else ""
    if isinstance(call, exp.CurrentTimestamp | exp.Localtimestamp) or name in ("now", "localtimestamp"):
        return "moment"
    return "day" if isinstance(call, exp.CurrentDate) or name == "curdate" else None


def _clock_words(query: exp.Query, *, zoned: bool = False) -> Iterator[tuple[str, exp.Literal]]:
    """Yield the words such as `'now'` that are cast to a timestamp, with their literals.

    `zoned` selects those with a time zone, or those without.
    """
    for cast in query.find_all(exp.Cast, exp.TryCast, exp.Date, exp.TsOrDsToDate, exp.Anonymous):
        into, text = not isinstance(cast, exp.Cast) or cast.to.this in _TIMES, cast.this
        if isinstance(cast, exp.Anonymous):  # with a format it is an ordinary string
            into, text = (
                cast.name.lower() in _INTO_TIMES and len(cast.expressions) == 1,
                next(iter(cast.expressions), None),
            )
        if (
            into
            and isinstance(text, exp.Literal)
            and text.is_string
            and (match := _WORDS.fullmatch(text.name))
            and bool(match[2]) == zoned
        ):
            yield match[0].strip() if zoned else match[1], text


_IMPURE = frozenset(
    {
        *("rand", "randn", "random", "randstr", "uniform", "uuid", "shuffle"),
        "aes_encrypt",  # with a random vector unless one is passed
        *(
            "monotonically_increasing_id",
            "spark_partition_id",
            "input_file_name",
            "input_file_block_start",
            "input_file_block_length",
        ),
        *("reflect", "java_method", "try_reflect"),
        *("current_user", "session_user", "user", "version"),
    }
)
"""Functions of Spark whose results differ between runs or partitions. Clocks are fixed within an epoch."""


def nondeterministic_calls(text: str, *, dialect: str = "spark") -> tuple[str, ...]:
    """Return the non-deterministic parts of a statement: function names, and strings such as `today CET`."""
    query = parse(text, dialect=dialect)
    result = (
        part.sql_name().lower()
        if isinstance(part, exp.Func) and not isinstance(part, exp.Anonymous)
        else part.name.lower()
        for part in query.find_all(exp.Func)
    )
    return tuple(
        dict.fromkeys(
            [
                *(name for name in result if name in _IMPURE),
                *(word for word, _ in _clock_words(query, zoned=True)),
            ]
        )
    )


def nondeterministic_filter_calls(predicate: str) -> tuple[str, ...]:
    """Return the non-deterministic calls in a source's filter, in Spark's SQL. Empty if it cannot be parsed.

    They include clocks, because clocks are fixed only in transforms.
    """
    text = f"SELECT * FROM s WHERE (\n{predicate}\n)"  # noqa: S608  looked at, and not run
    try:
        query = parse(text)
    except UserError:
        return ()
    clocks = [
        call.sql(dialect=DIALECT).lower()
        for call in query.find_all(*_CLOCKS)
        if _clock_type(call) or call.name == "current_time"
    ]
    return (
        *nondeterministic_calls(text),
        *dict.fromkeys([*clocks, *(word for word, _ in _clock_words(query))]),
    )


_MOVES_THERE = frozenset(
    {
        *(
            "now",
            "now64",
            "nowinblock",
            "nowinblock64",
            "today",
            "yesterday",
            "curdate",
            "current_date",
            "current_timestamp",
        ),
        *("localtime", "localtimestamp", "utctimestamp", "utc_timestamp", "uptime"),
        *("fuzzbits", "arrayshuffle", "arraypartialshuffle", "arrayrandomsample"),
        *(
            "generateuuidv4",
            "generateuuidv7",
            "generateserialid",
            "generatesnowflakeid",
            "generaterandomstructure",
        ),
        *("blocknumber", "blocksize", "rownumberinblock", "rownumberinallblocks", "runningconcurrency"),
    }
)
"""Functions of ClickHouse, in addition to `rand…`, whose results differ between queries. In lower case."""
_WITHOUT_BRACKETS = ("current_date", "current_timestamp", "localtimestamp")


def nondeterministic_in_clickhouse(predicate: str) -> tuple[str, ...]:
    """Return the non-deterministic calls in a filter in ClickHouse's SQL, found by name.

    A bare `now` can be a column, so it is not reported.
    """
    try:
        tokens = sqlglot.tokenize(predicate, read="clickhouse")
    except SqlglotError:
        return ()
    result: list[str] = []
    for token, behind in zip(tokens, [*tokens[1:], None], strict=True):
        name, called = token.text.lower(), behind is not None and behind.token_type is TokenType.L_PAREN
        word = token.token_type not in (TokenType.STRING, TokenType.IDENTIFIER)
        if word and (
            (called and (name in _MOVES_THERE or name.startswith("rand"))) or name in _WITHOUT_BRACKETS
        ):
            result.append(f"{token.text}()" if called else token.text)
    return tuple(dict.fromkeys(result))
