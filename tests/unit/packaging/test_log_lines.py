"""Log lines of the product: `event=<name> key=value`, as docs/guides/monitor.md describes them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.checkout import product_files

LEVELS = ("debug", "info", "warning", "error", "exception", "critical", "log")
FORM = re.compile(r"event=[a-z0-9_]+(?: [a-z0-9_]+=[^\s=]+)*(?: [a-z0-9_]+=%s: %s)?")
FORMER_KEYS = {
    "sink": "node",
    "source": "node",
    "lane": "pipeline",
    "place": "location",
    "reason": "error",
    "said": "output",
    "kind": "type",
    "window": "partition",
}
"""Keys that stand for another term of the glossary."""
MAY_HAVE_REASON = ("event=sensor_evaluated reason=%s",)
"""A reason that is no error."""


def log_calls(source: str) -> Iterator[ast.Call]:
    """Yield the calls of loggers: of `log`, and of `log` as an attribute."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        logger = node.func.value
        name = logger.id if isinstance(logger, ast.Name) else getattr(logger, "attr", "")
        is_new = isinstance(logger, ast.Call) and ast.unparse(logger.func) == "logging.getLogger"
        if node.func.attr in LEVELS and (is_new or name in ("log", "_log", "logger")):
            yield node


def find_problem(call: ast.Call) -> str:
    """Return what is wrong with the message of a call, or ""."""
    arguments = (
        call.args[1:] if isinstance(call.func, ast.Attribute) and call.func.attr == "log" else call.args
    )
    message = arguments[0] if arguments else None
    if not isinstance(message, ast.Constant) or not isinstance(message.value, str):
        return "the message is no constant"
    if not FORM.fullmatch(message.value):
        return f"{message.value!r} is not of the form `event=<name> key=value`"
    keys = re.findall(r" ([a-z0-9_]+)=", message.value)
    former = [key for key in keys if key in FORMER_KEYS and message.value not in MAY_HAVE_REASON]
    return "; ".join(f"use `{FORMER_KEYS[key]}` instead of `{key}`" for key in former)


def test_log_lines_have_one_form() -> None:
    problems: list[str] = []
    modules: set[Path] = set()
    for path, name in product_files():
        for call in log_calls(path.read_text(encoding="utf-8")):
            modules.add(path)
            if problem := find_problem(call):
                problems.append(f"{name}:{call.lineno} {problem}")
    assert problems == []
    assert len(modules) > 40, "the test no longer finds the log lines"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('log.info("event=a b=%s", b)', ""),
        ('self._context.log.log(level, "event=a b=%s", b)', ""),
        ('log.info("a sentence: b=%s", b)', "not of the form"),
        ('log.info("event=%s", b)', "not of the form"),
        ('log.info("event=a sink=%s", b)', "use `node` instead of `sink`"),
        ("log.info(text)", "no constant"),
        ('logging.getLogger("x").debug("b=%s", b)', "not of the form"),
    ],
)
def test_a_line_of_another_form_is_found(line: str, problem: str) -> None:
    (call,) = log_calls(line)
    assert problem in find_problem(call)
    assert bool(problem) == bool(find_problem(call))
