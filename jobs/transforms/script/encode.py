"""Writes Arrow columns as text for a script engine, by compiled functions over columns, no object per value.

One JSON array per column. Integers beyond 2^53 and floats that JSON does not know are text, with a note on
how to read them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute
from pyarrow import types as kinds

from headrace.pipeline.types.arrow import is_binary

pc: Any = pyarrow.compute  # its functions are made at import, unseen by type checkers

EXACT = 2**53 - 1
"""The largest integer up to which every one is a JavaScript number."""
_NULL, _TWO = pa.scalar("null"), pa.scalar(2, pa.int32())
_SPECIAL = '["\\\\\x00-\x1f]'
Spec = dict[str, Any]


def encode_columns(columns: Sequence[pa.Array]) -> str:
    """Columns of one length as the text that the engine loads. The last one is `_gs_op`."""
    texts, notes = [], []
    for index, column in enumerate(columns):
        fragments, note = _fragments(column)
        texts.append(f"[{_join_fragments(fragments)}]")
        if note is not None:
            notes.append([index, note])
    return f"[[{','.join(texts)}],{json.dumps(notes)}]"


def _join_fragments(fragments: pa.Array) -> str:
    whole = pa.ListArray.from_arrays(
        pa.array([0, len(fragments)], pa.int32()), pc.fill_null(fragments, _NULL)
    )
    return pc.binary_join(whole, ",")[0].as_py()


def _fragments(column: pa.Array) -> tuple[pa.Array, Spec | None]:
    """Return the JSON text of every value, null for null, and how the engine must convert it, if at all."""
    if isinstance(column, pa.ExtensionArray):
        return _fragments(column.storage)
    convert = next((convert for test, convert in _WAYS if test(column.type)), _as_text)
    return convert(column)


def _as_bare(column: pa.Array) -> tuple[pa.Array, Spec | None]:
    return pc.cast(column, pa.string()), None


def _as_text(column: pa.Array) -> tuple[pa.Array, Spec | None]:
    return _add_quotes(pc.cast(column, pa.string())), None


def _quote_column(column: pa.Array) -> tuple[pa.Array, Spec | None]:
    return _quote_texts(pc.cast(column, pa.string())), None


def _as_hex(column: pa.Array) -> tuple[pa.Array, Spec | None]:
    return _add_quotes(_hex(pc.cast(column, pa.binary()))), None


def _integers(column: pa.Array) -> tuple[pa.Array, Spec | None]:
    plain = pc.cast(column, pa.string())
    ends = pc.min_max(column)
    low, high = ends["min"].as_py(), ends["max"].as_py()
    if low is None or (low >= -EXACT and high <= EXACT):
        return plain, None
    return _add_quotes(plain), {"as": "int"}


def _floats(column: pa.Array) -> tuple[pa.Array, Spec | None]:
    plain = pc.cast(column, pa.string())
    if pc.all(pc.is_finite(column), skip_nulls=True).as_py() in (True, None):
        return plain, None
    named = pc.case_when(
        pc.make_struct(pc.equal(plain, "nan"), pc.equal(plain, "inf"), pc.equal(plain, "-inf")),
        "NaN",
        "Infinity",
        "-Infinity",
        plain,
    )
    return _add_quotes(pc.if_else(pc.is_null(column), pa.scalar(None, pa.string()), named)), {"as": "float"}


def _add_quotes(texts: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise('"', texts, '"', "")


def _quote_texts(texts: pa.Array) -> pa.Array:
    """Return strings as JSON. Most strings have nothing to escape."""
    if pc.any(pc.match_substring_regex(texts, _SPECIAL)).as_py():
        texts = pc.replace_substring(pc.replace_substring(texts, "\\", "\\\\"), '"', '\\"')
        if pc.any(pc.match_substring_regex(texts, "[\x00-\x1f]")).as_py():
            for code in range(0x20):
                texts = pc.replace_substring(texts, chr(code), f"\\u{code:04x}")
    return _add_quotes(texts)


def _moments(column: pa.Array) -> tuple[pa.Array, Spec | None]:
    # By way of a timestamp without a zone, which is in UTC then: the text of one with a zone is made forty
    # times slower.
    plain = pc.replace_substring(pc.cast(pc.cast(column, pa.timestamp("us")), pa.string()), " ", "T")
    return pc.binary_join_element_wise('"', plain, '"' if column.type.tz is None else 'Z"', ""), None


def _hex(column: pa.Array) -> pa.Array:
    """Bytes as hexadecimal text: the whole buffer at once, with offsets twice as far apart."""
    offsets, data = offsets_and_bytes(column)
    text = pa.StringArray.from_buffers(
        len(column), pc.multiply(offsets, _TWO).buffers()[1], pa.py_buffer(data.hex().encode())
    )
    return _keep_nulls(column, text)


def offsets_and_bytes(column: pa.Array) -> tuple[pa.Array, bytes]:
    """Offsets from 0 and the bytes of a text or binary column, also of one that is a slice."""
    _, offsets, data = column.buffers()
    if offsets is None:
        return pa.array([0] * (len(column) + 1), pa.int32()), b""
    result = pa.Array.from_buffers(pa.int32(), len(column) + 1, [None, offsets], offset=column.offset)
    start, end = result[0].as_py(), result[-1].as_py()
    return pc.subtract(result, result[0]), data.slice(
        start, end - start
    ).to_pybytes() if data is not None else b""


def _keep_nulls(column: pa.Array, texts: pa.Array) -> pa.Array:
    return pc.if_else(pc.is_null(column), pa.scalar(None, pa.string()), texts)


def _structs(column: pa.Array) -> tuple[pa.Array, Spec | None]:
    parts: list[Any] = []
    fields: list[Spec] = []
    for field, values in zip(column.type, column.flatten(), strict=True):
        fragments, note = _fragments(values)
        parts += ["," if parts else "{", json.dumps(field.name) + ":", pc.fill_null(fragments, _NULL)]
        fields.append({"name": field.name} | (note or {}))
    texts = (
        pc.binary_join_element_wise(*(parts or ["{"]), "}", "") if parts else pa.array(["{}"] * len(column))
    )
    return _keep_nulls(column, texts), {"as": "struct", "fields": fields} if any(
        "as" in field for field in fields
    ) else None


def _lists(column: pa.Array) -> tuple[pa.Array, Spec | None]:
    column = pc.cast(column, pa.list_(column.type.value_type))
    offsets, inside = _inside(column)
    fragments, note = _fragments(column.values.slice(*inside))
    lists = pa.ListArray.from_arrays(offsets, pc.fill_null(fragments, _NULL))
    texts = pc.binary_join_element_wise("[", pc.binary_join(lists, ","), "]", "")
    return _keep_nulls(column, texts), {"as": "list", "item": note} if note else None


def _maps(column: pa.Array) -> tuple[pa.Array, Spec | None]:
    offsets, inside = _inside(column)
    keys, _ = _fragments(pc.cast(column.keys.slice(*inside), pa.string()))
    values, note = _fragments(column.items.slice(*inside))
    pairs = pc.binary_join_element_wise(keys, ":", pc.fill_null(values, _NULL), "")
    lists = pa.ListArray.from_arrays(offsets, pairs)
    texts = pc.binary_join_element_wise("{", pc.binary_join(lists, ","), "}", "")
    return _keep_nulls(column, texts), {"as": "map", "item": note} if note else None


_WAYS = (
    (kinds.is_integer, _integers),
    (kinds.is_floating, _floats),
    (kinds.is_boolean, _as_bare),
    (kinds.is_null, _as_bare),
    (kinds.is_string, _quote_column),
    (kinds.is_large_string, _quote_column),
    (kinds.is_timestamp, _moments),
    (is_binary, _as_hex),
    (kinds.is_struct, _structs),
    (kinds.is_map, _maps),
    (kinds.is_list, _lists),
)
"""How a column of a type is written; all others as their text, in quotes."""


def _inside(lists: pa.Array) -> tuple[pa.Array, tuple[int, int]]:
    """Offsets from 0 of lists or maps, and where their values lie, also of a slice."""
    start, end = lists.offsets[0].as_py(), lists.offsets[-1].as_py()
    return pc.subtract(lists.offsets, lists.offsets[0]), (start, end - start)
