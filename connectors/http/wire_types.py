"""The types that Arrow's JSON reader returns, and their conversion to the declared types."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
from pyarrow import types as kinds

from headrace.pipeline.types.int256 import WideInteger, is_wide, pattern, plain_columns

pc: Any = pyarrow.compute  # its functions are made at run time, where no type checker sees them


def wire_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the type to request from Arrow's reader, or None if it cannot read the type."""
    if kinds.is_date(kind) or kinds.is_timestamp(kind) or kinds.is_binary(kind) or is_wide(kind):
        return pa.string()
    if kinds.is_struct(kind):
        inner = [wire_type(field.type) for field in kind]
        return kind if all(wire == field.type for wire, field in zip(inner, kind, strict=True)) else None
    if kinds.is_list(kind):
        return kind if wire_type(kind.value_type) == kind.value_type else None
    plain = (
        kinds.is_integer(kind)
        or kinds.is_floating(kind)
        or kinds.is_boolean(kind)
        or kinds.is_string(kind)
        or kinds.is_decimal(kind)
    )
    return kind if plain else None


def from_wire_type(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the column in the declared type.

    Raises ValueError or ArrowException for a string without such a value.
    """
    if is_wide(kind):
        if not pc.all(pc.match_substring_regex(array, pattern(kind)), min_count=0).as_py():
            msg = "digits"
            raise ValueError(msg)
        if isinstance(kind, WideInteger):
            _check_range(array, kind)
        return plain_columns(array)
    if kinds.is_date(kind):
        return array.cast(pa.date32()).cast(kind)
    if kinds.is_timestamp(kind):
        return _moments(array, kind)
    return _decode_hex(array) if kinds.is_binary(kind) else array


def _check_range(array: pa.Array, kind: WideInteger) -> None:
    """Raise ValueError for numbers that do not fit 256 bits.

    Only strings that are long enough are checked.
    """
    for value in pc.filter(array, pc.greater(pc.utf8_length(array), 76)):
        number = int(value.as_py().split(".")[0])
        if not kind.lowest <= number <= kind.highest:
            msg = "range"
            raise ValueError(msg)
    if not kind.signed and pc.any(pc.starts_with(array, "-"), min_count=0).as_py():
        msg = "range"
        raise ValueError(msg)


def _moments(array: pa.Array, kind: pa.TimestampType) -> pa.Array:
    texts = pc.replace_substring_regex(array, r"(\.\d{6})\d+", r"\1")
    zoned = pc.match_substring_regex(texts, r"(?:Z|[+-]\d{2}:?\d{2})$")
    if kind.tz is None:
        if pc.any(zoned, min_count=0).as_py():
            msg = "a zone"
            raise ValueError(msg)
        return texts.cast(kind)
    return pc.if_else(zoned, texts, pc.binary_join_element_wise(texts, "Z", "")).cast(kind)


def _decode_hex(array: pa.Array) -> pa.Array:
    """Bytes from hex, in one piece: the digits of all rows lie side by side."""
    texts = pc.replace_substring_regex(array, r"^0[xX]", "")
    if not pc.all(pc.match_substring_regex(texts, r"^(?:[0-9a-fA-F]{2})*$"), min_count=0).as_py():
        msg = "hex"
        raise ValueError(msg)
    plain = pc.fill_null(texts, "")
    offsets = np.concatenate([[0], np.cumsum(np.asarray(pc.binary_length(plain)) // 2)]).astype(np.int32)
    digits = pc.binary_join(pa.ListArray.from_arrays([0, len(plain)], plain), "")[0].as_py()
    decoded = pa.Array.from_buffers(
        pa.binary(), len(plain), [None, pa.py_buffer(offsets), pa.py_buffer(bytes.fromhex(digits))]
    )
    return pc.if_else(pc.is_valid(texts), decoded, pa.scalar(None, pa.binary()))
