"""A hybrid source into a ClickHouse table, with kill -9 and pauses around the steps of an epoch.

Each time a reader with FINAL must see the expected rows, each once. Without a key the table has partitions, so
that an epoch is attached in several steps, and no row may be there twice.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import clickhouse_connect
import pytest
from helpers.appended_rows import expected_appends, expected_rows
from helpers.pipeline_world import HYBRID_SOURCE, Row, World, until
from pyspark.sql import SparkSession

from headrace import services as local
from headrace.jobs.checks.audit import ContentAuditOptions, audit
from headrace.jobs.run.repair import replay
from headrace.pipeline.file.loader import load_pipeline

SINK = """\
transforms:
  shaped: {{type: sql, sql: "select id, day, upper(name) as name, {doubled} as amount from src{where}"}}
sinks:
  out: {{type: clickhouse, from: shaped, table: {database}.target, append_only_mode: {appends}}}
epoch: {{interval: 0s, stream_rows: 250, history_rows: 1000}}
"""
PARTITIONED = (
    "CREATE TABLE target (id Int64, day Date32, name String, amount Int64, _headrace_epoch UInt64,"
    " _headrace_attempt UInt64) ENGINE = MergeTree PARTITION BY id % 4 ORDER BY id"
)

# Epochs of a run: 1 to 3 are history, then the stream. (point, nth, who dies)
STEPS = [
    ("stage-opened", 1, "driver"),
    ("state-written", 2, "group"),
    ("stage-filled", 2, "driver"),
    ("stage-filled", 5, "jvm"),
    ("stage-announced", 1, "driver"),
    ("stage-announced", 5, "group"),
    ("stage-attaching", 2, "driver"),
    ("stage-attaching", 6, "group"),
    ("stage-attached", 3, "group"),
    ("stage-attached", 5, "driver"),
    ("stage-recorded", 4, "driver"),
    ("stage-cleared", 4, "group"),
]


# Of the splits of history, which tasks stage without Spark.
DIRECT_STEPS = [
    ("stage-filled", 1, "driver"),
    ("stage-filled", 2, "group"),
    ("stage-announced", 2, "driver"),
    ("stage-attaching", 1, "group"),
    ("stage-attached", 2, "driver"),
    ("stage-recorded", 3, "group"),
]


@pytest.fixture
def keyed(world: World) -> World:
    """The world with a pipeline into a table that the sink creates."""
    return with_table(world)


@pytest.fixture
def appended(world: World) -> World:
    """The world with a pipeline without a key into a table with partitions."""
    return with_table(world, keyed=False)


@pytest.fixture
def own_server(world: World, fresh_home: Path) -> World:
    """The world with a ClickHouse server of its own for the sink."""
    world.other_clickhouse = local.up(("clickhouse",), home=fresh_home).clickhouse
    with clickhouse_connect.get_client(**world.sink_clickhouse.client_arguments()) as client:
        client.command(f"CREATE DATABASE {world.database}")
    return world


def with_table(world: World, *, keyed: bool = True, appends: bool = True) -> World:
    where = "" if keyed else " where _gs_op <> 'd'"
    text = (HYBRID_SOURCE + SINK).format(**world.file_values, where=where, appends=str(appends).lower())
    if not keyed:
        text = text.replace("    primary_key: id\n", "")
        with connected(world) as client:
            client.command(PARTITIONED)
    world.file.write_text(text)
    return world


@contextmanager
def connected(world: World) -> Iterator[Any]:
    with clickhouse_connect.get_client(
        **world.sink_clickhouse.client_arguments(database=world.database)
    ) as client:
        yield client


def rows(world: World, *, final: bool = True) -> list[Row]:
    """All rows of the table, sorted."""
    with connected(world) as client:
        result = client.query(f"SELECT id, day, name, amount FROM target{' FINAL' if final else ''}")
        return sorted(map(tuple, result.result_rows))


# The daily sample has no Spark: end_to_end/test_start_without_spark.py, stage-attached. Of tables with partitions,
# connectors/test_clickhouse_sink.py has daily ones.
@pytest.mark.slow
@pytest.mark.parametrize(("point", "nth", "who"), STEPS)
def test_every_row_is_there_once(keyed: World, spark: SparkSession, point: str, nth: int, who: str) -> None:
    assert keyed.crash(point, nth, who) != 0
    assert keyed.run_here(spark).caught_up
    assert rows(keyed) == expected_rows(keyed)


@pytest.mark.slow
@pytest.mark.parametrize(("point", "nth", "who"), STEPS)
def test_every_row_without_a_key_is_there_once(
    appended: World, spark: SparkSession, point: str, nth: int, who: str
) -> None:
    assert appended.crash(point, nth, who) != 0
    assert appended.run_here(spark).caught_up
    assert rows(appended, final=False) == expected_appends(appended)


@pytest.mark.slow
@pytest.mark.parametrize(("point", "nth", "who"), DIRECT_STEPS)
def test_every_row_of_a_direct_load_is_there_once(
    appended: World, spark: SparkSession, point: str, nth: int, who: str
) -> None:
    """A table with a key has the same steps. The history of this world has its keys in several splits."""
    world, text = appended, appended.file.read_text()
    shaped = next(line for line in text.splitlines() if "shaped: {" in line)
    text = text.replace("transforms:\n", "").replace(f"{shaped}\n", "").replace("from: shaped", "from: src")
    world.file.write_text(text.replace("source_type: kafka,", "source_type: kafka, filter: _gs_op <> 'd',"))
    explained = world.run_cli("explain", str(world.file))
    assert "history goes from source to sink as Arrow" in " ".join(explained.split()), explained
    assert world.crash(point, nth, who) != 0
    assert world.run_here(spark).caught_up
    expected = [(key, day, name.lower(), amount // 2) for key, day, name, amount in expected_appends(world)]
    assert rows(world, final=False) == expected


@pytest.mark.slow
def test_a_run_that_dies_after_it_attached_rows(keyed: World, spark: SparkSession) -> None:
    assert keyed.crash("stage-attached", 5, "driver") != 0
    assert keyed.run_here(spark).caught_up
    assert rows(keyed) == expected_rows(keyed)


@pytest.mark.slow
def test_a_run_that_dies_while_it_attaches_partitions(appended: World, spark: SparkSession) -> None:
    assert appended.crash("stage-attaching", 5, "group") != 0
    assert appended.run_here(spark).caught_up
    assert rows(appended, final=False) == expected_appends(appended)


@pytest.mark.slow
def test_deleted_keys_leave_no_rows_after_kills(world: World, spark: SparkSession) -> None:
    with_table(world, appends=False)
    for point, nth in (("stage-attached", 4), ("stage-recorded", 2)):
        assert world.crash(point, nth, "driver") != 0
    assert world.run_here(spark).caught_up
    assert rows(world) == expected_rows(world)


@pytest.mark.slow  # the contract has daily ones
@pytest.mark.parametrize("point", ["stage-filled", "stage-announced", "stage-attached"])
@pytest.mark.parametrize("kind", ["keyed", "appended"])
def test_a_paused_run_wakes_up_after_a_takeover(world: World, point: str, kind: str) -> None:
    with_table(world, keyed=kind == "keyed")
    zombie = world.start(point, 5, "stop")
    world.await_stop(zombie)
    answer = until(
        lambda: (result := world.run())["code"] == 0 and result, "the takeover after the lease", 240
    )
    assert answer["caught_up"]

    def check() -> None:
        if kind == "keyed":
            assert rows(world) == expected_rows(world)
        else:
            assert rows(world, final=False) == expected_appends(world)

    check()
    os.kill(zombie.pid, signal.SIGCONT)
    assert world.answer(zombie)["error"] == "FencedError"
    assert zombie.returncode != 0
    check()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["keyed", "appended"])
def test_the_server_is_killed_and_comes_back(own_server: World, spark: SparkSession, kind: str) -> None:
    """The run reconnects by itself, or the next one continues."""
    world = own_server
    with_table(world, keyed=kind == "keyed")
    process = world.start()
    dice, server = random.Random(kind), world.sink_clickhouse

    def has_more(rows: int) -> bool:
        return count(world) > rows or process.poll() is not None

    reached = 0
    for _ in range(4):
        until(partial(has_more, reached), "more rows", 240)
        server.kill(signal.SIGKILL)
        server.start()
        reached = count(world) + dice.randrange(300)
    process.communicate(timeout=600)
    assert world.run_here(spark).caught_up
    if kind == "keyed":
        assert rows(world) == expected_rows(world)
    else:
        assert rows(world, final=False) == expected_appends(world)


def count(world: World) -> int:
    """Rows in the table now, replaced ones included; 0 where it is not there yet."""
    with connected(world) as client:
        if not client.query("SELECT count() FROM system.tables WHERE name = 'target'").result_rows[0][0]:
            return 0
        return client.query("SELECT count() FROM target").result_rows[0][0]


def test_audits_and_replays_of_a_table(keyed: World, spark: SparkSession) -> None:
    keyed.enlarge_epochs()
    file, settings = load_pipeline(keyed.file), keyed.settings()
    assert keyed.run_here(spark).caught_up
    assert rows(keyed) == expected_rows(keyed)
    checks = {
        check.name: check for check in audit(file, settings, spark=spark, content=ContentAuditOptions())
    }
    assert checks["exactly_once_epochs"].passed is True
    assert checks["handoff_has_no_gap"].passed is True
    assert checks["content_matches"].passed is True, checks["content_matches"]
    replay(file, settings, sink="out", from_epoch=1, spark=spark)
    assert rows(keyed) == expected_rows(keyed)
    assert audit(file, settings, spark=spark)[0].passed is True
    with connected(keyed) as client:
        client.command("ALTER TABLE target UPDATE name = 'x' WHERE id = 7 SETTINGS mutations_sync = 1")
    checks = {
        check.name: check for check in audit(file, settings, spark=spark, content=ContentAuditOptions())
    }
    assert checks["content_matches"].passed is False
