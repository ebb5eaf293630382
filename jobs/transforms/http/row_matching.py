"""Where rows of an answer stand in the order: which row of the request each of them came from.

Every row that comes back gets a sub-position of its own (`connectors.base.FAN_OUT`), so that no two are equal and a replay of
the staged rows orders them the same way. Which request row's position it is made from:

1. one row per request: that row's.
2. as many rows back as were sent, and the same key at every place (or no key at all): place by place.
3. otherwise by key: that of the last request row with the same key.
4. otherwise, rows without such a key or nodes without one: behind the whole request, in the order of the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
from pyarrow import types as kinds

from headrace.connectors.base import FAN_OUT
from headrace.connectors.spark_types import POS_ARROW
from headrace.jobs.transforms.http.decode import AnswerError

pc: Any = pyarrow.compute  # its functions are made at run time, where no type checker sees them


def match_request_rows(sent: Sequence[pa.Array], back: Sequence[pa.Array], rows: int, answered: int) -> pa.Array:
    """For every row of an answer the number of the request row that it came from, null where none is known.

    `sent` and `back` are the key columns of both, empty where the node has no key; `rows` were sent, `answered` came back.
    """
    if rows == 1:
        return pa.array(np.zeros(answered, dtype=np.int64))
    if not sent:
        return pa.array(np.arange(answered)) if rows == answered else pa.nulls(answered, pa.int64())
    request_keys, response_keys = _digest(sent), _digest(back)
    if rows == answered and request_keys.equals(response_keys):
        return pa.array(np.arange(answered))
    # The last of equal keys: the first one from behind.
    from_end = pc.index_in(response_keys, request_keys.take(pa.array(np.arange(rows)[::-1])))
    return pc.subtract(pa.scalar(rows - 1, pa.int64()), from_end.cast(pa.int64()))


def response_positions(sent: pa.StructArray, at: pa.Array) -> pa.StructArray:
    """`_gs_pos` of an answer's rows. Raises AnswerError where there is no number left for them."""
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
