"""A Postgres table as the history of a hybrid source, with an exact handoff to a topic."""

from __future__ import annotations

import clickhouse_connect
import psycopg
import pytest
from helpers.depth import with_slow
from helpers.pipeline_world import World
from pyspark.sql import SparkSession

CRASHES = [("planned", 1, "driver"), ("handoff", 1, "driver"), ("postgres-committed", 3, "group")]


@pytest.fixture
def postgres_world(world: World) -> World:
    """The world with its history in Postgres."""
    with clickhouse_connect.get_client(
        **world.services.clickhouse.client_arguments(database=world.database)
    ) as client:
        rows = client.query("SELECT * FROM history").result_rows
    with psycopg.connect(world.conninfo) as connection, connection.cursor() as cursor:
        cursor.execute(
            "CREATE TABLE history (id bigint, day date, name text, amount bigint, _kafka_partition int,"
            " _kafka_offset bigint)"
        )
        cursor.executemany("INSERT INTO history VALUES (%s, %s, %s, %s, %s, %s)", rows)
    table = f"source_type: clickhouse, table_name: {world.database}.history, split_rows: 500"
    text = world.file.read_text()
    assert table in text
    world.file.write_text(text.replace(table, "source_type: postgres, table: history"))
    return world


@pytest.mark.parametrize("crash", with_slow(CRASHES, [None, *CRASHES]), ids=str)
def test_history_and_stream_are_there_once(
    postgres_world: World, spark: SparkSession, crash: tuple[str, int, str] | None
) -> None:
    if crash is not None:
        assert postgres_world.crash(*crash) != 0
        # What was read before the crash counts.
        with psycopg.connect(postgres_world.conninfo) as connection:
            connection.execute("DELETE FROM history")
    assert postgres_world.run_here(spark).caught_up
    postgres_world.check(spark)
