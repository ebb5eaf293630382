"""Numbers and bytes in other bases: base 58 as Bitcoin writes it, and bases 2 to 36."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.jobs.functions.arrow_bytes import as_binary, column_of, is_valid, lengths, matrix

_ALPHABET = b"123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_CHARACTERS = np.frombuffer(_ALPHABET, dtype=np.uint8)
_VALUES = np.full(256, 58, dtype=np.uint8)
_VALUES[_CHARACTERS] = np.arange(58)
_FIVE = np.uint64(58**5)
_WORD, _LOW = np.uint64(32), np.uint64(0xFFFFFFFF)
_LONGEST = 64
"""Longer rows are computed one by one: the work grows with the square of the length."""
_AT_ONCE = 4096


def to_base58(value: pa.Array) -> pa.Array:
    """Bytes, or text as its UTF-8 bytes, in base 58. NULL stays NULL."""
    return _by_length(value, _encode_rows, _encode, pa.string(), is_valid(value))


def from_base58(value: pa.Array) -> pa.Array:
    """Return the decoded bytes. NULL for NULL and for invalid base 58."""
    return _by_length(value, _decode_rows, _decode, pa.binary(), None)


def _by_length(
    value: pa.Array,
    many: Callable[[pa.Array], tuple[Any, Any]],
    one: Callable[[bytes], bytes],
    kind: pa.DataType,
    valid: Any,
) -> pa.Array:
    data = as_binary(value)
    if len(data) == 0:
        return pa.array([], kind)
    if lengths(data).max() > _LONGEST:
        result = [one(row) for row in data.to_pylist()]
        return pa.array(
            [row if valid is None or valid[place] else None for place, row in enumerate(result)], pa.binary()
        ).cast(kind)
    parts = []
    for start in range(0, len(data), _AT_ONCE):
        cells, kept = many(data.slice(start, _AT_ONCE))
        parts.append(column_of(cells, kept, kind, None if valid is None else valid[start : start + _AT_ONCE]))
    return pa.concat_arrays(parts)


def _encode_rows(data: pa.Array) -> tuple[Any, Any]:
    """Characters, and which of them belong to each row. Words of 32 bits become limbs of five digits."""
    counts = lengths(data)
    width = -(-max(int(counts.max()), 1) // 4) * 4
    padded = matrix(data, width, right=True)
    words = padded.view(">u4").astype(np.uint64)
    size = -(-width * 1366 // 5000) + 1
    limbs = np.zeros((size, len(data)), dtype=np.uint64)
    for place in range(words.shape[1]):
        carry = words[:, place]
        for limb in limbs[: place + 2 + place // 8]:
            carry = (limb << _WORD) + carry
            np.remainder(carry, _FIVE, out=limb)
            carry //= _FIVE
    digits = np.empty((len(data), size, 5), dtype=np.uint8)
    for place in range(4, -1, -1):
        digits[:, :, place] = (limbs % np.uint64(58)).T[:, ::-1]
        limbs //= np.uint64(58)
    digits = digits.reshape(len(data), size * 5)
    zeros = _leading(padded) - (width - counts)
    return _CHARACTERS[digits], np.arange(size * 5) >= (_leading(digits) - zeros)[:, None]


def _decode_rows(data: pa.Array) -> tuple[Any, Any]:
    """Bytes, and which of them belong to each row: none where a character is no digit."""
    counts = lengths(data)
    width = -(-max(int(counts.max()), 1) // 5) * 5
    outside = np.arange(width) < (width - counts)[:, None]
    digits = _VALUES[matrix(data, width, right=True)]
    digits[outside] = 0
    bad = (digits == 58).any(axis=1)
    digits[bad] = 0
    powers = np.array([58**4, 58**3, 58**2, 58, 1], dtype=np.uint64)
    groups = (digits.reshape(len(data), width // 5, 5) * powers).sum(axis=2, dtype=np.uint64)
    limbs = np.zeros((width // 4 + 1, len(data)), dtype=np.uint64)
    for place in range(width // 5):
        carry = groups[:, place]
        for limb in limbs[: place + 2]:
            carry = limb * _FIVE + carry
            np.bitwise_and(carry, _LOW, out=limb)
            carry >>= _WORD
    cells = np.ascontiguousarray(limbs.T[:, ::-1].astype(">u4")).view(np.uint8)
    ones = _leading(digits) - (width - counts)
    kept = np.arange(cells.shape[1]) >= (_leading(cells) - ones)[:, None]
    kept[bad] = False
    return cells, kept


def _leading(cells: Any) -> Any:
    """How many zeros each row begins with."""
    set_ = cells != 0
    return np.where(set_.any(axis=1), set_.argmax(axis=1), cells.shape[1])


def _encode(row: bytes) -> bytes:
    number, result = int.from_bytes(row, "big"), bytearray()
    while number:
        number, digit = divmod(number, 58)
        result.append(_ALPHABET[digit])
    return b"1" * (len(row) - len(row.lstrip(b"\0"))) + bytes(result[::-1])


def _decode(row: bytes) -> bytes:
    number = 0
    for character in row:
        digit = int(_VALUES[character])
        if digit == 58:
            return b""
        number = number * 58 + digit
    return b"\0" * (len(row) - len(row.lstrip(b"1"))) + number.to_bytes((number.bit_length() + 7) // 8, "big")


_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_FORMATS = {2: "b", 8: "o", 10: "d", 16: "x"}


def conv_base(number: pa.Array, source: pa.Array, target: pa.Array) -> pa.Array:
    """Return the number in another base, in lower case.

    NULL if it is not a number of its base, or if a base is not between 2 and 36.
    """
    rows = zip(*(column.cast(pa.string()).to_pylist() for column in (number, source, target)), strict=True)
    return pa.array([_convert_base(*row) for row in rows], pa.string())


def _convert_base(number: str | None, source: str | None, target: str | None) -> str | None:
    if number is None or source is None or target is None:
        return None
    try:
        base, goal = int(source), int(target)
        if not (
            2 <= base <= 36 and 2 <= goal <= 36 and number.isascii() and number.removeprefix("-").isalnum()
        ):
            return None
        value = int(number, base)
    except ValueError:
        return None
    return format(value, _FORMATS[goal]) if goal in _FORMATS else _spell_number(value, goal)


def _spell_number(value: int, base: int) -> str:
    rest, result = abs(value), []
    while rest:
        rest, digit = divmod(rest, base)
        result.append(_DIGITS[digit])
    return ("-" if value < 0 else "") + ("".join(reversed(result)) or "0")
