"""Type strings of pipeline files, and what types become elsewhere."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.pipeline.errors import SchemaError
from headrace.pipeline.types.arrow import FILE_TYPES, is_nested, parse_type, postgres_type, spark_type


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("string", pa.string()),
        ("UTF8", pa.string()),
        (" Int64 ", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("decimal", pa.decimal128(38, 9)),
        ("decimal128", pa.decimal128(38, 9)),
        ("decimal256", pa.decimal256(38, 9)),
        ("Decimal(20)", pa.decimal128(20, 0)),
        ("decimal(20,4)", pa.decimal128(20, 4)),
        ("decimal128( 38 , 38 )", pa.decimal128(38, 38)),
        ("decimal256(76,10)", pa.decimal256(76, 10)),
    ],
)
def test_file_types(text: str, kind: pa.DataType) -> None:
    assert parse_type(text) == kind


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("int46", "unsupported data type 'int46' in schema; did you mean 'int64'?"),
        ("strin", "did you mean 'string'?"),
        ("wombat", "unsupported data type 'wombat' in schema; supported: string, utf8"),
        ("decimal(39,2)", "decimal takes a precision of 1 to 38"),
        ("decimal(0)", "decimal takes a precision of 1 to 38"),
        ("decimal(4,5)", "a scale up to it"),
        ("decimal256(77,0)", "decimal256 takes a precision of 1 to 76"),
        ("decimal(a,b)", "did you mean 'decimal'?"),
        ("int64(3)", "unsupported data type 'int64(3)'"),
        ("", "unsupported data type ''"),
    ],
)
def test_unknown_types_are_named_with_what_is_allowed(text: str, message: str) -> None:
    with pytest.raises(SchemaError) as error:
        parse_type(text)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("kind", "postgres", "spark"),
    [
        (pa.int8(), "SMALLINT", "TINYINT"),
        (pa.uint8(), "INTEGER", "SMALLINT"),
        (pa.uint32(), "BIGINT", "BIGINT"),
        (pa.uint64(), "NUMERIC(20,0)", "DECIMAL(20,0)"),
        (pa.float16(), "REAL", "FLOAT"),
        (pa.decimal128(20, 4), "NUMERIC(20,4)", "DECIMAL(20,4)"),
        (pa.decimal256(76, 0), "NUMERIC(76,0)", "STRING"),
        (pa.large_string(), "TEXT", "STRING"),
        (pa.binary(16), "BYTEA", "BINARY"),
        (pa.date64(), "DATE", "DATE"),
        (pa.timestamp("ns", tz="Europe/Paris"), "TIMESTAMP WITH TIME ZONE", "TIMESTAMP"),
        (pa.timestamp("s"), "TIMESTAMP WITHOUT TIME ZONE", "TIMESTAMP_NTZ"),
        (pa.time64("us"), "TIME WITHOUT TIME ZONE", "STRING"),
        (pa.duration("us"), "TEXT", "INTERVAL DAY TO SECOND"),
        (pa.dictionary(pa.int8(), pa.string()), "TEXT", "STRING"),
        (pa.list_(pa.int64()), "JSONB", "ARRAY<BIGINT>"),
        (pa.map_(pa.string(), pa.list_(pa.int32())), "JSONB", "MAP<STRING, ARRAY<INT>>"),
        (pa.struct([("a b", pa.int8())]), "JSONB", "STRUCT<`a b`: TINYINT>"),
    ],
)
def test_what_types_become(kind: pa.DataType, postgres: str, spark: str) -> None:
    assert (postgres_type(kind), spark_type(kind)) == (postgres, spark)


NAMES = (
    "string utf8 int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 binary"
    " boolean date32 date64 timestamp"
)


@pytest.mark.parametrize(
    "name",
    [*NAMES.split(), "time32", "time64", "duration", "interval", "decimal", "decimal128", "decimal256"],
)
def test_names_that_topology_files_may_say_are_known_in_any_case(name: str) -> None:
    assert parse_type(name) == parse_type(name.upper()) == parse_type(f" {name.title()} ")
    with pytest.raises(SchemaError, match=f"^unsupported data type 'x{name}' in schema; "):
        parse_type(f"x{name}")


def test_every_file_type_has_a_place_everywhere() -> None:
    for kind in FILE_TYPES.values():
        assert postgres_type(kind)
        assert spark_type(kind)
        assert not is_nested(kind)
