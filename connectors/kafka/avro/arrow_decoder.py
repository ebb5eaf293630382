"""Decodes Avro messages in the driver, with Arrow and without Spark.

`AvroMessageDecoder` defines what a message means. This decoder knows some of its schemas, accepts a subset of
its messages, and returns the same rows for them. It returns None for other batches: that one then decodes the
batch, or raises the error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from headrace.connectors.avro.columns import record_columns
from headrace.connectors.avro.resolution import key_columns, match_types
from headrace.connectors.avro.schema import AvroField, AvroType
from headrace.connectors.kafka.avro.payload_cursor import PayloadCursor, PayloadError
from headrace.connectors.kafka.decoded_rows import join_rows, take_rows
from headrace.connectors.kafka.message_batch import Numbers
from headrace.connectors.kafka.message_columns import FRAME_BYTES
from headrace.pipeline.errors import SchemaError
from headrace.pipeline.types.int256 import SPARK_DIGITS

pc: Any = pyarrow.compute
"""Its functions are made at import, so type checkers do not see them."""
_DECIMAL_BYTES = 16
_MICROS = 1000
"""Of a millisecond."""
_SCALARS: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
}
_KEPT = frozenset({"", "date", "uuid", "timestamp-nanos", "local-timestamp-nanos", "duration"})
"""Logical types whose columns have the value itself."""
_TIMES = frozenset(f"{local}timestamp-{unit}" for local in ("", "local-") for unit in ("millis", "micros"))

SchemasByFrame = Mapping[bytes, AvroType | str]
"""The schema of messages with a frame, or why it cannot be read."""


class ArrowAvroDecoder:
    """Converts messages to the columns of the record `reader`."""

    def __init__(self, reader: AvroType) -> None:
        self._reader = reader
        self._key_reader = key_columns(reader)
        self.is_supported = _is_supported(reader)
        """Whether the columns have types that this decoder reads. Otherwise `decode` must not be called."""

    def decode(
        self, values: pa.Array, keys: pa.Array, writers: SchemasByFrame, key_writers: SchemasByFrame
    ) -> pa.Table | None:
        """Return the columns of messages, in their order, or None if `AvroMessageDecoder` must decide.

        A tombstone has the columns of its key, and NULL for the others.
        """
        schema = record_columns(self._reader)
        is_tombstone = values.is_null().to_numpy(zero_copy_only=False)
        parts: list[tuple[Numbers, pa.Table]] = []
        for of_keys, bodies, schemas in ((False, values, writers), (True, keys, key_writers)):
            rows = np.flatnonzero(is_tombstone if of_keys else ~is_tombstone)
            some = take_rows(bodies, rows)
            if some.null_count:
                return None
            heads = pc.binary_slice(some, 0, FRAME_BYTES).dictionary_encode()
            codes = heads.indices.to_numpy()
            for code, frame in enumerate(heads.dictionary.to_pylist()):
                mine = np.flatnonzero(codes == code)
                table = self._decode_payloads(
                    take_rows(some, mine), schemas.get(frame), schema, of_keys=of_keys
                )
                if table is None:
                    return None
                parts.append((rows[mine], table))
        return join_rows(parts, schema)

    def _decode_payloads(
        self, bodies: pa.Array, writer: AvroType | str | None, schema: pa.Schema, *, of_keys: bool
    ) -> pa.Table | None:
        reader = self._key_reader if of_keys else self._reader
        if not isinstance(writer, AvroType) or not _is_readable(writer):
            return None
        try:
            cursor = PayloadCursor.of(bodies, FRAME_BYTES)
            matched = match_types(writer, reader)
            result = _read(cursor, matched)
            cursor.check_ends()
            if result.null_count:
                return None
            table = pa.table(_convert(result, matched, reader).flatten(), schema=schema)
        except (PayloadError, SchemaError, pa.ArrowInvalid):
            return None
        return table


def _is_supported(kind: AvroType) -> bool:
    """Return whether a column, or a part of one, has a type that Arrow and Spark read alike."""
    if kind.kind == "record":
        return bool(kind.fields) and all(
            _is_supported(one.type) and (not one.has_default or _has_plain_default(one))
            for one in kind.fields
        )
    if kind.is_decimal:
        return kind.precision <= SPARK_DIGITS and (kind.kind == "bytes" or kind.size <= _DECIMAL_BYTES)
    if kind.kind == "enum":
        return kind.default is None
    return kind.kind in _SCALARS and (
        kind.logical in _TIMES or (kind.logical in _KEPT and (kind.logical, kind.kind) != ("uuid", "fixed"))
    )


def _has_plain_default(field: AvroField) -> bool:
    return field.default is None or (
        not field.type.logical and field.type.kind in ("boolean", "int", "long", "double", "string")
    )


def _is_readable(kind: AvroType) -> bool:
    """Return whether `_read` knows a writer's type."""
    if kind.kind == "record":
        return all(_is_readable(one.type) for one in kind.fields)
    return kind.kind in _SCALARS or kind.kind == "enum"


def _read(cursor: PayloadCursor, kind: AvroType) -> pa.Array:
    """Return a value of each payload, without its logical type."""
    if kind.null_at is None:
        return _read_value(cursor, kind)
    branches = cursor.read_longs()
    if ((branches != 0) & (branches != 1)).any():
        msg = "a union has another branch"
        raise PayloadError(msg)
    is_null = branches == kind.null_at
    rows = np.flatnonzero(~is_null)
    if len(rows) == len(is_null):
        return _read_value(cursor, kind)
    some = cursor.select(rows)
    value = _read_value(some, kind)
    cursor.merge(rows, some)
    places = np.cumsum(~is_null) - 1
    return value.take(pa.array(np.where(is_null, 0, places), mask=is_null))


def _read_value(cursor: PayloadCursor, kind: AvroType) -> pa.Array:
    if kind.kind == "record":
        fields = [_read(cursor, one.type) for one in kind.fields]
        names = [pa.field(one.name, values.type) for one, values in zip(kind.fields, fields, strict=True)]
        return pa.StructArray.from_arrays(fields, fields=names) if fields else pa.array([{}] * len(cursor))
    return _READERS[kind.kind](cursor, kind)


def _read_booleans(cursor: PayloadCursor, kind: AvroType) -> pa.Array:
    del kind
    result = cursor.read_fixed(1)[:, 0]
    if (result > 1).any():
        msg = "a boolean is neither 0 nor 1"
        raise PayloadError(msg)
    return pa.array(result.astype(np.bool_))


def _read_floats(cursor: PayloadCursor, kind: AvroType) -> pa.Array:
    size, plain = (4, "<f4") if kind.kind == "float" else (8, "<f8")
    return pa.array(np.ascontiguousarray(cursor.read_fixed(size)).view(plain)[:, 0])


def _read_texts(cursor: PayloadCursor, kind: AvroType) -> pa.Array:
    start, lengths = cursor.read_slices()
    if kind.is_decimal:
        return _decimals(cursor, start, lengths, kind)
    offsets, content = cursor.copy_slices(start, lengths)
    texts = pa.Array.from_buffers(_SCALARS[kind.kind], len(lengths), [None, offsets, content])
    texts.validate(full=True)  # a string is UTF-8
    return texts


def _read_fixed(cursor: PayloadCursor, kind: AvroType) -> pa.Array:
    start, lengths = cursor.read_slices_of(kind.size)
    if kind.is_decimal:
        return _decimals(cursor, start, lengths, kind)
    offsets, content = cursor.copy_slices(start, lengths)
    return pa.Array.from_buffers(pa.binary(), len(lengths), [None, offsets, content])


def _decimals(cursor: PayloadCursor, start: Any, lengths: Any, kind: AvroType) -> pa.Array:
    if (lengths > _DECIMAL_BYTES).any():
        msg = "a decimal has more than 128 bits"
        raise PayloadError(msg)
    digits = pa.py_buffer(cursor.read_last_bytes(start, lengths, _DECIMAL_BYTES))
    result = pa.Array.from_buffers(pa.decimal128(SPARK_DIGITS, kind.scale), len(lengths), [None, digits])
    result.validate(full=True)  # 128 bits have more than 38 digits
    return result


def _read_symbols(cursor: PayloadCursor, kind: AvroType) -> pa.Array:
    result = cursor.read_ints()
    if ((result < 0) | (result >= len(kind.symbols))).any():
        msg = "an enum has no such symbol"
        raise PayloadError(msg)
    return pa.array(kind.symbols, pa.string()).take(pa.array(result))


def _convert(values: pa.Array, writer: AvroType, reader: AvroType) -> pa.Array:
    """Return values of the writer's type in the type of the reader's column."""
    if reader.kind == "record":
        columns = [_convert_field(values, writer, one) for one in reader.fields]
        names = [pa.field(one.name, column.type) for one, column in zip(reader.fields, columns, strict=True)]
        return pa.StructArray.from_arrays(columns, fields=names, mask=values.is_null())
    if writer.is_decimal != reader.is_decimal or not set(writer.symbols) <= set(reader.symbols):
        msg = "the types need Spark"
        raise PayloadError(msg)
    if reader.is_decimal:
        return values.cast(pa.decimal128(reader.precision, reader.scale))
    if reader.kind != writer.kind:
        values = values.cast(_SCALARS[reader.kind], safe=reader.kind in ("string", "bytes"))
    if reader.logical == "date":
        return values.cast(pa.date32())
    if reader.logical not in _TIMES:
        return values
    if reader.logical.endswith("millis"):
        values = pc.multiply_checked(values, pa.scalar(_MICROS, pa.int64()))
    return values.cast(pa.timestamp("us", tz=None if reader.logical.startswith("local") else "UTC"))


def _convert_field(values: pa.StructArray, writer: AvroType, field: AvroField) -> pa.Array:
    """Return a field of records, or its default if the writer lacks it."""
    for place, one in enumerate(writer.fields):
        if one.name == field.name:
            return _convert(values.field(place), one.type, field.type)
    (column,) = record_columns(AvroType("record", fields=(field,)))
    return pa.repeat(pa.scalar(field.default, column.type), len(values))


_READERS: Mapping[str, Callable[[PayloadCursor, AvroType], pa.Array]] = {
    "boolean": _read_booleans,
    "int": lambda cursor, _: pa.array(cursor.read_ints()),
    "long": lambda cursor, _: pa.array(cursor.read_longs()),
    "float": _read_floats,
    "double": _read_floats,
    "string": _read_texts,
    "bytes": _read_texts,
    "fixed": _read_fixed,
    "enum": _read_symbols,
}
