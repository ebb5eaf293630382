"""As much of ClickHouse's grammar as an HTTP front has to know: what kind of statement it is, and where FORMAT and data stand."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

# Strings, quoted names and comments are taken whole, so that a word in them is never mistaken for a keyword.
_TOKEN = re.compile(
    r"""'(?:\\.|''|[^'\\])*'|`(?:\\.|``|[^`\\])*`|"(?:\\.|""|[^"\\])*"|--[^\n]*|/\*.*?\*/|(?P<word>[A-Za-z_]\w*)|(?P<sign>[();])""",
    re.DOTALL,
)
_ANSWERING = {"SELECT", "WITH", "SHOW", "DESCRIBE", "DESC", "EXPLAIN", "EXISTS", "CHECK", "FROM", "TABLE"}


@dataclass(frozen=True, slots=True)
class Answer:
    """A statement that returns rows: `head` [INTO OUTFILE …] FORMAT `format` `tail`. `format` is None where it names none."""

    head: str
    format: str | None
    tail: str


@dataclass(frozen=True, slots=True)
class Insert:
    """INSERT … FORMAT `format`, whose data starts at character `data` of the text that was parsed."""

    head: str
    format: str
    data: int


@dataclass(frozen=True, slots=True)
class Command:
    """Anything else: run as it stands. `remembered` if it changes a session (SET, USE)."""

    text: str
    remembered: bool
    temporary: bool


def parse(sql: str) -> Answer | Insert | Command:
    """The kind of one statement. Never fails: what is no SQL is a Command, and the engine says what is wrong with it."""
    first = _first(sql)
    if first == "INSERT":
        return _insert(sql) or Command(sql, remembered=False, temporary=False)
    if first in _ANSWERING:
        return _answer(sql)
    words = [word for word, _, _, _ in _words(sql[:200])]
    temporary = words[:2] == ["CREATE", "TEMPORARY"]
    return Command(sql, remembered=first in {"SET", "USE"}, temporary=temporary)


def is_insert(sql: str) -> bool:
    """Whether the text, which may be cut off anywhere, begins an INSERT."""
    return _first(sql) == "INSERT"


def _first(sql: str) -> str:
    """The first keyword, behind comments and opening parentheses."""
    return next((word for word, _, _, _ in _words(sql)), "")


def _words(sql: str) -> Iterator[tuple[str, int, int, int]]:
    """(word in capitals, start, end, depth of parentheses)."""
    depth = 0
    for token in _TOKEN.finditer(sql):
        if word := token["word"]:
            yield word.upper(), token.start(), token.end(), depth
        elif token["sign"] == "(":
            depth += 1
        elif token["sign"] == ")":
            depth -= 1


def _insert(sql: str) -> Insert | None:
    """None if the rows come from the statement itself (VALUES, SELECT, FROM INFILE)."""
    words = _words(sql)
    for word, start, _, depth in words:
        if depth:
            continue
        if word in {"VALUES", "SELECT", "WITH", "INFILE"}:
            return None
        if word == "FORMAT":
            name = next(words, None)
            if name is None:
                return None
            # As ClickHouse has it: data starts after the first line break, if there is one, else after all the blanks.
            rest = re.compile(r"[ \t\f]*(?:\r?\n)?").match(sql, name[2])
            return Insert(sql[:start].rstrip(), sql[name[1] : name[2]], rest.end() if rest else name[2])
    return None


def _answer(sql: str) -> Answer:
    """The last FORMAT outside parentheses, if only SETTINGS and their values follow the format's name."""
    found: tuple[int, int, int] | None = None
    words = list(_words(sql))
    for (word, start, _, depth), name in pairwise(words):
        if word == "FORMAT" and depth == 0:
            behind = sql[name[2] :].strip().rstrip(";").strip()
            if not behind or behind.upper().startswith("SETTINGS") or behind.startswith(("--", "/*")):
                found = (start, name[1], name[2])
    if found is None:
        return Answer(_bare(sql), None, "")
    start, name_start, name_end = found
    return Answer(_bare(sql[:start]), sql[name_start:name_end], _bare(sql[name_end:]))


def _bare(sql: str) -> str:
    return sql.strip().rstrip(";").rstrip()
