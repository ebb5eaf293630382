"""Matches rows of a response to rows of the request, for their positions.

Every returned row gets its own sub-position (`system_columns.FAN_OUT`), so that no two are equal and a
replay of stored results has the same order. The position comes from this row of the request:

1. one row per request: that row.

2. as many rows as were sent, with the same keys in the same order (or no key at all): the row at the same
index.

3. otherwise by key: the last row of the request with the same key.

4. otherwise, without such a key: after the whole request, in the order of the response.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
from pyarrow import types as kinds

from headrace.connectors.http.decode import AnswerError
from headrace.connectors.spark_types import POS_ARROW
from headrace.pipeline.sql.system_columns import FAN_OUT

pc: Any = pyarrow.compute  # its functions are made at run time, where no type checker sees them


def match_request_rows(
    sent: Sequence[pa.Array], back: Sequence[pa.Array], rows: int, answered: int
) -> pa.Array:
    """Return for every row of a response the index of its request row, null if none is known.

    `sent` and `back` are the key columns of both, empty for a node without a key; `rows` were sent,
    `answered` were returned.
    """
    if rows == 1:
        return pa.array(np.zeros(answered, dtype=np.int64))
    if not sent:
        return pa.array(np.arange(answered)) if rows == answered else pa.nulls(answered, pa.int64())
    request_keys, response_keys = _digest(sent), _digest(back)
    if rows == answered and request_keys.equals(response_keys):
        return pa.array(np.arange(answered))
    # The last of equal keys is the first one in reverse order.
    from_end = pc.index_in(response_keys, request_keys.take(pa.array(np.arange(rows)[::-1])))
    return pc.subtract(pa.scalar(rows - 1, pa.int64()), from_end.cast(pa.int64()))


def response_positions(sent: pa.StructArray, at: pa.Array) -> pa.StructArray:
    """Return `_gs_pos` of the rows of a response. Raises AnswerError if no number is left for them."""
    if len(at) >= FAN_OUT:
        msg = f"{len(at):,} rows in one answer; {FAN_OUT - 1:,} are possible"
        raise AnswerError(msg)
    known = pc.fill_null(at, len(sent) - 1)
    source, part, off, sub = (field.take(known) for field in sent.flatten())
    try:
        numbered = pc.add_checked(pc.multiply_checked(sub, FAN_OUT), pa.array(np.arange(len(at))))
    except pa.ArrowInvalid:
        msg = "rows were made of rows too often: no sub-position is left"
        raise AnswerError(msg) from None
    return pa.StructArray.from_arrays([source, part, off, numbered], fields=list(POS_ARROW))


def _digest(columns: Sequence[pa.Array]) -> pa.Array:
    """Return the key of each row as one binary value.

    Every column is preceded by its length, and null differs from empty.
    """
    parts = []
    for column in columns:
        texts = (column if kinds.is_binary(column.type) else column.cast(pa.string())).cast(pa.binary())
        lengths = pc.binary_length(texts).cast(pa.string()).cast(pa.binary())
        parts += [pc.fill_null(lengths, b"-"), pc.fill_null(texts, b"")]
    return pc.binary_join_element_wise(*parts, b":")
