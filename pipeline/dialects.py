"""In which SQL a transform is written, and what it says in Spark's. Read by sqlglot; what means another thing under the same name is
translated here and in `dialect_functions`.

What no rule is for is passed on under its name, so that Spark says that it has no such function, rather than do something else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, ClassVar, Literal

import sqlglot
from sqlglot import exp
from sqlglot.dialects.clickhouse import ClickHouse
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.dialects.postgres import Postgres
from sqlglot.dialects.spark import Spark
from sqlglot.dialects.trino import Trino
from sqlglot.errors import ErrorLevel, ParseError, TokenError, UnsupportedError
from sqlglot.optimizer.normalize_identifiers import normalize_identifiers

from headrace.pipeline import dialect_functions as functions
from headrace.pipeline.errors import UserError

DialectName = Literal["spark", "datafusion", "postgres", "duckdb", "trino", "clickhouse"]


class HeadraceSpark(Spark):
    """Spark 4's SQL. The library reads 'It''s' as two literals side by side, so that the quote would be lost without a word."""

    class Tokenizer(Spark.Tokenizer):
        """A doubled quote inside a literal is one quote."""

        STRING_ESCAPES: ClassVar[list[str]] = ["\\", "'", '"']


DIALECT = HeadraceSpark
template = functions.template


def _builders(table: Mapping[str, functions.Templates]) -> dict[str, Callable[[list[Any]], exp.Expr]]:
    return {name.upper(): functions.builder(name, templates) for name, templates in table.items()}


class HeadracePostgres(Postgres):
    """Postgres with items of arrays by the number that is written."""

    INDEX_OFFSET = 0

    class Parser(Postgres.Parser):
        """Functions of the same name that mean something else in Spark."""

        FUNCTIONS: ClassVar[dict[str, Any]] = {**Postgres.Parser.FUNCTIONS, **_builders(functions.POSTGRES)}


class HeadraceDataFusion(HeadracePostgres):
    """DataFusion: Postgres' syntax, `^` as bitwise xor, functions of its own, and those that Streamling has replaced."""

    class Parser(HeadracePostgres.Parser):
        """DataFusion's functions."""

        FUNCTIONS: ClassVar[dict[str, Any]] = {**HeadracePostgres.Parser.FUNCTIONS, **_builders(functions.DATAFUSION)}


class HeadraceDuckDB(DuckDB):
    """DuckDB."""

    INDEX_OFFSET = 0

    class Parser(DuckDB.Parser):
        """Functions of the same name that mean something else in Spark."""

        FUNCTIONS: ClassVar[dict[str, Any]] = {**DuckDB.Parser.FUNCTIONS, **_builders(functions.DUCKDB)}


class HeadraceTrino(Trino):
    """Trino."""

    INDEX_OFFSET = 0

    class Parser(Trino.Parser):
        """Functions of the same name that mean something else in Spark."""

        FUNCTIONS: ClassVar[dict[str, Any]] = {**Trino.Parser.FUNCTIONS, **_builders(functions.TRINO)}


class HeadraceClickHouse(ClickHouse):
    """ClickHouse."""

    INDEX_OFFSET = 0

    class Parser(ClickHouse.Parser):
        """Functions that the library leaves alone."""

        FUNCTIONS: ClassVar[dict[str, Any]] = {**ClickHouse.Parser.FUNCTIONS, **_builders(functions.CLICKHOUSE)}


DIALECTS: Mapping[str, type[sqlglot.Dialect]] = {
    "spark": HeadraceSpark,
    "datafusion": HeadraceDataFusion,
    "postgres": HeadracePostgres,
    "duckdb": HeadraceDuckDB,
    "trino": HeadraceTrino,
    "clickhouse": HeadraceClickHouse,
}
"""By the value of the key `dialect`."""

_FOLDING = ("datafusion", "postgres")
_SKIP_NULLS = ("datafusion", "postgres", "duckdb")
_INTEGER_DIVISION = ("datafusion", "postgres", "trino")
_ARROW_TYPES = {
    "utf8": "STRING", "largeutf8": "STRING", "utf8view": "STRING", "boolean": "BOOLEAN", "int8": "TINYINT", "int16": "SMALLINT",
    "int32": "INT", "int64": "BIGINT", "uint8": "SMALLINT", "uint16": "INT", "uint32": "BIGINT", "uint64": "DECIMAL(20, 0)",
    "float32": "FLOAT", "float64": "DOUBLE", "date32": "DATE", "date64": "TIMESTAMP", "binary": "BINARY", "largebinary": "BINARY",
    "int128": "DECIMAL(38, 0)", "uint128": "DECIMAL(38, 0)",
}  # fmt: skip
_BARE_DECIMAL = "DECIMAL(38, 10)"


def read(text: str, dialect: str) -> exp.Query:
    """One statement as it is written in that dialect. Raises UserError for what is none."""
    if not text.strip():
        msg = "a sql transform is one SELECT statement, and this is empty"
        raise UserError(msg, hint="Write one, such as SELECT * FROM and the name of a source.")
    shown = "--- SQL ---\n" + text.strip()
    try:
        statements = [statement for statement in sqlglot.parse(text, dialect=DIALECTS[dialect]) if statement is not None]
    except (ParseError, TokenError) as error:
        details = getattr(error, "errors", None)
        reason = (
            f"{details[0]['description']} at line {details[0]['line']}, column {details[0]['col']}"
            if details
            else "a quote or a comment is opened and never closed"
        )
        msg = f"failed to parse SQL: {reason}"
        raise UserError(msg, hint=_offer(text, dialect) + shown) from None
    except RecursionError:
        msg = "failed to parse SQL: it is nested too deeply"
        raise UserError(msg, hint="Give parts of it to transforms of their own.") from None
    if len(statements) != 1 or not isinstance(statements[0], exp.Query):
        msg = "a sql transform is one SELECT statement"
        raise UserError(msg, hint=shown)
    return statements[0]


def _offer(text: str, dialect: str) -> str:
    """A word on the dialect that the text may be written in, where Spark's parser refuses it."""
    if dialect != "spark":
        return ""
    try:
        read(text, "datafusion")
    except UserError:
        return ""
    return "As SQL of DataFusion or Postgres it can be read: add `dialect: datafusion` or `dialect: postgres` to the node.\n"


@lru_cache(maxsize=256)
def double_quoted(text: str) -> tuple[str, ...]:
    """The texts that a statement has in double quotes: to Spark they are literals, elsewhere they are names."""
    tokens = sqlglot.tokenize(text, dialect=DIALECT)
    return tuple(dict.fromkeys(token.text for token in tokens if token.token_type.name == "STRING" and text[token.start] == '"'))


def meaning(query: exp.Query, dialect: str) -> exp.Query:
    """The statement in Spark's SQL. Raises UserError for what cannot be said there."""
    if dialect == "spark":
        return query
    if dialect in _FOLDING:
        query = normalize_identifiers(query, dialect=DIALECTS[dialect])
    for part in reversed(list(query.dfs())):  # from the leaves up, so that what is replaced has been translated inside
        said = _said(part, dialect)
        if said is not part:
            part.replace(said)
    try:
        query.sql(dialect=DIALECT, unsupported_level=ErrorLevel.RAISE)
    except UnsupportedError as error:
        msg = f"cannot be said in Spark's SQL: {error}"
        raise UserError(msg, hint="Write this part in another way, or the statement in Spark's SQL, without `dialect`.") from None
    return query


def _said(part: exp.Expr, dialect: str) -> exp.Expr:
    """One node of the tree in Spark's terms; what is below it is so already."""
    match part:
        case exp.Explode() if type(part) is exp.Explode and not isinstance(part.parent, exp.Lateral | exp.Table):
            return exp.Unnest(expressions=[part.this])
        case exp.Concat() if dialect in _SKIP_NULLS:
            return exp.func("concat_ws", exp.Literal.string(""), *part.expressions, dialect=DIALECT)
        case exp.Bracket():
            return _item(part)
        case exp.DataType():
            return _type(part)
        case exp.RegexpILike():
            return exp.RegexpLike(this=part.this, expression=_flagged(part.expression, "i"))
        case exp.RegexpLike() if part.args.get("flag") is not None:
            return exp.RegexpLike(this=part.this, expression=_flagged(part.expression, part.args["flag"].name))
        case exp.RegexpReplace() if dialect == "postgres" and "g" not in _text(part.args.get("modifiers")):
            msg = "regexp_replace without the flag 'g' replaces the first match alone, which Spark cannot"
            raise UserError(msg, hint="Add the flag 'g', or cut the text with regexp_like and substr.")
        case exp.Extract() if part.name.upper() == "EPOCH":
            return template("CAST(CAST(_0 AS TIMESTAMP) AS DOUBLE)", part.expression)
        case exp.Extract() if part.name.upper() in ("DOW", "DAYOFWEEK"):
            return template("(dayofweek(_0) - 1)", part.expression)
        case exp.UnixToTime() if part.args.get("scale") is None:
            return template("CAST(_0 AS TIMESTAMP)", part.this)
        case exp.EQ() if isinstance(part.expression, exp.Any) and not isinstance(part.expression.this, exp.Query):
            return template("array_contains(_0, _1)", part.expression.this.unnest(), part.this)
        case exp.Initcap():
            return template("initcap(_0)", part.this)
        case exp.Div() if dialect in _INTEGER_DIVISION:
            part.set("typed", True)
        case exp.Div():
            part.set("typed", False)
    return part


def _text(node: exp.Expr | None) -> str:
    return node.name if node is not None else ""


def _flagged(pattern: exp.Expr, flags: str) -> exp.Expr:
    """A pattern with its flags in front, as Java reads them."""
    prefix = f"(?{flags})" if flags else ""
    if isinstance(pattern, exp.Literal):
        return exp.Literal.string(prefix + pattern.name)
    return template("concat(_0, _1)", exp.Literal.string(prefix), pattern)


def _item(bracket: exp.Bracket) -> exp.Expr:
    """`xs[1]` is the first item; one that is not there is NULL. A name in quotes is a field or the key of a map."""
    (index,) = bracket.expressions if len(bracket.expressions) == 1 else (None,)
    if index is None or (isinstance(index, exp.Literal) and index.is_string):
        return bracket
    if isinstance(index, exp.Slice):
        first = index.this or exp.Literal.number(1)
        if index.args.get("step") is not None:
            msg = "a slice with a step cannot be said in Spark's SQL"
            raise UserError(msg, hint="Write it with filter and a lambda.")
        if index.expression is None:
            return template("slice(_0, _1, greatest(array_size(_0) - _1 + 1, 0))", bracket.this, first)
        return template("slice(_0, _1, greatest(_2 - _1 + 1, 0))", bracket.this, first, index.expression)
    return template("try_element_at(_0, _1)", bracket.this, index)


def _type(kind: exp.DataType) -> exp.DataType:
    name = kind.this.value if isinstance(kind.this, exp.DType) else str(kind.this)
    if name == "USERDEFINED":
        known = _ARROW_TYPES.get(str(kind.args.get("kind", "")).lower())
        return exp.DataType.build(known, dialect=DIALECT) if known else kind
    if name == "DECIMAL" and not kind.expressions:
        return exp.DataType.build(_BARE_DECIMAL, dialect=DIALECT)
    if name in ("INT128", "UINT128"):
        return exp.DataType.build("DECIMAL(38, 0)", dialect=DIALECT)
    if name == "UBIGINT":
        return exp.DataType.build("DECIMAL(20, 0)", dialect=DIALECT)
    if name in ("JSON", "JSONB"):
        return exp.DataType.build("STRING", dialect=DIALECT)
    if name in ("TIME", "TIMETZ"):
        msg = "Spark's SQL has no type for a time of day"
        raise UserError(msg, hint="Keep it as text: CAST(column AS VARCHAR).")
    return kind


def arrow_type(name: str) -> exp.DataType | None:
    """Spark's type for a name as arrow_cast takes it, such as Int64, Timestamp(Microsecond, None) or Decimal128(10, 2)."""
    word, _, arguments = name.strip().rstrip(")").partition("(")
    word = word.strip().lower()
    if word in ("decimal128", "decimal256", "decimal"):
        return exp.DataType.build(f"DECIMAL({arguments})", dialect=DIALECT)
    if word == "timestamp":
        return exp.DataType.build("TIMESTAMP", dialect=DIALECT)
    known = _ARROW_TYPES.get(word)
    return exp.DataType.build(known, dialect=DIALECT) if known else None
