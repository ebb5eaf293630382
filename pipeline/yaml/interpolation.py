"""`${VAR}` in strings of a pipeline file.

Most strings get the value when the file is read. Some keep the variable until a run needs the value.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from typing import Any

from headrace.pipeline.errors import UserError

VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")

_LATE = ("url", "headers")
"""Keys of requests whose strings may contain secrets. Model, hash and ledger have them as written."""


def interpolate(text: str, *, node: str = "") -> str:
    """Return the text with the values of its variables. Raise UserError for a variable that is not set."""

    def value(match: re.Match[str]) -> str:
        result = os.environ.get(match[1], match[2])
        if result is None:
            msg = f"`${{{match[1]}}}` is not set"
            hint = f"Set the environment variable {match[1]}, or give a default: ${{{match[1]}:-value}}."
            raise UserError(msg, hint=hint, node=node)
        return result

    return VARIABLE.sub(value, text)


def keep_late(
    value: dict[str, Any], written: Mapping[tuple[str | int, ...], str], types: Collection[str]
) -> None:
    """Restore the file's version of strings that may contain secrets: those of requests of these node types.

    `written` has the strings with a variable.
    """
    for path in written:
        if not _is_late(value, path, types):
            continue
        at: Any = value
        for step in path[:-1]:
            at = at[step]
        at[path[-1]] = written[path]


def _is_late(value: dict[str, Any], path: tuple[str | int, ...], types: Collection[str]) -> bool:
    if len(path) < 3 or path[2] not in _LATE:
        return False
    part = value.get(str(path[0]))
    node = part.get(path[1]) if isinstance(part, dict) else None
    return isinstance(node, dict) and node.get("type") in types
