"""Materializing a complete partition again, on real servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import clickhouse_connect
import dagster as dg
import psycopg
import pytest
from helpers.dagster_runs import DAILY
from helpers.pipeline_world import World
from pyspark.sql import SparkSession

from headrace.orchestration.build import build_definitions
from headrace.services import Services

PG = dg.AssetKey(["postgres", "public", "sales"])
DAYS = ["2024-03-01", "2024-03-02"]


@pytest.fixture
def world(
    services: Services,
    spark: SparkSession,
    pg: str,
    ch_db: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> World:
    """Sales of two days. The runs use the session of the tests, because a process has one JVM."""
    monkeypatch.setattr("headrace.orchestration.spark.start_session", lambda *_: spark)
    monkeypatch.setattr("headrace.orchestration.spark.stop_session", lambda _: None)
    result = World(services, tmp_path, ch_db, pg)
    for name, value in result.env().items():
        monkeypatch.setenv(name, value)
    text = DAILY.partition("schedule")[0].replace("table_name: sales", f"table_name: {ch_db}.sales")
    result.file.write_text(text.replace("end: open", "end: 2024-03-03, any_order: true"))
    ask(result, "CREATE TABLE sales (id Int64, day Date, v Int64) ENGINE = MergeTree ORDER BY (day, id)")
    ask(result, "INSERT INTO sales SELECT number, toDate('2024-03-01') + number % 2, 1 FROM numbers(10)")
    return result


def ask(world: World, statement: str) -> None:
    arguments = world.services.clickhouse.client_arguments(database=world.database)
    with clickhouse_connect.get_client(**arguments) as client:
        client.command(statement, settings={"mutations_sync": 1})


@pytest.fixture
def materialize(world: World) -> Iterator[Callable[..., dg.DagsterInstance]]:
    with dg.DagsterInstance.ephemeral() as instance:

        def go(*days: str) -> dg.DagsterInstance:
            job = build_definitions([world.file]).resolve_implicit_global_asset_job_def()
            keys = {"start": days[0], "end": days[-1]}
            tags = {f"dagster/asset_partition_range_{name}": day for name, day in keys.items()}
            assert job.execute_in_process(instance=instance, tags=tags).success
            return instance

        yield go


def in_postgres(world: World) -> dict[int, int]:
    with psycopg.connect(world.conninfo) as connection:
        return dict(connection.execute("SELECT id, v FROM sales").fetchall())


def test_refresh_replaces_the_rows_of_a_partition(
    world: World, materialize: Callable[..., dg.DagsterInstance]
) -> None:
    materialize(*DAYS)
    assert in_postgres(world) == dict.fromkeys(range(10), 1)
    ask(world, "ALTER TABLE sales UPDATE v = 2 WHERE id IN (2, 3)")
    ask(world, "ALTER TABLE sales DELETE WHERE id IN (4, 5)")

    instance = materialize(DAYS[0])
    expected = dict.fromkeys(range(10), 1) | {2: 2}
    del expected[4]
    assert in_postgres(world) == expected
    event = instance.get_latest_materialization_event(PG)
    assert event is not None
    assert event.asset_materialization is not None
    metadata = event.asset_materialization.metadata
    assert (metadata["deleted"].value, metadata["dagster/partition_row_count"].value) == (1, 4)
    checks = instance.event_log_storage.get_latest_asset_check_execution_by_key(
        [
            dg.AssetCheckKey(PG, name)
            for name in ("exactly_once_epochs", "row_count_matches", "content_matches")
        ]
    )
    assert {record.status.value for record in checks.values()} == {"SUCCEEDED"}
    assert sorted(instance.get_materialized_partitions(PG)) == DAYS
