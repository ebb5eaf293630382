"""Refresh: after it, every sink has the rows of the partition that history has now, each once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import clickhouse_connect
import psycopg
import pytest
from helpers.depth import FULL
from helpers.pipeline_world import World, leftovers, until
from pyspark.sql import SparkSession

from headrace.jobs.checks.audit import ContentAuditOptions, audit
from headrace.jobs.run.events import RunResult, Until
from headrace.jobs.run.repair import replay
from headrace.jobs.run.runner import run
from headrace.pipeline.errors import GuaranteeError, HeadraceError, PipelineStateError, RetentionError
from headrace.pipeline.file.loader import load_pipeline
from headrace.services import Services

PIPELINE = """
name: {name}
sources: {{src: {{type: clickhouse, table_name: {database}.sales, split_rows: 20}}}}
transforms: {{large: {{type: sql, sql: "select id, day as sold_on, v, ver from src where v >= 0"}}}}
sinks:
{sinks}
{partitions}
epoch: {{history_rows: {epoch_rows}}}
"""
SINKS = {
    "pg": "type: postgres, from: large, table: sales, primary_key: id, max_driver_rows: {driver}",
    "first": "type: postgres, from: large, table: sales_first, primary_key: id, on_conflict: nothing",
    "newest": "type: postgres, from: large, table: sales_newest, primary_key: id, version_column: ver",
    "lake": "type: delta, from: large, path: {lake}, primary_key: id",
    "ice": "type: iceberg, from: large, table_name: db.sales, warehouse: {folder}/warehouse, primary_key: id",
    "seen": "type: blackhole, from: large",
}
TABLES = {"pg": "sales", "first": "sales_first", "newest": "sales_newest", "lake": "lake", "ice": "ice"}
"""The target of a sink, for `Sales.target`."""
FIRST_EPOCH_ROWS, EPOCH_ROWS = 400, 40
"""Of the file before the revision: an epoch per partition. Afterwards a partition has more rows than an epoch."""
PARTITIONS = "partitions: {column: day, every: day, start: 2024-03-01, end: 2024-03-05, any_order: true}"
FIRST = date(2024, 3, 1)
DAYS = [(FIRST + timedelta(days=at)).isoformat() for at in range(4)]
Sale = tuple[int, date, int, int]


class Sales(World):
    """A table of sales. `rows` are what it has, by id; `sinks` are those of the pipeline."""

    def create(
        self, partitions: str = PARTITIONS, driver: int = 20_000, sinks: tuple[str, ...] = tuple(SINKS)
    ) -> None:
        self.sinks, self.partitions, self.driver = sinks, partitions, driver
        self.ask(
            "CREATE TABLE sales (id Int64, day Date, v Int64, ver Int64) ENGINE = MergeTree ORDER BY (day, id)"
        )
        self.write(FIRST_EPOCH_ROWS)
        self.rows: dict[int, Sale] = {}
        self.put([(at, FIRST + timedelta(days=at % 4), at - 3, 1) for at in range(240)])

    def write(self, epoch_rows: int) -> None:
        values = {"lake": self.lake, "folder": self.folder, "driver": self.driver}
        lines = "\n".join(f"  {sink}: {{{SINKS[sink].format(**values)}}}" for sink in self.sinks)
        self.file.write_text(
            PIPELINE.format(
                name=self.name,
                database=self.database,
                partitions=self.partitions,
                sinks=lines,
                epoch_rows=epoch_rows,
            )
        )

    def ask(self, statement: str, rows: list[Any] | None = None) -> None:
        arguments = self.services.clickhouse.client_arguments(database=self.database)
        with clickhouse_connect.get_client(**arguments) as client:
            if rows is None:
                client.command(statement, settings={"mutations_sync": 1})
            else:
                client.insert(statement, rows, column_names=["id", "day", "v", "ver"])

    def put(self, rows: list[Sale]) -> None:
        self.rows |= {row[0]: row for row in rows}
        self.ask("sales", rows)

    def remove(self, *ids: int) -> None:
        self.ask(f"ALTER TABLE sales DELETE WHERE id IN {ids or (-1,)}")
        for one in ids:
            del self.rows[one]

    def revise(self) -> None:
        """Change, remove and add rows of the first and the second day, and move one between them."""
        self.write(EPOCH_ROWS)
        for key, value, version in ((4, 1_000, 2), (9, 2_000, 0), (13, -1, 5)):
            day = self.rows[key][1]
            self.remove(key)
            self.put([(key, day, value, version)])  # 13: the filter leaves it out now
        self.remove(8, 12, 5)
        moved = self.rows[16]
        self.remove(16)
        self.put([(16, FIRST + timedelta(days=1), *moved[2:]), (900, FIRST, 7, 1)])

    def target(self, spark: SparkSession, sink: str) -> list[Sale]:
        if sink == "lake":
            rows = spark.read.format("delta").load(str(self.lake))
        elif sink == "ice":
            from headrace.connectors.iceberg.catalog import WarehouseTable

            rows = WarehouseTable(f"{self.folder}/warehouse", "db.sales", "reader").frame(spark, None)
        else:
            with psycopg.connect(self.conninfo) as connection:
                query = f"SELECT id, sold_on, v, ver FROM {sink} ORDER BY id"
                return connection.execute(query.encode()).fetchall()
        return sorted(tuple(row) for row in rows.select("id", "sold_on", "v", "ver").collect())

    def check_sinks(self, spark: SparkSession, former: dict[int, Sale], *refreshed: str) -> None:
        """Refreshed days are as they are now; other days are as they were in `former`."""
        kept = [row for row in former.values() if row[1].isoformat() not in refreshed]
        now = [row for row in self.rows.values() if row[1].isoformat() in refreshed]
        wanted = sorted(row for row in kept + now if row[2] >= 0)
        for sink in self.sinks:
            if sink in TABLES:
                assert self.target(spark, TABLES[sink]) == wanted, sink


@pytest.fixture
def sales(services: Services, pg: str, ch_db: str, tmp_path: Path) -> Iterator[Sales]:
    result = Sales(services, tmp_path, ch_db, pg)
    yield result
    result.close()


@pytest.fixture
def go(sales: Sales, spark: SparkSession) -> Callable[..., RunResult]:
    def call(*days: str, **more: Any) -> RunResult:
        file = load_pipeline(sales.file)
        return run(file, sales.settings(), until=Until.HISTORY, partitions=days or None, spark=spark, **more)

    return call


def check_audit(sales: Sales, spark: SparkSession) -> None:
    result = audit(
        load_pipeline(sales.file), sales.settings(), spark=spark, content=ContentAuditOptions(full=True)
    )
    assert [one for one in result if one.passed is False] == []
    passed = {one.sink for one in result if one.name == "content_matches" and one.passed}
    assert passed == {"pg", "newest", "lake", "ice"} & set(sales.sinks)


@pytest.mark.sampled
@pytest.mark.parametrize("driver", [pytest.param(20_000, marks=pytest.mark.slow), 10])
def test_rows_that_changed_are_replaced(
    sales: Sales, spark: SparkSession, go: Callable[..., RunResult], driver: int
) -> None:
    sales.create(driver=driver, sinks=tuple(SINKS) if FULL else ("pg", "first", "newest", "lake"))
    assert go().history_complete
    former = dict(sales.rows)
    sales.check_sinks(spark, former)

    sales.revise()
    assert go(*DAYS[:2]).epochs == 0, "without `refresh`, complete partitions are not read again"
    result = go(*DAYS[:2], refresh=True)
    assert (result.epochs, result.history_complete) == (3, True)
    sales.check_sinks(spark, former, *DAYS[:2])
    check_audit(sales, spark)
    counts = result.counts["pg"]
    assert (counts.inserted, counts.deleted) == (2, 5)  # 16 was deleted with its day and came with the next


@pytest.mark.slow  # test_rows_that_changed_are_replaced is the daily one
def test_all_partitions_at_once(sales: Sales, spark: SparkSession, go: Callable[..., RunResult]) -> None:
    sales.create()
    go()
    former = dict(sales.rows)
    sales.revise()
    sales.remove(*[key for key, row in sales.rows.items() if row[1].isoformat() == DAYS[3]])
    assert go(refresh=True).history_complete
    sales.check_sinks(spark, former, *DAYS)
    check_audit(sales, spark)
    with psycopg.connect(sales.conninfo) as connection:
        connection.execute("DELETE FROM sales WHERE id = 4")
        connection.execute("INSERT INTO sales VALUES (13, '2024-03-02', -1, 5)")
    result = audit(
        load_pipeline(sales.file), sales.settings(), spark=spark, content=ContentAuditOptions(full=True)
    )
    (wrong,) = [one for one in result if one.name == "content_matches" and one.sink == "pg"]
    assert wrong.passed is False


@pytest.mark.slow  # test_rows_that_changed_are_replaced is the daily one
def test_a_history_without_partitions(
    sales: Sales, spark: SparkSession, go: Callable[..., RunResult]
) -> None:
    sales.create(partitions="")
    go()
    sales.revise()
    assert go(refresh=True).history_complete
    sales.check_sinks(spark, {}, *DAYS)
    check_audit(sales, spark)


@pytest.mark.parametrize(
    ("point", "nth"),
    [
        pytest.param("planned", 1, marks=pytest.mark.slow),
        pytest.param("sinks-written", 1, marks=pytest.mark.slow),
        pytest.param("planned", 2, marks=pytest.mark.slow),
        pytest.param("postgres-only", 2, marks=pytest.mark.slow),
        pytest.param("delta-only", 2, marks=pytest.mark.slow),
        ("sinks-written", 2),
        pytest.param("sinks-written", 3, marks=pytest.mark.slow),
    ],
)
@pytest.mark.sampled
def test_a_kill_during_a_refresh(
    sales: Sales,
    spark: SparkSession,
    go: Callable[..., RunResult],
    monkeypatch: pytest.MonkeyPatch,
    point: str,
    nth: int,
) -> None:
    """The next run finishes the refresh that was begun, from the snapshot that it began with."""
    sales.create(sinks=tuple(SINKS) if FULL else ("pg", "first"))
    go()
    former = dict(sales.rows)
    sales.revise()
    monkeypatch.setenv("HEADRACE_TEST_REFRESH", ",".join(DAYS[:2]))
    sales.crash(point, nth, "group")
    now = dict(sales.rows)
    planned = point != "planned" or nth > 1
    if planned:
        sales.remove(*[key for key, row in sales.rows.items() if row[1] == FIRST and key != 900])
        sales.rows = now
    monkeypatch.delenv("HEADRACE_TEST_REFRESH")
    assert go().history_complete
    sales.check_sinks(spark, former, *DAYS[:2])
    check_audit(sales, spark)


@pytest.mark.slow  # other takeovers have daily tests
def test_an_old_run_that_wakes_in_a_refresh_changes_nothing(
    sales: Sales, spark: SparkSession, go: Callable[..., RunResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    sales.create()
    go()
    former = dict(sales.rows)
    sales.revise()
    monkeypatch.setenv("HEADRACE_TEST_REFRESH", ",".join(DAYS[:2]))
    old = sales.start("sinks-written", 2, "stop")
    sales.await_stop(old)
    monkeypatch.delenv("HEADRACE_TEST_REFRESH")
    until(lambda: sales.run()["code"] == 0, "the takeover after the lease", 240)
    sales.check_sinks(spark, former, *DAYS[:2])
    os.kill(old.pid, signal.SIGCONT)
    assert sales.answer(old)["error"] == "FencedError"
    sales.check_sinks(spark, former, *DAYS[:2])
    check_audit(sales, spark)
    assert leftovers(sales) == []


@pytest.mark.slow  # a kill, and sinks that differ
@pytest.mark.parametrize(("point", "lacking"), [("postgres-only", "lake"), ("delta-only", "pg")])
def test_a_skipped_epoch_of_a_refresh_is_replayed(
    sales: Sales,
    spark: SparkSession,
    go: Callable[..., RunResult],
    monkeypatch: pytest.MonkeyPatch,
    point: str,
    lacking: str,
) -> None:
    """One sink has the refreshed day, the other keeps its old rows until the epoch is replayed there."""
    sales.create(sinks=("pg", "lake"))
    last = go().last_epoch
    former = dict(sales.rows)
    sales.revise()
    monkeypatch.setenv("HEADRACE_TEST_REFRESH", DAYS[0])
    sales.crash(point, 2, "group")
    monkeypatch.delenv("HEADRACE_TEST_REFRESH")
    file, settings = load_pipeline(sales.file), sales.settings()
    assert f"skipped at: {lacking}." in sales.run_cli("replay", str(sales.file), "--skip-open")
    assert go().history_complete
    old = sorted(row for row in former.values() if row[2] >= 0)
    assert sales.target(spark, TABLES[lacking]) == old
    result = audit(file, settings, spark=spark)
    assert {one.sink for one in result if one.passed is False} == {lacking}
    replay(file, settings, sink=lacking, from_epoch=last + 1, spark=spark)
    sales.check_sinks(spark, former, DAYS[0])
    check_audit(sales, spark)


@pytest.mark.slow  # three runs and two replays
def test_a_replay_of_rows_that_a_refresh_replaced_is_refused(
    sales: Sales, spark: SparkSession, go: Callable[..., RunResult]
) -> None:
    """Their snapshot was dropped. A replay of the refresh itself reads the new one."""
    sales.create()
    last = go().last_epoch
    former = dict(sales.rows)
    sales.revise()
    go(*DAYS[:2], refresh=True)
    file, settings = load_pipeline(sales.file), sales.settings()
    with pytest.raises(RetentionError, match="an earlier snapshot of history, which was dropped") as caught:
        replay(file, settings, sink="pg", from_epoch=1, spark=spark)
    assert f"headrace reset {sales.file}" in caught.value.hint
    sales.check_sinks(spark, former, *DAYS[:2])
    check_audit(sales, spark)
    replay(file, settings, sink="pg", from_epoch=last + 1, spark=spark)
    sales.check_sinks(spark, former, *DAYS[:2])
    check_audit(sales, spark)


HYBRID = """
name: {name}
sources: {{src: {{type: kafka, topic: {name}, schema: {{id: int64, day: date32}}, primary_key: id}}}}
sinks: {{pg: {{type: postgres, from: src, table: t}}}}
"""


@pytest.mark.parametrize(
    ("change", "message", "line"),
    [
        (("primary_key: id, max_driver", "max_driver"), "without a primary key, the rows of a partition", 6),
        (("day as sold_on", "date_add(day, 0) as sold_on"), "column `day` of `partitions` does not reach", 6),
        (("table: sales,", "table: sales, share: true,"), "the target is shared", 6),
    ],
)
def test_what_cannot_be_refreshed_is_refused_with_the_reason(
    sales: Sales, go: Callable[..., RunResult], change: tuple[str, str], message: str, line: int
) -> None:
    sales.create()
    text = sales.file.read_text()
    assert change[0] in text
    sales.file.write_text(text.replace(*change))
    with pytest.raises(GuaranteeError, match=message) as caught:
        go(refresh=True)
    assert caught.value.place is not None
    assert caught.value.place.line == line


def test_a_stream_is_not_refreshed(sales: Sales, go: Callable[..., RunResult]) -> None:
    sales.file.write_text(HYBRID.format(name=sales.name))
    with pytest.raises(GuaranteeError, match="one source, which has one table of history"):
        go(refresh=True)


def test_an_earlier_partition_needs_keys_that_stay_in_one(sales: Sales, go: Callable[..., RunResult]) -> None:
    """Without `any_order`, the earlier row of a key would replace the later one."""
    sales.create(PARTITIONS.replace(", any_order: true", ""), sinks=("pg", "seen"))
    go()
    with pytest.raises(PipelineStateError, match="partition 2024-03-01 cannot be loaded after 2024-03-04"):
        go(DAYS[0], refresh=True)
    sales.write(EPOCH_ROWS)
    assert go(DAYS[3], refresh=True).epochs == 2


@pytest.mark.sampled
def test_a_refresh_that_fails_leaves_the_rows(
    sales: Sales, spark: SparkSession, go: Callable[..., RunResult]
) -> None:
    """A row that a sink refuses blocks the refresh; nothing of the partition is removed from that sink."""
    sales.create(sinks=("pg", "first", "lake") if FULL else ("pg", "first"))
    go()
    former = dict(sales.rows)
    with psycopg.connect(sales.conninfo) as connection:
        connection.execute("ALTER TABLE sales ADD CHECK (v < 500)")
    sales.revise()
    with pytest.raises(HeadraceError, match="check"):
        go(DAYS[0], refresh=True)
    assert sales.target(spark, "sales") == sorted(row for row in former.values() if row[2] >= 0)
    with psycopg.connect(sales.conninfo) as connection:
        connection.execute("ALTER TABLE sales DROP CONSTRAINT sales_v_check")
    assert go().history_complete
    sales.check_sinks(spark, former, DAYS[0])
