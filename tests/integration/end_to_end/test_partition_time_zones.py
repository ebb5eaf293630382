"""Days of a time zone: each row is in the day that the clock of the zone shows."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import clickhouse_connect
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.pipeline_world import World
from pyspark.sql import SparkSession

from headrace.jobs.checks.audit import ContentAuditOptions, audit
from headrace.jobs.run.events import RunResult, Until
from headrace.jobs.run.runner import run
from headrace.pipeline.errors import PipelineFileError, SchemaError
from headrace.pipeline.file.loader import load_pipeline
from headrace.services import Services

ZONE = "Europe/Berlin"
PIPELINE = """
name: {name}
sources: {{src: {source}}}
sinks:
  pg: {{type: postgres, from: src, table: visits, primary_key: id}}
partitions: {{column: at, every: day, start: 2018-10-27, end: 2018-10-30, timezone: {zone}, any_order: true}}
epoch: {{history_rows: 40}}
"""
FIRST = datetime(2018, 10, 27, tzinfo=ZoneInfo(ZONE)).astimezone(UTC)
KEYS = ["2018-10-27", "2018-10-28", "2018-10-29"]
"""On the second day the clock went from 3:00 back to 2:00."""


class Visits(World):
    """A visit every half hour for three days: 48, 50 and 48 of them."""

    def create(self, kind: str) -> None:
        rows = [(at, FIRST + timedelta(minutes=30 * at)) for at in range(146)]
        self.days = {key: at.astimezone(ZoneInfo(ZONE)).date().isoformat() for key, at in rows}
        if kind == "files":
            ids, times = zip(*rows, strict=True)
            path = self.folder / "visits.parquet"
            pq.write_table(pa.table({"id": ids, "at": pa.array(times, pa.timestamp("us", "UTC"))}), path)
            self.source = f"{{type: file, path: {path}, format: parquet, mode: bounded}}"
        else:
            arguments = self.services.clickhouse.client_arguments(database=self.database)
            with clickhouse_connect.get_client(**arguments) as client:
                client.command(f"CREATE TABLE visits (id Int64, at {kind}) ENGINE = MergeTree ORDER BY id")
                client.insert("visits", rows, column_names=["id", "at"])
            self.source = f"{{type: clickhouse, table_name: {self.database}.visits, split_rows: 20}}"
        self.write(ZONE)

    def write(self, zone: str) -> None:
        self.file.write_text(PIPELINE.format(name=self.name, source=self.source, zone=zone))

    def check_sink(self, *keys: str) -> None:
        with psycopg.connect(self.conninfo) as connection:
            result = connection.execute("SELECT id FROM visits ORDER BY id").fetchall()
        assert [row[0] for row in result] == [key for key, day in self.days.items() if day in keys]


Go = Callable[..., RunResult]


@pytest.fixture
def visits(services: Services, pg: str, ch_db: str, tmp_path: Path) -> Visits:
    return Visits(services, tmp_path, ch_db, pg)


@pytest.fixture
def go(visits: Visits, spark: SparkSession) -> Go:
    def call(*keys: str, refresh: bool = False) -> RunResult:
        return run(
            load_pipeline(visits.file),
            visits.settings(),
            until=Until.HISTORY,
            partitions=keys or None,
            refresh=refresh,
            spark=spark,
        )

    return call


@pytest.mark.parametrize("kind", ["DateTime64(3, 'UTC')", "DateTime('America/New_York')", "files"])
def test_each_row_is_in_the_day_of_the_zone(visits: Visits, spark: SparkSession, go: Go, kind: str) -> None:
    visits.create(kind)
    for count, key in enumerate([KEYS[1], KEYS[0], KEYS[2]], start=1):
        assert go(key).history_complete is (count == 3)
        visits.check_sink(*{1: KEYS[1:2], 2: KEYS[:2], 3: KEYS}[count])
    with psycopg.connect(visits.conninfo) as connection:
        connection.execute("DELETE FROM visits WHERE id % 5 = 0")
    go(KEYS[1], refresh=True)
    restored = {key: day for key, day in visits.days.items() if day == KEYS[1] or key % 5}
    visits.days = restored
    visits.check_sink(*KEYS)


def test_content_is_compared_by_the_same_days(visits: Visits, spark: SparkSession, go: Go) -> None:
    visits.create("DateTime('UTC')")
    go(KEYS[1])
    result = audit(
        load_pipeline(visits.file), visits.settings(), spark=spark, content=ContentAuditOptions(full=True)
    )
    assert [one for one in result if one.passed is False] == []
    assert [one.passed for one in result if one.name == "content_matches"] == [True]


def test_the_zone_of_a_begun_history_stays(visits: Visits, go: Go) -> None:
    visits.create("DateTime('UTC')")
    go(KEYS[1])
    visits.write("America/New_York")
    with pytest.raises(PipelineFileError, match="`partitions` cannot change any more") as error:
        go()
    assert f"timezone: {ZONE}" in str(error.value)


def test_dates_have_no_zone(visits: Visits, go: Go) -> None:
    visits.create("Date")
    with pytest.raises(SchemaError, match=f"`timezone: {ZONE}` in `partitions` needs a timestamp") as error:
        go()
    assert "remove `timezone`" in str(error.value.hint)
    visits.write("UTC")
    assert go(KEYS[0]).history_complete is False
