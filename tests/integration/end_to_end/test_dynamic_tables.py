"""A pipeline with a dynamic table: lookups of values of earlier epochs, restarts, replays."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from helpers.pipeline_world import until
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from headrace import services as local
from headrace.connectors.postgres_client.session import Address
from headrace.jobs.checks.preflight import check_pipeline
from headrace.jobs.dynamic_tables.base import distinct_texts, register
from headrace.jobs.dynamic_tables.lookup_table import LookupTableColumns, ValueTable
from headrace.jobs.dynamic_tables.postgres import PostgresTableBackend
from headrace.jobs.explain.build import explain
from headrace.jobs.explain.formats import Format, render
from headrace.jobs.planning.load_path import Columns, plan_load_path
from headrace.jobs.run.events import Event, RunMessage, Until
from headrace.jobs.run.repair import replay
from headrace.jobs.run.runner import run
from headrace.jobs.sources.pipeline_source import create_pipeline_sources
from headrace.jobs.spark.errors import as_headrace_error
from headrace.pipeline.config.sections import SqliteBackend, StateBackend, TableConnection
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import HeadraceError, SinkStateError, TargetError, TransientError
from headrace.pipeline.file.loader import PipelineFile, parse_pipeline
from headrace.pipeline.model.transforms import DynamicTableConfig
from headrace.pipeline.protocol.epochs import EpochPlan, Phase

PLAN = EpochPlan(1, Phase.LIVE, {}, {}, "hash", datetime(2025, 1, 1, tzinfo=UTC))
TEXT = """
version: 1
name: {name}
partitions: {{column: month, every: month, start: 2025-01, end: 2025-05}}
sources:
  events:
    type: file
    path: {folder}/month=*/*.csv
    format: csv
    mode: bounded
    schema: {{id: int64, wallet: string, kind: string, month: date32}}
    primary_key: id
transforms:
  known: {table}
  hits: {{type: sql, sql: "SELECT id, wallet FROM events WHERE kind = 'move' AND dynamic_table_check('known', wallet)"}}
sinks:
  out: {sink}
"""
MEMORY = (
    '{type: dynamic_table, backend_type: InMemory, backend_entity_name: known, sql: "SELECT wallet'
    " FROM events WHERE kind = 'mark'\"}"
)
MONTHS = {
    1: ["1,a,move", "2,b,move", "3,a,mark"],
    2: ["4,a,move", "5,b,move", "6,b,mark"],
    3: ["7,a,move", "8,b,move", "9,c,move"],
    4: ["10,a,move", "11,d,move", "12,c,move"],
}
WINDOWS = [f"2025-0{month}-01" for month in MONTHS]


def put(folder: Path) -> None:
    for month, lines in MONTHS.items():
        path = folder / f"month=2025-0{month}-01" / "part-1.csv"
        path.parent.mkdir()
        path.write_text("\n".join(["id,wallet,kind", *lines]) + "\n")


def file_of(folder: Path, table: str = MEMORY, name: str = "wallets", sink: str = "") -> PipelineFile:
    return parse_pipeline(
        TEXT.format(
            folder=folder,
            table=table,
            name=name,
            sink=sink or f"{{type: postgres, from: hits, table: {name}}}",
        )
    )


def settings_of(folder: Path, conninfo: str, **backend: object) -> Settings:
    result = conninfo_to_dict(conninfo)
    return Settings.model_validate(
        {
            "home": folder / "home",
            "state_backend": StateBackend(sqlite=SqliteBackend(path=folder / "ledger.db")),
            "commit_timeout_seconds": 0,
            "postgres_sink": {name: result[name] for name in ("host", "port", "user", "password")}
            | {"db": result["dbname"]},
            "dynamic_table_backend": backend,
        }
    )


def written(conninfo: str, name: str = "wallets") -> list[int]:
    with psycopg.connect(conninfo) as connection:
        return [
            number
            for (number,) in connection.execute(
                sql.SQL("SELECT id FROM {} ORDER BY id").format(sql.Identifier(name))
            )
        ]


def test_a_table_in_memory_lives_as_long_as_its_pipeline(
    spark: SparkSession, tmp_path: Path, pg: str
) -> None:
    put(tmp_path)
    file, settings = file_of(tmp_path), settings_of(tmp_path, pg)
    run(file, settings, until=Until.HISTORY, partitions=WINDOWS[:1], spark=spark)
    assert written(pg) == [1], "the first epoch does not see its own values"
    run(file, settings, until=Until.HISTORY, partitions=WINDOWS[1:3], spark=spark)
    assert written(pg) == [1, 4, 5, 7, 8], "values did not outlive the run"

    replay(file, settings, sink="out", from_epoch=1, spark=spark)
    assert written(pg) == [1, 4, 5, 7, 8]
    assert 2 not in written(pg), "a replayed epoch saw what came later"

    (store,) = (tmp_path / "home" / "tables").rglob("*.db")
    moved = store.rename(store.with_suffix(".away"))
    with pytest.raises(SinkStateError, match="and the file has none; the ledger is at epoch 3"):
        run(file, settings, until=Until.HISTORY, spark=spark)
    for stray in store.parent.glob("*.db*"):
        stray.unlink()
    moved.rename(store)
    assert run(file, settings, until=Until.HISTORY, spark=spark).history_complete
    assert written(pg) == [1, 4, 5, 7, 8, 10]

    changed = parse_pipeline(
        TEXT.format(
            folder=tmp_path, table=MEMORY, name="wallets", sink="{type: postgres, from: hits, table: wallets}"
        ).replace("= 'move'", "LIKE 'move'")
    )
    with psycopg.connect(pg, autocommit=True) as outside:
        outside.execute("DELETE FROM wallets WHERE id < 8")
    replay(changed, settings, sink="out", from_epoch=1, spark=spark)
    assert written(pg) == [1, 4, 5, 7, 8, 10], "epochs of an earlier version of the file do not ask its table"


def test_a_table_in_postgres_is_everybodys(spark: SparkSession, tmp_path: Path, pg: str) -> None:
    put(tmp_path)
    table = MEMORY.replace("InMemory", "Postgres").replace(
        "backend_entity_name: known", "backend_entity_name: lists.known"
    )
    settings = settings_of(tmp_path, pg, max_batch_size=2)
    one, other = file_of(tmp_path, table, "one"), file_of(tmp_path, table.split(", sql")[0] + "}", "other")
    run(one, settings, until=Until.HISTORY, partitions=WINDOWS[:2], spark=spark)
    assert written(pg, "one") == [1, 4, 5]
    with psycopg.connect(pg, autocommit=True) as outside:
        assert outside.execute("SELECT value FROM lists.known ORDER BY 1").fetchall() == [("a",), ("b",)]
        outside.execute("INSERT INTO lists.known VALUES ('c')")
    run(one, settings, until=Until.HISTORY, partitions=WINDOWS[2:3], spark=spark)
    assert written(pg, "one") == [1, 4, 5, 7, 8, 9], "an outside writer is not seen at once"
    run(other, settings, until=Until.HISTORY, partitions=WINDOWS[3:], spark=spark)
    assert written(pg, "other") == [10, 12], "the other pipeline does not see the same table"
    with psycopg.connect(pg, autocommit=True) as outside:
        outside.execute("DELETE FROM lists.known")
    replay(one, settings, sink="out", from_epoch=1, spark=spark)
    assert written(pg, "one") == [1, 4, 5, 7, 8, 9], "a replay gave other rows than the first time"
    with psycopg.connect(pg, autocommit=True) as outside:
        assert outside.execute("SELECT count(*) FROM lists.known").fetchone() == (0,), (
            "a replay fills the table again"
        )
        outside.execute("ALTER TABLE lists.known RENAME COLUMN value TO v")
    with pytest.raises(HeadraceError, match=r"table lists.known has no column 'value'; it has v") as caught:
        run(one, settings, until=Until.HISTORY, spark=spark)
    assert caught.value.node == "known"


def test_an_expression_without_a_name_fills_a_table(spark: SparkSession) -> None:
    frame = spark.sql(
        "SELECT concat(who.name, '.', CASE WHEN who.age > 1.5 THEN 'x' END) FROM (SELECT"
        " named_struct('name', 'a', 'age', 2) AS who)"
    )
    assert distinct_texts(frame, "known").to_pylist() == ["a.x"]


def test_what_is_said_before_a_run(spark: SparkSession, tmp_path: Path, pg: str) -> None:
    put(tmp_path)
    outside = (
        "{type: dynamic_table, backend_type: Postgres, backend_entity_name: known, column: wallet,"
        ' sql: "SELECT wallet FROM events"}'
    )
    file, settings = file_of(tmp_path, outside), settings_of(tmp_path, pg)
    good = check_pipeline(file, settings, lambda: spark)
    assert (good.errors, good.warnings, good.unchecked) == ([], [], {})
    with psycopg.connect(pg, autocommit=True) as connection:
        assert connection.execute("SELECT to_regclass('known')").fetchone() == (None,), (
            "a look makes the table"
        )
        connection.execute("CREATE TABLE known (wallet int)")
    (wrong,) = check_pipeline(file, settings, lambda: spark).errors
    assert (wrong.node, wrong.message) == (
        "known",
        "column 'wallet' of table public.known is integer, and values are texts",
    )
    assert wrong.place
    away = settings.model_copy(
        update={"postgres_sink": settings.postgres_sink.model_copy(update={"port": 1})}
    )
    assert "Connection refused" in check_pipeline(file, away, lambda: spark).unchecked["known"]

    def explain_text(file: PipelineFile) -> str:
        return " ".join(render(explain(file, settings, offline=True, spark=spark), Format.TEXT).split())

    assert (
        "values postgres public.known, column `wallet` (made if missing): others may write it too; asked in"
        " batches"
    ) in explain_text(file)
    assert "filled by events, before the same epoch asks asked by hits" in explain_text(file)
    assert "it looks up the dynamic table `known`, which others may change" in explain_text(file)
    assert "values known, in memory: this pipeline's alone" in explain_text(file_of(tmp_path))
    assert "staged" not in explain_text(file_of(tmp_path))


def test_what_a_worker_meets_names_the_table(spark: SparkSession, pg: str) -> None:
    result = conninfo_to_dict(pg)
    values = {name: result[name] for name in ("host", "port", "user", "password")} | {"db": result["dbname"]}
    connection = TableConnection.model_validate(values)
    node = DynamicTableConfig(backend_type="Postgres", backend_entity_name="nowhere")
    table = ValueTable(
        "known", LookupTableColumns.of(node, connection), Address(connection, "headrace test", "known")
    )
    session = spark.newSession()
    register(session, {"known": PostgresTableBackend(table, at_most=10, committed=0).lookup(PLAN)})
    frame: Any = session.sql("SELECT dynamic_table_check('known', CAST(id AS STRING)) FROM range(3)")
    with pytest.raises(PythonException) as caught:
        frame.collect()
    error = as_headrace_error(caught.value, node="out")
    assert isinstance(error, TargetError)
    assert (error.node, error.retriable) == ("known", False)
    assert "table public.nowhere, column value" in error.message
    assert str(result["password"]) not in f"{caught.value}{frame._jdf.queryExecution()}"

    lost = as_headrace_error(
        Exception("headrace.pipeline.errors.TransientError: node 'known': Postgres says: gone\n at x"),
        node="out",
    )
    assert (type(lost), lost.node, lost.message) == (TransientError, "known", "Postgres says: gone")


@pytest.mark.slow
def test_a_server_that_goes_away_while_it_is_asked(
    spark: SparkSession, tmp_path: Path, fresh_home: Path
) -> None:
    put(tmp_path)
    server = local.up(["postgres"], home=fresh_home).postgres
    table = "{type: dynamic_table, backend_type: Postgres, backend_entity_name: known}"
    file = file_of(tmp_path, table, sink=f"{{type: delta, from: hits, path: {tmp_path}/hits}}")
    settings = settings_of(tmp_path, server.conninfo())
    messages: list[RunMessage] = []
    failed = threading.Event()

    def listen(event: Event) -> None:
        if isinstance(event, RunMessage):
            messages.append(event)
            failed.set()

    eye, holder = psycopg.connect(server.conninfo(), autocommit=True), psycopg.connect(server.conninfo())
    eye.execute("CREATE TABLE known (value text PRIMARY KEY); INSERT INTO known VALUES ('a'), ('c')")
    with ThreadPoolExecutor(1) as pool:
        try:
            holder.execute("LOCK TABLE known IN ACCESS EXCLUSIVE MODE")
            running = pool.submit(
                run, file, settings, until=Until.HISTORY, partitions=WINDOWS[:1], spark=spark, listener=listen
            )
            waiting = (
                "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%ANY(%'"
            )
            until(lambda: eye.execute(waiting).fetchone() != (0,) or running.done(), "the table is asked")
        finally:
            local.down(fresh_home)
            holder.close()
            eye.close()
        assert failed.wait(60)
        local.up(["postgres"], home=fresh_home)
        assert running.result(timeout=120).epochs == 1
    assert messages[0].message.startswith("attempt 1 failed, trying again")
    assert "node 'known': table public.known, column value: " in messages[0].message
    assert not any(server.password in one.message for one in messages)
    assert run(file, settings, until=Until.HISTORY, partitions=WINDOWS[1:2], spark=spark).epochs == 1
    assert sorted(row.id for row in spark.read.format("delta").load(f"{tmp_path}/hits").collect()) == [1, 4]


def test_history_that_asks_a_table_goes_by_rows() -> None:
    text = """
name: direct
sources: {src: {type: clickhouse, table_name: d.t, primary_key: id}}
transforms:
  known: {type: dynamic_table, backend_type: InMemory, backend_entity_name: known, sql: SELECT wallet FROM src}
  hits: {type: sql, sql: "SELECT id, wallet FROM src WHERE dynamic_table_check('known', wallet)"}
sinks: {out: {type: postgres, from: hits, table: hits}}
"""
    file = parse_pipeline(text)
    schema = pa.schema([("id", pa.int64()), ("wallet", pa.string())])
    columns = Columns({"src": schema}, {"src": schema, "hits": schema}, lambda _: schema)
    result = plan_load_path(file, columns, create_pipeline_sources(file.model.sources, Settings()), "out")
    assert (result.path, result.reason) == (
        "rows",
        "transform `hits` looks up the dynamic table `known`, which only Spark's workers can do",
    )
