"""Keccak-256, as Ethereum uses it, for many rows at once: each step of the permutation works on a lane of all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from headrace.jobs.functions.columns import as_binary, column_of, flat, is_valid, lengths, matrix, pc

_RATE = 136
_AT_ONCE = 1024
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
_WITH_NEIGHBOURS = _COMES_FROM[[x + 5 * y for y in range(5) for x in (0, 1, 2, 3, 4, 0, 1)]]
"""Each row of five lanes with its first two once more behind it: the neighbours of all five are slices of it, no copies."""


def _permute(state: Any) -> None:
    """All rounds, in place, over lanes of shape (25, rows)."""
    rows = state.shape[1]
    square, turned, other = state.reshape(5, 5, rows), np.empty_like(state), np.empty_like(state)
    moved, parity, mixed = (np.empty((lanes, rows), dtype=np.uint64) for lanes in (35, 7, 5))
    lanes = moved.reshape(5, 7, rows)
    for constant in _CONSTANTS:
        np.bitwise_xor.reduce(square, axis=0, out=parity[1:6])
        parity[0], parity[6] = parity[5], parity[1]
        np.left_shift(parity[2:], _ONE, out=mixed)
        mixed |= parity[2:] >> _REST
        mixed ^= parity[:5]
        square ^= mixed
        np.left_shift(state, _ROTATIONS, out=turned)
        np.right_shift(state, _BACK, out=other)
        turned |= other
        np.take(turned, _WITH_NEIGHBOURS, axis=0, out=moved, mode="clip")  # any mode but the default one writes without a copy
        np.invert(lanes[:, 1:6], out=square)
        square &= lanes[:, 2:]
        square ^= lanes[:, :5]
        state[0] ^= constant


def digests(column: pa.Array) -> Any:
    """The hash of each row of bytes without NULLs: an array of shape (rows, 32)."""
    blocks = lengths(column) // _RATE + 1
    counts = np.unique(blocks)
    if len(counts) == 1:
        parts = [_digests(column.slice(start, _AT_ONCE), int(counts[0])) for start in range(0, len(column), _AT_ONCE)]
        return np.concatenate(parts)
    found = np.empty((len(column), 32), dtype=np.uint8)
    for count in counts:
        chosen = np.flatnonzero(blocks == count)
        found[chosen] = digests(column.take(pa.array(chosen)))
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
_PAIRS = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), dtype=np.uint16)
"""The two digits of each byte."""
_PREFIX = np.frombuffer(b"0x", dtype=np.uint8)


def keccak256(value: pa.Array) -> pa.Array:
    """0x and 64 hexadecimal digits; text that is 0x and whole bytes in hexadecimal is hashed as those bytes. NULL stays NULL."""
    data, valid = as_binary(value), is_valid(value)
    if len(data) == 0:
        return pa.array([], pa.string())
    coded = np.zeros(len(data), dtype=bool) if pa.types.is_binary(value.type) else _is_hex(data)
    hashed = np.empty((len(data), 32), dtype=np.uint8)
    for chosen, of_hex in ((coded, True), (~coded, False)):
        if chosen.any():
            part = data if chosen.all() else data.filter(pa.array(chosen))
            hashed[chosen] = digests(_decoded(part) if of_hex else part)
    cells = np.empty((len(data), 66), dtype=np.uint8)
    cells[:, :2] = _PREFIX
    cells[:, 2:] = _PAIRS[hashed].view(np.uint8)
    return column_of(cells, None, pa.string(), valid)


def _is_hex(column: pa.Array) -> Any:
    """Which rows are 0x and an even number of digits: the x is the only byte of theirs that is no digit."""
    found = np.asarray(pc.starts_with(column, b"0x").to_numpy(zero_copy_only=False), dtype=bool)
    if not found.any():
        return found
    ends = np.cumsum(lengths(column))
    others = np.concatenate([[0], np.cumsum(_NIBBLES[flat(column)] == 255, dtype=np.int64)])
    return found & (lengths(column) % 2 == 0) & (np.diff(others[ends], prepend=0) == 1)


def _decoded(column: pa.Array) -> pa.Array:
    """The bytes that 0x and an even number of digits stand for."""
    counts = lengths(column)
    starts = np.cumsum(counts) - counts
    nibbles = _NIBBLES[flat(column)]
    data = nibbles[::2] << 4 | nibbles[1::2]  # rows have even lengths: no byte is made of two of them
    offsets = np.zeros(len(column) + 1, dtype=np.int32)
    np.cumsum(counts // 2 - 1, out=offsets[1:])
    return pa.Array.from_buffers(
        pa.binary(), len(column), [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(np.delete(data, starts // 2).tobytes())]
    )
