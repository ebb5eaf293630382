"""How messages of one schema are read with another: the pair of schemas that Spark's from_avro gets.

Avro compares neither the scale of decimals nor the unit of times, which would change values without an error.
So both schemas are compared here, and Spark gets them without names and without logical types that it does
not read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from headrace.connectors.avro.schema import (
    AvroField,
    AvroType,
    digits_of_fixed,
    spell_path,
    write_schema,
)
from headrace.pipeline.errors import SchemaError
from headrace.pipeline.types.int256 import SPARK_DIGITS

END = bytes.fromhex("9f4ea1d07b63c258")
"""Appended to every payload. It is read as the last field: other bytes there mean a payload of another
length than its schema has."""
VALUE, LAST = "value", "end"

_PROMOTIONS = {
    "int": {"long", "float", "double"},
    "long": {"float", "double"},
    "float": {"double"},
    "string": {"bytes"},
    "bytes": {"string"},
}
_OF_SPARK = frozenset(
    {"date", *(f"{local}timestamp-{unit}" for local in ("", "local-") for unit in ("millis", "micros"))}
)
_LONG_DIGITS = 18
"""Spark reads decimals of so many digits from the last 8 bytes, and does not see the others."""
_LONG_BYTES = 8


@dataclass(frozen=True, slots=True)
class SchemaPair:
    """Schemas as JSON for from_avro: records with the fields `VALUE`, null or the row, and `LAST`."""

    writer: str
    reader: str


def resolve_schemas(writer: AvroType, reader: AvroType) -> SchemaPair:
    """Return the pair for messages of `writer` with the columns of `reader`.

    Raise SchemaError, naming the field, if their values cannot be read so.
    """
    return _pair(match_types(writer, reader), reader)


def resolve_blocks(writer: AvroType, reader: AvroType) -> SchemaPair:
    """Return the pair for arrays of records. See `resolve_schemas`."""
    matched = match_types(writer, reader)
    return _pair(AvroType("array", items=matched), AvroType("array", items=reader))


def match_types(writer: AvroType, reader: AvroType) -> AvroType:
    """Return the writer's type with the names that its fields have in the reader.

    Raise SchemaError as `resolve_schemas`.
    """
    return _match(writer, reader, ())


def match_columns(writer: AvroType, reader: AvroType) -> SchemaPair:
    """Return the pair without resolution: fields of the same name and type, others NULL.

    Raise SchemaError for a field of another type.
    """
    fields: list[AvroField] = []
    for one in reader.fields:
        there = writer.find_field(one.name)
        if there is None:
            absent = replace(one.type, null_at=0)
            fields.append(replace(one, type=absent, has_default=True, default=None, aliases=()))
        elif _bare(there.type) != _bare(one.type):
            raise _mismatch((one.name,), there.type, one.type)
        else:
            fields.append(replace(there, aliases=(), has_default=False))
    return _pair(writer, replace(reader, fields=tuple(fields)))


def key_columns(reader: AvroType) -> AvroType:
    """Return the reader schema of a message's key: the same columns, NULL where the key lacks them."""
    fields = [
        replace(one, type=replace(one.type, null_at=0), has_default=True, default=None)
        for one in reader.fields
    ]
    return replace(reader, fields=tuple(fields))


def _pair(writer: AvroType, reader: AvroType) -> SchemaPair:
    return SchemaPair(_wrap(_plain(writer)), _wrap(_for_spark(replace(reader, null_at=0))))


def _wrap(row: AvroType) -> str:
    """Return the schema of a row followed by `END`."""
    last = AvroField(LAST, AvroType("fixed", size=len(END)))
    return write_schema(AvroType("record", fields=(AvroField(VALUE, row), last)))


def _plain(kind: AvroType) -> AvroType:
    """Return the type without logical types and aliases."""
    return _map_types(replace(kind, logical="", precision=0, scale=0), _plain)


def _for_spark(kind: AvroType) -> AvroType:
    """Return the type with the logical types that Spark reads exactly."""
    if kind.is_decimal and kind.precision <= SPARK_DIGITS:
        if kind.precision <= _LONG_DIGITS and (kind.kind == "bytes" or kind.size > _LONG_BYTES):
            room = SPARK_DIGITS if kind.kind == "bytes" else min(SPARK_DIGITS, digits_of_fixed(kind.size))
            kind = replace(kind, precision=room)
    elif kind.logical not in _OF_SPARK:
        kind = replace(kind, logical="", precision=0, scale=0)
    return _map_types(kind, _for_spark)


def _map_types(kind: AvroType, change: Callable[[AvroType], AvroType]) -> AvroType:
    return replace(
        kind,
        doc="",
        fields=tuple(replace(one, type=change(one.type), aliases=()) for one in kind.fields),
        items=change(kind.items) if kind.items is not None else None,
        branches=tuple(change(branch) for branch in kind.branches),
    )


def _bare(kind: AvroType) -> AvroType:
    """Return the type without what does not change a value: nulls, defaults, docs."""
    result = replace(kind, null_at=None, default=None)
    return replace(
        result,
        fields=tuple(AvroField(one.name, _bare(one.type)) for one in kind.fields),
        items=_bare(kind.items) if kind.items is not None else None,
    )


def _match(writer: AvroType, reader: AvroType, path: tuple[str, ...]) -> AvroType:
    """Return the writer's type with the reader's names of fields."""
    if writer.kind == "union":
        return _match_union(writer, reader, path)
    if writer.kind != reader.kind and reader.kind not in _PROMOTIONS.get(writer.kind, ()):
        raise _mismatch(path, writer, reader)
    if writer.kind == "fixed" and writer.size != reader.size:
        raise _mismatch(path, writer, reader)
    if writer.logical and reader.logical and (writer.logical, writer.scale) != (reader.logical, reader.scale):
        raise _mismatch(path, writer, reader)
    if writer.kind == "record":
        return replace(writer, fields=_match_fields(writer, reader, path))
    if writer.kind in ("array", "map"):
        inner = (*path, "[]" if writer.kind == "array" else "{}")
        return replace(writer, items=_match(writer.item_type, reader.item_type, inner))
    return writer


def _match_union(writer: AvroType, reader: AvroType, path: tuple[str, ...]) -> AvroType:
    """Return a union whose branches are matched where they can be. A message with another one is an error."""
    branches: list[AvroType] = []
    failed = 0
    for branch in writer.branches:
        try:
            branches.append(branch if branch.kind == "null" else _match(branch, reader, path))
        except SchemaError:
            branches.append(branch)
            failed += 1
    if failed == sum(branch.kind != "null" for branch in writer.branches):
        raise _mismatch(path, writer, reader)
    return replace(writer, branches=tuple(branches))


def _match_fields(writer: AvroType, reader: AvroType, path: tuple[str, ...]) -> tuple[AvroField, ...]:
    renamed: dict[str, AvroField] = {}
    for one in reader.fields:
        names = [name for name in (one.name, *one.aliases) if writer.find_field(name)]
        if names:
            renamed[names[0]] = one
        elif not one.has_default:
            msg = (
                f"field `{spell_path((*path, one.name))}` is missing, and has no default in the reader schema"
            )
            raise SchemaError(msg)
    return tuple(
        AvroField(to.name, _match(one.type, to.type, (*path, to.name)))
        if (to := renamed.get(one.name)) is not None
        else replace(one, name=_free_name(one.name, reader), aliases=())
        for one in writer.fields
    )


def _free_name(name: str, reader: AvroType) -> str:
    """Return the name of a field that the reader does not read, which it must not find by its name."""
    while reader.find_field(name):
        name += "_"
    return name


def _mismatch(path: tuple[str, ...], writer: AvroType, reader: AvroType) -> SchemaError:
    where = f"field `{spell_path(path)}`" if path else "the message"
    return SchemaError(f"{where} is {writer}, and {reader} in the reader schema")
