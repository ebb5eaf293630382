"""JSON objects as ClickHouse's tuples."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from headrace.pipeline.functions.registry import ERROR

_WRONG = f"{ERROR}_gs_json_objects_to_clickhouse_tuples: this is no JSON array: "
_SHOWN = 100
_ESCAPES = str.maketrans({"\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\0": "\\0"})
_DECODER: Any = json.JSONDecoder(parse_int=str.encode, parse_float=str.encode)
"""Numbers come as bytes, as they were written: all their digits stay, and no text looks like one."""
_OBJECTS = frozenset({dict})


def clickhouse_tuples(text: pa.Array, keys: pa.Array) -> pa.Array:
    """Return a JSON array of objects as `[(v, v), (v, v)]`, as Streamling writes it; `[]` for NULL.

    An item that is not an object becomes nulls. Anything else becomes a string that begins with `ERROR`.
    """
    return pa.array([_row(*row) for row in zip(text.to_pylist(), keys.to_pylist(), strict=True)], pa.string())


def _row(text: str | None, keys: list[str] | None) -> str:
    if text is None or keys is None:
        return "[]"
    try:
        result = _decode(text)
    except (ValueError, RecursionError):
        return _WRONG + text[:_SHOWN]
    if not isinstance(result, list):
        return _WRONG + text[:_SHOWN]
    rows = (
        result
        if _OBJECTS.issuperset(map(type, result))
        else [one if isinstance(one, dict) else {} for one in result]
    )
    return "[" + ", ".join(["(" + ", ".join(map(_literal, map(one.get, keys))) + ")" for one in rows]) + "]"


def _decode(text: str) -> Any:
    """Return the decoded JSON.

    `decode` first looks for whitespace on both sides, which most strings do not have, so it is only the
    fallback.
    """
    try:
        result, end = _DECODER.scan_once(text, 0)
    except StopIteration:
        return _DECODER.decode(text)
    return result if end == len(text) else _DECODER.decode(text)


def _literal(value: Any) -> str:
    kind = type(value)
    if kind is bytes:
        return value.decode()
    if kind is str:
        return f"'{value.translate(_ESCAPES)}'"
    if value is None:
        return "null"
    if kind is bool:
        return "true" if value else "false"
    if kind is list:
        return "[" + ",".join(map(_literal, value)) + "]"
    return f"'{_json(value).translate(_ESCAPES)}'"


def _json(value: Any) -> str:
    """JSON again, numbers as they were written."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, dict):
        return (
            "{"
            + ",".join(f"{json.dumps(key, ensure_ascii=False)}:{_json(one)}" for key, one in value.items())
            + "}"
        )
    if isinstance(value, list):
        return "[" + ",".join(map(_json, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
