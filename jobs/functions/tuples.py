"""JSON objects as ClickHouse's tuples."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

_ESCAPES = str.maketrans({"\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\0": "\\0"})
_DECODER: Any = json.JSONDecoder(parse_int=str.encode, parse_float=str.encode)
"""Numbers come as bytes, as they were written: all their digits stay, and no text looks like one."""
_OBJECTS = frozenset({dict})


def clickhouse_tuples(text: pa.Array, keys: pa.Array) -> pa.Array:
    """`[(v,v),(v,v)]` of a JSON array of objects; NULL for anything else."""
    return pa.array([_row(*row) for row in zip(text.to_pylist(), keys.to_pylist(), strict=True)], pa.string())


def _row(text: str | None, keys: list[str] | None) -> str | None:
    if text is None or keys is None:
        return None
    try:
        found = _decoded(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, list) or not _OBJECTS.issuperset(map(type, found)):
        return None
    return "[" + ",".join(["(" + ",".join(map(_literal, map(one.get, keys))) + ")" for one in found]) + "]"


def _decoded(text: str) -> Any:
    """The decoder's own way looks for blanks on both sides first; most texts have none."""
    try:
        found, end = _DECODER.scan_once(text, 0)
    except StopIteration:
        return _DECODER.decode(text)
    return found if end == len(text) else _DECODER.decode(text)


def _literal(value: Any) -> str:
    kind = type(value)
    if kind is bytes:
        return value.decode()
    if kind is str:
        return f"'{value.translate(_ESCAPES)}'"
    if value is None:
        return "NULL"
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
        return "{" + ",".join(f"{json.dumps(key, ensure_ascii=False)}:{_json(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_json, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
