"""Keccak-256, as Ethereum uses it, for many rows at once: each step of the permutation works on a lane of all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from headrace.jobs.functions.columns import as_binary, column_of, flat, is_valid, lengths, matrix

pc: Any = pyarrow.compute
"""Its functions are made when it is loaded: no checker of types knows them."""

_RATE = 136
_AT_ONCE = 512
"""Rows whose whole state stays in a processor's cache."""
_ROUNDS = 24
_LONGEST = 2**31 - 1
"""Of a row of Arrow's, in bytes; without it the slice of pyarrow 26 fails."""


def _tables() -> tuple[Any, Any, Any]:
    """Round constants, rotations by lane, and where each lane goes, from the definition of Keccak."""
    constants, register = [], 1
    for _ in range(_ROUNDS):
        value = 0
        for power in range(7):
            if register & 1:
                value |= 1 << ((1 << power) - 1)
            register = (register << 1) ^ (0x171 if register & 0x80 else 0)
        constants.append(value)
    rotations, comes_from = [0] * 25, [0] * 25
    x, y = 1, 0
    for step in range(24):
        rotations[x + 5 * y] = (step + 1) * (step + 2) // 2 % 64
        x, y = y, (2 * x + 3 * y) % 5
    for x in range(5):
        for y in range(5):
            comes_from[y + 5 * ((2 * x + 3 * y) % 5)] = x + 5 * y
    return np.array(constants, dtype=np.uint64), np.array(rotations, dtype=np.uint64)[:, None], np.array(comes_from)


_CONSTANTS, _ROTATIONS, _COMES_FROM = _tables()
_BACK = (np.uint64(64) - _ROTATIONS) % np.uint64(64)
_ONE, _REST = np.uint64(1), np.uint64(63)
_BEFORE, _AFTER, _SECOND = [4, 0, 1, 2, 3], [1, 2, 3, 4, 0], [2, 3, 4, 0, 1]


def _permute(state: Any) -> None:
    """All rounds, in place, over lanes of shape (25, rows)."""
    rows = state.shape[1]
    square, turned, other = state.reshape(5, 5, rows), np.empty_like(state), np.empty_like(state)
    for constant in _CONSTANTS:
        parity = np.bitwise_xor.reduce(square, axis=0)
        after = parity[_AFTER]
        square ^= parity[_BEFORE] ^ (after << _ONE | after >> _REST)
        np.left_shift(state, _ROTATIONS, out=turned)
        np.right_shift(state, _BACK, out=other)
        turned |= other
        np.take(turned, _COMES_FROM, axis=0, out=other)
        mixed = other.reshape(5, 5, rows)
        np.invert(mixed[:, _AFTER], out=square)
        square &= mixed[:, _SECOND]
        square ^= mixed
        state[0] ^= constant


def digests(column: pa.Array) -> Any:
    """The hash of each row of bytes without NULLs: an array of shape (rows, 32)."""
    blocks = lengths(column) // _RATE + 1
    found = np.empty((len(column), 32), dtype=np.uint8)
    for count in np.unique(blocks):
        chosen = np.flatnonzero(blocks == count)
        for start in range(0, len(chosen), _AT_ONCE):
            part = chosen[start : start + _AT_ONCE]
            found[part] = _digests(column.take(pa.array(part)), int(count))
    return found


def _digests(column: pa.Array, blocks: int) -> Any:
    padded = matrix(column, blocks * _RATE)
    padded[np.arange(len(column)), lengths(column)] ^= 0x01
    padded[:, -1] ^= 0x80
    lanes = np.ascontiguousarray(padded.view("<u8").reshape(len(column), blocks, _RATE // 8).transpose(1, 2, 0))
    state = np.zeros((25, len(column)), dtype=np.uint64)
    for block in lanes:
        state[: _RATE // 8] ^= block
        _permute(state)
    return np.ascontiguousarray(state[:4].T).view(np.uint8).reshape(len(column), 32)


_NIBBLES = np.full(256, 255, dtype=np.uint8)
for _place, _digit in enumerate("0123456789abcdef"):
    _NIBBLES[ord(_digit)] = _NIBBLES[ord(_digit.upper())] = _place
_HEX = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)


def keccak256(value: pa.Array) -> pa.Array:
    """0x and 64 hexadecimal digits; text that is 0x and whole bytes in hexadecimal is hashed as those bytes. NULL stays NULL."""
    data, valid = as_binary(value), is_valid(value)
    if pa.types.is_binary(value.type):
        hashed = digests(data)
    else:
        coded = np.asarray(
            pc.match_substring_regex(data.cast(pa.string()), "^0x([0-9a-fA-F]{2})*$").to_numpy(zero_copy_only=False), dtype=bool
        )
        hashed = np.empty((len(data), 32), dtype=np.uint8)
        for chosen, of_hex in ((coded, True), (~coded, False)):
            if chosen.any():
                part = data if chosen.all() else data.filter(pa.array(chosen))
                hashed[chosen] = digests(_decoded(part) if of_hex else part)
    cells = np.empty((len(data), 66), dtype=np.uint8)
    cells[:, :2] = np.frombuffer(b"0x", dtype=np.uint8)
    cells[:, 2::2], cells[:, 3::2] = _HEX[hashed >> 4], _HEX[hashed & 15]
    return column_of(cells, None, pa.string(), valid)


def _decoded(column: pa.Array) -> pa.Array:
    """The bytes that 0x and an even number of digits stand for."""
    digits = pc.binary_slice(column, 2, stop=_LONGEST)
    nibbles = _NIBBLES[flat(digits)]
    offsets = np.zeros(len(column) + 1, dtype=np.int32)
    np.cumsum(lengths(digits) // 2, out=offsets[1:])
    data = (nibbles[::2] << 4 | nibbles[1::2]).tobytes()
    return pa.Array.from_buffers(pa.binary(), len(column), [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(data)])
