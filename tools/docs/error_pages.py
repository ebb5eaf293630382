"""docs/reference/errors.md: the classes of errors with their codes, meanings and ways out."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import headrace
from headrace.pipeline.errors import HeadraceError

_WRITTEN = (
    "<!-- Written by `make docs` from the error classes and tools/docs/parts/errors.md. Change those. -->\n"
)
_MARK = "<!-- errors -->\n"
_MODULES = ("headrace.pipeline", "headrace.connectors", "headrace.jobs", "headrace.orchestration")


def error_classes() -> list[type[HeadraceError]]:
    """Return every class below HeadraceError in the product, by code."""
    for name in _MODULES:
        for module in pkgutil.walk_packages(importlib.import_module(name).__path__, f"{name}."):
            if module.name.endswith("errors"):
                importlib.import_module(module.name)
    return sorted(
        (error for error in _tree(HeadraceError) if error is not HeadraceError), key=lambda error: error.code
    )


def _tree(error: type[HeadraceError]) -> Iterator[type[HeadraceError]]:
    yield error
    for below in error.__subclasses__():
        if below.__module__.startswith(f"{headrace.__name__}."):
            yield from _tree(below)


def page(parts: Path) -> str:
    """Return the whole page."""
    title, _, rest = (parts / "errors.md").read_text(encoding="utf-8").partition("\n")
    return f"{title}\n\n{_WRITTEN}{rest.replace(_MARK, _entries())}"


def _entries() -> str:
    return "\n".join(_entry(error) for error in error_classes())


def _entry(error: type[HeadraceError]) -> str:
    parent = error.__mro__[1]
    special = (
        f" A special case of [{parent.code}](#{parent.code.lower()})." if parent is not HeadraceError else ""
    )
    retry = " Headrace retries it." if error.retriable else ""
    return (
        f"## {error.code}\n\n`{error.__name__}`: {inspect.getdoc(error)}{special}{retry}\n\n{error.action}\n"
    )
