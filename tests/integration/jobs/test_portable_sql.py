"""Transforms in ClickHouse and over Arrow.

What they answer is what Spark answers, value for value and type for type.
"""

from __future__ import annotations

import math
import pickle
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from pyspark.errors import ArithmeticException

from headrace.connectors.clickhouse.config import ClickHouseSourceConfig
from headrace.connectors.clickhouse.source import ClickHouseTable
from headrace.connectors.filter_marks import mark_filtered_rows
from headrace.connectors.spark_types import POS_ARROW
from headrace.jobs.planning.arrow_functions import UnprovenValuesError
from headrace.jobs.planning.arrow_sql import ArrowSelect
from headrace.jobs.planning.clickhouse_sql import translate
from headrace.jobs.planning.portable_sql import parse_portable
from headrace.jobs.planning.stream_filters import StreamFilter
from headrace.pipeline.config.sections import ClickHouseConnection
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import DataError
from headrace.pipeline.model.capabilities import SourceCapabilities
from headrace.pipeline.sql.filter_marking import Marking
from headrace.pipeline.sql.statements import compile_statement
from headrace.pipeline.sql.system_columns import HIDDEN, OP, POS

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

NUMBERS = ["nan", "inf", "-inf", "0", "-0.", "1.5", "-2.25", "0.1", "1e300", "5e-324", "NULL"]
COLUMNS = {
    "t": ("Int8", ["-128", "0", "127"]),
    "i": ("Nullable(Int32)", ["-2147483648", "0", "7", "2147483647", "NULL"]),
    "j": ("Int64", ["-9223372036854775808", "-1", "3", "9007199254740993", "9223372036854775807"]),
    "u": ("UInt64", ["0", "18446744073709551615", "3"]),
    "f": ("Nullable(Float32)", ["nan", "inf", "0.1", "-0.", "3", "NULL"]),
    "v": ("Nullable(Float64)", NUMBERS),
    "w": ("Nullable(Float64)", NUMBERS[::-1]),
    "k": ("Decimal(4, 2)", ["0.01", "-99.99", "12.50", "3", "0.05"]),
    "m": ("Nullable(Decimal(12, 2))", ["0.01", "-9999999999.99", "1.5", "NULL"]),
    "b": ("Nullable(Bool)", ["true", "false", "NULL"]),
    "s": ("Nullable(String)", ["''", "'é'", "'a%b'", "'😀x'", "'It''s'", "'a\n%'", "NULL", "'a'"]),
    "r": ("LowCardinality(String)", ["'a'", "'B'", "''"]),
    "d": ("Nullable(Date)", ["'1970-01-01'", "'2013-05-06'", "'2149-06-06'", "NULL"]),
    "e": ("Date32", ["'1900-01-01'", "'2013-05-06'", "'2299-12-31'"]),
    "at": (
        "Nullable(DateTime64(6, 'UTC'))",
        ["'1900-01-01 00:00:00.000001'", "'2013-05-06 07:08:09.5'", "'2013-05-06 00:00:00'", "NULL"],
    ),
    "zoned": ("DateTime('Asia/Tokyo')", ["'1970-01-02 00:00:00'", "'2013-05-06 16:08:09'"]),
    "list": ("Array(Int8)", ["[]", "[1, 2]"]),
}
ROWS = 60


@dataclass
class _Rows:
    """The rows of `s`: in a snapshot of ClickHouse, as Arrow, and as a view of a Spark session."""

    source: ClickHouseTable
    snapshot: Any
    splits: Sequence[Any]
    schema: pa.Schema
    whole: pa.Table
    session: Any


@pytest.fixture(scope="module")
def rows(services: Any, spark: Any) -> Iterator[_Rows]:
    import clickhouse_connect

    client = clickhouse_connect.get_client(
        **services.clickhouse.client_arguments(autogenerate_session_id=False)
    )
    client.command("CREATE DATABASE test_direct")
    client.command(
        "CREATE TABLE test_direct.t (n Int32,"
        f" {', '.join(f'{name} {kind}' for name, (kind, _) in COLUMNS.items())}) ENGINE = MergeTree ORDER"
        " BY n"
    )
    values_of_rows = [
        f"({n}, {', '.join(values[(n * (place + 1) + n // len(values)) % len(values)] for place, (_, values) in enumerate(COLUMNS.values()))})"
        for n in range(ROWS)
    ]
    client.command(f"INSERT INTO test_direct.t VALUES {', '.join(values_of_rows)}")
    connection = ClickHouseConnection(
        url=services.clickhouse.url, user=services.clickhouse.username, password=services.clickhouse.password
    )
    source = ClickHouseTable(
        ClickHouseSourceConfig(table_name="test_direct.t", split_rows=25),
        Settings(clickhouse_source=connection),
    )
    snapshot = source.create_snapshot(spark, "direct")
    splits = source.splits(spark, snapshot, None, None)
    schema = source.schema(spark)
    session = spark.newSession()
    whole = pa.Table.from_batches(
        [
            batch
            for split in splits
            for batch in source.create_split_reader(snapshot, splits, None).fetch(split)
        ]
    )
    session.createDataFrame(whole).createOrReplaceTempView("s")
    yield _Rows(source, snapshot, splits, schema, whole, session)
    source.release_snapshot(snapshot)
    source.close()
    client.command("DROP DATABASE test_direct SYNC")
    client.close()


@pytest.fixture(scope="module")
def engines(rows: _Rows) -> Any:
    """`ask(sql)` answers with the rows of a transform over `s`, from Spark, from ClickHouse and over Arrow."""
    source, snapshot, splits = rows.source, rows.snapshot, rows.splits
    schema, whole, session = rows.schema, rows.whole, rows.session

    def ask(sql: str, then: str = "") -> tuple[pa.Table, pa.Table, pa.Table]:
        query = translate(sql, "s", schema)
        assert query is not None, f"left out: {sql}"
        expected = session.sql(sql).toArrow()
        transforms = [arrow_transform(sql, "s", schema)]
        if then:
            transforms.append(arrow_transform(then, "first", expected.schema))
            session.createDataFrame(expected).createOrReplaceTempView("first")
            query = translate(then, "first", expected.schema, f"({query})")
            assert query is not None, f"left out: {then}"
            expected = session.sql(then).toArrow()
        fetch = source.create_split_reader(snapshot, splits, query)
        batches = [batch for split in splits for batch in fetch.fetch(split)]
        arrow = [whole.combine_chunks().to_batches()[0]]
        for transform in transforms:
            arrow = [transform.compute(batch) for batch in arrow]
        clickhouse = pa.Table.from_batches(batches) if batches else expected.slice(0, 0)
        return expected, clickhouse, pa.Table.from_batches(arrow)

    return ask


def arrow_transform(sql: str, source: str, schema: pa.Schema, **options: Any) -> ArrowSelect:
    select = parse_portable(sql, source, schema, **options)
    assert select is not None, f"left out: {sql}"
    transform = pickle.loads(pickle.dumps(ArrowSelect("t", select, schema)))
    assert transform.read_schema().names == [name for name, _ in select.outputs]
    return transform


def exact(value: Any) -> Any:
    """Something to compare by: NaN is itself, and zero has a sign."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value.hex()
    return value


def agree(engines: Any, sql: str, then: str = "") -> None:
    """Names, types and values are the same; says by column what is not."""
    from pyspark.sql.pandas.types import from_arrow_schema

    spark, *others = engines(sql, then)
    for table in others:
        assert table.schema.names == spark.schema.names
        ours, theirs = (
            [field.dataType for field in cast("StructType", from_arrow_schema(one.schema))]
            for one in (table, spark)
        )
        assert ours == theirs, sql
        assert table.num_rows == spark.num_rows, sql
        assert differences(table, spark) == {}, sql


def differences(table: pa.Table, spark: pa.Table) -> dict[str, list[Any]]:
    """Return up to three differing values by column, with their place."""
    different = {}
    for name in spark.schema.names:
        pairs = zip(table.column(name).to_pylist(), spark.column(name).to_pylist(), strict=True)
        if result := [
            (place, mine, other) for place, (mine, other) in enumerate(pairs) if exact(mine) != exact(other)
        ]:
            different[name] = result[:3]
    return different


def _quoted(text: str) -> str:
    return f"'{text}'"


def _joined(template: str, *parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.tuples(*parts).map(lambda result: template.format(*result))


COMPARE = st.sampled_from(["=", "<>", "!=", "<", "<=", ">", ">="])
INTEGER = st.sampled_from(["0", "3", "-1", "127", "2147483647", "-2147483648", "9223372036854775807", "300"])
DECIMAL = st.sampled_from(["0.1", "1.5", "-2.25", "100", "0", "3", "1e3", "16777217"])
WHOLE = st.sampled_from(
    ["t", "i", "j", "cast(t as bigint)", "cast(i as bigint)", "n", "length(s)", "j % 7", "t % 1000", "i % 3"]
)
TEXT = st.sampled_from(["", "a", "é", "😀x", "a%b", "B", "{p0:String}", "x"]).map(
    lambda text: _quoted(text) if "'" not in text else "'x'"
)
STRING = st.one_of(
    st.sampled_from(["s", "r", "cast(i as string)", "cast(d as string)", "trim(s)", "nullif(s, 'a')"]),
    st.sampled_from(["trim('  ' || r || ' ')", "nullif(r, s)"]),
    _joined("concat({}, {})", st.sampled_from(["s", "r"]), TEXT),
    _joined("{} || {} || r", TEXT, st.sampled_from(["s", "r"])),
)
DAY = st.sampled_from(["date'2013-05-06'", "'1970-01-01'", "cast('2149-06-06' as date)", "date '1999-12-31'"])
MOMENT = st.sampled_from(
    [
        "timestamp'2013-05-06 07:08:09.5'",
        "'2013-05-06 00:00:00'",
        "'2013-05-06'",
        "cast('1970-01-01' as timestamp)",
    ]
)
DOUBLE = st.recursive(
    st.sampled_from(["v", "w", "cast(f as double)", "cast(j as double)", "cast(0.1 as double)"]),
    lambda deeper: st.one_of(
        _joined(
            "({} + {})", st.sampled_from(["v", "w"]), deeper | DECIMAL | st.sampled_from(["i", "j", "f"])
        ),
        _joined("({} - {})", deeper, st.sampled_from(["v", "w"])),
        _joined("({} * {})", st.sampled_from(["v", "w"]), deeper | DECIMAL),
        _joined("({} / {})", deeper, st.sampled_from(["3", "0.1", "-4", "1e10"])),
        _joined("(- {})", deeper),
        _joined("coalesce({}, {})", deeper, deeper | DECIMAL),
    ),
    max_leaves=4,
)
ATOM = st.one_of(
    _joined("{} {} {}", DOUBLE, COMPARE, DOUBLE | DECIMAL),
    _joined("{} {} {}", DECIMAL, COMPARE, st.sampled_from(["v", "w"])),
    _joined("f {} {}", COMPARE, st.sampled_from(["0.1", "3", "1.5", "v", "f", "-100"])),
    _joined("{} {} {}", WHOLE, COMPARE, WHOLE | INTEGER),
    _joined("v {} {}", COMPARE, st.sampled_from(["i", "j", "t"])),
    _joined("m {} {}", COMPARE, st.sampled_from(["1.5", "0.01", "-3", "9999999999", "m"])),
    _joined("{} {} {}", STRING, COMPARE, STRING | TEXT),
    _joined("d {} {}", COMPARE, DAY | st.just("e")),
    _joined("e {} {}", COMPARE, DAY),
    _joined("{} {} {}", st.sampled_from(["at", "zoned"]), COMPARE, MOMENT | st.just("zoned")),
    _joined("{} {} {}", st.just("b"), st.sampled_from(["=", "<>"]), st.sampled_from(["true", "false", "b"])),
    _joined(
        "{} {}",
        st.sampled_from([*COLUMNS, "n"]).filter(lambda name: name != "list"),
        st.sampled_from(["is null", "is not null"]),
    ),
    _joined("{} {} ({}, {})", WHOLE, st.sampled_from(["in", "not in"]), INTEGER, INTEGER),
    _joined("v {} ({}, w)", st.sampled_from(["in", "not in"]), DECIMAL),
    _joined("s {} ({}, {}, r)", st.sampled_from(["in", "not in"]), TEXT, TEXT),
    _joined("{} {} {} and {}", DOUBLE, st.sampled_from(["between", "not between"]), DECIMAL, DECIMAL),
    _joined("d between {} and {}", DAY, DAY),
    _joined(
        "s {} {}",
        st.sampled_from(["like", "not like"]),
        st.sampled_from(["'a%'", "'%x'", "'%b%'", "'a'", "'%'", "''", "'é%'"]),
    ),
    st.just("b"),
)
CONDITION = st.recursive(
    ATOM,
    lambda deeper: st.one_of(
        _joined("({} and {})", deeper, deeper),
        _joined("({} or {})", deeper, deeper),
        _joined("(not {})", deeper.map(lambda one: f"({one})")),
    ),
    max_leaves=4,
)
RESULT = st.one_of(
    DOUBLE,
    CONDITION,
    STRING,
    WHOLE,
    TEXT,
    INTEGER,
    st.sampled_from(
        [
            "u",
            "m",
            "f",
            "d",
            "e",
            "at",
            "zoned",
            "list",
            "b",
            "true",
            "cast(null as bigint)",
            "timestamp'2013-05-06 07:08:09.123456'",
        ]
    ),
    _joined("case when {} then {} when {} then {} end", CONDITION, WHOLE | INTEGER, CONDITION, WHOLE),
    _joined("case {} when {} then {} else {} end", st.just("i"), INTEGER, STRING | TEXT, STRING),
    _joined("if({}, {}, {})", CONDITION, DOUBLE, st.sampled_from(["null", "0", "v"])),
    _joined("if({}, {}, null)", CONDITION, st.sampled_from(["d", "e", "at", "m", "u", "b", "s"])),
    _joined("coalesce({}, {})", WHOLE, WHOLE | INTEGER),
    _joined("coalesce({}, {}, {})", st.just("s"), STRING, TEXT),
    st.sampled_from(["coalesce(d, e)", "nvl(at, zoned)", "ifnull(b, false)"]),
)


@settings(
    max_examples=12,
    deadline=None,
    phases=[
        Phase.explicit,
        Phase.reuse,
        Phase.generate,
    ],  # the assertion names the column; shrinking would take minutes
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(results=st.lists(RESULT, min_size=8, max_size=20), condition=st.none() | CONDITION)
def test_all_engines_agree(engines: Any, results: list[str], condition: str | None) -> None:
    listed = ", ".join(f"{result} as c{place}" for place, result in enumerate(results))
    agree(engines, f"select n, {listed} from s" + (f" where {condition}" if condition else ""))


MONEY = st.recursive(
    st.sampled_from(["m", "k", "cast(i as decimal(14, 3))", "-k", "coalesce(m, 0)", "abs(k)", "round(m, 1)"]),
    lambda deeper: st.one_of(
        _joined(
            "({} {} {})",
            deeper,
            st.sampled_from(["+", "-", "*"]),
            st.sampled_from(["k", "1.21", "0.05", "-3", "100", "t", "i"]),
        ),
        _joined("({} - {})", st.sampled_from(["i", "1.5", "0"]), deeper),
        _joined("coalesce({}, {}, 0.5)", deeper, st.sampled_from(["m", "t", "7"])),
        _joined("if({} > k, {}, 0)", deeper, deeper),
    ),
    max_leaves=2,
)
"""Decimals of few digits: types of more than 38 digits are left out."""
GUARDED = st.one_of(
    MONEY,
    _joined("{} {} {}", MONEY, COMPARE, st.sampled_from(["k", "m", "i", "j", "0.001", "12", "-2.5"])),
    _joined("{} between {} and {}", MONEY, DECIMAL.filter(lambda one: "e" not in one), st.just("k")),
    _joined("case when {} then {} else {} end", CONDITION, MONEY, st.sampled_from(["0", "k", "null", "t"])),
    st.sampled_from(["upper(r)", "lower(concat(r, 'X'))", "upper(trim(r))", "upper(cast(d as string))"]),
    _joined(
        "date_trunc('{}', {})",
        st.sampled_from(["second", "minute", "hour", "day", "week", "month", "quarter", "year"]),
        st.sampled_from(["at", "zoned"]),
    ),
    _joined(
        "trunc({}, '{}')", st.sampled_from(["d", "e"]), st.sampled_from(["week", "month", "quarter", "year"])
    ),
    _joined(
        "{}({})",
        st.sampled_from(["year", "quarter", "month", "day", "dayofmonth", "dayofweek"]),
        st.sampled_from(["d", "e", "at", "zoned"]),
    ),
    _joined("{}({})", st.sampled_from(["hour", "minute", "second"]), st.sampled_from(["at", "zoned"])),
    st.sampled_from(
        ["datediff(d, e)", "datediff(at, d)", "to_date(at)", "date(zoned)", "to_date(cast(d as string))"]
    ),
    _joined(
        "timestamp_{}({})", st.sampled_from(["seconds", "millis", "micros"]), st.sampled_from(["i", "t", "n"])
    ),
    st.sampled_from(
        ["cast(at as date)", "cast(zoned as date)", "cast(cast(n as string) as int)", "cast(i as timestamp)"]
    ),
    st.sampled_from(["cast(cast(t as string) as smallint)", "cast(cast(n as string) || '.25' as double)"]),
    st.sampled_from(
        ["cast(cast(n as string) || '.25' as decimal(9, 3))", "cast(b as string)", "cast(n as tinyint)"]
    ),
    st.sampled_from(
        ["cast(n / 4.0e0 + 0.1e0 as int)", "cast(cast(d as string) || ' 01:02:03.5' as timestamp)"]
    ),
    st.sampled_from(["cast(m as decimal(20, 5))", "cast(m as decimal(12, 1))", "cast(k as decimal(3, 0))"]),
    st.sampled_from(
        ["cast(m as double)", "cast(k as double)", "cast(1.5 as decimal(4, 2))", "cast(j as decimal(20))"]
    ),
    st.sampled_from(
        ["cast(i / 100 as decimal(12, 2))", "cast(n / 3 as decimal(9, 4))", "cast(t / 7 as decimal(4, 1))"]
    ),
    st.sampled_from(
        ["round(n / 3, 2)", "round(t / 7)", "round(m, 1)", "round(k)", "round(i)", "round(k, 4)"]
    ),
    st.sampled_from(["floor(n / 7)", "ceil(t / 3)", "abs(t + n)", "abs(v)", "abs(m)", "-n", "- (t * 1)"]),
    st.sampled_from(
        ["greatest(t, n)", "least(i, j, 3)", "greatest(s, r)", "least(d, e)", "greatest(m, k, 0)"]
    ),
    st.sampled_from(["least(at, zoned)", "greatest(s, 'b')", "least(i, null)"]),
    _joined(
        "substring({}, {}, {})", st.sampled_from(["s", "r"]), st.sampled_from("123"), st.sampled_from("0125")
    ),
    st.sampled_from(
        ["substr(s, 2)", "left(s, 2)", "left(r, 0)", "replace(s, 'a', 'é')", "replace(s, '%', '')"]
    ),
    st.sampled_from(
        ["replace(s, 'a')", "ltrim('  ' || s || ' ')", "rtrim('  ' || s || ' ')", "concat_ws('-', s, r)"]
    ),
    st.sampled_from(
        ["concat_ws('', s, 'x', s)", "concat_ws(', ', s)", "nvl2(i, n, 0)", "nvl2(s, r, 'none')"]
    ),
    _joined(
        "{}(s, {})",
        st.sampled_from(["startswith", "endswith", "contains"]),
        st.sampled_from(["'a'", "'x'", "''", "'é'"]),
    ),
    st.sampled_from(["v / nullif(w, 0)", "t / (n + 1)", "i / 4"]),
    st.sampled_from(["t + n", "n * n - t", "if(i > 0, n - 1, t)", "cast(n as bigint) * 1000000"]),
)
"""What is portable for rows in the driver. The rest of `RESULT` is portable everywhere."""


@settings(
    max_examples=12,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(
    results=st.lists(RESULT | GUARDED, min_size=2, max_size=6),
    condition=CONDITION,
    not_null=st.none() | st.sampled_from(["n is not null", "s is not null"]),
    marked=st.booleans(),
)
@example(results=["v"], condition="n > 7", not_null=None, marked=True).via("a filter on a plain column")
def test_filters_mark_rows_as_in_spark(
    rows: _Rows, results: list[str], condition: str, not_null: str | None, marked: bool
) -> None:
    """Rows that a filter drops stay, with a mark. `n is not null` tests only the key: it drops them."""
    listed = ", ".join(f"{result} as c{place}" for place, result in enumerate(results))
    sql = f"select n, {listed} from s where {condition}" + (f" and {not_null}" if not_null else "")
    marking = Marking(frozenset({"n"}), marked, frozenset({"n"}), frozenset({"n"}))
    marks = {4: -1, 7: -2} if marked else {}
    parts = {"source": 3, "part": 1}
    positions = [parts | {"off": at, "sub": marks.get(at, at % 2)} for at in range(ROWS)]
    table = rows.whole.append_column(OP, [["iud"[at % 3] for at in range(ROWS)]])
    table = table.append_column(POS, pa.chunked_array([pa.array(positions, POS_ARROW)]))
    rows.session.createDataFrame(table).createOrReplaceTempView("marked_s")
    text = compile_statement(sql, HIDDEN, rename={"s": "marked_s"}, marking=marking)
    expected = rows.session.sql(text).toArrow()
    select = parse_portable(sql, "s", rows.schema, guarded=True, marking=marking)
    assert select is not None, sql
    actual = ArrowSelect("t", select, rows.schema).compute_epoch(table, marks=True)
    assert actual.schema.names == expected.schema.names
    assert differences(actual.select(["n", OP, POS]), expected.select(["n", OP, POS])) == {}
    passed = pa.array((one["sub"] >= 0 for one in expected[POS].to_pylist()), pa.bool_())
    assert differences(actual.filter(passed), expected.filter(passed)) == {}


@settings(
    max_examples=12,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(condition=CONDITION, operation=st.none() | st.just("_gs_op <> 'd'"), marks=st.booleans())
@example(condition="n > 7 -- a comment", operation="_gs_op in ('i', 'u')", marks=True).via("operations")
@example(condition="v > 1 or i < 3", operation=None, marks=False).via("no marks")
def test_filters_of_streams_are_those_of_spark(
    rows: _Rows, condition: str, operation: str | None, marks: bool
) -> None:
    predicate = f"{operation} and ({condition}\n)" if operation else condition
    parts = {"source": 3, "part": 1, "sub": 0}
    positions = [parts | {"off": at} for at in range(ROWS)]
    table = rows.whole.append_column(OP, [["iud"[at % 3] for at in range(ROWS)]])
    table = table.append_column(POS, pa.chunked_array([pa.array(positions, POS_ARROW)]))
    frame = rows.session.createDataFrame(table)
    expected = mark_filtered_rows(frame, predicate) if marks else frame.where(predicate)
    node = SimpleNamespace(
        filter=predicate, capabilities=SourceCapabilities(bounded=False, filters_in_driver=True)
    )
    stream_filter = StreamFilter(node, rows.schema)
    assert stream_filter.is_portable, predicate
    actual = stream_filter.compute(table, marks=marks)
    assert actual is not None, predicate
    assert differences(actual, expected.toArrow()) == {}


@pytest.mark.parametrize(
    ("predicate", "portable"),
    [
        ("i > 1 -- )", True),
        ("i > 1) or (i < 0", False),
        ("initcap(s) = 'A'", False),
        ("_gs_pos.off > 1", False),
        ("missing > 1", False),
        ("i", False),
        (None, False),
    ],
)
def test_which_filters_are_left_to_spark(predicate: str | None, portable: bool) -> None:
    node = SimpleNamespace(
        filter=predicate, capabilities=SourceCapabilities(bounded=False, filters_in_driver=True)
    )
    assert StreamFilter(node, SCHEMA).is_portable is portable


@pytest.mark.parametrize(
    "sql",
    [
        "select * from s",
        "select x.*, v * 2 as twice from s as x where x.v > 0 or x.v is null",
        "select n as i, i as n from s where i > 0",
        "select n, v + 1 as v, v as w from s where v > 1",
        "select `n`, 'text' as `odd name`, 7 as seven, -2147483649 as wide, true as yes from s",
        "select n, s = '' as empty, s = \"a\" as quoted, s = 'It''s' as doubled, 'It''s' as it from s",
    ],
)
def test_whole_statements(engines: Any, sql: str) -> None:
    """Stars, aliases of the source, names that hide columns, and literals."""
    agree(engines, sql)


SCHEMA = pa.schema(
    [
        ("i", pa.int32()), ("j", pa.int64()), ("v", pa.float64()), ("f", pa.float32()), ("s", pa.string()),
        ("d", pa.date32()), ("b", pa.bool_()), ("m", pa.decimal128(12, 2)), ("at", pa.timestamp("us", "UTC")),
        ("bytes", pa.binary()), ("local", pa.timestamp("us")), ("list", pa.list_(pa.int8())),
    ]
)  # fmt: skip


def test_one_transform_over_another(engines: Any) -> None:
    """Names that the first one makes are what the second one reads.

    This also holds where they hide columns of the source.
    """
    first = (
        "select n, v as w, w as v, v + 1 as more, case when b then d end as d, cast(i as string) as i"
        " from s where v is not null"
    )
    agree(
        engines,
        first,
        "select n as key, w > v as above, more * 2 as more, coalesce(i, 'none') as i, d from first where"
        " more > 0 and d is not null",
    )


LEFT_OUT_EXPRESSIONS = [
    "i + 1",
    "i * j",
    "-i",
    "m + m",
    "v / i",
    "v / 0",
    "v % 2",
    "f * 2",
    "i / 2",
    "cast(v as int)",
    "cast(s as int)",
    "cast(j as int)",
    "cast(v as string)",
    "cast(m as double)",
    "cast(i as decimal(10, 2))",
    "cast(b as string)",
    "upper(s)",
    "trim(leading 'a' from s)",
    "ltrim(s)",
    "length(bytes)",
    "j % 0",
    "j % i",
    "nullif(1, i)",
    "v / w",
    "date_trunc('hour', at)",
    "cast(at as date)",
    "substring(s, 1, 2)",
    "now()",
    "uuid()",
    "s like 'a_'",
    "s like '😀%'",
    "-(2147483648)",
    "s rlike 'a'",
    "s like 'a!%' escape '!'",
    "'a\\n'",
    "i <=> j",
    "b is true",
    "1.5",
    "1 = 1",
    "null",
    "i = '5'",
    "i > 1.5",
    "s > 5",
    "m > 0.001",
    "m > j",
    "f > i",
    "f > 16777217",
    "d > at",
    "d = '2013-5-6'",
    "d > date'0001-01-01'",
    "at > timestamp'2013-01-01 00:00:00+02:00'",
    "b > false",
    "i in (1, null)",
    "list = list",
    "list[0]",
    "bytes = bytes",
    "coalesce(i, v)",
    "coalesce(s, 1)",
    "local > timestamp'2013-01-01 00:00:00'",
    "v > 1e999",
]
UNPROVEN = [
    "upper(s)",
    "lower(s)",
    "cast(s as int)",
    "cast(' 1' || cast(n as string) as int)",
    "cast(cast(j as string) as int)",
    "v / w",
    "j + 1",
    "cast(j as int)",
    "cast(m as decimal(4, 2))",
    "cast(m as decimal(10, 2))",
    "cast(v as decimal(38, 2))",
    "cast(v as int)",
    "cast(j / 100 as decimal(20, 2))",
    "cast(replace(cast(e as string), '-31', '-32') as date)",
    "cast(s as date)",
    "cast(s as decimal(10, 2))",
    "round(cast(n as double) + 0.5)",
    "round(v, 2)",
    "floor(v)",
    "-j + 0 * t",
    "abs(t)",
    "timestamp_seconds(j)",
    "case when j < 5 then j * 2 end",
]


@pytest.mark.parametrize("expression", UNPROVEN)
def test_values_that_may_mean_something_else_are_left_to_spark(rows: _Rows, expression: str) -> None:
    table = rows.whole.append_column(OP, pa.repeat("i", ROWS))
    table = table.append_column(POS, pa.nulls(ROWS, POS_ARROW))
    select = parse_portable(f"select {expression} as x from s", "s", rows.schema, guarded=True)
    assert select is not None
    with pytest.raises(UnprovenValuesError):
        ArrowSelect("t", select, rows.schema).compute_epoch(table, marks=False)
    assert ArrowSelect("t", select, rows.schema).compute_epoch(table.slice(0, 0), marks=False).num_rows == 0


def test_doubles_are_rounded_as_they_are_written(spark: Any) -> None:
    """Spark rounds 1.005 up, although the double is below it. Ties are left to it, all else is the same."""
    numbers = random.Random(7)
    values = [cents / 100 for cents in range(-2_000, 2_000)]
    values += [cents / 1000 for cents in range(-2_000, 2_000)]
    values += [math.nextafter(tie / 1000, side) for tie in range(5, 2_000, 10) for side in (-9.0, 9.0)]
    values += [numbers.uniform(-1, 1) * 10 ** numbers.randrange(12) for _ in range(4_000)]
    values = [value for value in values if abs(Decimal(repr(value))) * 100 % 1 != Decimal("0.5")]
    rows = pa.table({"v": [*values, None, -0.0]})
    session = spark.newSession()
    session.createDataFrame(rows).createOrReplaceTempView("s")
    sql = "select cast(v as decimal(20, 2)) as m, round(v, 2) as r, cast(cast(v as decimal(20, 2)) as double) as d from s"
    computed = arrow_transform(sql, "s", rows.schema, guarded=True).compute(rows.to_batches()[0])
    assert differences(pa.Table.from_batches([computed]), session.sql(sql).toArrow()) == {}


LEFT_OUT_STATEMENTS = [
    "select case when b then 1.5 else v end as x from s where false or i",
    "select I from s",
    "select i, v + 1 from s",
    "select i, i from s",
    "select i, j as i from s",
    "select nope from s",
    "select _gs_op from s",
    "select i from other",
    "select i from S",
    "select i from x.s",
    "select distinct i from s",
    "select i from s limit 1",
    "select i from s order by i",
    "select * except (i) from s",
    "select i from s union all select i from s",
    "select a.i from s as a join s as b",
    "select i from (select i from s)",
    "with c as (select i from s) select i from c",
    "select /*+ repartition(3) */ i from s",
    "select i from s tablesample (10 percent)",
    "select i from s as t(x)",
    "select s.i.x from s",
    "select y.i from s",
    "select explode(list) as x from s",
    "select count(*) as x from s",
    "select i from s where i",
    "select i from s where exists (select 1)",
    "selec",
    "",
]


@pytest.mark.parametrize(
    "sql", [*(f"select {one} as x from s" for one in LEFT_OUT_EXPRESSIONS), *LEFT_OUT_STATEMENTS]
)
def test_what_may_differ_is_left_to_spark(sql: str) -> None:
    """Anything that is not known to mean the same takes the path through Spark."""
    assert translate(sql, "s", SCHEMA) is None
    if sql not in CHECKED:
        assert parse_portable(sql, "s", SCHEMA, any_year=True, integers=True) is None


CHECKED = [f"select {one} as x from s" for one in ("i + 1", "i * j", "m + m", "m > 0.001", "m > j")]
"""What Arrow computes for tasks, too."""


@pytest.mark.parametrize(
    "results",
    [
        "i + 1 as a, 2 * j as b, i - j as c, i * i as d, b is null as e, i + j > 3 as f",
        "t + t as a, t - 1 as b, t * i as c, t + 2147483648 as d",
    ],
)
def test_integers_that_fit(spark: Any, results: str) -> None:
    schema = pa.schema([("t", pa.int8()), *SCHEMA.remove(SCHEMA.get_field_index("list"))])
    rows = pa.Table.from_pylist([{"t": 3, "i": -7, "j": 2**40}, {"t": -1, "i": 46_340, "j": -5}, {}], schema)
    session = spark.newSession()
    session.createDataFrame(rows).createOrReplaceTempView("s")
    sql = f"select {results} from s where i > -10 or i is null"
    (batch,) = rows.combine_chunks().to_batches()
    computed = arrow_transform(sql, "s", schema, integers=True).compute(batch)
    expected = session.sql(sql).toArrow()
    assert computed.schema.types == expected.schema.types
    assert pa.Table.from_batches([computed]).to_pylist() == expected.to_pylist()


@pytest.mark.parametrize("expression", ["i + 1", "j * j", "-1 - i - i - i", "i * 2"])
def test_integers_that_overflow_are_an_error_in_both_engines(spark: Any, expression: str) -> None:
    rows = pa.table({"i": pa.array([2**31 - 1], pa.int32()), "j": [2**62]})
    session = spark.newSession()
    session.createDataFrame(rows).createOrReplaceTempView("s")
    sql = f"select {expression} as x from s"
    with pytest.raises(ArithmeticException):
        session.sql(sql).toArrow()
    with pytest.raises(DataError, match="too large for its integer type"):
        arrow_transform(sql, "s", rows.schema, integers=True).compute(rows.to_batches()[0])
    assert (
        arrow_transform(f"{sql} where i < 5", "s", rows.schema, integers=True)
        .compute(rows.to_batches()[0])
        .num_rows
        == 0
    )


@pytest.mark.parametrize(
    "sql",
    [
        "select if(i > 0, i * i, 0) as x from s",
        "select case when b then i + 1 end as x from s",
        "select coalesce(i, j + 1) as x from s",
        "select b and i + 1 > 3 as x from s",
        "select i from s where i * 2 > 3",
        "select cast(d as string) as x from s",
    ],
)
def test_what_spark_may_not_compute_or_writes_in_its_own_way_is_left_to_it(sql: str) -> None:
    assert parse_portable(sql, "s", SCHEMA, any_year=True, integers=True) is None
