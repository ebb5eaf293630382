"""Checks of the names of a schema's fields, which become columns."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.pipeline.errors import SchemaError


def check_distinct(names: Iterable[str]) -> None:
    """Raise SchemaError if two fields have the same name but for its case."""
    seen: dict[str, str] = {}
    for name in names:
        if (other := seen.setdefault(name.lower(), name)) != name:
            msg = f"fields `{other}` and `{name}` differ only in case, and columns cannot"
            raise SchemaError(msg)
