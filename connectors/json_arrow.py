"""Arrow columns as JSON text, byte for byte as Spark writes it by the rules of `json_text`.

Every type that is supported has the same text in both for each value, or the value is refused. Floats are not
supported: their digits depend on the version of Java.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
from pyarrow import types as kinds

from headrace.pipeline.types.int256 import SPARK_DIGITS

pc: Any = pyarrow.compute
"""Its functions are made at import, so type checkers do not see them."""

_ESCAPED, _CONTROL = r'["\\\x00-\x1f]', r"[\x00-\x1f]"
_SHORT = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}
"""The backslash is first, because the other escapes contain it."""
_LONG = {chr(at): f"\\u{at:04X}" for at in range(0x20) if chr(at) not in _SHORT}
_DAYS = (-719_162, 2_932_896)
"""The first and the last day of the years 1 to 9999, counted from 1970. Other years have a sign in Java."""
_DAY_MICROS = 86_400_000_000
_PLAIN_SCALE = 6
"""Digits after the point up to which no decimal has an exponent."""
_HEX = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), dtype=np.uint16)
"""Two digits for each byte."""
_PLAIN = (kinds.is_boolean, kinds.is_signed_integer, kinds.is_string, kinds.is_binary, kinds.is_date32)


class SparkTextError(Exception):
    """A value has another text in Spark: a year outside of 1 to 9999, or a string that is not UTF-8."""


def is_supported(kind: pa.DataType) -> bool:
    """Return whether `write_objects` writes columns of a type."""
    if kinds.is_map(kind):
        return (
            not kinds.is_nested(kind.key_type)
            and is_supported(kind.key_type)
            and is_supported(kind.item_type)
        )
    if kinds.is_struct(kind):
        names = {member.name for member in kind}
        return 0 < len(names) == kind.num_fields and all(is_supported(member.type) for member in kind)
    if kinds.is_list(kind):
        return is_supported(kind.value_type)
    if kinds.is_timestamp(kind):
        return kind.unit == "us"
    if kinds.is_decimal128(kind):
        return 0 <= kind.scale <= kind.precision <= SPARK_DIGITS
    return any(fits(kind) for fits in _PLAIN)


def is_text_supported(kind: pa.DataType) -> bool:
    """Return whether `write_texts` writes columns of a type.

    For small values, Arrow and Spark write decimals with more digits after the point in different ways.
    """
    return is_supported(kind) and not (kinds.is_decimal(kind) and kind.scale > _PLAIN_SCALE)


def write_objects(columns: Mapping[str, pa.Array]) -> pa.StringArray:
    """Return one JSON object per row, with the columns in their order. NULL is `null`.

    Raise SparkTextError if Spark must write a value.
    """
    for column in columns.values():
        _validate(column)
    return _join_members(columns)


def write_texts(column: pa.Array) -> pa.StringArray:
    """Return the text of each value: JSON for lists, structs and maps, no quotes elsewhere. NULL stays NULL.

    Raise SparkTextError if Spark must write a value.
    """
    _validate(column)
    if kinds.is_string(column.type):
        return column
    if kinds.is_nested(column.type):
        return pc.if_else(column.is_valid(), _write(column), None)
    return _write_scalar(column)


def _validate(column: pa.Array) -> None:
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        raise SparkTextError(str(error)) from error


def _join_members(columns: Mapping[str, pa.Array]) -> Any:
    parts: list[Any] = []
    for at, (name, column) in enumerate(columns.items()):
        parts += [f"{',' if at else '{'}{_write_name(name)}:", _write(column)]
    return pc.binary_join_element_wise(*parts, "}", "")


@functools.lru_cache(maxsize=4096)
def _write_name(name: str) -> str:
    return f'"{_escape(pa.array([name], pa.string()))[0].as_py()}"'


def _write(column: Any) -> Any:
    """Return the JSON value of each row."""
    kind = column.type
    if kinds.is_struct(kind):
        members = dict(zip(kind.names, column.flatten(), strict=True))
        text = pc.if_else(column.is_valid(), _join_members(members), None)
    elif kinds.is_map(kind):
        text = _write_map(column)
    elif kinds.is_list(kind):
        text = pc.binary_join_element_wise("[", _join_items(column, _write(column.flatten())), "]", "")
    elif kinds.is_boolean(kind) or kinds.is_integer(kind) or kinds.is_decimal(kind):
        text = _write_scalar(column)
    else:
        text = _quote(_write_scalar(column))
    return pc.fill_null(text, "null")


def _write_map(column: Any) -> Any:
    kind = column.type
    entry = pa.struct([pa.field("key", kind.key_type, nullable=False), pa.field("value", kind.item_type)])
    entries = column.cast(pa.list_(entry))
    keys, values = entries.flatten().flatten()
    pairs = pc.binary_join_element_wise(_quote(_write_scalar(keys)), _write(values), ":")
    return pc.binary_join_element_wise("{", _join_items(entries, pairs), "}", "")


def _join_items(column: Any, texts: Any) -> Any:
    """Return the texts of all items of each list with commas between them. NULL stays NULL."""
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), texts), ",")
    return pc.if_else(column.is_valid(), joined, None)


def _quote(texts: Any) -> Any:
    return pc.binary_join_element_wise('"', texts, '"', "")


def _write_scalar(column: Any) -> Any:
    """Return the text of each value, without quotes: what it is as the key of a map."""
    kind = column.type
    if kinds.is_string(kind):
        return _escape(column)
    if kinds.is_binary(kind):
        return _write_hex(column)
    if kinds.is_date(kind):
        _check_range(column.cast(pa.int32()), *_DAYS)
    if not kinds.is_timestamp(kind):
        return column.cast(pa.string())
    micros = column.cast(pa.int64())
    _check_range(micros, _DAYS[0] * _DAY_MICROS, (_DAYS[1] + 1) * _DAY_MICROS - 1)
    text = pc.binary_replace_slice(micros.cast(pa.timestamp("us")).cast(pa.string()), 10, 11, "T")
    return text if kind.tz is None else pc.binary_join_element_wise(text, "Z", "")


def _check_range(numbers: Any, low: int, high: int) -> None:
    ends = pc.min_max(numbers)
    if ends["min"].is_valid and not low <= ends["min"].as_py() <= ends["max"].as_py() <= high:
        msg = "a date or time is outside of the years 1 to 9999"
        raise SparkTextError(msg)


def _escape(texts: Any) -> Any:
    for pattern, escapes in ((_ESCAPED, _SHORT), (_CONTROL, _LONG)):
        if not pc.any(pc.match_substring_regex(texts, pattern)).as_py():
            break
        for character, escape in escapes.items():
            texts = pc.replace_substring(texts, character, escape)
    return texts


def _write_hex(column: Any) -> Any:
    """Return two hexadecimal digits for each byte."""
    filled = pc.fill_null(column, b"")
    if not len(filled):
        return pa.array([], pa.string())
    _, offsets, data = filled.buffers()
    ends = np.frombuffer(offsets, np.int32)[filled.offset : filled.offset + len(filled) + 1]
    raw = np.frombuffer(data, np.uint8)[ends[0] : ends[-1]] if data is not None else np.empty(0, np.uint8)
    digits = pa.py_buffer(_HEX[raw])
    text = pa.StringArray.from_buffers(len(filled), pa.py_buffer((ends - ends[0]) * np.int32(2)), digits)
    return pc.if_else(column.is_valid(), text, None)
