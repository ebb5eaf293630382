"""Names: each class of the product once, and no name from the list of vague words, in tests neither."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from helpers.checkout import product_files, python_files

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
        "asked",
        "found",
        "gone",
        "held",
        "kept",
        "lost",
        "made",
        "said",
        "seen",
        "sent",
        "shown",
        "taken",
        "told",
    }
)
"""Vague participles and images, and former names of standard terms.

In lower case, without leading underscores.
"""


Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def definitions(files: Iterable[tuple[Path, str]]) -> Iterator[tuple[str, Definition]]:
    """Yield every class and function of the files, with the file's name."""
    for path, name in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, Definition):
                yield name, node


def is_forbidden(name: str) -> bool:
    return name.strip("_").lower() in FORBIDDEN


def test_each_class_name_is_used_once() -> None:
    places = defaultdict(list)
    for name, node in definitions(product_files()):
        # sqlglot requires these two names inside a dialect.
        if isinstance(node, ast.ClassDef) and node.name not in ("Parser", "Tokenizer"):
            places[node.name].append(f"{name}:{node.lineno}")
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_no_name_is_forbidden() -> None:
    files = [*product_files(), *python_files("tests", "tools", "benchmarks", "examples")]
    modules = [name for path, name in files if is_forbidden(path.stem)]
    others = [
        f"{name}:{node.lineno} {node.name}" for name, node in definitions(files) if is_forbidden(node.name)
    ]
    assert modules + others == []


FORBIDDEN_VARIABLES = frozenset({"asked", "books", "eyes", "found", "given", "held", "said", "told"})
"""Words that tell nothing of a value. Attributes may have them: `given` is a key of test files."""


def variables(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the parameters and the assigned names of a module, with their lines."""
    classes = [node for node in ast.walk(module) if isinstance(node, ast.ClassDef)]
    fields = {id(line.target) for node in classes for line in node.body if isinstance(line, ast.AnnAssign)}
    for node in ast.walk(module):
        if isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in fields:
            yield node.lineno, node.id


def test_no_variable_is_forbidden() -> None:
    places = [
        f"{name}:{line} {word}"
        for path, name in [*product_files(), *python_files("tests", "tools", "benchmarks", "examples")]
        for line, word in variables(ast.parse(path.read_text(encoding="utf-8")))
        if word in FORBIDDEN_VARIABLES
    ]
    assert places == []
