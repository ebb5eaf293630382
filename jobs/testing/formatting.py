"""Values and rows as a test file writes them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

_PLAIN = re.compile(r"[A-Za-z_](?:[\w .+/-]*[\w.+/-])?", re.ASCII)
_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})


def scalar(value: Any) -> str:
    """Return a value in YAML. Nested values are in flow style; ambiguous strings are quoted."""
    if isinstance(value, Mapping):
        return flow(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(scalar, value))}]"
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    text = plain(value)
    if not isinstance(value, str | bytes):
        return text
    return (
        text
        if _PLAIN.fullmatch(text) and text.lower() not in _WORDS
        else json.dumps(text, ensure_ascii=False)
    )


def plain(value: Any) -> str:
    """Return a single value without quotes."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, datetime):
        return (
            value.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"
            if value.tzinfo
            else value.isoformat()
        )
    if isinstance(value, Decimal):
        return format(value, "f")
    return value.hex() if isinstance(value, bytes) else str(value)


def flow(row: Mapping[str, Any]) -> str:
    """Return a row on one line."""
    return "{" + ", ".join(f"{scalar(name)}: {scalar(value)}" for name, value in row.items()) + "}"


def json_value(value: Any) -> str:
    """Return a value in JSON. Decimals keep their digits; values that JSON cannot express become strings."""
    if isinstance(value, Mapping):
        return (
            "{"
            + ", ".join(
                f"{json.dumps(str(name), ensure_ascii=False)}: {json_value(inner)}"
                for name, inner in value.items()
            )
            + "}"
        )
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(json_value, value))}]"
    if value is None or isinstance(value, bool | int | str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, float | Decimal) and math.isfinite(value):
        return plain(value)
    return json.dumps(plain(value), ensure_ascii=False)
