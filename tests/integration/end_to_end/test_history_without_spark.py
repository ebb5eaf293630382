"""Histories of stored rows and of files that tasks copy, by runs that are killed.

Spark starts only for values that Arrow does not compute.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.pipeline_world import World, leftovers, until
from pyspark.sql import SparkSession

from headrace.connectors import lazy_session
from headrace.connectors.files import source
from headrace.jobs.run.events import Until
from headrace.jobs.run.runner import run
from headrace.pipeline.file.loader import load_pipeline
from headrace.services import Services

FIRST_DAY = date(2024, 1, 1)
ROWS = 600_000
"""Three splits, as stored rows have row groups of 50,000."""
KEYED = """
name: {name}
sources: {{src: {{type: postgres, table: original, primary_key: id}}}}
sinks:
  pg: {{type: postgres, from: src, table: target}}
  lake: {{type: delta, from: src, path: "{folder}/lake"}}
epoch: {{history_rows: 250000}}
"""
FILTERED = """
name: {name}
sources: {{src: {{type: postgres, table: original, primary_key: id}}}}
transforms:
  large:
    type: sql
    sql: >
      select id, v, digits, case when v >= 1000 then 'large' else concat('id ', cast(id as string)) end as text
      from src where v is null or v >= 1
sinks:
  pg: {{type: postgres, from: large, table: target, primary_key: id}}
  lake: {{type: delta, from: large, path: "{folder}/lake", primary_key: id}}
epoch: {{history_rows: 250000}}
"""
GUARDED = (
    FILTERED[: FILTERED.index("transforms")]
    + """\
transforms:
  large:
    type: sql
    sql: >
      select id, v * 1.5 as v, upper(case when id % 200000 = 5 then 'é' else 'e' end) as text
      from src where round(v) >= 1
sinks:
  pg: {{type: postgres, from: large, table: target, primary_key: id}}
  lake: {{type: delta, from: large, path: "{folder}/lake", primary_key: id}}
epoch: {{history_rows: 250000}}
"""
)
"""Three batches have a letter that Spark maps to upper case."""
FILES = """
name: {name}
sources: {{src: {{type: file, path: "{folder}/files/*.parquet", format: parquet, mode: bounded, {key}}}}}
sinks:
  pg: {{type: postgres, from: src, table: target}}
  lake: {{type: delta, from: src, path: "{folder}/lake"}}
"""


LAKE = """
name: {name}
sources: {{src: {{type: delta, path: "{folder}/original", primary_key: id}}}}
sinks:
  pg: {{type: postgres, from: src, table: target}}
  lake: {{type: delta, from: src, path: "{folder}/lake"}}
epoch: {{history_rows: 250000}}
"""

PARTITIONED = """
name: {name}
sources:
  src: {{type: file, path: "{folder}/files", format: csv, mode: bounded, primary_key: id, schema: {{id: int64, day: date32, v: "decimal(9,2)"}}}}
sinks:
  pg: {{type: postgres, from: src, table: target}}
  lake: {{type: delta, from: src, path: "{folder}/lake"}}
partitions: {{column: day, every: month, start: 2024-01, end: 2024-04}}
epoch: {{history_rows: 2000}}
"""


class HistoryWorld(World):
    """Rows `id`, `v`, `digits` in Postgres and in a Delta table, which come from a table or from files."""

    def fill_table(self) -> None:
        self.file.write_text(KEYED.format(name=self.name, folder=self.folder))
        self.execute(
            "CREATE TABLE original (id bigint PRIMARY KEY, v numeric(12, 2), digits numeric(38, 0))",
            "INSERT INTO original VALUES (-1, NULL, -1 - 10 ^ 37::numeric)",
            f"INSERT INTO original SELECT n, n / 4.0, n FROM generate_series(1, {ROWS}) n",
        )

    def fill_files(self, key: str) -> None:
        self.file.write_text(FILES.format(name=self.name, folder=self.folder, key=key))
        folder = self.folder / "files"
        folder.mkdir()
        for first in (0, 1_000):
            columns = {"v": [f"v{n}" for n in range(first, first + 1_000)], "id": range(first, first + 1_000)}
            pq.write_table(pa.table(columns), folder / f"{first}.parquet", row_group_size=100)

    def fill_days(self) -> None:
        """Write csv files with rows of each month, and of days that no partition has."""
        self.file.write_text(PARTITIONED.format(name=self.name, folder=self.folder))
        folder = self.folder / "files"
        folder.mkdir()
        for file in range(4):
            rows = [
                f"{n},{FIRST_DAY + timedelta(days=n % 100)},{n}.5"
                for n in range(file * 500, file * 500 + 500)
            ]
            (folder / f"{file}.csv").write_text("\n".join(["id,day,v", *rows]))

    def add_lake_rows(self, first: int, end: int, v: int) -> None:
        """Append a file to the Delta table that is read. Later files have later modification times."""
        rows = pa.table({"id": range(first, end), "v": pa.repeat(v, end - first)})
        deltalake.write_deltalake(self.folder / "original", rows, mode="append")
        time.sleep(0.01)

    def execute(self, *statements: str) -> list[Any]:
        """Return the rows of the last statement."""
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            cursor = connection.cursor()
            for statement in statements:
                cursor.execute(statement)  # type: ignore[arg-type]
            return cursor.fetchall() if cursor.description else []

    def check_table(self) -> None:
        counts = "SELECT count(*), count(DISTINCT id), sum(v)::float8, sum(digits)::text FROM target"
        total = ROWS * (ROWS + 1) // 2
        assert self.execute(counts) == [(ROWS + 1, ROWS + 1, total / 4, str(total - 1 - 10**37))]
        lake = self.lake_rows()
        assert sorted(lake["id"]) == [-1, *range(1, ROWS + 1)]
        assert sum(map(int, lake["digits"])) == total - 1 - 10**37

    def lake_rows(self) -> dict[str, list[Any]]:
        """Return the columns of the Delta table, whose files have all of its rows."""
        files = deltalake.DeltaTable(self.lake).file_uris()
        return pa.concat_tables(pq.read_table(file) for file in files).to_pydict()


@pytest.fixture
def world(services: Services, pg: str, ch_db: str, tmp_path: Path) -> Iterator[HistoryWorld]:
    result = HistoryWorld(services, tmp_path, ch_db, pg)
    yield result
    result.close()


def at_kill_points(*, daily: bool = True, **slow: tuple[int, ...]) -> pytest.MarkDecorator:
    """Kill the run after its second split, and in the slow suite at the named points.

    Without `daily` the first belongs to the slow suite, too.
    """
    points = [(name.replace("_", "-"), nth) for name, numbers in slow.items() for nth in numbers]
    slow_points = [pytest.param(*point, marks=pytest.mark.slow) for point in points]
    marks = () if daily else pytest.mark.slow
    return pytest.mark.parametrize(
        ("point", "nth"), [pytest.param("split-loaded", 2, marks=marks), *slow_points]
    )


@at_kill_points(
    planned=(1,),
    split_loading=(1, 2, 3),
    delta_file_written=(1, 3),
    delta_committed=(5, 6),
    sinks_written=(1, 2),
)
def test_stored_rows_of_a_killed_run(world: HistoryWorld, point: str, nth: int) -> None:
    world.fill_table()
    assert world.crash(point, nth) != 0
    # What was read before the crash counts.
    world.execute("DELETE FROM original WHERE id > 5", "UPDATE original SET v = 0")
    assert until(lambda: world.run()["code"] == 0, "a run after the lease of the first", 300)
    world.check_table()
    assert not world.has_started_spark()
    assert leftovers(world) == []


@at_kill_points(split_loading=(1, 3), delta_file_written=(1, 3), delta_committed=(5, 6), sinks_written=(1,))
def test_rows_after_sql_of_a_killed_run(world: HistoryWorld, point: str, nth: int) -> None:
    world.fill_table()
    world.file.write_text(FILTERED.format(name=world.name, folder=world.folder))
    assert world.crash(point, nth) != 0
    assert until(lambda: world.run()["code"] == 0, "a run after the lease of the first", 300)
    counts = "SELECT count(*), count(DISTINCT id), min(v), count(*) FILTER (WHERE text = 'large') FROM target"
    assert world.execute(counts) == [(ROWS - 2, ROWS - 2, 1, ROWS - 3_999)]
    texts = "SELECT id, text FROM target WHERE id IN (-1, 3, 4, 3999, 4000) ORDER BY id"
    expected = [(-1, "id -1"), (4, "id 4"), (3_999, "id 3999"), (4_000, "large")]
    assert world.execute(texts) == expected
    lake = world.lake_rows()
    assert sorted(lake["id"]) == [-1, *range(4, ROWS + 1)]
    by_id = dict(zip(lake["id"], lake["text"], strict=True))
    assert [(key, by_id[key]) for key, _ in expected] == expected


@at_kill_points(
    daily=False, split_loading=(1, 3), delta_file_written=(1, 3), delta_committed=(5, 6), sinks_written=(1,)
)
def test_values_that_spark_computes_in_a_killed_run(world: HistoryWorld, point: str, nth: int) -> None:
    world.fill_table()
    world.file.write_text(GUARDED.format(name=world.name, folder=world.folder))
    assert world.crash(point, nth) != 0
    assert until(lambda: world.run()["code"] == 0, "a run after the lease of the first", 300)
    counts = "SELECT text, count(*), count(DISTINCT id), sum(v) FROM target GROUP BY text ORDER BY text DESC"
    total = sum(range(2, ROWS + 1)) * Decimal("0.375")
    accented = [5, 200_005, 400_005]
    price = sum(accented) * Decimal("0.375")
    number = ROWS - 1 - len(accented)
    assert world.execute(counts) == [("É", 3, 3, price), ("E", number, number, total - price)]
    lake = world.lake_rows()
    assert sorted(lake["id"]) == list(range(2, ROWS + 1))
    assert sum(lake["v"]) == total
    assert sorted(key for key, text in zip(lake["id"], lake["text"], strict=True) if text == "É") == accented
    assert world.has_started_spark()


def test_an_epoch_is_finished_after_its_index_was_dropped(world: HistoryWorld) -> None:
    world.fill_table()
    assert world.crash("split-loaded", 2) != 0
    world.execute("ALTER TABLE original DROP CONSTRAINT original_pkey")
    assert until(lambda: world.run()["code"] == 0, "a run after the lease of the first", 300)
    world.check_table()
    assert not world.has_started_spark()


@at_kill_points(
    daily=False, split_loaded=(1, 3), split_loading=(2, 3), delta_file_written=(1, 2), sinks_written=(1,)
)
def test_rows_of_a_key_in_several_splits_keep_their_order(world: HistoryWorld, point: str, nth: int) -> None:
    world.fill_table()
    world.execute(
        "DROP TABLE original",
        "CREATE TABLE original (id bigint, v bigint)",
        f"INSERT INTO original SELECT n % 1000, n FROM generate_series(1, {ROWS}) n",
    )
    assert world.crash(point, nth) != 0
    assert until(lambda: world.run()["code"] == 0, "a run after the lease of the first", 300)
    expected = [(key, ROWS - 1000 + key if key else ROWS) for key in range(1000)]
    assert world.execute("SELECT id, v FROM target ORDER BY id") == expected
    lake = world.lake_rows()
    assert sorted(zip(lake["id"], lake["v"], strict=True)) == expected
    checks = json.loads(world.run_cli("audit", str(world.file), "--json"))
    assert {check["passed"] for check in checks} == {True, None}


@at_kill_points(
    daily=False,
    planned=(1,),
    split_loading=(2, 3),
    delta_file_written=(1, 2),
    delta_committed=(5,),
    sinks_written=(1, 2),
)
def test_rows_of_a_delta_table_of_a_killed_run(
    world: HistoryWorld, spark: SparkSession, point: str, nth: int
) -> None:
    """The last file has newer rows of some keys, which Spark merges into the Delta table."""
    world.file.write_text(LAKE.format(name=world.name, folder=world.folder))
    for first in range(0, ROWS, 100_000):
        world.add_lake_rows(first, first + 100_000, 1)
    world.add_lake_rows(50_000, 150_000, 2)
    assert world.crash(point, nth) != 0
    # The version that was read before the crash counts.
    world.add_lake_rows(0, 10, 3)
    assert until(lambda: world.run()["code"] == 0, "a run after the lease of the first", 300)
    counts = "SELECT v, count(*), count(DISTINCT id), min(id), max(id) FROM target GROUP BY v ORDER BY v"
    expected = [(1, ROWS - 100_000, ROWS - 100_000, 0, ROWS - 1), (2, 100_000, 100_000, 50_000, 149_999)]
    assert world.execute(counts) == expected
    spark.read.format("delta").load(str(world.lake)).createOrReplaceTempView("target")
    assert sorted(map(tuple, spark.sql(counts).collect())) == expected
    assert leftovers(world) == []


@at_kill_points(
    planned=(1, 2),
    split_loading=(1, 2),
    delta_file_written=(1, 2),
    delta_committed=(5, 6),
    sinks_written=(1, 3),
)
def test_partitions_of_csv_files_of_a_killed_run(world: HistoryWorld, point: str, nth: int) -> None:
    world.fill_days()
    assert world.crash(point, nth) != 0
    assert until(lambda: world.run()["code"] == 0, "a run after the lease of the first", 300)
    days = {n: FIRST_DAY + timedelta(days=n % 100) for n in range(2_000)}
    expected = [(n, day, Decimal(f"{n}.5")) for n, day in days.items() if day < date(2024, 4, 1)]
    assert world.execute("SELECT id, day, v FROM target ORDER BY id") == expected
    lake = world.lake_rows()
    assert sorted(zip(lake["id"], lake["day"], lake["v"], strict=True)) == expected
    checks = json.loads(world.run_cli("audit", str(world.file), "--json"))
    assert [check for check in checks if check["passed"] is False] == []
    assert not world.has_started_spark()
    assert leftovers(world) == []


@pytest.mark.parametrize("key", ["", "primary_key: id, "], ids=["appended", "keyed"])
def test_files_are_copied_without_spark(
    world: HistoryWorld, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(lazy_session.LazySession, "start", refuse)
    monkeypatch.setattr(source, "is_full", lambda split, rows, _: split["rows"] + rows > 300)
    world.fill_files(key)
    assert run(load_pipeline(world.file), world.settings(), until=Until.HISTORY).history_complete
    expected = [(n, f"v{n}") for n in range(2_000)]
    assert world.execute("SELECT id, v FROM target ORDER BY id") == expected
    lake = world.lake_rows()
    assert sorted(zip(lake["id"], lake["v"], strict=True)) == expected
