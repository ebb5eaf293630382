"""The messages of the troubleshooting guide are messages of the product."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest
from helpers.checkout import ROOT

GUIDE = (ROOT / "docs/guides/troubleshoot.md").read_text(encoding="utf-8")
ROOMS = ("pipeline", "connectors", "jobs", "orchestration", "headrace")


def messages_of(guide: str) -> list[str]:
    """Return the texts in the first column of the table of errors."""
    table = guide.partition("## Errors")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("|")]
    return [message for row in rows for message in re.findall(r"`([^`]+)`", row)]


@cache
def texts() -> tuple[str, ...]:
    """Return the literal texts of the product, with `…` for their values."""
    result: list[str] = []
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            if path.is_symlink() or any(parent.is_symlink() for parent in path.parents):
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    parts = [
                        str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values
                    ]
                    result.append("".join(parts))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    result.append(node.value)
    return tuple(result)


def test_the_guide_has_messages() -> None:
    assert len(messages_of(GUIDE)) >= 16


@pytest.mark.parametrize("message", messages_of(GUIDE))
def test_a_message_of_the_guide_is_one_of_the_product(message: str) -> None:
    assert any(message in text for text in texts()), "the product no longer says so"
