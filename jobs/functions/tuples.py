"""JSON objects as ClickHouse's tuples."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

_ESCAPES = str.maketrans({"\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\0": "\\0"})


class _Number(str):
    """A number as it was written: all its digits stay."""

    __slots__ = ()


def clickhouse_tuples(text: pa.Array, keys: pa.Array) -> pa.Array:
    """`[(v,v),(v,v)]` of a JSON array of objects; NULL for anything else."""
    decoder = json.JSONDecoder(parse_int=_Number, parse_float=_Number)
    return pa.array([_row(decoder, *row) for row in zip(text.to_pylist(), keys.to_pylist(), strict=True)], pa.string())


def _row(decoder: json.JSONDecoder, text: str | None, keys: list[str] | None) -> str | None:
    if text is None or keys is None:
        return None
    try:
        found = decoder.decode(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        return None
    return "[" + ",".join(f"({','.join(_literal(one.get(key)) for key in keys)})" for one in found) + "]"


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, list):
        return "[" + ",".join(map(_literal, value)) + "]"
    return "'" + (value if isinstance(value, str) else _json(value)).translate(_ESCAPES) + "'"


def _json(value: Any) -> str:
    """JSON again, numbers as they were written."""
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(key, ensure_ascii=False)}:{_json(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_json, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
