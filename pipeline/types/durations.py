"""Durations in text form: `500ms`, `1s`, `1h 30m`."""

from __future__ import annotations

import re
from datetime import timedelta

from headrace.pipeline.errors import UserError

_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}
_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)")


def parse_duration(text: str) -> timedelta:
    """Return the duration in `text`. Raise UserError if it is invalid."""
    seconds, at = 0.0, 0
    while at < len(text.rstrip()):
        part = _PART.match(text, at)
        if part is None or part[2] not in _UNITS:
            msg = f"`{text}` is not a duration"
            raise UserError(
                msg, hint=f"Write a number and a unit, such as 500ms or 1h 30m; units: {', '.join(_UNITS)}."
            )
        seconds += float(part[1]) * _UNITS[part[2]]
        at = part.end()
    if at == 0:
        msg = "a duration is empty"
        raise UserError(msg, hint="Write a number and a unit, such as 5s.")
    try:
        return timedelta(seconds=seconds)
    except OverflowError:
        msg = f"`{text}` is longer than a duration can be"
        raise UserError(msg, hint="Write a shorter one, such as 52w.") from None


def spell_duration(duration: timedelta) -> str:
    """Return the shortest text of a duration, such as `1h 30m`: the inverse of `parse_duration`."""
    left = round(duration.total_seconds() * 1e6)
    parts: list[str] = []
    for unit in ("w", "d", "h", "m", "s", "ms", "us"):
        size = round(_UNITS[unit] * 1e6)
        if left >= size:
            parts.append(f"{left // size}{unit}")
            left %= size
    return " ".join(parts) or "0s"
