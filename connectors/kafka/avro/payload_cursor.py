"""Reads Avro's binary form of many payloads at a time: one value of each of them, by NumPy.

Every payload has a position of its own. Reading a value moves all positions past it. A value that a payload
does not have raises PayloadError: the caller only learns that one of the payloads is broken.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import pyarrow as pa

from headrace.connectors.kafka.message_batch import Numbers

Bytes: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.uint8]]"

_LONGEST = 10
"""Bytes of a number of 64 bits."""


class PayloadError(Exception):
    """A payload is not as its schema says."""


class PayloadCursor:
    """The positions in payloads. `data` has the bytes of all; a payload is [at, end) of it."""

    def __init__(self, data: Bytes, at: Numbers, end: Numbers) -> None:
        self._data = data
        self._at = at
        self._end = end

    @classmethod
    def of(cls, values: pa.Array, skipped: int) -> PayloadCursor:
        """Return a cursor over binary values, after the first `skipped` bytes of each. None may be NULL."""
        _, offsets, data = values.buffers()
        ends = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
        ends = ends.astype(np.int64)
        content = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
        return cls(content, ends[:-1] + skipped, ends[1:])

    def __len__(self) -> int:
        return len(self._at)

    def select(self, rows: Numbers) -> PayloadCursor:
        """Return a cursor over some of the payloads. `merge` moves their positions here."""
        return PayloadCursor(self._data, self._at[rows], self._end[rows])

    def merge(self, rows: Numbers, other: PayloadCursor) -> None:
        """Move the positions of the payloads that `select` returned."""
        self._at[rows] = other._at

    def check_ends(self) -> None:
        """Raise PayloadError if a payload has more bytes."""
        if not np.array_equal(self._at, self._end):
            msg = "bytes are left"
            raise PayloadError(msg)

    def read_longs(self) -> Numbers:
        """Return a number of 64 bits of each payload."""
        result = self._read_bytes_at(self._at, self._end)
        self._at = self._at + 1
        value = (result & 0x7F).astype(np.uint64)
        rows = np.flatnonzero(result >= 0x80)  # more bytes follow
        for place in range(1, _LONGEST):
            if not len(rows):
                break
            at = self._at[rows]
            result = self._read_bytes_at(at, self._end[rows])
            if place == _LONGEST - 1 and (result > 1).any():
                msg = "a number has more than 64 bits"
                raise PayloadError(msg)
            value[rows] |= (result & 0x7F).astype(np.uint64) << np.uint64(7 * place)
            self._at[rows] = at + 1
            rows = rows[result >= 0x80]
        return (value >> np.uint64(1)).astype(np.int64) ^ -(value & np.uint64(1)).astype(np.int64)

    def read_ints(self) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        """Return a number of 32 bits of each payload."""
        result = self.read_longs()
        narrow = result.astype(np.int32)
        if (narrow != result).any():
            msg = "a number has more than 32 bits"
            raise PayloadError(msg)
        return narrow

    def read_fixed(self, size: int) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
        """Return `size` bytes of each payload, as rows."""
        start, _ = self.read_slices_of(size)
        return self._data[start[:, None] + np.arange(size)]

    def read_slices_of(self, size: int) -> tuple[Numbers, Numbers]:
        """Return where `size` bytes of each payload start, and `size` for each of them."""
        start = self._at
        self._at = start + size
        if (self._at > self._end).any():
            raise PayloadError(_SHORT)
        return start, np.full(len(start), size, np.int64)

    def read_slices(self) -> tuple[Numbers, Numbers]:
        """Return where bytes of each payload start, and how many they are. Their number is before them."""
        lengths = self.read_longs()
        start = self._at
        if (lengths < 0).any() or (lengths > self._end - start).any():
            raise PayloadError(_SHORT)
        self._at = start + lengths
        return start, lengths

    def copy_slices(self, start: Numbers, lengths: Numbers) -> tuple[pa.Buffer, pa.Buffer]:
        """Return the offsets and the content of an array of bytes."""
        offsets = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        if offsets[-1] > np.iinfo(np.int32).max:
            msg = "the bytes of a column are too many for one array"
            raise PayloadError(msg)
        places = np.repeat(start - offsets[:-1], lengths) + np.arange(offsets[-1])
        return pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(self._data[places])

    def read_last_bytes(self, start: Numbers, lengths: Numbers, count: int) -> Bytes:
        """Return the last `count` bytes of slices, the last one first, as rows of one array.

        Before a shorter slice is the sign of its first byte, as in a big-endian number. An empty slice is 0.
        """
        first = self._data[np.minimum(start, max(0, len(self._data) - 1))] if len(self._data) else start
        fill = np.where((lengths > 0) & (first >= 0x80), 0xFF, 0).astype(np.uint8)
        result = np.repeat(fill[:, None], count, axis=1)
        for place in range(count):
            rows = np.flatnonzero(lengths > place)
            if not len(rows):
                break
            result[rows, place] = self._data[start[rows] + lengths[rows] - 1 - place]
        return result.reshape(-1)

    def _read_bytes_at(self, at: Numbers, end: Numbers) -> Bytes:
        if (at >= end).any():
            raise PayloadError(_SHORT)
        return self._data[at]


_SHORT = "a payload ends in a value"
