"""The columns of a Postgres table as Arrow, and the SQL that reads them without loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
from psycopg import sql
from psycopg.postgres import types as builtin_types

from headrace.connectors.postgres_client.session import ControlSession, LoadSession, ResultColumn, trusted_sql
from headrace.pipeline.types.int256 import SPARK_DIGITS

PLAIN: Mapping[str, pa.DataType] = {
    "bool": pa.bool_(),
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "text": pa.string(),
    "varchar": pa.string(),
    "bpchar": pa.string(),
    "bytea": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", tz="UTC"),
}
"""Types with a counterpart, by their names in the server. Others are read as text, as Postgres writes it."""
LISTS: Mapping[str, pa.DataType] = {
    name: kind for name, kind in PLAIN.items() if name in ("bool", "int2", "int4", "int8", "float4", "float8")
}
"""Types of elements with a counterpart. Lists of others are lists of text."""
_FINITE = ("date", "timestamp", "timestamptz")
"""Types with an infinite value, which Arrow does not have."""
_LARGEST_DECIMAL = 76


@dataclass(frozen=True, slots=True)
class PostgresColumn:
    """A column, the expression that reads it, and the type of its values in Arrow."""

    name: str
    expression: sql.Composable
    type: pa.DataType


def read_column(described: ResultColumn) -> PostgresColumn:
    """Return how a column is read. A domain has its base type."""
    info, column = builtin_types.get(described.type_code), sql.Identifier(described.name)
    name = info.name if info else ""
    if info is not None and info.array_oid == described.type_code:
        if name in LISTS:
            return PostgresColumn(
                described.name, _flat(column, described.name, f"{name}[]"), pa.list_(LISTS[name])
            )
        text = _flat(_cast(column, "text[]"), described.name, "text[]")
        return PostgresColumn(described.name, text, pa.list_(pa.string()))
    if name in _FINITE:
        return PostgresColumn(described.name, _finite(column, described.name, name), PLAIN[name])
    if name in PLAIN:
        return PostgresColumn(described.name, column, PLAIN[name])
    if name == "numeric":
        return PostgresColumn(
            described.name, _cast(column, "text"), _decimal(described.precision, described.scale)
        )
    return PostgresColumn(described.name, _cast(column, "text"), pa.string())


def find_unique_keys(
    session: ControlSession | LoadSession, schema: str, table: str
) -> tuple[tuple[str, ...], ...]:
    """Return the columns of each unique index that holds for all rows of a table.

    An index with a condition or of expressions does not. The index of a table that others inherit from does
    not have their rows.
    """
    result = session.run(
        "SELECT array_agg(a.attname::text ORDER BY a.attnum) FROM pg_index i"
        " JOIN pg_class c ON c.oid = i.indrelid JOIN pg_namespace n ON n.oid = c.relnamespace"
        " JOIN pg_attribute a ON a.attrelid = c.oid"
        " AND a.attnum = ANY((i.indkey::int2[])[0:i.indnkeyatts - 1])"
        " WHERE n.nspname = $1::text AND c.relname = $2::text AND i.indisunique AND i.indisvalid"
        " AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL AND (c.relkind = 'p' OR"
        " c.relkind = 'r' AND NOT EXISTS (SELECT FROM pg_inherits h WHERE h.inhparent = c.oid))"
        " GROUP BY i.indexrelid ORDER BY i.indexrelid",
        schema,
        table,
    )
    return tuple(tuple(columns) for (columns,) in result)


def _decimal(precision: int | None, scale: int | None) -> pa.DataType:
    """Return the type of a numeric: without a precision, or with a negative scale, its digits as text."""
    if precision is None or scale is None or scale < 0 or max(precision, scale) > _LARGEST_DECIMAL:
        return pa.string()
    digits = max(precision, scale)
    return pa.decimal128(digits, scale) if digits <= SPARK_DIGITS else pa.decimal256(digits, scale)


def _cast(column: sql.Composable, kind: str) -> sql.Composable:
    return sql.Composed([column, trusted_sql(f"::{kind}")])


def _flat(column: sql.Composable, name: str, kind: str) -> sql.Composable:
    """Return the list, or an error of the server for several dimensions, which Arrow would not keep."""
    wrong = sql.Literal(f" in column {name} has several dimensions")
    error = "ARRAY[({0}::text || {1})::int::text]::{2}"
    text = f"CASE WHEN coalesce(array_ndims({{0}}), 1) = 1 THEN {{0}} ELSE {error} END"
    return trusted_sql(text).format(column, wrong, trusted_sql(kind))


def _finite(column: sql.Composable, name: str, kind: str) -> sql.Composable:
    """Return the value, or an error of the server that names the column for an infinite one."""
    wrong = sql.Literal(f" in column {name}")
    text = "CASE WHEN isfinite({0}) THEN {0} ELSE ({0}::text || {1})::{2} END"
    return trusted_sql(text).format(column, wrong, trusted_sql(kind))
