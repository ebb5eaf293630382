"""Names of the product: each class name once, and no name from the list of vague words."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from helpers.checkout import ROOT

ROOMS = ("pipeline", "jobs", "connectors", "orchestration", "headrace")
FORBIDDEN = frozenset(
    {
        "said_by",
        "eyes",
        "books",
        "noeyes",
        "rails",
        "story",
        "lanerun",
        "lanesink",
        "lanesource",
        "looks",
        "pin",
        "unpin",
        "foresee",
        "fence_at",
        "first_filled",
        "meant",
        "blaming",
        "unsteady",
        "forgetful",
        "fed",
        "tell_apart",
        "borrowed",
    }
)
"""Vague participles and images, and former names of standard terms.

In lower case, without leading underscores.
"""


def definitions() -> Iterator[tuple[Path, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield every class and function of the product."""
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            if "templates" in path.parts or any(parent.is_symlink() for parent in path.parents):
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    yield path, node


def test_each_class_name_is_used_once() -> None:
    places = defaultdict(list)
    for path, node in definitions():
        # sqlglot requires these two names inside a dialect.
        if isinstance(node, ast.ClassDef) and node.name not in ("Parser", "Tokenizer"):
            places[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_no_name_is_forbidden() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path, node in definitions()
        if node.name.strip("_").lower() in FORBIDDEN
    ]
    assert found == []
