"""Converts rows for staging: Spark flattens columns, and values are checked as Arrow before they are sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute

from headrace.connectors.arrow_batches import cast_batch
from headrace.connectors.filters import quote_identifier
from headrace.connectors.json_text import as_json
from headrace.connectors.lakehouse_rows import NO_NULL_KEY
from headrace.connectors.versions import refuse_unversioned
from headrace.pipeline.errors import DataError, GuaranteeError
from headrace.pipeline.sql.system_columns import OP, POS
from headrace.pipeline.types.arrow import is_nested, postgres_type, spark_type
from headrace.pipeline.types.int256 import is_wide, pattern

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


pc: Any = pyarrow.compute
"""Its functions are made at import, so type checkers do not see them."""


def flatten_columns(rows: DataFrame, schema: pa.Schema) -> DataFrame:
    """Return the payload as staging tables store it, then the operation and the position in five columns.

    Nested columns become JSON strings.
    """
    from pyspark.sql import functions as f

    def column(field: pa.Field) -> Any:
        there = f.col(quote_identifier(field.name))
        if is_nested(field.type):
            return as_json(there, field.type).alias(field.name)
        kind = "STRING" if postgres_type(field.type) == "TEXT" else spark_type(field.type)
        return there.cast(kind).alias(field.name)

    place = f.col(POS)
    position = [place[inner].alias(f"_gs_{inner}") for inner in ("source", "part", "off", "sub")]
    return rows.select(*(column(field) for field in schema), f.col(OP), *position)


def flatten_table(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows of the driver as `flatten_columns` returns them. `schema` has no nested columns."""
    places = rows[POS].combine_chunks()
    flat = {name: rows[name] for name in (*schema.names, OP)}
    return pa.table(flat | {f"_gs_{field.name}": places.field(field.name) for field in places.type})


_WIRE = {
    "SMALLINT": pa.int16(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "REAL": pa.float32(),
    "DOUBLE PRECISION": pa.float64(),
    "BOOLEAN": pa.bool_(),
    "TEXT": pa.string(),
    "BYTEA": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP WITH TIME ZONE": pa.timestamp("us", tz="UTC"),
    "TIMESTAMP WITHOUT TIME ZONE": pa.timestamp("us"),
    "TIME WITHOUT TIME ZONE": pa.time64("us"),
}
"""The Arrow type whose binary form is that of a column type: COPY takes no other."""


def wire_schema(schema: pa.Schema) -> pa.Schema:
    """Return the types that COPY into staging tables takes for a flat payload."""

    def wire(kind: pa.DataType) -> pa.DataType:
        if is_wide(kind):
            return pa.string()
        if pa.types.is_decimal(kind):
            return kind
        return pa.decimal128(20, 0) if kind == pa.uint64() else _WIRE[postgres_type(kind)]

    return pa.schema([pa.field(field.name, wire(field.type)) for field in schema])


def cast_to_schema(batch: pa.RecordBatch, schema: pa.Schema, node: str) -> pa.RecordBatch:
    """Cast a source's batch to the types of `wire_schema`, with columns by name, without loss.

    Raise SchemaError or DataError for a column that cannot be cast.
    """
    return cast_batch(batch, wire_schema(schema), node)


_ESCAPED_NUL = r"(^|[^\\])(\\\\)*\\u0000"
"""In JSON text. An even number of backslashes before it is themselves, escaped."""


def _first(column: pa.ChunkedArray | pa.Array, matched: pa.ChunkedArray | pa.Array) -> str | None:
    """Return the first value of `column` where `matched` is true."""
    return column[pc.index(matched, True).as_py()].as_py() if pc.any(matched).as_py() else None


@dataclass(frozen=True, slots=True)
class RowChecks:
    """What must hold of every row, whatever path it takes. Picklable."""

    node: str
    key: tuple[str, ...]
    texts: tuple[str, ...]
    """String columns: Postgres text cannot hold the character NUL."""
    jsons: tuple[str, ...]
    """Nested columns, as JSON text: nor can the strings inside of them."""
    wides: tuple[tuple[str, str, str], ...] = ()
    """Wide numbers, as their digits: (column, type, pattern).

    The server's cast would round values with more digits after the point.
    """
    lengths: tuple[tuple[str, int], ...] = ()
    """Key columns of limited length. The server cuts trailing spaces, so a delete would not match."""

    version: str | None = None
    """The column that decides which row of a key stays: only a delete may go without."""

    @classmethod
    def of(
        cls,
        node: str,
        schema: pa.Schema,
        key: Sequence[str],
        lengths: Mapping[str, int] | None = None,
        version: str | None = None,
    ) -> RowChecks:
        """Return the checks for rows of `schema`. `lengths` are the target's limits of string keys."""
        texts = tuple(field.name for field in schema if postgres_type(field.type) == "TEXT")
        wides = tuple(
            (field.name, str(field.type), pattern(field.type)) for field in schema if is_wide(field.type)
        )
        nested = tuple(field.name for field in schema if is_nested(field.type))
        return cls(node, tuple(key), texts, nested, wides, tuple((lengths or {}).items()), version)

    def check(self, rows: pa.RecordBatch | pa.Table) -> int:
        """Return the number of deletes.

        Raise DataError or GuaranteeError for the first row that cannot be loaded.
        """
        for name in self.texts:
            column = rows.column(name)
            if (value := _first(column, pc.match_substring(column, "\x00"))) is not None:
                msg = f"column '{name}' holds {value!r}: Postgres text cannot hold the character NUL"
                hint = f"Take it out in a transform: replace({name}, chr(0), '')."
                raise DataError(msg, hint=hint, node=self.node)
        for name in self.jsons:
            column = rows.column(name)
            if (value := _first(column, pc.match_substring_regex(column, _ESCAPED_NUL))) is not None:
                msg = (
                    f"column '{name}' holds {value}: strings inside of Postgres JSON cannot hold the"
                    " character NUL"
                )
                hint = "Take it out in a transform: transform(…, x -> replace(x, chr(0), ''))."
                raise DataError(msg, hint=hint, node=self.node)
        for name, kind, good in self.wides:
            column = rows.column(name)
            if (value := _first(column, pc.invert(pc.match_substring_regex(column, good)))) is not None:
                msg = f"column '{name}' is {kind}, which cannot hold '{value[:100]}'"
                hint = "Write its digits, without an exponent, or give the column another name and type."
                raise DataError(msg, hint=hint, node=self.node)
        self._check_keys(rows)
        deletes = pc.sum(pc.equal(rows.column(OP), "d")).as_py() if OP in rows.schema.names else 0
        if deletes and not self.key:
            msg = "a delete arrived, and a table without a key cannot apply it"
            hint = "Set `primary_key` on the sink, or filter `_gs_op <> 'd'` in a transform."
            raise GuaranteeError(msg, node=self.node, hint=hint)
        return deletes or 0

    def _check_keys(self, rows: pa.RecordBatch | pa.Table) -> None:
        """Raise DataError for a key or a version that cannot be compared in the target."""
        for name, most in self.lengths:
            column = rows.column(name)
            if (value := _first(column, pc.greater(pc.utf8_length(column), most))) is not None:
                msg = (
                    f"key column '{name}' holds {value[:100]!r}, which is longer than the {most}"
                    " characters of the target's column"
                )
                hint = f"Make the target's column longer: ALTER TABLE … ALTER COLUMN {name} TYPE text."
                raise DataError(msg, hint=hint, node=self.node)
        for name in self.key:
            if (column := rows.column(name)).null_count:
                row = rows.slice(pc.index(pc.is_null(column), True).as_py(), 1).to_pylist()[0]
                shown = ", ".join(f"{other}={value!r}" for other, value in list(row.items())[:8])
                msg = f"key column '{name}' is null in a row ({shown})"
                raise DataError(msg, hint=NO_NULL_KEY, node=self.node)
        if self.version is not None:
            refuse_unversioned(rows, self.version, self.node)
