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
from headrace.connectors.plain_text import (
    UnprovenTextError,
    convert_dates,
    convert_moments,
    has_plain_form,
    require_finite,
)
from headrace.pipeline.sql.system_columns import OP
from headrace.pipeline.types.arrow import parse_type

pc: Any = pyarrow.compute
"""Its functions are made at import, so type checkers do not see them."""

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
        self._objects = ObjectDecoder(declared)
        self._ordinal = ordinal
        self._metadata = metadata
        self.is_supported = self._objects.is_supported and kinds.is_string(
            parse_type(declared.get(OP, "string"))
        )
        """Whether the columns have types that this decoder reads. Otherwise `decode` must not be called."""

    def decode(self, batch: MessageBatch) -> pa.Table | None:
        """Return the rows of the batch in its order, or None if `JsonMessageDecoder` must decide."""
        text = _join_objects(batch.values)
        if text is None:
            return None
        columns = self._objects.decode(text, len(batch))
        if columns is None:
            return None
        return complete_rows(columns, batch, self._ordinal, metadata=self._metadata)


class ObjectDecoder:
    """Converts JSON objects, one per line, to the declared columns."""

    def __init__(self, declared: Mapping[str, str]) -> None:
        self._kinds = {name: parse_type(text) for name, text in declared.items()}
        self.is_supported = all(map(_is_supported, self._kinds.values()))
        """Whether the columns have types that this decoder reads. Otherwise `decode` must not be called."""

    def decode(self, text: bytes, rows: int) -> dict[str, pa.ChunkedArray] | None:
        """Return the columns of so many objects, or None if `JsonMessageDecoder` must decide.

        `text` comes from `join_lines`, or from messages that were checked in the same way.
        """
        try:
            return self._parse(text, rows)
        except (pa.ArrowInvalid, UnprovenTextError):
            return None

    def _parse(self, text: bytes, rows: int) -> dict[str, pa.ChunkedArray] | None:
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


def join_lines(lines: pa.Array) -> bytes | None:
    """Return lines of bytes as one text, or None if one of them is not plainly one JSON object."""
    rows = pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines)
    text: bytes = pc.binary_join(rows, b"\n")[0].as_py()
    if not _is_object_per_line(text, len(lines)) or not _is_plain_text(text):
        return None
    if (pc.max(pc.binary_length(lines)).as_py() or 0) > _DEEPEST:
        brackets = pc.add(pc.count_substring(lines, "{"), pc.count_substring(lines, "["))
        if pc.max(brackets).as_py() > _DEEPEST or _LONG_NUMBER.search(text):
            return None
    return text


def _is_supported(kind: pa.DataType) -> bool:
    """Return whether Arrow and Spark read all accepted values of a type alike."""
    return kinds.is_string(kind) or has_plain_form(kind)


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
    if not _is_plain_text(text):
        return None
    if max(map(len, plain), default=0) > _DEEPEST and (
        any(value.count(b"{") + value.count(b"[") > _DEEPEST for value in plain) or _LONG_NUMBER.search(text)
    ):
        return None
    return text


def _is_plain_text(text: bytes) -> bool:
    """Return whether a text is UTF-8 and has no numbers that only Arrow reads."""
    if not text.isascii():
        try:
            text.decode()
        except UnicodeDecodeError:
            return False
    # A search for the letters is several times faster than the expression, which few messages need.
    return not ((b"NaN" in text or b"Inf" in text) and _NOT_A_NUMBER.search(text))


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


def _convert(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Return a parsed column in the type that it has in Spark.

    Raise UnprovenTextError if Spark must decide, and ArrowInvalid for a value that the type cannot hold.
    """
    if kinds.is_date(kind):
        return convert_dates(column)
    if kinds.is_timestamp(kind):
        return convert_moments(column, kind)
    if kinds.is_float64(kind):
        require_finite(column)
    return column.cast(arrives_as(kind))
