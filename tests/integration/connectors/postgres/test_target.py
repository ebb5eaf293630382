"""Types and values: in new tables, in existing tables, and refused ones."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from helpers.pipeline_world import postgres_database
from helpers.postgres_epochs import STAGED, Bench, plan

from headrace.pipeline.errors import DataError, HeadraceError, SchemaError, TargetError
from headrace.services import Services

PATHS = pytest.mark.parametrize("estimate", [0, STAGED], ids=["driver", "staged"])
LATE = datetime(9999, 12, 31, 23, 59, 59, 999_999)

VALUES: list[tuple[str, pa.DataType, str, list[Any]]] = [
    ("tiny", pa.int8(), "smallint", [-128, 127]),
    ("small", pa.int16(), "smallint", [-(2**15), 2**15 - 1]),
    ("whole", pa.int32(), "integer", [-(2**31), 2**31 - 1]),
    ("big", pa.int64(), "bigint", [-(2**63), 2**63 - 1]),
    ("real", pa.float32(), "real", [1.5, -math.inf]),
    ("double", pa.float64(), "double precision", [0.1, math.inf]),
    ("flag", pa.bool_(), "boolean", [True, False]),
    ("words", pa.string(), "text", ["naïve 🙂 \\ ' \" \t", ""]),
    ("bytes", pa.binary(), "bytea", [b"\x00\xff", b""]),
    ("wide", pa.decimal128(38, 0), "numeric(38,0)", [Decimal("9" * 38), Decimal("-" + "9" * 38)]),
    (
        "fine",
        pa.decimal128(38, 38),
        "numeric(38,38)",
        [Decimal("0." + "9" * 38), Decimal("-0." + "0" * 37 + "1")],
    ),
    ("money", pa.decimal128(20, 4), "numeric(20,4)", [Decimal("1234567890123456.7891"), Decimal("0.0001")]),
    ("day", pa.date32(), "date", [date(1, 1, 1), date(9999, 12, 31)]),
    (
        "moment",
        pa.timestamp("us", tz="UTC"),
        "timestamp with time zone",
        [datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), LATE.replace(tzinfo=UTC)],
    ),
    ("local", pa.timestamp("us"), "timestamp without time zone", [datetime(2026, 3, 29, 2, 30), LATE]),
    ("list", pa.list_(pa.int64()), "jsonb", [[1, None, 3], []]),
    (
        "struct",
        pa.struct([("a", pa.int64()), ("b", pa.string())]),
        "jsonb",
        [{"a": 1, "b": None}, {"a": None, "b": 'q"'}],
    ),
    ("map", pa.map_(pa.string(), pa.float64()), "jsonb", [[("k", 1.5)], []]),
]
ALL = pa.schema([("id", pa.int64()), *((name, kind) for name, kind, _, _ in VALUES)])


@pytest.fixture(scope="module")
def pg(services: Services) -> Iterator[str]:
    """Yield a database for all tests here: each has a schema of its own."""
    with postgres_database(services) as conninfo:
        yield conninfo


@PATHS
def test_every_type_arrives_as_it_was(bench: Bench, estimate: int) -> None:
    sink = bench.joined(ALL)
    rows = [("i", at, *(values[at] for *_, values in VALUES)) for at in range(2)]
    sink.write(plan(1), bench.frame([*rows, ("i", 2, *[None] * len(VALUES))], schema=ALL, estimate=estimate))
    result = bench.run("SELECT * FROM {t} ORDER BY id")
    expected = [
        tuple(
            dict(value) if name == "map" else value for (name, *_), value in zip(VALUES, row[2:], strict=True)
        )
        for row in rows
    ]
    # psycopg has no year 10,000 either, so nothing is out of range; JSON comes back as Python values.
    assert [row[1:] for row in result] == [*expected, (None,) * len(VALUES)]


def test_not_a_number_arrives(bench: Bench) -> None:
    schema = pa.schema([("id", pa.int64()), ("double", pa.float64())])
    bench.joined(schema).write(plan(1), bench.frame([("i", 1, math.nan)], schema=schema))
    assert bench.run("SELECT count(*) FROM {t} WHERE double = 'NaN'") == [(1,)]


def test_created_columns_have_the_documented_types(bench: Bench) -> None:
    bench.joined(ALL)
    result = bench.run(
        "SELECT attname::text, format_type(atttypid, atttypmod), attnotnull FROM pg_attribute"
        " WHERE attrelid = %s::regclass AND attnum > 0 ORDER BY attnum",
        f"{bench.schema}.target",
    )
    assert result == [("id", "bigint", True), *((name, shown, False) for name, _, shown, _ in VALUES)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"streams": ["a stream"]}, ["fillfactor=80"]),
        ({"streams": ["a stream"], "on_conflict": "nothing"}, None),
        ({"streams": ["a stream"], "key": ()}, None),
        ({}, None),
    ],
)
def test_a_table_that_a_stream_updates_keeps_room_in_its_pages(
    bench: Bench, options: dict[str, Any], expected: list[str] | None
) -> None:
    bench.joined(**options)
    ((result,),) = bench.run(
        "SELECT reloptions FROM pg_class WHERE oid = %s::regclass", f"{bench.schema}.target"
    )
    assert result == expected


def create_target(bench: Bench, columns: str) -> None:
    bench.run(f"CREATE SCHEMA {bench.schema}")
    bench.run(f"CREATE TABLE {{t}} ({columns})")


FITTING = [
    ("id bigint, v text PRIMARY KEY", "v", pa.string(), "x", "x"),
    ("id bigint PRIMARY KEY, v uuid", "id", pa.string(), "00000000-0000-0000-0000-000000000001", None),
    ("id bigint PRIMARY KEY, v jsonb", "id", pa.string(), '{"a": 1}', {"a": 1}),
    ("id bigint PRIMARY KEY, v inet", "id", pa.string(), "10.0.0.1", None),
    ("id bigint PRIMARY KEY, v varchar(3)", "id", pa.string(), "abc", "abc"),
    (
        "id bigint PRIMARY KEY, v numeric(12,4)",
        "id",
        pa.decimal128(10, 2),
        Decimal("1.25"),
        Decimal("1.2500"),
    ),
    ("id bigint PRIMARY KEY, v numeric", "id", pa.int64(), 7, Decimal(7)),
    ("id bigint PRIMARY KEY, v smallint", "id", pa.int64(), 7, 7),
    ("id bigint PRIMARY KEY, v double precision", "id", pa.float32(), 1.5, 1.5),
    ("id numeric PRIMARY KEY, v text", "id", pa.string(), "x", "x"),
    ("id bigint PRIMARY KEY, v text, extra int DEFAULT 3 NOT NULL", "id", pa.string(), "x", "x"),
    ("v text, id bigint, UNIQUE (id)", "id", pa.string(), "x", "x"),
]


# Both routes insert by the same statement from a table, whose columns have the types of the rows.
@pytest.mark.parametrize(
    ("columns", "key", "kind", "value", "expected", "estimate"),
    [
        pytest.param(
            *row,
            estimate,
            id=f"{row[0]}-{'staged' if estimate else 'driver'}",
            marks=pytest.mark.slow if estimate and place % 3 else (),
        )
        for place, row in enumerate(FITTING)
        for estimate in (0, STAGED)
    ],
)
def test_tables_that_are_there_take_rows_by_name(
    bench: Bench, columns: str, key: str, kind: pa.DataType, value: Any, expected: Any, estimate: int
) -> None:
    create_target(bench, columns)
    schema = pa.schema([("id", pa.int64()), ("v", kind)])
    sink = bench.joined(schema, key=(key,))
    for number in (1, 2):
        sink.write(plan(number), bench.frame([("u", 1, value)], schema=schema, key=(key,), estimate=estimate))
    ((result,),) = bench.run("SELECT v FROM {t}")
    assert result == expected if expected is not None else str(result) == value


REFUSED = [
    ("id bigint PRIMARY KEY", pa.string(), SchemaError, "has no column 'v'"),
    (
        "id bigint PRIMARY KEY, v text, w int NOT NULL",
        pa.string(),
        SchemaError,
        "column 'w'.*NOT NULL without a default",
    ),
    (
        "id bigint PRIMARY KEY, v integer",
        pa.string(),
        SchemaError,
        "column 'v'.*is integer, which does not hold string",
    ),
    ("id bigint PRIMARY KEY, v integer", pa.float64(), SchemaError, "column 'v'.*is integer"),
    (
        "id bigint PRIMARY KEY, v numeric(10,2)",
        pa.decimal128(10, 4),
        SchemaError,
        r"is numeric\(10,2\), which does not hold decimal128\(10, 4\)",
    ),
    ("id bigint PRIMARY KEY, v date", pa.timestamp("us", tz="UTC"), SchemaError, "is date"),
    (
        "id bigint PRIMARY KEY, v text GENERATED ALWAYS AS ('x') STORED",
        pa.string(),
        SchemaError,
        "generated by Postgres",
    ),
    (
        "id bigint, v text",
        pa.string(),
        TargetError,
        r"no unique index over the key \(id\); unique indexes there: none",
    ),
    ("id bigint, v text, UNIQUE (id, v)", pa.string(), TargetError, "no unique index"),
    ("id bigint UNIQUE DEFERRABLE, v text", pa.string(), TargetError, "no unique index"),
]


@pytest.mark.parametrize(
    ("columns", "kind", "error", "message"), REFUSED, ids=[f"{row[0]} <- {row[1]}" for row in REFUSED]
)
def test_tables_that_would_lose_something_are_refused(
    bench: Bench, columns: str, kind: pa.DataType, error: type[HeadraceError], message: str
) -> None:
    create_target(bench, columns)
    with pytest.raises(error, match=message) as caught:
        bench.sink().prepare(pa.schema([("id", pa.int64()), ("v", kind)]), 1)
    assert caught.value.node == "out"
    assert caught.value.hint


@pytest.mark.parametrize(
    ("column", "kind", "reason"),
    [
        ("timestamp(0)", pa.timestamp("us"), r"timestamp\(0\) without time zone, which rounds"),
        ("timestamptz(3)", pa.timestamp("us", tz="UTC"), r"timestamp\(3\) with time zone, which rounds"),
        ("time(2)", pa.time64("us"), r"time\(2\) without time zone, which rounds"),
        ("numeric(10,2)", pa.decimal128(10, 4), r"numeric\(10,2\), which does not hold decimal128"),
        ("numeric(10,-2)", pa.int64(), r"numeric\(10,-2\), which does not hold int64"),
        ("name", pa.string(), "name, which cuts string"),
    ],
)
def test_keys_that_the_server_would_change_are_refused(
    bench: Bench, column: str, kind: pa.DataType, reason: str
) -> None:
    create_target(bench, f"k {column} PRIMARY KEY, v text")
    with pytest.raises(SchemaError, match=f"column 'k' of {bench.schema}.target is {reason}") as caught:
        bench.sink(key=("k",)).prepare(pa.schema([("k", kind), ("v", pa.string())]), 1)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("column", "estimate"),
    [
        pytest.param("varchar(3)", 0, id="varchar(3)-driver"),
        pytest.param("char(3)", STAGED, id="char(3)-staged"),
        pytest.param("varchar(3)", STAGED, id="varchar(3)-staged", marks=pytest.mark.slow),
        pytest.param("char(3)", 0, id="char(3)-driver", marks=pytest.mark.slow),
    ],
)
def test_keys_are_not_cut_at_their_blanks(bench: Bench, column: str, estimate: int) -> None:
    """The server would store 'abc', and a delete of 'abc ' would not match it."""
    create_target(bench, f"k {column} PRIMARY KEY, v text")
    schema = pa.schema([("k", pa.string()), ("v", pa.string())])
    sink = bench.joined(schema, key=("k",))
    sink.write(plan(1), bench.frame([("i", "abc", "x")], schema=schema, key=("k",), estimate=estimate))
    with pytest.raises(DataError, match="key column 'k' holds 'abc ', which is longer than the 3 characters"):
        sink.write(plan(2), bench.frame([("i", "abc ", "x")], schema=schema, key=("k",), estimate=estimate))
    assert bench.rows() == [("abc", "x")]


@pytest.mark.parametrize(
    ("node", "key", "message"),
    [
        (
            {"update_where": {"nope": ">"}},
            ("id",),
            "update_where validation failed for sink 'out': no column 'nope'",
        ),
        ({"update_where": {"v": ">"}}, (), "no primary_key"),
        ({"update_where": {"v": ">"}, "on_conflict": "nothing"}, ("id",), "on_conflict is nothing"),
        ({}, ("nope",), "primary_key names 'nope'"),
    ],
)
def test_files_that_make_no_sense_are_refused(
    bench: Bench, node: dict[str, Any], key: tuple[str, ...], message: str
) -> None:
    with pytest.raises(SchemaError, match=message):
        bench.sink(key=key, **node).prepare(pa.schema([("id", pa.int64()), ("v", pa.string())]), 1)


@PATHS
def test_the_character_nul_is_named(bench: Bench, estimate: int) -> None:
    sink = bench.joined()
    with pytest.raises(DataError, match=r"column 'v' holds 'a\\x00b'"):
        sink.write(plan(1), bench.frame([("i", 1, "fine"), ("i", 2, "a\x00b")], estimate=estimate))
    assert bench.rows() == []


@PATHS
def test_a_null_in_the_key_is_named(bench: Bench, estimate: int) -> None:
    sink = bench.joined()
    with pytest.raises(DataError, match=r"key column 'id' is null in a row \(id=None, v='x'"):
        sink.write(plan(1), bench.frame([("i", 1, "fine"), ("i", None, "x")], estimate=estimate))
    assert bench.rows() == []


@PATHS
@pytest.mark.parametrize(
    ("column", "value", "message"),
    [("v smallint", 40_000, "smallint out of range"), ("v int CHECK (v < 5)", 7, "check constraint")],
)
def test_values_that_do_not_fit_are_data_errors(
    bench: Bench, column: str, value: int, message: str, estimate: int
) -> None:
    create_target(bench, f"id bigint PRIMARY KEY, {column}")
    schema = pa.schema([("id", pa.int64()), ("v", pa.int64())])
    sink = bench.joined(schema)
    with pytest.raises(DataError, match=message):
        sink.write(plan(1), bench.frame([("i", 1, value)], schema=schema, estimate=estimate))
    assert bench.rows() == []


def test_a_text_too_long_is_not_cut(bench: Bench) -> None:
    create_target(bench, "id bigint PRIMARY KEY, v varchar(3)")
    with pytest.raises(DataError, match="too long"):
        bench.joined().write(plan(1), bench.frame([("i", 1, "abcd")]))


def test_missing_rights_are_named(bench: Bench) -> None:
    create_target(bench, "id bigint PRIMARY KEY, v text")
    bench.joined()
    role = f"r{bench.schema}"
    bench.run(
        f"CREATE ROLE {role} LOGIN PASSWORD 'secret'; GRANT USAGE ON SCHEMA {bench.schema}, headrace TO"
        f" {role}"
    )
    bench.run(
        f"GRANT ALL ON ALL TABLES IN SCHEMA headrace TO {role}; GRANT SELECT, INSERT ON {{t}} TO {role}"
    )
    lesser = Bench(
        bench.parameters | {"user": role, "password": "secret"}, bench.spark, bench.schema, bench.pipeline
    ).sink()
    try:
        with pytest.raises(TargetError, match=f"role {role} lacks UPDATE, DELETE"):
            lesser.prepare(pa.schema([("id", pa.int64()), ("v", pa.string())]), 2)
    finally:
        lesser.close()
        bench.run(f"DROP OWNED BY {role}; DROP ROLE {role}")
