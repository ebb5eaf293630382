"""A lane with a dynamic table: epochs that ask what earlier ones brought, restarts, replays."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from pyspark.sql import SparkSession

from headrace.jobs.events import Until
from headrace.jobs.replay import replay
from headrace.jobs.run import run
from headrace.pipeline.errors import HeadraceError, RecordError
from headrace.pipeline.file import PipelineFile, parse_pipeline
from headrace.pipeline.settings import Settings, SqliteBackend, StateBackend

pytestmark = [pytest.mark.spark, pytest.mark.services]

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
MEMORY = "{type: dynamic_table, backend_type: InMemory, backend_entity_name: known, sql: \"SELECT wallet FROM events WHERE kind = 'mark'\"}"
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
    return parse_pipeline(TEXT.format(folder=folder, table=table, name=name, sink=sink or f"{{type: postgres, from: hits, table: {name}}}"))


def settings_of(folder: Path, conninfo: str, **backend: object) -> Settings:
    found = conninfo_to_dict(conninfo)
    return Settings.model_validate(
        {
            "home": folder / "home",
            "state_backend": StateBackend(sqlite=SqliteBackend(path=folder / "ledger.db")),
            "commit_timeout_seconds": 0,
            "postgres_sink": {name: found[name] for name in ("host", "port", "user", "password")} | {"db": found["dbname"]},
            "dynamic_table_backend": backend,
        }
    )


def written(conninfo: str, name: str = "wallets") -> list[int]:
    with psycopg.connect(conninfo) as connection:
        return [number for (number,) in connection.execute(sql.SQL("SELECT id FROM {} ORDER BY id").format(sql.Identifier(name)))]


def test_a_table_in_memory_lives_as_long_as_its_pipeline(spark: SparkSession, tmp_path: Path, pg: str) -> None:
    put(tmp_path)
    file, settings = file_of(tmp_path), settings_of(tmp_path, pg)
    run(file, settings, until=Until.HISTORY, windows=WINDOWS[:1], spark=spark)
    assert written(pg) == [1], "the first epoch does not see its own values"
    run(file, settings, until=Until.HISTORY, windows=WINDOWS[1:3], spark=spark)
    assert written(pg) == [1, 4, 5, 7, 8], "values did not outlive the run"

    replay(file, settings, sink="out", from_epoch=1, spark=spark)
    assert written(pg) == [1, 4, 5, 7, 8]
    assert 2 not in written(pg), "a replayed epoch saw what came later"

    (store,) = (tmp_path / "home" / "tables").rglob("*.db")
    moved = store.rename(store.with_suffix(".away"))
    with pytest.raises(RecordError, match="and it is not here; the ledger is at epoch 3"):
        run(file, settings, until=Until.HISTORY, spark=spark)
    for stray in store.parent.glob("*.db*"):
        stray.unlink()
    moved.rename(store)
    assert run(file, settings, until=Until.HISTORY, spark=spark).history_complete
    assert written(pg) == [1, 4, 5, 7, 8, 10]


def test_a_table_in_postgres_is_everybodys(spark: SparkSession, tmp_path: Path, pg: str) -> None:
    put(tmp_path)
    table = MEMORY.replace("InMemory", "Postgres").replace("backend_entity_name: known", "backend_entity_name: lists.known")
    settings = settings_of(tmp_path, pg, max_batch_size=2)
    one, other = file_of(tmp_path, table, "one"), file_of(tmp_path, table.split(", sql")[0] + "}", "other")
    run(one, settings, until=Until.HISTORY, windows=WINDOWS[:2], spark=spark)
    assert written(pg, "one") == [1, 4, 5]
    with psycopg.connect(pg, autocommit=True) as outside:
        assert outside.execute("SELECT value FROM lists.known ORDER BY 1").fetchall() == [("a",), ("b",)]
        outside.execute("INSERT INTO lists.known VALUES ('c')")
    run(one, settings, until=Until.HISTORY, windows=WINDOWS[2:3], spark=spark)
    assert written(pg, "one") == [1, 4, 5, 7, 8, 9], "an outside writer is not seen at once"
    run(other, settings, until=Until.HISTORY, windows=WINDOWS[3:], spark=spark)
    assert written(pg, "other") == [10, 12], "the other pipeline does not see the same table"
    with psycopg.connect(pg, autocommit=True) as outside:
        outside.execute("DELETE FROM lists.known")
    replay(one, settings, sink="out", from_epoch=1, spark=spark)
    assert written(pg, "one") == [1, 4, 5, 7, 8, 9], "a replay gave other rows than the first time"
    with psycopg.connect(pg, autocommit=True) as outside:
        assert outside.execute("SELECT count(*) FROM lists.known").fetchone() == (0,), "a replay fills the table again"
        outside.execute("ALTER TABLE lists.known RENAME COLUMN value TO v")
    with pytest.raises(HeadraceError, match=r"table lists.known has no column 'value'; it has v") as caught:
        run(one, settings, until=Until.HISTORY, spark=spark)
    assert caught.value.node == "known"
