"""Declared checks at every sink that has them, over the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from helpers.aggregate_sink import aggregate_sink_maker
from helpers.clickhouse_sink import clickhouse_sink_maker
from helpers.depth import with_slow
from helpers.sink_makers import SinkMaker, frame, plan, sink_maker
from pyspark.sql import SparkSession

from headrace.connectors.sink_base import Sink
from headrace.connectors.target_query import QueryResult, TargetQuery
from headrace.jobs.checks.declared.evaluate import DeclaredChecks
from headrace.jobs.run.events import CheckResult
from headrace.pipeline.file.loader import PipelineFile, parse_pipeline
from headrace.pipeline.model.connectors import sink_entries
from headrace.pipeline.model.sinks import KeyedSinkConfig

KINDS = ("postgres", "postgres_aggregate", "clickhouse", "delta", "iceberg")
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("customer", pa.string()),
        ("cents", pa.int64()),
        ("huge", pa.decimal128(38, 0)),
        ("price", pa.decimal128(20, 4)),
        ("single", pa.float32()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
        ('odd "name', pa.int32()),
    ]
)
no_lakehouse = pytest.mark.parametrize("maker", with_slow({"delta", "iceberg"}, KINDS), indirect=True)
"""For tests of what all sinks share. test_declared_checks_find_violations has the statements that Spark runs."""
one_lakehouse = pytest.mark.parametrize("maker", with_slow({"delta"}, KINDS), indirect=True)
"""For tests of what is the same at both tables that Spark queries."""
NOW = datetime(2025, 3, 2, 12, 0, tzinfo=UTC)


def row(key: int, **values: Any) -> dict[str, Any]:
    return {
        "id": key, "customer": f"c{key}", "cents": 100 * key, "huge": Decimal(10**30 + key),
        "price": Decimal(f"{key}.5000"), "single": 0.1, "day": date(2025, 3, key),
        "at": datetime(2025, 3, 1, key, tzinfo=UTC), "local": datetime(2025, 3, 1, key),
        'odd "name': key,
    } | values  # fmt: skip


ROWS = [
    row(1),
    row(2, customer="c1", cents=None, price=Decimal("-0.0001")),
    row(3, customer=None, day=None, single=float("nan")),
    row(4, customer="c1", cents=-5),
]


@pytest.fixture(params=KINDS)
def maker(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Iterator[SinkMaker]:
    """A target of each type of sink with checks."""
    if request.param == "clickhouse":
        services, database = request.getfixturevalue("services"), request.getfixturevalue("ch_db")
        yield clickhouse_sink_maker(spark, services, database, tmp_path)
    elif request.param == "postgres_aggregate":
        pg = request.getfixturevalue("pg")
        node = {"aggregate": {"rows": {"fn": "count"}}}
        yield replace(aggregate_sink_maker(spark, pg, tmp_path, node), kind=request.param)
    else:
        pg = request.getfixturevalue("pg") if request.param == "postgres" else ""
        yield sink_maker(request.param, spark, pg, tmp_path)


@pytest.fixture
def sink(maker: SinkMaker, spark: SparkSession) -> Iterator[Sink]:
    """A target with ROWS."""
    made = maker.joined(SCHEMA)
    made.write(plan(1), frame(spark, SCHEMA, ROWS, "i" * len(ROWS)))
    yield made
    made.close()


def file_with(maker: SinkMaker, checks: str) -> PipelineFile:
    target = {
        "delta": "path: x",
        "iceberg": "table_name: n.x",
        "postgres_aggregate": "landing_table: x, agg_table: y, aggregate: {rows: {fn: count}}",
    }.get(maker.kind.partition("-")[0], "table: x")
    lines = [
        "name: p",
        "sources: {s: {type: clickhouse, table_name: t, primary_key: id}}",
        "sinks:",
        f"  {maker.key.sink}:",
        f"    {{type: {maker.kind.partition('-')[0]}, from: s, {target}, checks: {{{checks}}}}}",
    ]
    return parse_pipeline("\n".join(lines), "p.yaml")


def evaluate(maker: SinkMaker, sink: Sink, checks: str) -> dict[str, CheckResult]:
    declared = DeclaredChecks(file_with(maker, checks), None, None, NOW)  # type: ignore[arg-type]
    return {result.name: result for result in declared.evaluate(maker.key.sink, sink)}


CASES = [
    ("not_null: id", True, "no NULL in `id` (4 rows)"),
    ("not_null: 'id, customer, day'", False, "1 of 4 rows have NULL in `id`, `customer`, `day`"),
    ("unique: id", True, "no repeated value of `id` (4 rows)"),
    ("unique: customer", False, "2 of 4 rows repeat a value of `customer`"),
    ("unique: [customer, id]", True, "no repeated value of `customer`, `id` (4 rows)"),
    ("range: {column: cents, min: -5, max: 400}", True, "every `cents` is from -5 to 400 (4 rows)"),
    ("range: {column: cents, min: -4.5}", False, "1 of 4 rows have `cents` not at least -4.5"),
    ("range: {column: cents, max: 99.5}", False, "2 of 4 rows have `cents` not at most 99.5"),
    (f"range: {{column: huge, min: 1, max: {10**30 + 3}}}", False, "1 of 4 rows"),
    ("range: {column: price, min: 0}", False, "1 of 4 rows have `price` not at least 0"),
    ("range: {column: price, min: -0.0001, max: 4.5}", True, "every `price`"),
    ("range: {column: single, max: 0.1}", False, "1 of 4 rows have `single` not at most 0.1"),
    ("range: {column: day, min: 2025-03-01, max: 2025-03-02}", False, "1 of 4 rows"),
    ("range: {column: at, min: 2025-03-01T01:00:00Z, max: 2025-03-02}", True, "every `at`"),
    ("range: {column: at, min: '2025-03-01T03:00:00+01:00'}", False, "1 of 4 rows"),
    ("range: {column: local, max: 2025-03-01T03:00:00}", False, "1 of 4 rows"),
    ("range: {column: 'odd \"name', max: 3}", False, "1 of 4 rows"),
    ("row_count: {min: 1, max: 4}", True, "4 rows"),
    ("row_count: {min: 5}", False, "4 rows; at least 5 are required"),
    ("row_count: {max: 3}", False, "4 rows; at most 3 are allowed"),
    (
        "freshness: {column: at, max_age: 1d 8h}",
        True,
        "the newest `at` is 1d 8h old, at most 1d 8h is allowed",
    ),
    ("freshness: {column: at, max_age: 31h}", False, "the newest `at` is 1d 8h old"),
    ("freshness: {column: local, max_age: 31h}", False, "the newest `local` is 1d 8h old"),
    ("freshness: {column: day, max_age: 1h}", True, "the newest `day` is 0s old"),
    ("sql: 'SELECT id FROM target WHERE cents > 400'", True, "the query returns no row"),
    ("sql: 'WITH a AS (SELECT * FROM target) SELECT id FROM a WHERE cents < 0 -- x'", False, "returns 1 row,"),
    ("sql: 'SELECT t.id FROM target t JOIN target u ON t.id = u.id;'", False, "returns 4 rows,"),
]  # fmt: skip
MISTAKES = [
    ("not_null: custmer", "column `custmer` is not in the target; did you mean `customer`?"),
    ("range: {column: customer, min: 1}", "a range needs a number, date or timestamp column"),
    ("range: {column: cents, min: 2025-01-01}", "`min` must be a number, because the column is of type"),
    ("range: {column: day, max: 3}", "`max` must be a date, because the column is of type"),
    ("freshness: {column: cents, max_age: 1h}", "freshness needs a date or timestamp column"),
    ("sql: SELECT nothing FROM target", "nothing"),
]


def test_every_table_sink_has_declared_checks() -> None:
    classes = {name: entry.config_class() for name, entry in sink_entries().items()}
    assert {name for name, result in classes.items() if issubclass(result, KeyedSinkConfig)} == set(KINDS)


@one_lakehouse
def test_declared_checks_find_violations(maker: SinkMaker, sink: Sink) -> None:
    checks = ", ".join(f"c{place}: {{{check}}}" for place, (check, _, _) in enumerate(CASES))
    actual = evaluate(maker, sink, checks)
    wrong = [
        (check, result.passed, result.message)
        for place, (check, passed, message) in enumerate(CASES)
        if message not in (result := actual[f"c{place}"]).message
        or (result.passed, result.is_error) != (passed, not passed)
    ]
    assert wrong == []


@no_lakehouse
def test_declared_checks_with_a_mistake_fail_alone(maker: SinkMaker, sink: Sink) -> None:
    checks = ", ".join(f"c{place}: {{{check}}}" for place, (check, _) in enumerate(MISTAKES))
    actual = evaluate(maker, sink, f"good: {{unique: id}}, {checks}, last: {{not_null: id}}")
    assert actual["good"].passed is True
    assert actual["last"].passed is True
    for place, (check, message) in enumerate(MISTAKES):
        result = actual[f"c{place}"]
        assert result.passed is False, check
        assert "the check cannot be evaluated: " in result.message
        assert message in result.message
        assert "p.yaml:5:" in result.message


@no_lakehouse
def test_declared_checks_show_samples_without_secrets(
    maker: SinkMaker, sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "hunter2")
    result = evaluate(
        maker,
        sink,
        """a: {not_null: customer}, b: {unique: customer}, c: {range: {column: cents, min: 0}, severity: warning},
        d: {sql: "SELECT id, cents FROM target ORDER BY id", samples: 2}, e: {not_null: customer, samples: 0},
        f: {sql: "SELECT id, '${SECRET}' AS s FROM target WHERE id = 1"}, g: {sql: "SELECT ${SECRET} FROM target"}""",
    )
    assert result["a"].numbers == {"rows": 4, "violations": 1, "samples": [{"id": 3, "customer": None}]}
    assert result["b"].numbers["samples"] == [{"customer": "c1", "occurrences": 3}]
    assert result["c"].numbers["samples"] == [{"id": 4, "cents": -5}]
    assert (result["c"].passed, result["c"].is_error) == (False, False)
    assert result["d"].numbers["samples"] == [{"id": 1, "cents": 100}, {"id": 2, "cents": None}]
    assert "samples" not in result["e"].numbers
    assert result["f"].numbers["samples"] == [{"id": 1, "s": "${SECRET}"}]
    assert "hunter2" not in result["g"].message


@no_lakehouse
def test_declared_checks_are_one_statement(
    maker: SinkMaker, sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those without SQL of their own."""
    texts: list[str] = []
    query_target = sink.query_target

    def query() -> TargetQuery:
        result = query_target()
        assert result is not None

        def fetch(text: str) -> QueryResult:
            texts.append(text)
            return result.fetch(text)

        return replace(result, fetch=fetch)

    monkeypatch.setattr(sink, "query_target", query)
    checks = (
        "a: {unique: id}, b: {not_null: id}, c: {range: {column: cents, min: -5}}, d: {row_count: {min: 1}}"
    )
    actual = evaluate(maker, sink, f"{checks}, e: {{freshness: {{column: at, max_age: 9d}}}}")
    assert {result.passed for result in actual.values()} == {True}
    assert len(texts) == 1


def test_declared_checks_of_an_empty_target(maker: SinkMaker) -> None:
    empty = maker.joined(SCHEMA)
    actual = evaluate(
        maker,
        empty,
        """a: {unique: customer}, b: {not_null: id}, c: {range: {column: cents, min: 1}},
        d: {freshness: {column: at, max_age: 1h}}, e: {row_count: {min: 1}}, f: {sql: SELECT * FROM target}""",
    )
    empty.close()
    assert {name: result.passed for name, result in actual.items()} == {
        "a": True, "b": True, "c": True, "d": False, "e": False, "f": True,
    }  # fmt: skip
    assert actual["d"].message == "the target has no `at`"


def test_declared_checks_cannot_write(spark: SparkSession, pg: str, tmp_path: Path) -> None:
    maker = sink_maker("postgres", spark, pg, tmp_path)
    sink = maker.joined(SCHEMA)
    with psycopg.connect(pg) as connection:
        connection.execute("CREATE SEQUENCE s")
    result = evaluate(
        maker, sink, "c: {sql: \"SELECT nextval('s') FROM (SELECT 1) x, (SELECT count(*) FROM target) y\"}"
    )
    sink.close()
    assert result["c"].passed is False
    assert "read-only" in result["c"].message
