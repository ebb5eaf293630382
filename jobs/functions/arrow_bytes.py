"""Strings and bytes of Arrow columns as matrices of bytes, and back, for vectorised functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

pc: Any = pyarrow.compute
"""Its functions are made when it is loaded: no checker of types knows them."""

Bytes = Any
"""A numpy array of uint8: one row of it per row of the column."""


def as_binary(column: pa.Array) -> pa.Array:
    """Return the bytes of a column: strings as UTF-8, NULL as empty bytes."""
    if pa.types.is_null(column.type):
        return pa.array([b""] * len(column), pa.binary())
    result = column if pa.types.is_binary(column.type) else pc.cast(column, pa.binary())
    return pc.fill_null(result, b"") if result.null_count else result


def lengths(column: pa.Array) -> Any:
    """Return the number of bytes of each row."""
    return np.asarray(pc.binary_length(column).to_numpy(zero_copy_only=False), dtype=np.int64)


def flat(column: pa.Array) -> Bytes:
    """All bytes of a column, one row after the other."""
    _, offsets, data = column.buffers()
    if data is None or len(column) == 0:
        return np.zeros(0, dtype=np.uint8)
    at = np.frombuffer(offsets, dtype=np.int32, count=len(column) + 1, offset=column.offset * 4)
    return np.frombuffer(data, dtype=np.uint8)[at[0] : at[-1]]


def matrix(column: pa.Array, width: int, *, right: bool = False) -> Bytes:
    """Return the bytes of each row as a matrix, padded with zeros on the right, or on the left if `right`."""
    counts = lengths(column)
    result = np.zeros((len(column), width), dtype=np.uint8)
    if len(counts) and (counts == counts[0]).all():
        cells = result[:, width - counts[0] :] if right else result[:, : counts[0]]
        cells[:] = flat(column).reshape(cells.shape)
        return result
    places = np.arange(width)
    result[(places >= (width - counts)[:, None]) if right else (places < counts[:, None])] = flat(column)
    return result


def column_of(cells: Bytes, kept: Any, kind: pa.DataType, valid: Any = None) -> pa.Array:
    """Return the `kept` cells of each row as a string or binary column.

    Rows that are not `valid` are NULL.
    """
    counts = kept.sum(axis=1) if kept is not None else np.full(len(cells), cells.shape[1])
    data = cells[kept] if kept is not None else cells.reshape(-1)
    offsets = np.zeros(len(cells) + 1, dtype=np.int32)
    np.cumsum(counts, out=offsets[1:])
    nulls = (
        None
        if valid is None or valid.all()
        else pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())
    )
    return pa.Array.from_buffers(
        kind,
        len(cells),
        [nulls, pa.py_buffer(offsets.tobytes()), pa.py_buffer(np.ascontiguousarray(data).tobytes())],
    )


def is_valid(column: pa.Array) -> Any:
    """Which rows are not NULL."""
    return np.asarray(pc.is_valid(column).to_numpy(zero_copy_only=False), dtype=bool)
