"""Decodes Protobuf payloads into columns. `ptars` reads the wire format into Arrow.

It gets a schema of plain fields, without defaults, enums, maps and well-known types. What these mean is in
this module.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from headrace.connectors.kafka.protobuf.columns import SCALARS, TIMESTAMP, WRAPPERS, field_type
from headrace.connectors.kafka.protobuf.schema import ENUM, MAP, MESSAGE, ProtobufField, ProtobufType

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

pc: Any = pyarrow.compute
"""Its functions are made at import, so type checkers do not see them."""
_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799
"""Of the years 1 and 9999, the range of google.protobuf.Timestamp."""
_NANOS = 1_000_000_000
_PREFIX = "failed to decode Protobuf message: "


def decode_payloads(payloads: pa.Array, message: ProtobufType) -> tuple[pa.Table, pa.Array]:
    """Return the columns of `message`, and the reasons why payloads do not fit it: NULL if they do.

    A payload that does not fit has any values. Payloads are read together; halves find those that do not fit.
    """
    try:
        return _decode(payloads, message), pa.nulls(len(payloads), pa.string())
    except ValueError as error:
        if len(payloads) <= 1:
            result = _decode(pa.array([b""], pa.binary()), message)
            return result, pa.array([str(error).removeprefix(_PREFIX)])
    half = len(payloads) // 2
    (first, why_first), (second, why_second) = (
        decode_payloads(some, message) for some in (payloads.slice(0, half), payloads.slice(half))
    )
    return pa.concat_tables([first, second]), pa.concat_arrays([why_first, why_second])


def _decode(payloads: pa.Array, message: ProtobufType) -> pa.Table:
    """Raise ValueError if one of the payloads does not fit."""
    try:
        result = _handler(message).array_to_record_batch(payloads)
    except BaseException as error:
        # A length beyond the end of a payload can end in a panic, whose class only exists then.
        if type(error).__name__ != "PanicException":
            raise
        msg = "a length is beyond the end"
        raise ValueError(msg) from None
    columns = [_convert_field(result.column(_name(one)), one) for one in message.fields]
    return pa.table(columns, names=[one.name for one in message.fields])


@functools.lru_cache(maxsize=32)
def _handler(message: ProtobufType) -> Any:
    """Return the reader of a message's plain fields."""
    import ptars
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.descriptor_pool import DescriptorPool

    # Of proto2: a field without a value is NULL, whatever its default is.
    file = FileDescriptorProto(name="reader.proto", syntax="proto2", package="reader")
    name = _add_message(file, message)
    pool = DescriptorPool()
    pool.Add(file)
    result = pool.FindMessageTypeByName(name.removeprefix("."))
    settings = ptars.PtarsConfig(list_value_name="element", list_nullable=False)
    return ptars.HandlerPool([result.file], config=settings).get_for_message(result)


def _add_message(file: FileDescriptorProto, message: ProtobufType) -> str:
    """Add a message and those of its fields. Return its full name."""
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Proto

    added = file.message_type.add(name=f"Message{len(file.message_type)}")
    for one in message.fields:
        kind = one.type.kind
        is_message = kind in (MESSAGE, MAP)
        plain = {ENUM: "int32", MAP: MESSAGE}.get(kind, kind)
        added.field.add(
            name=_name(one),
            number=one.number,
            type=Proto.Type.Value(f"TYPE_{plain.upper()}"),
            label=Proto.LABEL_REPEATED if one.is_repeated else Proto.LABEL_OPTIONAL,
            type_name=_add_message(file, one.type) if is_message else None,
        )
    return f".{file.package}.{added.name}"


def _name(field: ProtobufField) -> str:
    """Return the name of a field where `ptars` reads it."""
    return f"field{field.number}"


def _convert_field(column: pa.Array, field: ProtobufField) -> pa.Array:
    if field.type.kind == MAP:
        return _convert_map(column, field)
    if field.is_repeated:
        items = _convert(column.values, field.type)
        return pa.ListArray.from_arrays(column.offsets, items, type=field_type(field))
    if field.default is not None:
        column = column.fill_null(pa.scalar(field.default, column.type))
    return _convert(column, field.type)


def _convert(column: pa.Array, kind: ProtobufType) -> pa.Array:
    if kind.kind == MESSAGE:
        if kind.name == TIMESTAMP:
            return _convert_timestamp(column)
        return _convert_wrapper(column, kind) if kind.name in WRAPPERS else _convert_struct(column, kind)
    if kind.kind == ENUM:
        numbers = pa.array([number for number, _ in kind.symbols], pa.int32())
        names = pa.array([name for _, name in kind.symbols], pa.string())
        known = names.take(pc.index_in(column, value_set=numbers))
        return pc.coalesce(known, column.cast(pa.string())) if known.null_count else known
    return column.cast(SCALARS[kind.kind])


def _convert_struct(column: pa.StructArray, kind: ProtobufType) -> pa.Array:
    fields = [_convert_field(column.field(_name(one)), one) for one in kind.fields]
    names = [pa.field(one.name, values.type) for one, values in zip(kind.fields, fields, strict=True)]
    return pa.StructArray.from_arrays(fields, fields=names, mask=column.is_null())


def _convert_wrapper(column: pa.StructArray, kind: ProtobufType) -> pa.Array:
    (field,) = kind.fields
    value = _convert_field(column.field(0), field)
    return pc.if_else(column.is_valid(), value, pa.scalar(None, value.type))


def _convert_timestamp(column: pa.StructArray) -> pa.Array:
    """Return microseconds. Raise ValueError for a time that google.protobuf.Timestamp excludes."""
    seconds, nanos = (column.field(at).fill_null(0) for at in (0, 1))
    for values, low, high in ((seconds, _FIRST_SECOND, _LAST_SECOND), (nanos, 0, _NANOS - 1)):
        limits = pc.min_max(values)
        if (limits["min"].as_py() or 0) < low or (limits["max"].as_py() or 0) > high:
            msg = "a time is not in the years 1 to 9999"
            raise ValueError(msg)
    micros = pc.add(pc.multiply(seconds, 1_000_000), pc.divide(nanos.cast(pa.int64()), 1000))
    result = pc.if_else(column.is_valid(), micros, pa.scalar(None, pa.int64()))
    return result.cast(pa.timestamp("us", tz="UTC"))


def _convert_map(column: pa.ListArray, field: ProtobufField) -> pa.Array:
    """Return a map of each row. The last entry of a key counts."""
    key, value = field.type.fields
    entries = column.values
    offsets = column.offsets
    keys = _convert_field(entries.field(0), key)
    rows = np.repeat(np.arange(len(column)), np.diff(offsets.to_numpy()))
    places = pa.table({"row": rows, "key": keys, "place": np.arange(len(rows))})
    last = places.group_by(["row", "key"]).aggregate([("place", "max")])["place_max"].combine_chunks()
    if len(last) < len(entries):
        kept = np.sort(last.to_numpy())
        counts = np.bincount(rows[kept], minlength=len(column))
        offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
        keys, entries = keys.take(pa.array(kept)), entries.take(pa.array(kept))
    values = entries.field(1)
    if value.type.kind == MESSAGE and values.null_count:
        # An entry without a value has an empty message.
        parts = [values.field(at) for at in range(values.type.num_fields)]
        values = pa.StructArray.from_arrays(parts, fields=list(values.type))
    return pa.MapArray.from_arrays(offsets, keys, _convert_field(values, value)).cast(field_type(field))
