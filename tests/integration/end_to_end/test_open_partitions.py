"""Partitions with an open end: each day is read once, from a snapshot that was created after it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import clickhouse_connect
import psycopg
import pytest
from helpers.depth import FULL
from helpers.pipeline_world import World
from pyspark.sql import SparkSession

from headrace.jobs.checks.audit import ContentAuditOptions, audit
from headrace.jobs.run.events import RunResult, Until
from headrace.jobs.run.runner import run
from headrace.pipeline.errors import UserError
from headrace.pipeline.file.loader import load_pipeline
from headrace.pipeline.protocol import partitions
from headrace.services import Services

PIPELINE = """
name: {name}
sources: {{src: {{type: clickhouse, table_name: {database}.sales, split_rows: 20}}}}
transforms: {{large: {{type: sql, sql: "select id, day, v from src where v >= 0"}}}}
sinks:
  pg: {{type: postgres, from: large, table: sales, primary_key: id}}
  log: {{type: postgres, from: large, table: sales_log}}
{lake}
partitions: {{column: day, every: {every}, start: 2024-03-01, end: open, any_order: true}}
epoch: {{history_rows: 40}}
"""
LAKE = "  lake: {{type: delta, from: large, path: {path}, primary_key: id}}"
"""A third sink, in `make test-faults`."""
FIRST = date(2024, 3, 1)
pytestmark = pytest.mark.sampled


class Sales(World):
    """A table that grows day by day, and the rows that the sinks must have."""

    def create(self, every: str = "day") -> None:
        self.ask("CREATE TABLE sales (id Int64, day Date, v Int64) ENGINE = MergeTree ORDER BY (day, id)")
        lake = LAKE.format(path=self.lake) if FULL else ""
        text = PIPELINE.format(name=self.name, database=self.database, lake=lake, every=every)
        self.file.write_text(text)
        self.sold: list[tuple[int, date, int]] = []

    def ask(self, statement: str, rows: list[Any] | None = None) -> list[Any]:
        with clickhouse_connect.get_client(
            **self.services.clickhouse.client_arguments(database=self.database)
        ) as client:
            if rows is not None:
                client.insert(statement, rows, column_names=["id", "day", "v"])
                return []
            return (
                list(client.query(statement).result_rows)
                if statement[:6] == "SELECT"
                else [client.command(statement)]
            )

    def sell(self, *days: int, count: int = 30) -> None:
        """Add rows of some days; day 0 is the first of the partitions. More than 40 of a day are two epochs."""
        first = len(self.sold)
        rows = [
            (first + at, FIRST + timedelta(days=days[at % len(days)]), at - 1)
            for at in range(count * len(days))
        ]
        self.ask("sales", rows)
        self.sold += rows

    def sold_before(self, until: int) -> list[tuple[int, date, int]]:
        return [row for row in self.sold if row[1] < FIRST + timedelta(days=until) and row[2] >= 0]

    def clones(self) -> int:
        return self.ask(f"SELECT count() FROM system.tables WHERE database = '{self.database}'")[0][0] - 1

    def check_days(self, spark: SparkSession, until: int) -> None:
        """Every sink has each row of the first days once."""
        with psycopg.connect(self.conninfo) as connection:
            result = [
                connection.execute(f"SELECT id, day, v FROM {table} ORDER BY id".encode()).fetchall()
                for table in ("sales", "sales_log")
            ]
        if FULL:
            lake = spark.read.format("delta").load(str(self.lake)).orderBy("id").collect()
            result.append([tuple(row) for row in lake])
        assert result == [self.sold_before(until)] * len(result)


@pytest.fixture
def sales(services: Services, pg: str, ch_db: str, tmp_path: Path) -> Sales:
    return Sales(services, tmp_path, ch_db, pg)


@pytest.fixture
def go(sales: Sales, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Callable[..., RunResult]:
    """Return a function that runs the pipeline on a day."""

    def call(day: int, **more: Any) -> RunResult:
        monkeypatch.setattr(partitions, "today", lambda: FIRST + timedelta(days=day))
        return run(load_pipeline(sales.file), sales.settings(), until=Until.HISTORY, spark=spark, **more)

    return call


def passed(*, log: bool | None) -> dict[str, bool | None]:
    """Return the results of `content` where only the sink without a key may be unknown."""
    return {"pg": True, "log": log} | ({"lake": True} if FULL else {})


def content(sales: Sales, spark: SparkSession) -> dict[str, bool | None]:
    result = audit(
        load_pipeline(sales.file), sales.settings(), spark=spark, content=ContentAuditOptions(full=True)
    )
    assert all(one.passed for one in result if one.name in ("exactly_once_epochs", "row_count_matches")), (
        result
    )
    return {one.sink: one.passed for one in result if one.name == "content_matches"}


def test_each_day_is_read_once_when_it_has_passed(
    sales: Sales, spark: SparkSession, go: Callable[..., RunResult]
) -> None:
    sales.create()
    sales.sell(0, 1, 2)
    assert go(2).history_complete
    sales.check_days(spark, 2)
    assert content(sales, spark) == passed(log=True)
    assert go(2).epochs == 0

    sales.sell(2, 3, 4)
    with pytest.raises(UserError, match="`2024-03-05` is not a partition"):
        go(4, partitions=["2024-03-05"])
    assert go(4).history_complete
    sales.check_days(spark, 4)
    assert sales.clones() == 1
    assert content(sales, spark) == passed(log=None)

    with psycopg.connect(sales.conninfo) as connection:
        connection.execute("DELETE FROM sales WHERE id = (SELECT max(id) FROM sales)")
    result = audit(load_pipeline(sales.file), sales.settings(), spark=spark, content=ContentAuditOptions())
    (wrong,) = [one for one in result if one.name == "content_matches" and one.sink == "pg"]
    assert wrong.passed is False


def test_rows_that_come_after_their_day_was_read_are_left_out(
    sales: Sales, spark: SparkSession, go: Callable[..., RunResult]
) -> None:
    """They need another materialization of their partition."""
    sales.create()
    sales.sell(0)
    go(1)
    known = list(sales.sold)
    sales.sell(0, 1)
    sales.sold = known + [row for row in sales.sold[len(known) :] if row[1] > FIRST]
    assert go(2).history_complete
    sales.check_days(spark, 2)
    assert content(sales, spark)["pg"] is True


def test_weeks_begin_on_the_weekday_of_the_start(
    sales: Sales, spark: SparkSession, go: Callable[..., RunResult]
) -> None:
    sales.create("week")
    sales.sell(0, 6, 7, 13)
    assert go(13).history_complete
    sales.check_days(spark, 7)
    assert go(14).history_complete
    sales.check_days(spark, 14)


@pytest.mark.slow  # test_a_kill_during_a_refresh of test_refresh.py, which has a snapshot too, is the daily one
@pytest.mark.parametrize(
    ("point", "nth"),
    [
        ("snapshot", 1),
        ("planned", 1),
        ("sinks-written", 1),
        ("postgres-only", 1),
        ("planned", 2),
        ("postgres-only", 2),
    ],
)
def test_a_kill_at_a_new_snapshot(
    sales: Sales,
    spark: SparkSession,
    go: Callable[..., RunResult],
    monkeypatch: pytest.MonkeyPatch,
    point: str,
    nth: int,
) -> None:
    sales.create()
    sales.sell(0, count=50)
    go(1)
    sales.sell(1, 2, count=50)
    monkeypatch.setenv("HEADRACE_TEST_TODAY", "2024-03-04")
    monkeypatch.setattr(partitions, "today", lambda: date(2024, 3, 4))
    sales.crash(point, nth, "group")
    sales.sell(1, count=50)  # after the day, and perhaps after the snapshot
    assert go(3).history_complete
    with psycopg.connect(sales.conninfo) as connection:
        result = {row[0] for row in connection.execute("SELECT id FROM sales").fetchall()}
    late = {row[0] for row in sales.sold[-50:] if row[2] >= 0}
    assert result & late in (set(), late), "a partition mixes two snapshots"
    sales.sold = [row for row in sales.sold if row[0] not in late or late <= result]
    sales.check_days(spark, 3)
    assert sales.clones() == 1
    assert content(sales, spark) == passed(log=None)
