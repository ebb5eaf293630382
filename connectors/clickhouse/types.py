"""ClickHouse types as Arrow types that Spark can hold, and the server-side casts that make them so.

The server casts, so that a task hands Arrow on without touching values. The rules:

    UInt8, 16, 32, 64            int16, int32, int64, decimal(20, 0): the next type that holds every value
    BFloat16                     float
    Decimal(p <= 38)             the same decimal
    Decimal(p > 38), (U)Int128, (U)Int256   their digits as text, under a type of that name; not inside of
    others
    Date, Date32                 date32
    DateTime, DateTime64         timestamp in microseconds, an instant in UTC; finer digits are cut off
    String                       string (bytes are taken as UTF-8, unchecked)
    FixedString                  binary, padding included
    Enum, UUID, IPv4, IPv6       string
    LowCardinality, SimpleAggregateFunction   their value type
    Array, Map, Tuple            list, map, struct of the same rules
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.pipeline.errors import SchemaError
from headrace.pipeline.sql.system_columns import HIDDEN
from headrace.pipeline.types.int256 import INT256, SPARK_DIGITS, UINT256, is_wide

if TYPE_CHECKING:
    from clickhouse_connect.datatypes.base import ClickHouseType

UTC_MICROS = "DateTime64(6, 'UTC')"
_AS_TEXT = ("String", pa.string())
SCALARS: dict[str, tuple[str, pa.DataType]] = {
    "Int8": ("Int8", pa.int8()),
    "Int16": ("Int16", pa.int16()),
    "Int32": ("Int32", pa.int32()),
    "Int64": ("Int64", pa.int64()),
    "UInt8": ("Int16", pa.int16()),
    "UInt16": ("Int32", pa.int32()),
    "UInt32": ("Int64", pa.int64()),
    "UInt64": ("Decimal(20, 0)", pa.decimal128(20, 0)),
    "Int128": ("String", pa.decimal256(39, 0)),
    "UInt128": ("String", pa.decimal256(39, 0)),
    "Int256": ("String", INT256),
    "UInt256": ("String", UINT256),
    "Float32": ("Float32", pa.float32()),
    "Float64": ("Float64", pa.float64()),
    "BFloat16": ("Float32", pa.float32()),
    "Bool": ("Bool", pa.bool_()),
    "String": _AS_TEXT,
    "Enum8": _AS_TEXT,
    "Enum16": _AS_TEXT,
    "UUID": _AS_TEXT,
    "IPv4": _AS_TEXT,
    "IPv6": _AS_TEXT,
    "Date": ("Date", pa.date32()),
    "Date32": ("Date32", pa.date32()),
    "DateTime": (UTC_MICROS, pa.timestamp("us", tz="UTC")),
    "DateTime64": (UTC_MICROS, pa.timestamp("us", tz="UTC")),
}
"""By the name of a type: what the server casts it to, and what then arrives.

Decimals, FixedString and containers: `convert`.
"""


class UnsupportedTypeError(ValueError):
    """A ClickHouse type without a counterpart; the text names it."""


@dataclass(frozen=True, slots=True)
class ClickHouseColumn:
    """One payload column: name, type in ClickHouse, type that the server casts it to, and Arrow type."""

    name: str
    source: str
    target: str
    arrow: pa.DataType


def parse(text: str) -> ClickHouseType:
    """Parse a type name. Raise UnsupportedTypeError for one that the driver does not know."""
    from clickhouse_connect.datatypes.registry import get_from_name
    from clickhouse_connect.driver.exceptions import ClickHouseError

    try:
        return get_from_name(text)
    except ClickHouseError as error:
        raise UnsupportedTypeError(text) from error


def convert(kind: ClickHouseType) -> tuple[str, pa.DataType]:
    """Return the ClickHouse type that the server casts to, and the Arrow type of the result."""
    # The driver's classes describe their members by attributes that the base class does not declare.
    parts: Any = kind
    base = kind.base_type
    if base == "SimpleAggregateFunction":
        return convert(parts.element_type)
    if base in {"Array", "Map", "Tuple", "Nested"}:
        if kind.nullable:
            raise UnsupportedTypeError(kind.name)
        return _container(base, parts)
    if base == "Decimal" and parts.prec <= SPARK_DIGITS:
        target, arrow = f"Decimal({parts.prec}, {parts.scale})", pa.decimal128(parts.prec, parts.scale)
    elif base == "Decimal":
        target, arrow = "String", pa.decimal256(parts.prec, parts.scale)
    elif base == "FixedString":
        target, arrow = f"FixedString({kind.byte_size})", pa.binary()
    elif base in SCALARS:
        target, arrow = SCALARS[base]
    else:
        raise UnsupportedTypeError(kind.name)
    return (f"Nullable({target})" if kind.nullable else target), arrow


def _inside(kind: ClickHouseType) -> tuple[str, pa.DataType]:
    """Return `convert` of a member. Nested values become JSON, where wide integers would lose their type."""
    target, arrow = convert(kind)
    if is_wide(arrow):
        raise UnsupportedTypeError(kind.name)
    return target, arrow


def _container(base: str, kind: Any) -> tuple[str, pa.DataType]:
    if base == "Array":
        target, arrow = _inside(kind.element_type)
        return f"Array({target})", pa.list_(arrow)
    if base == "Map":
        (key, key_arrow), (value, value_arrow) = _inside(kind.key_type), _inside(kind.value_type)
        return f"Map({key}, {value})", pa.map_(key_arrow, value_arrow)
    members = [_inside(member) for member in kind.element_types]
    names = kind.element_names or ()
    labels = names or [str(place) for place in range(1, len(members) + 1)]
    arrow = pa.struct([pa.field(label, member[1]) for label, member in zip(labels, members, strict=True)])
    if base == "Nested":
        spelled = ", ".join(
            f"{quote(label)} {member[0]}" for label, member in zip(labels, members, strict=True)
        )
        return f"Array(Tuple({spelled}))", pa.list_(arrow)
    spelled = (
        ", ".join(f"{quote(name)} {member[0]}" for name, member in zip(names, members, strict=True))
        if names
        else ", ".join(member[0] for member in members)
    )
    return f"Tuple({spelled})", arrow


def columns_of(described: Iterable[tuple[str, str]], node: str) -> tuple[ClickHouseColumn, ...]:
    """Return payload columns for (name, ClickHouse type) pairs.

    Raise SchemaError that names every unsupported column.
    """
    columns, problems, seen = [], [], dict[str, str]()
    for name, spelled in described:
        if name.lower() in HIDDEN:
            problems.append(f"`{name}` is a name that Headrace keeps for itself")
        elif name.lower() in seen:
            problems.append(f"`{name}` and `{seen[name.lower()]}` are one name to Spark")
        seen[name.lower()] = name
        try:
            target, arrow = convert(parse(spelled))
        except UnsupportedTypeError as error:
            inside = "" if str(error) == spelled else f" (because of {error})"
            problems.append(f"`{name}` has type {spelled}{inside}, which is not available yet")
            continue
        columns.append(ClickHouseColumn(name, spelled, target, arrow))
    if problems:
        msg = "columns that cannot be read: " + "; ".join(problems)
        raise SchemaError(
            msg,
            hint="List the columns to read under `columns`, or read a view that casts or renames these.",
            node=node,
        )
    return tuple(columns)


def arrow_schema(columns: Iterable[ClickHouseColumn]) -> pa.Schema:
    """Return the payload as Arrow.

    Every column is nullable, because a later phase of a hybrid source may have nulls where this one has none.
    """
    return pa.schema([pa.field(column.name, column.arrow) for column in columns])


def quote(identifier: str) -> str:
    """Return the name as a quoted ClickHouse identifier."""
    from clickhouse_connect.driver.binding import quote_identifier

    return quote_identifier(identifier)
