"""Values in scripts: none changes silently, and a value that does not fit its column is refused."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from helpers.script_nodes import bare, hidden, run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.jobs.transforms.script.encode import encode_columns
from headrace.pipeline.errors import DataError, SchemaError
from headrace.pipeline.types.int256 import INT256, UINT256

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
WHOLE = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.sampled_from([2**53 - 1, 2**53, 2**53 + 1, -(2**53) - 1, 0, -1])
)
COLUMNS: dict[str, tuple[pa.DataType, Any]] = {
    "i64": (pa.int64(), WHOLE),
    "i8": (pa.int8(), st.integers(-128, 127)),
    "f64": (pa.float64(), st.floats()),
    "f32": (pa.float32(), st.floats(width=32)),
    "text": (pa.string(), TEXT),
    "bool": (pa.bool_(), st.booleans()),
    "bytes": (pa.binary(), st.binary(max_size=12)),
    "day": (pa.date32(), st.dates()),
    "at": (pa.timestamp("us", tz="UTC"), st.datetimes(timezones=st.just(UTC))),
    "local": (pa.timestamp("us"), st.datetimes()),
    "dec": (pa.decimal128(38, 9), st.decimals(min_value=-(10**28), max_value=10**28, places=9)),
    "list": (pa.list_(pa.int64()), st.lists(st.none() | WHOLE, max_size=3)),
    "map": (
        pa.map_(pa.string(), pa.float64()),
        st.dictionaries(TEXT, st.none() | st.floats(), max_size=3).map(lambda result: list(result.items())),
    ),
    "struct": (
        pa.struct(
            [
                ("a", pa.int64()),
                ("b", pa.list_(pa.string())),
                ("c", pa.decimal128(10, 2)),
                ("__proto__", pa.binary()),
            ]
        ),
        st.fixed_dictionaries(
            {
                "a": st.none() | WHOLE,
                "b": st.none() | st.lists(st.none() | TEXT, max_size=2),
                "c": st.none() | st.decimals(min_value=-999, max_value=999, places=2),
                "__proto__": st.none() | st.binary(max_size=3),
            }
        ),
    ),
}
ROW = st.fixed_dictionaries({name: st.none() | strategy for name, (_, strategy) in COLUMNS.items()})
SCHEMA = pa.schema({name: kind for name, (kind, _) in COLUMNS.items()})
# The second one makes new objects of everything, so that no value goes back as the one that came.
IDENTITY = "function process(r) { return r }"
REBUILT = """
const again = (v) => Array.isArray(v) ? v.map(again) : v === null || typeof v !== 'object' ? typeof v === 'string' ? (v + ' ').slice(0, -1) : v
  : Object.fromEntries(Object.entries(v).map(([k, one]) => [k, again(one)]));
const process = (r) => Object.fromEntries(Object.entries(r).map(([k, v]) => [k, again(v)]));
"""


def plain(value: Any) -> Any:
    """A value that equals itself. The entries of a map have no order: JavaScript has its own."""
    return repr([sorted(cell, key=repr) if _is_map(cell) else cell for cell in value])


def _is_map(cell: Any) -> bool:
    return isinstance(cell, list) and bool(cell) and isinstance(cell[0], tuple)


@pytest.mark.parametrize("source", [IDENTITY, REBUILT], ids=["as they came", "made anew"])
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(ROW, min_size=1, max_size=5))
def test_every_value_comes_back_as_it_went(source: str, given_rows: list[dict[str, Any]]) -> None:
    table = pa.Table.from_pylist(given_rows, SCHEMA)
    result = run(source, table, timeout="5s")
    for name in SCHEMA.names:
        assert plain(result.column(name).to_pylist()) == plain(table.column(name).to_pylist()), name


@settings(max_examples=25, deadline=None)
@given(st.lists(ROW, min_size=3, max_size=6), st.integers(0, 2), st.integers(1, 3))
def test_slices_of_columns_are_written_like_whole_ones(
    given_rows: list[dict[str, Any]], start: int, count: int
) -> None:
    table = hidden(pa.Table.from_pylist(given_rows, SCHEMA))
    part = table.slice(start, count).combine_chunks().to_batches()[0]
    fresh = pa.RecordBatch.from_pylist(part.to_pylist(), part.schema)
    names = [*SCHEMA.names, "_gs_op"]
    assert encode_columns([part.column(name) for name in names]) == encode_columns(
        [fresh.column(name) for name in names]
    )


def typed(source: str, kind: str) -> Any:
    """What a column of a type makes of a JavaScript expression."""
    (row,) = bare(f"function process(r) {{ return {{v: {source}}} }}", [{"id": 1}], {"v": kind})
    return row["v"]


@pytest.mark.parametrize(
    ("source", "kind", "value"),
    [
        ("1", "int64", 1),
        ("9007199254740993n", "int64", 2**53 + 1),
        ("'9007199254740993'", "int64", 2**53 + 1),
        ("-(2n ** 63n)", "int64", -(2**63)),
        ("2n ** 64n - 1n", "uint64", Decimal(2**64 - 1)),
        ("7", "uint64", Decimal(7)),
        ("255", "uint8", 255),
        ("2n ** 256n - 1n", "u256", str(2**256 - 1)),
        ("-5", "i256", "-5"),
        ("'007'", "u256", "7"),
        ("1.5", "decimal(10,2)", Decimal("1.50")),
        ("'1.50'", "decimal(10,2)", Decimal("1.50")),
        ("1.500", "decimal(10,1)", Decimal("1.5")),
        ("1e3", "decimal(10,2)", Decimal(1000)),
        ("1e-7", "decimal(10,7)", Decimal("0.0000001")),
        ("'-0'", "decimal(10,2)", Decimal(0)),
        ("12345678901234567890n", "decimal(20,0)", Decimal(12345678901234567890)),
        ("'" + "9" * 57 + ".125'", "decimal256(60,3)", "9" * 57 + ".125"),
        ("1.5", "float64", 1.5),
        ("1n", "float64", 1.0),
        ("'Infinity'", "float64", math.inf),
        ("true", "boolean", True),
        ("'2013-01-31'", "date32", date(2013, 1, 31)),
        ("new Date(Date.UTC(2013, 0, 31))", "date32", date(2013, 1, 31)),
        ("'2013-01-31T01:02:03.123456Z'", "timestamp", datetime(2013, 1, 31, 1, 2, 3, 123456, UTC)),
        ("'2013-01-31 01:02'", "timestamp", datetime(2013, 1, 31, 1, 2, tzinfo=UTC)),
        ("'2013-01-31T01:02:03+01:00'", "timestamp", datetime(2013, 1, 31, 0, 2, 3, tzinfo=UTC)),
        ("'2013-01-31'", "timestamp", datetime(2013, 1, 31, tzinfo=UTC)),
        ("new Date(1)", "timestamp", datetime(1970, 1, 1, 0, 0, 0, 1000, UTC)),
        ("'00ff'", "binary", b"\x00\xff"),
        ("'0xFF'", "binary", b"\xff"),
        ("new Uint8Array([1, 2])", "binary", b"\x01\x02"),
        ("'01:02:03'", "time64", "01:02:03"),
        ("5", "string", "5"),
        ("false", "string", "false"),
        ("2n ** 70n", "string", str(2**70)),
        ("[1, {a: 2n}]", "string", '[1,{"a":"2"}]'),
        ("'\\u0000\\ud83d\\ude00\"\\\\'", "string", '\x00\U0001f600"\\'),
        ("undefined", "int64", None),
    ],
)
def test_what_a_type_takes(source: str, kind: str, value: Any) -> None:
    assert repr(typed(source, kind)) == repr(value) or typed(source, kind) == value


def test_not_a_number_is_one() -> None:
    assert math.isnan(typed("NaN", "float64"))
    assert math.copysign(1, typed("-0", "float64")) == -1


@pytest.mark.parametrize(
    ("source", "kind", "message"),
    [
        ("1.5", "int64", "cannot hold 1.5"),
        ("2 ** 53", "int64", "beyond 2^53"),
        ("2n ** 63n", "int64", "out of range"),
        ("256", "uint8", "cannot hold 256"),
        ("-1", "uint64", "cannot hold -1"),
        ("NaN", "int32", "cannot hold NaN"),
        ("'12x'", "int64", "a text of 3 characters"),
        ("true", "int64", "cannot hold true"),
        ("2n ** 256n", "u256", "out of range"),
        ("-1n", "u256", "out of range"),
        ("0.001", "decimal(10,2)", "too many digits"),
        ("123456789", "decimal(10,2)", "too many digits"),
        ("Infinity", "decimal(10,2)", "cannot hold Infinity"),
        ("'.'", "decimal(10,2)", "cannot hold"),
        ("'1.5'", "float64", "cannot hold"),
        ("1", "boolean", "cannot hold 1"),
        ("'2013-02-31'", "date32", "2013-02-31"),
        ("'2013'", "date32", "such as 2013-01-31"),
        ("'12:30'", "timestamp", "such as 2013-01-31T05:00:00Z"),
        ("new Date(NaN)", "timestamp", "RangeError"),
        ("'abc'", "binary", "hexadecimal"),
        ("'\\ud800'", "string", "half of a surrogate pair"),
        ("Symbol('x')", "string", "a symbol"),
        ("() => 1", "string", "a function"),
    ],
)
def test_what_a_type_refuses(source: str, kind: str, message: str) -> None:
    with pytest.raises(DataError) as caught:
        typed(source, kind)
    assert message in caught.value.message
    assert "`v`" in caught.value.message or "RangeError" in message


def test_whole_numbers_are_numbers_and_become_bigint_where_a_number_would_round() -> None:
    given_rows = [{"id": 2**53 - 1, "t": ""}, {"id": 2**53 + 1, "t": ""}, {"id": None, "t": ""}]
    result = bare("function process(r) { return {id: r.id, t: typeof r.id} }", given_rows)
    assert [(row["id"], row["t"]) for row in result] == [
        (2**53 - 1, "number"),
        (2**53 + 1, "bigint"),
        (None, "object"),
    ]
    with pytest.raises(DataError, match=r"TypeError: cannot (convert|mix) BigInt"):
        bare("function process(r) { return {id: r.id + 1} }", given_rows[1:])


def test_exact_numbers_and_times_arrive_as_text() -> None:
    table = pa.table(
        {
            "d": pa.array([Decimal("1.10")], pa.decimal128(10, 2)),
            "t": pa.array([datetime(2013, 1, 1, tzinfo=UTC)], pa.timestamp("us", tz="UTC")),
            "n": pa.array([datetime(2013, 1, 1)], pa.timestamp("us")),
            "b": pa.array([b"\x00\xff"]),
            "day": pa.array([date(2013, 1, 1)]),
        }
    )
    (row,) = run("function process(r) { return {v: JSON.stringify(r)} }", table, {"v": "string"}).to_pylist()
    assert row["v"] == (
        '{"d":"1.10","t":"2013-01-01T00:00:00.000000Z","n":"2013-01-01T00:00:00.000000","b":"00ff","day":"2013-01-01","_gs_op":"i"}'
    )


def test_wide_integers_are_digits_and_are_counted_with_as_bigint() -> None:
    schema = pa.schema({"u": UINT256, "i": INT256})
    table = pa.table(
        [pa.ExtensionArray.from_storage(kind, pa.array(["5", None])) for kind in (UINT256, INT256)],
        schema=schema,
    )
    result = run("function process(r) { return r.u ? {u: BigInt(r.u) ** 100n, i: -BigInt(r.i)} : r }", table)
    assert result.column("u").to_pylist() == [str(5**100), None]
    assert result.column("i").to_pylist() == ["-5", None]


def test_types_that_have_no_way_in_or_out_are_refused_before_any_row() -> None:
    with pytest.raises(SchemaError, match="`v` has the type duration"):
        run(IDENTITY, pa.table({"v": pa.array([None], pa.duration("us"))}))
    with pytest.raises(SchemaError, match="JSON messages cannot carry interval"):
        typed("1", "interval")
