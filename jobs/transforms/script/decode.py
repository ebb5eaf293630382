"""Reads the text of a script engine as Arrow columns, by compiled functions over columns.

One JSON array per column, its values checked in the engine (`runtime.js`) against what `shape` says of the
column. Exact numbers, times and bytes are text there and become their type here.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute
import pyarrow.json as pj
from pyarrow import types as kinds

from headrace.jobs.transforms.script.encode import Spec, offsets_and_bytes
from headrace.pipeline.errors import SchemaError
from headrace.pipeline.sql.system_columns import OP
from headrace.pipeline.types.arrow import is_binary
from headrace.pipeline.types.int256 import WideInteger, digits, is_wide, plain_columns

pc: Any = pyarrow.compute  # its functions are made at import, unseen by type checkers

_NULL, _TWO = pa.scalar("null"), pa.scalar(2, pa.int32())


class ValueRefusedError(Exception):
    """A text that the engine let through is none of the column's type after all: `2013-02-31`."""

    def __init__(self, column: int, index: int, text: str) -> None:
        super().__init__(text)
        self.column, self.index, self.text = column, index, text


def shape(inputs: pa.Schema, outputs: Mapping[str, pa.DataType], spellings: Mapping[str, str]) -> str:
    """Return the description of the columns for the engine.

    `spellings` are the types of the outputs as the file writes them.
    A column that keeps its type is checked only if its value changed. Raises SchemaError for a type that
    cannot be returned.
    """
    specs = [_spec(name, kind, spellings.get(name) or str(kind)) for name, kind in outputs.items()]
    for spec, kind in zip(specs, outputs.values(), strict=True):
        spec["same"] = spec["name"] in inputs.names and inputs.field(spec["name"]).type == kind
    return json.dumps({"inputs": [{"name": name} for name in (*inputs.names, OP)], "outputs": specs})


def _spec(name: str, kind: pa.DataType, spelling: str) -> Spec:
    result = _nested_spec(name, kind) if kinds.is_nested(kind) else _flat_spec(kind)
    if result is None:
        msg = f"column `{name}` has the type {spelling}, which a script cannot be given"
        raise SchemaError(msg, hint="Cast it in a sql transform before, such as CAST(x AS string).")
    return {"name": name, "spelling": spelling} | result


def _nested_spec(name: str, kind: pa.DataType) -> Spec | None:
    if kinds.is_struct(kind):
        return {"as": "struct", "fields": [_spec(field.name, field.type, str(field.type)) for field in kind]}
    if kinds.is_map(kind):
        return (
            {"as": "map", "item": _spec(name, kind.item_type, str(kind.item_type))}
            if kinds.is_string(kind.key_type)
            else None
        )
    return (
        {"as": "list", "item": _spec(name, kind.value_type, str(kind.value_type))}
        if kinds.is_list(kind)
        else None
    )


def _flat_spec(kind: pa.DataType) -> Spec | None:
    if isinstance(kind, WideInteger):
        return {"as": "digits", "low": str(kind.lowest), "high": str(kind.highest)}
    if kinds.is_integer(kind):
        bits, signed = kind.bit_width, kinds.is_signed_integer(kind)
        return {
            "as": "int",
            "low": str(-(2 ** (bits - 1)) if signed else 0),
            "high": str(2 ** (bits - signed) - 1),
        }
    if kinds.is_decimal(kind):
        precision, scale = digits(kind)
        return {"as": "decimal", "before": precision - scale, "scale": scale}
    if kinds.is_timestamp(kind):
        return {"as": "timestamp", "zone": kind.tz is not None}
    return next(({"as": way} for test, way in _FLAT if test(kind)), None)


_FLAT = (
    (kinds.is_floating, "float"),
    (kinds.is_boolean, "bool"),
    (kinds.is_date, "date"),
    (is_binary, "binary"),
    (kinds.is_string, "string"),
    (kinds.is_large_string, "string"),
    (kinds.is_time, "string"),
)


def decode_output(
    piece: bytes, outputs: Mapping[str, tuple[pa.DataType, pa.DataType]]
) -> tuple[pa.Array, pa.Array, pa.Array, list[pa.Array]]:
    """Return input rows, numbers, operations and columns of a part of the output.

    `outputs` are the types of columns, in the engine and in rows. Raises ValueRefusedError for a text that is
    not of its type.
    """
    flags, _, text = piece.partition(b"\n")
    special = json.loads(flags)
    native = [
        None if flag else _native(kind) for flag, (kind, _) in zip(special, outputs.values(), strict=True)
    ]
    sent = {f"c{index}": pa.list_(kind or pa.string()) for index, kind in enumerate(native)}
    schema = pa.schema(
        {"row": pa.list_(pa.int64()), "sub": pa.list_(pa.int64()), "op": pa.list_(pa.string()), **sent}
    )
    table = pj.read_json(
        io.BytesIO(text),
        read_options=pj.ReadOptions(use_threads=False, block_size=len(text) + 1),
        parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error"),
    )
    row, sub, op, *columns = (_only(table.column(name)) for name in schema.names)
    result = [
        _convert_column(index, column, kind)
        for index, (column, (_, kind)) in enumerate(zip(columns, outputs.values(), strict=True))
    ]
    return row, sub, op, result


def _native(kind: pa.DataType) -> pa.DataType | None:
    if is_wide(kind) or kinds.is_decimal(kind):
        return None
    if kinds.is_integer(kind):
        return pa.int64()
    return pa.float64() if kinds.is_floating(kind) else pa.bool_() if kinds.is_boolean(kind) else None


def _only(column: pa.ChunkedArray) -> pa.Array:
    chunk = column.chunk(0)
    return chunk.values.slice(chunk.offsets[0].as_py(), len(chunk[0]))


def _convert_column(index: int, column: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return _cast(column, kind)
    except pa.ArrowInvalid:
        for at, value in enumerate(column):
            try:
                _cast(pa.array([value.as_py()], column.type), kind)
            except pa.ArrowInvalid as error:
                raise ValueRefusedError(index, at, str(error).splitlines()[0]) from None
        raise


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return decoded values in their final type. Wide numbers stay strings, as in rows."""
    if is_wide(kind):
        return plain_columns(column)
    if column.type == kind:
        return column
    if is_binary(kind):
        column = _unhex(column)
    elif kinds.is_nested(kind):
        column = _parse_nested(column, kind)
    elif kinds.is_floating(kind):
        column = pc.cast(column, pa.float64())
    return pc.cast(column, kind)


def _unhex(column: pa.Array) -> pa.Array:
    offsets, data = offsets_and_bytes(column)
    halves = pc.divide(offsets, _TWO)
    plain = pa.Array.from_buffers(
        pa.binary(), len(column), [None, halves.buffers()[1], pa.py_buffer(bytes.fromhex(data.decode()))]
    )
    return pc.if_else(pc.is_null(column), pa.scalar(None, pa.binary()), plain)


def _parse_nested(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return one level of nested values from their JSON text. Inner values stay text."""
    level = _level(kind)
    lines = pc.binary_join_element_wise('{"v":', pc.fill_null(column, _NULL), "}", "")
    text = (
        pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines), "\n")[0]
        .as_py()
        .encode()
    )
    result = pj.read_json(
        io.BytesIO(text),
        read_options=pj.ReadOptions(use_threads=False, block_size=len(text) + 1),
        parse_options=pj.ParseOptions(
            explicit_schema=pa.schema({"v": level}), unexpected_field_behavior="error"
        ),
    )
    value = result.column("v").combine_chunks() if len(column) else pa.array([], level)
    value = value.chunk(0) if isinstance(value, pa.ChunkedArray) else value
    if len(value) != len(column):
        msg = "a value is not one JSON text"
        raise pa.ArrowInvalid(msg)
    nothing = pc.is_null(value)
    if kinds.is_struct(kind):
        fields = [_cast(one, field.type) for one, field in zip(value.flatten(), kind, strict=True)]
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=nothing)
    if kinds.is_map(kind):
        keys, items = value.values.field("key"), value.values.field("value")
        return pa.MapArray.from_arrays(_offsets(value), keys, _cast(items, kind.item_type), type=kind)
    return pa.ListArray.from_arrays(_offsets(value), _cast(value.values, kind.value_type), type=kind)


def _offsets(lists: pa.Array) -> pa.Array:
    """Return offsets that mark null lists, as the builders of Arrow take them."""
    nothing = pa.concat_arrays([pc.is_null(lists), pa.array([False])])
    return pc.if_else(nothing, pa.scalar(None, pa.int32()), lists.offsets)


def _level(kind: pa.DataType) -> pa.DataType:
    if kinds.is_struct(kind):
        return pa.struct([pa.field(field.name, pa.string()) for field in kind])
    if kinds.is_map(kind):
        return pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))
    return pa.list_(pa.string())
