"""Decodes the messages of a small epoch in the driver, with Arrow and without a Spark job.

`JsonMessageDecoder` defines what a message means. This decoder accepts a subset of what that one accepts, and
returns the same rows for it. It returns None for a batch with any other message: that one then decodes the
batch, or raises the error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute
from pyarrow import json as arrow_json
from pyarrow import types as kinds

from headrace.connectors.kafka.decoded_rows import complete_rows
from headrace.connectors.kafka.json_decoder import arrives_as
from headrace.connectors.kafka.message_batch import MessageBatch
from headrace.connectors.kafka.message_columns import FRAME_BYTES
from headrace.pipeline.sql.system_columns import OP
from headrace.pipeline.types.arrow import parse_type

pc: Any = pyarrow.compute
"""Its functions are made at import, so type checkers do not see them."""

_DATE = r"^[1-9]\d{3}-\d{2}-\d{2}$"
_TIME = r"^[1-9]\d{3}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(\.\d{1,6})?Z?$"
_NOT_A_NUMBER = re.compile(rb"[:,\[]\s*-?(?:NaN|Inf)")
"""Values that Arrow reads as numbers. In a string they only cost the short cut."""
_LONG_NUMBER = re.compile(rb"[0-9.eE+-]{900}")
_DEEPEST = 900
"""Opening brackets of a message and digits of a number: Spark's parser refuses more than 1,000."""


class ArrowMessageDecoder:
    """Converts a batch of messages to payload, optional metadata, `_gs_op` and `_gs_pos`.

    `ordinal` is the number of the source in `_gs_pos`.
    """

    def __init__(self, declared: Mapping[str, str], ordinal: int, *, metadata: bool) -> None:
        self._kinds = {name: parse_type(text) for name, text in declared.items()}
        self._ordinal = ordinal
        self._metadata = metadata
        self.is_supported = all(_is_supported(kind) for kind in self._kinds.values()) and kinds.is_string(
            self._kinds.get(OP, pa.string())
        )
        """Whether the columns have types that this decoder reads. Otherwise `decode` must not be called."""

    def decode(self, batch: MessageBatch) -> pa.Table | None:
        """Return the rows of the batch in its order, or None if `JsonMessageDecoder` must decide."""
        text = _join_objects(batch.values)
        if text is None:
            return None
        try:
            columns = self._parse(text, len(batch))
        except pa.ArrowInvalid:
            return None
        if columns is None or any(column is None for column in columns.values()):
            return None
        return complete_rows(columns, batch, self._ordinal, metadata=self._metadata)

    def _parse(self, text: bytes, rows: int) -> dict[str, Any] | None:
        schema = pa.schema([pa.field(name, _read_as(kind)) for name, kind in self._kinds.items()])
        if rows == 0:
            table = schema.empty_table()
        else:
            table = arrow_json.read_json(
                pa.BufferReader(text),
                read_options=arrow_json.ReadOptions(use_threads=False, block_size=len(text) + 1),
                parse_options=arrow_json.ParseOptions(
                    explicit_schema=schema, unexpected_field_behavior="ignore"
                ),
            )
        # More rows than messages: one of them has several objects.
        if table.num_rows != rows:
            return None
        return {name: _convert(table[name], kind) for name, kind in self._kinds.items()}


def _is_supported(kind: pa.DataType) -> bool:
    """Return whether Arrow and Spark read all accepted values of a type alike.

    Spark rounds a float32 through a double, and Arrow does not.
    """
    return (
        kinds.is_integer(kind)
        or kinds.is_float64(kind)
        or kinds.is_boolean(kind)
        or kinds.is_string(kind)
        or kinds.is_decimal128(kind)
        or kinds.is_date(kind)
        or kinds.is_timestamp(kind)
    )


def _read_as(kind: pa.DataType) -> pa.DataType:
    """Return the type for Arrow's parser. It accepts more spellings of times than Spark."""
    return pa.string() if kinds.is_date(kind) or kinds.is_timestamp(kind) else kind


def _join_objects(values: Sequence[bytes | None]) -> bytes | None:
    """Return the messages as lines, or None if one of them is not plainly one JSON object.

    Each message begins with `{` and ends with `}`. No object and no string continues over `}`, a line break
    and `{`, so each message has at least one object of its own.
    """
    if None in values:
        return None
    plain: Sequence[bytes] = values  # pyright: ignore[reportAssignmentType]
    text = b"\n".join(plain)
    if b"\0" in text[:1] or b"\n\0" in text:
        plain = [value[FRAME_BYTES:] if value[:1] == b"\0" else value for value in plain]
        text = b"\n".join(plain)
    if not _is_object_per_line(text, len(plain)) and not all(
        value[:1] == b"{" and value[-1:] == b"}" for value in plain
    ):
        return None
    if not text.isascii():
        try:
            text.decode()
        except UnicodeDecodeError:
            return None
    # A search for the letters is several times faster than the expression, which few messages need.
    if (b"NaN" in text or b"Inf" in text) and _NOT_A_NUMBER.search(text):
        return None
    if max(map(len, plain), default=0) > _DEEPEST and (
        any(value.count(b"{") + value.count(b"[") > _DEEPEST for value in plain) or _LONG_NUMBER.search(text)
    ):
        return None
    return text


def _is_object_per_line(text: bytes, lines: int) -> bool:
    """Return whether each of the messages is one line that begins with `{` and ends with `}`.

    `lines` is the number of messages. Two searches in the whole text decide it for all of them.
    """
    return (
        text[:1] == b"{"
        and text[-1:] == b"}"
        and text.count(b"\n") == lines - 1
        and text.count(b"}\n{") == lines - 1
    )


def _convert(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray | None:
    """Return a parsed column in the type that it has in Spark, or None if Spark must decide.

    Raise ArrowInvalid for a value that the type cannot hold.
    """
    if kinds.is_date(kind):
        return column.cast(pa.date32()) if _all_match(column, _DATE) else None
    if kinds.is_timestamp(kind):
        if not _all_match(column, _TIME):
            return None
        return pc.utf8_rtrim(column, "Z").cast(pa.timestamp("us")).cast(kind)
    if kinds.is_float64(kind) and pc.all(pc.is_finite(column)).as_py() is False:
        return None
    return column.cast(arrives_as(kind))


def _all_match(column: pa.ChunkedArray, pattern: str) -> bool:
    return pc.all(pc.match_substring_regex(column, pattern)).as_py() is not False
