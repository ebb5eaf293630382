"""A whole pipeline without a server.

Csv files in monthly folders, window by window, into an Iceberg and a Delta table.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from helpers.web_server import WebRequest, served
from pyspark.sql import SparkSession

from headrace.connectors.iceberg.catalog import WarehouseTable
from headrace.connectors.row_errors import explain_failure
from headrace.jobs.checks.audit import audit
from headrace.jobs.run.events import RunResult, Until
from headrace.jobs.run.runner import run
from headrace.pipeline.config.sections import IcebergSettings, SqliteBackend, StateBackend
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import DataError, HeadraceError
from headrace.pipeline.file.loader import parse_pipeline

SOURCE = """
sources:
  events:
    type: file
    path: {folder}/month=*/*.csv
    format: csv
    mode: bounded
    schema: {{id: int64, v: string, month: date32}}
    primary_key: id
"""
TEXT = (
    SOURCE
    + """
version: 1
name: lakes
partitions: {{column: month, every: month, start: 2025-01, end: 2025-04}}
transforms:
  kept: {{type: sql, sql: "SELECT id, upper(v) AS v, month FROM events WHERE v <> 'drop'"}}
sinks:
  ice: {{type: iceberg, from: kept, table_name: n.events}}
  lake: {{type: delta, from: kept, path: {folder}/delta}}
"""
)


def put(folder: Path, month: int, text: str) -> Path:
    path = folder / f"month=2025-0{month}-01" / "part-1.csv"
    path.parent.mkdir(exist_ok=True)
    path.write_text("id,v\n" + text)
    return path


# Daily tests: test_a_file_that_changed_is_named_and_never_read, test_folders_become_columns_and_windows_go_by_them,
# and runs with other sources in tests/integration/end_to_end.
@pytest.mark.slow
def test_windows_a_change_and_the_way_back(spark: SparkSession, tmp_path: Path) -> None:
    for month in (1, 2, 3):
        put(tmp_path, month, f"{month},a\n1{month},drop\n100,month {month}\n")
    file = parse_pipeline(TEXT.format(folder=tmp_path), str(tmp_path / "lakes.yaml"))
    settings = Settings(
        home=tmp_path,
        iceberg=IcebergSettings(warehouse=str(tmp_path / "warehouse")),
        state_backend=StateBackend(sqlite=SqliteBackend(path=tmp_path / "ledger.db")),
    )

    def carry(*windows: str) -> RunResult:
        return run(file, settings, until=Until.HISTORY, partitions=windows or None, spark=spark)

    def rows() -> list[tuple[object, ...]]:
        ice = sorted(
            (row.id, row.v, str(row.month))
            for row in WarehouseTable(str(tmp_path / "warehouse"), "n.events", "t")
            .frame(spark, None)
            .collect()
        )
        lake = spark.read.format("delta").load(f"{tmp_path}/delta").collect()
        assert sorted((row.id, row.v, str(row.month)) for row in lake) == ice
        return list(ice)

    carry("2025-01-01")
    assert rows() == [(1, "A", "2025-01-01"), (100, "MONTH 1", "2025-01-01")]
    late = tmp_path / "month=2025-02-01" / "part-2.csv"
    late.write_text("id,v\n999,late\n")
    changed = tmp_path / "month=2025-03-01" / "part-1.csv"
    about, before = changed.stat(), changed.read_text()
    changed.write_text("id,v\n3,other\n")
    with pytest.raises(HeadraceError, match="changed after it was pinned") as caught:
        carry()
    assert str(changed) in str(caught.value)
    changed.write_text(before)
    os.utime(changed, ns=(about.st_atime_ns, about.st_mtime_ns))
    deadline = time.monotonic() + 120
    while not (result := carry()).history_complete:
        assert time.monotonic() < deadline
    assert rows() == [
        (1, "A", "2025-01-01"),
        (2, "A", "2025-02-01"),
        (3, "A", "2025-03-01"),
        (100, "MONTH 3", "2025-03-01"),
    ]
    assert result.counts.keys() <= {"ice", "lake"}
    assert carry().epochs == 0
    checks = audit(file, settings, spark=spark)
    assert [check for check in checks if check.passed is False] == []
    assert {check.sink for check in checks} >= {"ice", "lake"}


EMPTIED = (
    SOURCE
    + """
version: 1
name: emptied
partitions: {{column: month, every: month, start: 2025-01, end: 2025-03}}
transforms:
  kept: {{type: sql, sql: "SELECT * FROM events WHERE v <> 'drop'"}}
  asked: {{type: handler, from: events, url: "{url}", batch_size: 10}}
  shaped: {{type: script, from: events, language: javascript, script: "const invoke = (row) => row.v === 'drop' ? null : row"}}
sinks:
  of_sql: {{type: blackhole, from: kept, delivery: at_least_once}}
  of_handler: {{type: blackhole, from: asked, delivery: at_least_once}}
  of_script: {{type: delta, from: shaped, path: {folder}/of_script}}
"""
)


def test_an_epoch_of_which_nothing_is_left_is_committed_once(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path, 1, "1,drop\n2,drop\n")
    put(tmp_path, 2, "3,kept\n4,drop\n")

    def answer(request: WebRequest) -> object:
        return [row for row in request.rows if row["v"] != "drop"]

    with served(answer) as service:
        file = parse_pipeline(
            EMPTIED.format(folder=tmp_path, url=service.url), str(tmp_path / "emptied.yaml")
        )
        settings = Settings(
            home=tmp_path,
            state_backend=StateBackend(sqlite=SqliteBackend(path=tmp_path / "ledger.db")),
        )

        def carry(window: str) -> RunResult:
            return run(file, settings, until=Until.HISTORY, partitions=(window,), spark=spark)

        def written(result: RunResult) -> dict[str, int]:
            return {name: count.rows for name, count in result.counts.items()}

        first = carry("2025-01-01")
        assert (first.epochs, written(first)) == (1, dict.fromkeys(file.model.sinks, 0))
        requests = len(service.requests)
        assert requests
        assert carry("2025-01-01").epochs == 0, "an epoch without rows is done again"
        assert len(service.requests) == requests, "the service was asked again for an epoch that is committed"
        second = carry("2025-02-01")
        assert (second.first_epoch, written(second)) == (2, dict.fromkeys(file.model.sinks, 1))
    lake = spark.read.format("delta").load(f"{tmp_path}/of_script")
    assert [row.id for row in lake.collect()] == [3]


def test_a_line_that_is_no_json_is_told_with_its_file_and_its_node(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lines are counted before the first epoch is planned.

    The next run pins the corrected file: no epoch was planned yet.
    """
    lines = tmp_path / "a.jsonl"
    lines.write_text('{"id": 1}\n{"id": \n')
    text = f"""
name: broken
sources:
  src: {{type: file, path: {lines}, format: json, mode: bounded, schema: {{id: int64}}}}
sinks:
  out: {{type: blackhole, from: src, delivery: at_least_once}}
"""
    file = parse_pipeline(text, "p.yaml")
    settings = Settings(
        home=tmp_path, state_backend=StateBackend(sqlite=SqliteBackend(path=tmp_path / "ledger.db"))
    )
    stopped: list[SparkSession] = []

    def explained(error: BaseException) -> HeadraceError | None:
        assert not stopped, "Spark's errors say nothing any more once it is stopped"
        return explain_failure(error)

    monkeypatch.setattr("headrace.jobs.run.session.start_session", lambda *_: spark)
    monkeypatch.setattr("headrace.jobs.run.session.stop_session", stopped.append)
    monkeypatch.setattr("headrace.jobs.spark.errors.explain_failure", explained)
    with pytest.raises(DataError) as caught:
        run(file, settings, until=Until.HISTORY)
    stopped.clear()
    assert str(caught.value).startswith(
        f"p.yaml:4:3: node 'src': file {lines}, line 2: the line does not fit `schema`"
    )
    lines.write_text('{"id": 1}\n{"id": 2}\n')
    assert run(file, settings, until=Until.HISTORY, spark=spark).counts["out"].rows == 2
