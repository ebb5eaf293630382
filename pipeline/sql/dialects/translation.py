"""The dialects of transforms, and their translation to Spark's SQL.

sqlglot parses them. `operators` and `functions` translate what has another meaning under the same name.
Anything without a rule keeps its name, so that Spark reports an unknown function instead of computing
something else.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar, Literal

import sqlglot
from sqlglot import exp
from sqlglot.dialects.postgres import Postgres
from sqlglot.errors import ErrorLevel, ParseError, TokenError, UnsupportedError
from sqlglot.optimizer.normalize_identifiers import normalize_identifiers
from sqlglot.tokenizer_core import TokenType

from headrace.pipeline import functions
from headrace.pipeline.errors import UserError
from headrace.pipeline.sql.dialects import functions as dialect_functions
from headrace.pipeline.sql.dialects.operators import translate_node
from headrace.pipeline.sql.dialects.patterns import build_date_bin
from headrace.pipeline.sql.dialects.spark import DIALECT

DialectName = Literal["spark", "datafusion", "postgres"]


template = dialect_functions.template


def _functions(
    parser: type[Any], table: Mapping[str, dialect_functions.Templates], dialect: str
) -> dict[str, Any]:
    """Return a parser's functions, those with another meaning in Spark, and Headrace's own."""
    translated_ = {
        name.upper(): dialect_functions.builder(name, templates) for name, templates in table.items()
    }
    return {**parser.FUNCTIONS, **translated_, **functions.parsed_names(dialect)}


class HeadracePostgres(Postgres):
    """Postgres, with array items at the index that is written."""

    INDEX_OFFSET = 0

    class Parser(Postgres.Parser):
        """Functions with the same name but another meaning in Spark."""

        FUNCTIONS: ClassVar[dict[str, Any]] = _functions(
            Postgres.Parser, {**dialect_functions.POSTGRES, "date_bin": build_date_bin}, "postgres"
        )
        FUNCTION_PARSERS: ClassVar[dict[str, Any]] = functions.with_clauses(
            {
                name: read
                for name, read in Postgres.Parser.FUNCTION_PARSERS.items()
                if name != "DECODE"  # Oracle has this one
            }
        )


class HeadraceDataFusion(HeadracePostgres):
    """DataFusion: Postgres' syntax, `^` as bitwise xor, its own functions, and those of Streamling."""

    class Tokenizer(HeadracePostgres.Tokenizer):
        """FLOAT has 32 bits."""

        KEYWORDS: ClassVar[dict[str, Any]] = {**HeadracePostgres.Tokenizer.KEYWORDS, "FLOAT": TokenType.FLOAT}

    class Parser(HeadracePostgres.Parser):
        """DataFusion's functions and operators."""

        EXPONENT: ClassVar[dict[Any, Any]] = {}
        BITWISE: ClassVar[dict[Any, Any]] = {
            **HeadracePostgres.Parser.BITWISE,
            TokenType.CARET: exp.BitwiseXor,
        }
        FUNCTIONS: ClassVar[dict[str, Any]] = _functions(
            HeadracePostgres.Parser,
            {**dialect_functions.DATAFUSION, "date_bin": build_date_bin},
            "datafusion",
        )


DIALECTS: Mapping[str, type[sqlglot.Dialect]] = {
    "spark": DIALECT,
    "datafusion": HeadraceDataFusion,
    "postgres": HeadracePostgres,
}
"""The dialects by the value of the key `dialect`."""

_TITLES = {"datafusion": "DataFusion", "postgres": "Postgres"}


def read(text: str, dialect: str) -> exp.Query:
    """Parse one statement of a dialect. Raise UserError if it is invalid."""
    if not text.strip():
        msg = "a sql transform is one SELECT statement, and this is empty"
        raise UserError(msg, hint="Write one, such as SELECT * FROM and the name of a source.")
    shown = "--- SQL ---\n" + text.strip()
    try:
        statements = [
            statement for statement in sqlglot.parse(text, dialect=DIALECTS[dialect]) if statement is not None
        ]
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
    """Return a hint with the dialects that can read the text, if Spark's parser refuses it."""
    if dialect != "spark":
        return ""
    result = [name for name in DIALECTS if name != dialect and _reads(text, name)]
    if not result:
        return ""
    names, keys = (
        _join_words([spell(name) for name in result])
        for spell in (_TITLES.__getitem__, "`dialect: {}`".format)
    )
    return f"As SQL of {names} it can be read: add {keys} to the node.\n"


def _join_words(words: list[str]) -> str:
    return " or ".join([", ".join(words[:-1]), words[-1]] if words[1:] else words)


def _reads(text: str, dialect: str) -> bool:
    try:
        result = read(text, dialect)
    except UserError:
        return False
    # Some parsers accept any word as a user-defined type. Headrace has no such types.
    return not any(kind.this is exp.DataType.Type.USERDEFINED for kind in result.find_all(exp.DataType))


@lru_cache(maxsize=256)
def double_quoted(text: str) -> tuple[str, ...]:
    """Return the texts in double quotes. They are string literals in Spark, and names in other dialects."""
    tokens = sqlglot.tokenize(text, dialect=DIALECT)
    return tuple(
        dict.fromkeys(
            token.text
            for token in tokens
            if token.token_type is TokenType.STRING and text[token.start] == '"'
        )
    )


def translate_to_spark(query: exp.Query, dialect: str) -> exp.Query:
    """Return the statement in Spark's SQL. Raise UserError if there is no equivalent."""
    if dialect == "spark":
        return query
    query = normalize_identifiers(query, dialect=DIALECTS[dialect])
    for part in reversed(
        list(query.dfs())
    ):  # from the leaves up, so that the children of a replaced node are translated
        translated = translate_node(part, dialect)
        if translated is not part:
            part.replace(translated)
    try:
        query.sql(dialect=DIALECT, unsupported_level=ErrorLevel.RAISE)
    except UnsupportedError as error:
        msg = f"cannot be written in Spark's SQL: {error}"
        raise UserError(
            msg, hint="Write this part in another way, or the statement in Spark's SQL, without `dialect`."
        ) from None
    return query
