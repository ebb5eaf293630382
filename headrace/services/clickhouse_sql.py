"""The part of ClickHouse's grammar that the HTTP gateway needs: the type of a statement, FORMAT and data."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

# Strings, quoted names and comments are one token, so that words in them are not mistaken for keywords.
_TOKEN = re.compile(
    r"""'(?:\\.|''|[^'\\])*'|`(?:\\.|``|[^`\\])*`|"(?:\\.|""|[^"\\])*"|--[^\n]*|/\*.*?\*/|(?P<word>[A-Za-z_]\w*)|(?P<sign>[();])""",
    re.DOTALL,
)
_QUERY_KEYWORDS = {
    "SELECT",
    "WITH",
    "SHOW",
    "DESCRIBE",
    "DESC",
    "EXPLAIN",
    "EXISTS",
    "CHECK",
    "FROM",
    "TABLE",
}


@dataclass(frozen=True, slots=True)
class QueryStatement:
    """A statement with result rows: `head` [INTO OUTFILE …] FORMAT `format` `tail`.

    `format` is None if not named.
    """

    head: str
    format: str | None
    tail: str


@dataclass(frozen=True, slots=True)
class InsertStatement:
    """INSERT … FORMAT `format`. Its data starts at character `data` of the parsed text."""

    head: str
    format: str
    data: int


@dataclass(frozen=True, slots=True)
class CommandStatement:
    """Any other statement, run unchanged. `changes_session` is set for SET and USE."""

    text: str
    changes_session: bool
    temporary: bool


def parse_statement(sql: str) -> QueryStatement | InsertStatement | CommandStatement:
    """Parse a statement. Never raise: invalid SQL is a CommandStatement, and the engine reports the error."""
    first = _first_word(sql)
    if first == "INSERT":
        return _parse_insert(sql) or CommandStatement(sql, changes_session=False, temporary=False)
    if first in _QUERY_KEYWORDS:
        return _parse_query(sql)
    words = [word for word, _, _, _ in _find_words(sql[:200])]
    temporary = words[:2] == ["CREATE", "TEMPORARY"]
    return CommandStatement(sql, changes_session=first in {"SET", "USE"}, temporary=temporary)


def is_insert(sql: str) -> bool:
    """Return whether a text, which can be cut off anywhere, begins an INSERT."""
    return _first_word(sql) == "INSERT"


def _first_word(sql: str) -> str:
    """Return the first keyword after comments and opening parentheses."""
    return next((word for word, _, _, _ in _find_words(sql)), "")


def _find_words(sql: str) -> Iterator[tuple[str, int, int, int]]:
    """Yield (word in capitals, start, end, depth of parentheses)."""
    depth = 0
    for token in _TOKEN.finditer(sql):
        if word := token["word"]:
            yield word.upper(), token.start(), token.end(), depth
        elif token["sign"] == "(":
            depth += 1
        elif token["sign"] == ")":
            depth -= 1


def _parse_insert(sql: str) -> InsertStatement | None:
    """Return None if the statement itself contains the rows (VALUES, SELECT, FROM INFILE)."""
    words = _find_words(sql)
    for word, start, _, depth in words:
        if depth:
            continue
        if word in {"VALUES", "SELECT", "WITH", "INFILE"}:
            return None
        if word == "FORMAT":
            name = next(words, None)
            if name is None:
                return None
            # As in ClickHouse: data starts after the first line break, if there is one, else after all
            # blanks.
            rest = re.compile(r"[ \t\f]*(?:\r?\n)?").match(sql, name[2])
            return InsertStatement(
                sql[:start].rstrip(), sql[name[1] : name[2]], rest.end() if rest else name[2]
            )
    return None


def _parse_query(sql: str) -> QueryStatement:
    """Find the last FORMAT outside parentheses that only SETTINGS and their values follow."""
    position: tuple[int, int, int] | None = None
    words = list(_find_words(sql))
    for (word, start, _, depth), name in pairwise(words):
        if word == "FORMAT" and depth == 0:
            rest = sql[name[2] :].strip().rstrip(";").strip()
            if not rest or rest.upper().startswith("SETTINGS") or rest.startswith(("--", "/*")):
                position = (start, name[1], name[2])
    if position is None:
        return QueryStatement(_strip_statement(sql), None, "")
    start, name_start, name_end = position
    return QueryStatement(
        _strip_statement(sql[:start]), sql[name_start:name_end], _strip_statement(sql[name_end:])
    )


def _strip_statement(sql: str) -> str:
    return sql.strip().rstrip(";").rstrip()
