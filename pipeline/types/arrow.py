"""Types: their names in a pipeline file, their Arrow types, and their types in Postgres and in Spark.

Arrow is the common form. The tables below are data, so that the docs print what the code does. Timestamps are
microseconds in UTC. A timestamp without a zone stays without one.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType

import pyarrow as pa
from pyarrow import types as kinds

from headrace.pipeline.errors import SchemaError
from headrace.pipeline.types.deferred_pandas import defer_pandas
from headrace.pipeline.types.int256 import INT256, UINT256, WideInteger

FILE_TYPES: Mapping[str, pa.DataType] = MappingProxyType(
    {
        "string": pa.string(),
        "utf8": pa.string(),
        "int8": pa.int8(),
        "int16": pa.int16(),
        "int32": pa.int32(),
        "int64": pa.int64(),
        "uint8": pa.uint8(),
        "uint16": pa.uint16(),
        "uint32": pa.uint32(),
        "uint64": pa.uint64(),
        "float16": pa.float16(),
        "float32": pa.float32(),
        "float64": pa.float64(),
        "binary": pa.binary(),
        "boolean": pa.bool_(),
        "date32": pa.date32(),
        "date64": pa.date64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "time32": pa.time32("ms"),
        "time64": pa.time64("us"),
        "duration": pa.duration("us"),
        "interval": pa.month_day_nano_interval(),
        "int256": INT256,
        "uint256": UINT256,
        "i256": INT256,
        "u256": UINT256,
    }
)
"""The types of a `schema:` block, case-insensitive. Decimals are in `DECIMALS`."""

DECIMALS: Mapping[str, int] = MappingProxyType({"decimal": 38, "decimal128": 38, "decimal256": 76})
"""Decimal types and their largest precision. Bare: (38, 9); with the precision only: scale 0."""

defer_pandas()

_DECIMAL = re.compile(r"(decimal|decimal128|decimal256)\s*(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?")


def parse_type(text: str) -> pa.DataType:
    """Return the Arrow type of a pipeline file's type string.

    Raise SchemaError with the nearest known name.
    """
    name = text.strip().lower()
    if (result := FILE_TYPES.get(name)) is not None:
        return result
    if decimal := _DECIMAL.fullmatch(name):
        return _decimal(text, *decimal.groups())
    known = (*FILE_TYPES, *DECIMALS)
    near = difflib.get_close_matches(name.split("(")[0].strip(), known, n=1)
    meant = f"did you mean '{near[0]}'? " if near else ""
    msg = (
        f"unsupported data type '{text}' in schema; {meant}supported: {', '.join(known)} (decimals as"
        " decimal(precision, scale))"
    )
    raise SchemaError(msg)


def _decimal(text: str, name: str, precision: str | None, scale: str | None) -> pa.DataType:
    digits, behind = (int(precision), int(scale or 0)) if precision else (38, 9)
    if not 1 <= digits <= DECIMALS[name] or behind > digits:
        msg = (
            f"unsupported data type '{text}' in schema; {name} takes a precision of 1 to {DECIMALS[name]}"
            " and a scale up to it"
        )
        raise SchemaError(msg)
    return pa.decimal256(digits, behind) if name == "decimal256" else pa.decimal128(digits, behind)


def is_nested(kind: pa.DataType) -> bool:
    """Return whether a type is a struct, list or map. Systems without these store JSON."""
    return kinds.is_nested(kind)


def is_binary(kind: pa.DataType) -> bool:
    """Return whether a type is bytes, in any of Arrow's layouts."""
    return (
        kinds.is_binary(kind)
        or kinds.is_large_binary(kind)
        or kinds.is_fixed_size_binary(kind)
        or kinds.is_binary_view(kind)
    )


Row = tuple[str, Callable[[pa.DataType], bool], str]

POSTGRES: tuple[Row, ...] = (
    ("int8, int16", lambda t: t in {pa.int8(), pa.int16()}, "SMALLINT"),
    ("int32", lambda t: t == pa.int32(), "INTEGER"),
    ("int64", lambda t: t == pa.int64(), "BIGINT"),
    ("uint8, uint16", lambda t: t in {pa.uint8(), pa.uint16()}, "INTEGER"),
    ("uint32", lambda t: t == pa.uint32(), "BIGINT"),
    ("uint64", lambda t: t == pa.uint64(), "NUMERIC(20,0)"),
    ("float16, float32", lambda t: t in {pa.float16(), pa.float32()}, "REAL"),
    ("float64", lambda t: t == pa.float64(), "DOUBLE PRECISION"),
    ("boolean", kinds.is_boolean, "BOOLEAN"),
    (
        "string, large string, string view",
        lambda t: kinds.is_string(t) or kinds.is_large_string(t) or kinds.is_string_view(t),
        "TEXT",
    ),
    (
        "binary, large binary, fixed-size binary, binary view",
        is_binary,
        "BYTEA",
    ),
    ("decimal(p,s)", kinds.is_decimal, "NUMERIC({precision},{scale})"),
    ("int256, uint256", lambda t: isinstance(t, WideInteger), "NUMERIC(78,0)"),
    ("date32, date64", kinds.is_date, "DATE"),
    ("timestamp with zone", lambda t: kinds.is_timestamp(t) and t.tz is not None, "TIMESTAMP WITH TIME ZONE"),
    (
        "timestamp without zone",
        lambda t: kinds.is_timestamp(t) and t.tz is None,
        "TIMESTAMP WITHOUT TIME ZONE",
    ),
    ("time32, time64", kinds.is_time, "TIME WITHOUT TIME ZONE"),
    ("struct, list, map", kinds.is_nested, "JSONB"),
    ("anything else", lambda _: True, "TEXT"),
)
"""Arrow to Postgres: (description, test, column type). The first match applies."""

SPARK: tuple[Row, ...] = (
    ("int8", lambda t: t == pa.int8(), "TINYINT"),
    ("int16, uint8", lambda t: t in {pa.int16(), pa.uint8()}, "SMALLINT"),
    ("int32, uint16", lambda t: t in {pa.int32(), pa.uint16()}, "INT"),
    ("int64, uint32", lambda t: t in {pa.int64(), pa.uint32()}, "BIGINT"),
    ("uint64", lambda t: t == pa.uint64(), "DECIMAL(20,0)"),
    ("float16, float32", lambda t: t in {pa.float16(), pa.float32()}, "FLOAT"),
    ("float64", lambda t: t == pa.float64(), "DOUBLE"),
    ("boolean", kinds.is_boolean, "BOOLEAN"),
    (
        "decimal(p,s) to 38 digits",
        lambda t: kinds.is_decimal(t) and t.precision <= 38,
        "DECIMAL({precision},{scale})",
    ),
    ("date32, date64", kinds.is_date, "DATE"),
    ("timestamp with zone", lambda t: kinds.is_timestamp(t) and t.tz is not None, "TIMESTAMP"),
    ("timestamp without zone", lambda t: kinds.is_timestamp(t) and t.tz is None, "TIMESTAMP_NTZ"),
    (
        "binary, large binary, fixed-size binary, binary view",
        is_binary,
        "BINARY",
    ),
    ("duration", kinds.is_duration, "INTERVAL DAY TO SECOND"),
    (
        "strings, times, intervals, larger decimals and 256-bit integers as their digits",
        lambda t: not kinds.is_nested(t),
        "STRING",
    ),
)
"""Arrow to Spark SQL for flat types. Spark has no unsigned and no half types, so they widen.

Nested types use these.
"""


def postgres_type(kind: pa.DataType) -> str:
    """Return the Postgres column type of an Arrow type. Dictionary types use the type of their values."""
    return _look_up(POSTGRES, kind)


def spark_type(kind: pa.DataType) -> str:
    """Return the Spark SQL type of an Arrow type, as DDL."""
    if kinds.is_dictionary(kind):
        return spark_type(kind.value_type)
    if kinds.is_struct(kind):
        inner = ", ".join(f"`{field.name.replace('`', '``')}`: {spark_type(field.type)}" for field in kind)
        return f"STRUCT<{inner}>"
    if kinds.is_map(kind):
        return f"MAP<{spark_type(kind.key_type)}, {spark_type(kind.item_type)}>"
    if kinds.is_nested(kind):
        return f"ARRAY<{spark_type(kind.value_type)}>"
    return _look_up(SPARK, kind)


def _look_up(table: tuple[Row, ...], kind: pa.DataType) -> str:
    if kinds.is_dictionary(kind):
        return _look_up(table, kind.value_type)
    for _, fits, name in table:
        if fits(kind):
            return name.format(precision=kind.precision, scale=kind.scale) if kinds.is_decimal(kind) else name
    msg = f"unsupported Arrow type {kind}"
    raise SchemaError(msg)
