"""Parser extensions: the clauses of the SQL standard's JSON functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sqlglot import exp
from sqlglot.tokenizer_core import TokenType

_BEHAVIOURS = ("NULL", "ERROR", "DEFAULT", "EMPTY", "TRUE", "FALSE", "UNKNOWN")


def with_clauses(known: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """Return a parser's `FUNCTION_PARSERS` with the JSON functions whose clauses become named arguments."""
    return {
        **known,
        **{name: _parser(name.lower()) for name in ("JSON_VALUE", "JSON_QUERY", "JSON_EXISTS", "JSON_ARRAY")},
    }


def _parser(name: str) -> Callable[[Any], exp.Expr]:
    def parse(parser: Any) -> exp.Expr:
        args: list[exp.Expr] = []
        options: dict[str, exp.Expr] = {}
        while not parser._match(TokenType.R_PAREN, advance=False):  # noqa: SLF001  sqlglot's parsers are extended this way
            if not _clause(parser, options):
                if args and not parser._match(TokenType.COMMA):  # noqa: SLF001
                    parser.raise_error("Expecting a comma, a clause or )")
                args.append(parser._parse_assignment())  # noqa: SLF001
                if args[-1] is None:
                    parser.raise_error("Expecting an argument")
        if "absent" in options:
            return exp.Anonymous(this=f"{name}_absent_on_null", expressions=args)
        options.pop("null", None)
        return exp.Anonymous(
            this=name,
            expressions=[
                *args,
                *(exp.Kwarg(this=exp.var(key), expression=one) for key, one in options.items()),
            ],
        )

    return parse


def _clause(parser: Any, options: dict[str, exp.Expr]) -> bool:
    """Parse one clause into `options`. Return False if there is none.

    It is returning, wrapper, on_empty, on_error, or the word before ON NULL.
    """
    start = parser._index  # noqa: SLF001
    if parser._match_text_seq("RETURNING"):  # noqa: SLF001
        options["returning"] = parser._parse_types()  # noqa: SLF001
        return True
    for word in ("WITHOUT", "WITH"):
        if parser._match_text_seq(word):  # noqa: SLF001
            kind = next(
                (one for one in ("CONDITIONAL", "UNCONDITIONAL") if parser._match_text_seq(one)),  # noqa: SLF001
                "UNCONDITIONAL",
            )
            parser._match_text_seq("ARRAY")  # noqa: SLF001
            if parser._match_text_seq("WRAPPER"):  # noqa: SLF001
                options["wrapper"] = exp.Literal.string(kind if word == "WITH" else "WITHOUT")
                return True
    parser._retreat(start)  # noqa: SLF001
    for word in (*_BEHAVIOURS, "ABSENT"):
        if parser._match_text_seq(word):  # noqa: SLF001
            if _behaviour(parser, word, options):
                return True
            parser._retreat(start)  # noqa: SLF001
    return False


def _behaviour(parser: Any, word: str, options: dict[str, exp.Expr]) -> bool:
    behavior: exp.Expr = exp.Literal.string(word)
    if word == "DEFAULT":
        behavior = parser._parse_bitwise()  # noqa: SLF001
    elif word == "EMPTY":
        kind = next((one for one in ("ARRAY", "OBJECT") if parser._match_text_seq(one)), "ARRAY")  # noqa: SLF001
        behavior = exp.Literal.string(f"EMPTY {kind}")
    for event in ("EMPTY", "ERROR", "NULL"):
        if parser._match_text_seq("ON", event):  # noqa: SLF001
            if event == "NULL":
                options[word.lower()] = behavior
            else:
                options[f"on_{event.lower()}"] = (
                    exp.Tuple(expressions=[behavior]) if word == "DEFAULT" else behavior
                )
            return True
    return False
