"""The rows of an epoch as commands of Redis: from Arrow columns to bytes, without an object per row.

Arrow writes the names and values of rows in the driver, if it writes what Spark writes; else Spark does.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from headrace.connectors.arrow_stream import stream_arrow
from headrace.connectors.filters import quote_identifier
from headrace.connectors.json_arrow import (
    SparkTextError,
    is_supported,
    is_text_supported,
    write_objects,
    write_texts,
)
from headrace.connectors.json_text import JSON_OPTIONS, as_json, plain_values, with_text_keys
from headrace.connectors.lakehouse_rows import build_merge_source, collect_last_rows
from headrace.connectors.local_relation import collect_arrow
from headrace.connectors.row_errors import translate_row_errors
from headrace.connectors.spark_types import spark_schema
from headrace.pipeline.sql.system_columns import OP
from headrace.pipeline.types.arrow import is_nested
from headrace.pipeline.types.int256 import storage_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from headrace.connectors.frame import EpochFrame

log = logging.getLogger(__name__)
pc: Any = pyarrow.compute
"""Its functions are made at import, so type checkers do not see them."""
CHUNK_ROWS = 20_000
"""Rows of one script. The server runs nothing else in the meantime."""
_CHUNK_BYTES = 16 << 20
_CHUNK_ARGUMENTS = 500_000
"""A command of Redis has at most 1,048,576 arguments."""
_KEY, _VALUE = "key", "value"
_ESCAPES = {"%": "%25", ":": "%3A"}
"""Of a part of a name, in this order."""


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """Rows of an epoch, each key once: the names of entries and their values as bulk strings of the protocol.

    `keys` has first the entries to write, then those to delete.
    """

    upserts: int
    deletes: int
    keys: Sequence[Any]
    values: Sequence[Any]
    columns: int = 1
    """Values of each entry to write."""

    @property
    def rows(self) -> int:
        """Entries to write and to delete."""
        return self.upserts + self.deletes


NO_ROWS = EncodedRows(0, 0, (), ())


class RowEncoder:
    """Encodes the rows of one sink. `columns` are the fields of a hash; empty for JSON."""

    def __init__(self, sink: str, prefix: str, columns: Sequence[str]) -> None:
        self._sink = sink
        self._prefix = prefix
        self._columns = tuple(columns)

    def encode(self, frame: EpochFrame) -> Iterator[EncodedRows]:
        """Yield the last row of each key. Raise DataError for a null in a key."""
        with translate_row_errors():
            yield from self._encode(frame)

    def _encode(self, frame: EpochFrame) -> Iterator[EncodedRows]:
        last = collect_last_rows(self._sink, frame)
        if last is not None and not last.num_rows:
            return
        width = 1 + max(1, len(self._columns))
        for batch in self._write(frame, last):
            if not batch.num_rows:
                continue
            by_size = batch.num_rows * _CHUNK_BYTES // max(batch.nbytes, 1)
            step = max(1, min(CHUNK_ROWS, by_size, _CHUNK_ARGUMENTS // width))
            for start in range(0, batch.num_rows, step):
                yield self._encode_rows(batch.slice(start, step))

    def _write(self, frame: EpochFrame, last: pa.Table | None) -> Iterable[pa.RecordBatch]:
        """Return the name of each entry, the operation, and its value or its fields as text."""
        if last is not None and self._is_supported(frame):
            try:
                return self._write_arrow(last, frame).combine_chunks().to_batches()
            except SparkTextError as error:
                log.info("event=encoded_by_spark node=%s error=%s", self._sink, error)
        chosen = self._select(build_merge_source(self._sink, frame, frame.spark, None, last).rows, frame)
        return (
            collect_arrow(chosen).combine_chunks().to_batches() if last is not None else stream_arrow(chosen)
        )

    def _is_supported(self, frame: EpochFrame) -> bool:
        """Return whether Arrow writes all columns as Spark does. The columns decide, not the epoch."""
        schema = storage_schema(frame.schema)
        texts = {*frame.key, *self._columns}
        return all(is_text_supported(schema.field(name).type) for name in texts) and all(
            is_supported(field.type) for field in schema
        )

    def _write_arrow(self, last: pa.Table, frame: EpochFrame) -> pa.Table:
        """See `_write`. Raise SparkTextError if Spark must write a value."""
        schema = storage_schema(frame.schema)
        if any(last.schema.field(field.name).type != field.type for field in schema):
            msg = "its columns have other types than the sink"
            raise SparkTextError(msg)
        columns = {name: last[name].combine_chunks() for name in schema.names}
        parts = [write_texts(columns[name]) for name in frame.key]
        if len(parts) > 1:
            for character, escape in _ESCAPES.items():
                parts = [pc.replace_substring(part, character, escape) for part in parts]
        key = pc.binary_join_element_wise(self._prefix, *parts, ":")
        if self._columns:
            values = [write_texts(columns[name]) for name in self._columns]
        else:
            values = [write_objects(columns)]
        result = {_KEY: key, OP: last[OP]}
        return pa.table(result | {f"{_VALUE}{at}": value for at, value in enumerate(values)})

    def _select(self, rows: DataFrame, frame: EpochFrame) -> DataFrame:
        """Return the name of each entry, its value or its fields as text, and the operation."""
        from pyspark.sql import functions as F  # noqa: N812

        types = spark_schema(frame.schema)
        columns = {
            field.name: plain_values(F.col(quote_identifier(field.name)), types[field.name].dataType)
            for field in frame.schema
        }
        parts = [_text(columns[name], frame.schema.field(name).type) for name in frame.key]
        if len(parts) > 1:
            parts = [_escape(part) for part in parts]
        key = F.concat_ws(":", F.lit(self._prefix), *parts).alias(_KEY)
        if self._columns:
            values = [
                _text(columns[name], frame.schema.field(name).type).alias(f"{_VALUE}{at}")
                for at, name in enumerate(self._columns)
            ]
        else:
            fields = [
                with_text_keys(columns[field.name], field.type).alias(field.name) for field in frame.schema
            ]
            values = [F.to_json(F.struct(*fields), JSON_OPTIONS).alias(f"{_VALUE}0")]
        return rows.select(key, F.col(OP), *values)

    def _encode_rows(self, batch: pa.RecordBatch) -> EncodedRows:
        is_delete = pc.equal(batch.column(OP), "d")
        keys = batch.column(_KEY)
        written = batch.filter(pc.invert(is_delete))
        deleted = pc.filter(keys, is_delete)
        names = [name for name in written.schema.names if name not in (_KEY, OP)]
        columns = [written.column(name).cast(pa.binary()) for name in names]
        if self._columns:
            columns = [pc.fill_null(_join(b"=", column), b"") for column in columns]
        bulks = [_to_bulk(column) for column in columns]
        value = bulks[0] if len(bulks) == 1 else _join(*bulks)
        entries = [_data(_to_bulk(part.cast(pa.binary()))) for part in (written.column(_KEY), deleted)]
        return EncodedRows(written.num_rows, len(deleted), entries, [_data(value)], len(columns))


def pack_script(script: str, key: str, arguments: Sequence[str], rows: EncodedRows) -> list[Any]:
    """Return the command EVAL as buffers: the entries follow `key`, their values follow `arguments`."""
    keys = 1 + rows.rows
    count = 3 + keys + len(arguments) + rows.upserts * rows.columns
    head = b"*%d\r\n" % count + b"".join(_pack(text) for text in ("EVAL", script, str(keys), key))
    inner = b"".join(map(_pack, arguments))
    return [part for part in (head, *rows.keys, inner, *rows.values) if len(part)]


def _pack(text: str) -> bytes:
    data = text.encode()
    return b"$%d\r\n%b\r\n" % (len(data), data)


def _text(column: Column, kind: pa.DataType) -> Column:
    """Return a column of `plain_values` as the text that JSON has for it, without quotes."""
    from pyspark.sql import functions as F  # noqa: N812

    if is_nested(kind):
        return as_json(column, kind)
    if isinstance(kind, pa.TimestampType):
        pattern = JSON_OPTIONS["timestampNTZFormat" if kind.tz is None else "timestampFormat"]
        return F.date_format(column, pattern)
    return column.cast("string")


def _escape(text: Column) -> Column:
    """Return a part of a name without `:`, so that different keys never have one name."""
    from pyspark.sql import functions as F  # noqa: N812

    for character, escape in _ESCAPES.items():
        text = F.replace(text, F.lit(character), F.lit(escape))
    return text


def _join(*parts: Any) -> Any:
    return pc.binary_join_element_wise(*parts, b"")


def _to_bulk(column: Any) -> Any:
    """Return each value as a bulk string: `$<bytes>`, line break, the value, line break."""
    size = pc.binary_length(column).cast(pa.string()).cast(pa.binary())
    return _join(b"$", size, b"\r\n", column, b"\r\n")


def _data(column: Any) -> Any:
    """Return the values of a binary column, one after the other, without a copy."""
    if not len(column):
        return b""
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, dtype=np.int32)[column.offset : column.offset + len(column) + 1]
    return data.slice(int(ends[0]), int(ends[-1] - ends[0]))
