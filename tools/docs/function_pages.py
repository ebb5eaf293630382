"""docs/reference/functions.md: every registered function with its examples, which tests run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from headrace.pipeline.functions import Function, Group, distinct

_WRITTEN = (
    "<!-- Written by `make docs` from pipeline/functions and tools/docs/parts/functions.md. Change"
    " those. -->\n"
)


def page(parts: Path) -> str:
    """Return the whole page."""
    title, _, rest = (parts / "functions.md").read_text(encoding="utf-8").partition("\n")
    return (
        "\n".join(
            [
                title,
                "",
                _WRITTEN + rest,
                *_index(),
                *(line for group in _groups() for line in _section(group)),
            ]
        )
        + "\n"
    )


def _groups() -> list[Group]:
    return [group for group in Group if _functions_of(group)]


def _functions_of(group: Group) -> list[Function]:
    return sorted(
        (function for function in distinct() if function.group is group), key=lambda function: function.name
    )


def _index() -> Iterator[str]:
    yield from ("| | |", "|---|---|")
    for group in _groups():
        names = ", ".join(f"[`{function.name}`](#{function.name})" for function in _functions_of(group))
        yield f"| [{group}](#{group.lower().replace(' ', '-')}) | {names} |"
    yield ""


def _section(group: Group) -> Iterator[str]:
    yield from (f"## {group[0].upper()}{group[1:]}", "")
    for function in _functions_of(group):
        yield from (
            f"### {function.name}",
            "",
            f"`{function.signature}` returns {_result_type(function)}",
            "",
        )
        also = (
            f" Also called {', '.join(f'`{alias}`' for alias in function.aliases)}."
            if function.aliases
            else ""
        )
        yield from (
            function.meaning + also,
            "",
            f"In {function.where}. {_execution(function)}",
            "",
            "| call | result |",
            "|---|---|",
        )
        for call, result in function.examples:
            yield f"| {_code(call)} | {_code(result) if result else 'empty string'} |"
        for call, message in function.errors:
            yield f"| {_code(call)} | error: {_escape_text(message)} |"
        yield ""


def _result_type(function: Function) -> str:
    return f"`{function.result}`" if function.result in ("uint256", "int256") else function.result


def _execution(function: Function) -> str:
    return "Python workers run it over Arrow arrays." if function.arrow else "Spark compiles it."


def _code(text: str) -> str:
    shown = text if len(text) <= 120 else f"{text[:117]}..."
    fence = "``" if "`" in shown else "`"
    return f"{fence}{shown.replace('|', chr(92) + '|')}{fence}"


def _escape_text(text: str) -> str:
    return (text if len(text) <= 120 else f"{text[:117]}...").replace("|", "\\|").replace("<", "&lt;")
