"""Ledger, sinks and file disagree: the run is refused with a next command, and the command works."""

from __future__ import annotations

import contextlib
import random
import shutil
import sqlite3

import psycopg
import pytest
from helpers.pipeline_world import World
from pyspark.sql import SparkSession

from headrace.jobs.run.events import Until
from headrace.jobs.run.repair import accept_target, rebuild, replay
from headrace.jobs.run.runner import run
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import LeaseHeldError, SinkStateError
from headrace.pipeline.file.loader import PipelineFile, load_pipeline


@pytest.fixture
def settings(world: World) -> Settings:
    return world.settings()


def to_the_end(world: World, settings: Settings, spark: SparkSession) -> PipelineFile:
    file = load_pipeline(world.file)
    assert run(file, settings, until=Until.CAUGHT_UP, spark=spark).caught_up
    return file


@pytest.mark.slow
def test_the_sql_changes_between_crash_and_resume(
    world: World, settings: Settings, spark: SparkSession
) -> None:
    """The open epoch, which one sink holds, is finished by the old SQL; what comes after follows the new."""
    world.crash("postgres-only", 6, "group")
    world.write_file(change="lower")
    to_the_end(world, settings, spark)
    postgres = world.in_postgres()
    assert postgres == world.in_delta(spark)
    names = {row[2][0] for row in postgres}
    assert names == {"N", "M", "m"}  # history and early messages by the old SQL, late messages by the new


def test_a_lost_ledger_is_refused_and_rebuilt(world: World, settings: Settings, spark: SparkSession) -> None:
    world.write_file_without_spark()
    file = to_the_end(world, settings, spark)
    shutil.rmtree(world.ledger.parent)
    with pytest.raises(SinkStateError, match="another pipeline named") as refused:
        run(file, settings, until=Until.CAUGHT_UP, spark=spark)
    assert "headrace recover" in str(refused.value)
    rebuild(file, settings, spark=spark)
    world.produce(list(world.changes(random.Random(9), 50)))
    to_the_end(world, settings, spark)
    world.check_without_spark()


@pytest.mark.slow
def test_an_old_ledger_is_refused_and_recovered(
    world: World, settings: Settings, spark: SparkSession
) -> None:
    """A backup of the ledger that lacks epochs of the sinks must not write them again."""
    file = to_the_end(world, settings, spark)
    backup = world.folder / "backup.db"
    with (
        contextlib.closing(sqlite3.connect(world.ledger)) as ledger,
        contextlib.closing(sqlite3.connect(backup)) as copy,
    ):
        ledger.backup(copy)
    dice = random.Random(9)
    world.produce(list(world.changes(dice, 50)))
    to_the_end(world, settings, spark)
    shutil.rmtree(world.ledger.parent)
    world.ledger.parent.mkdir()
    shutil.copy(backup, world.ledger)
    world.produce(list(world.changes(dice, 50)))
    with pytest.raises(SinkStateError) as refused:
        run(file, settings, until=Until.CAUGHT_UP, spark=spark)
    assert "ledger" in str(refused.value)
    assert "headrace recover" in str(refused.value)
    world.ledger.rename(world.folder / "old.db")
    shutil.rmtree(world.ledger.parent)
    rebuild(file, settings, spark=spark)
    to_the_end(world, settings, spark)
    world.check(spark)


@pytest.mark.slow
def test_a_restored_table_is_refused_then_replayed(
    world: World, settings: Settings, spark: SparkSession
) -> None:
    world.crash("committed", 6, "group")
    with psycopg.connect(world.conninfo, autocommit=True) as connection:
        connection.execute("CREATE TABLE kept AS SELECT * FROM target")
        connection.execute("CREATE TABLE kept_records AS SELECT * FROM headrace.records")
    file = to_the_end(world, settings, spark)
    with psycopg.connect(world.conninfo) as connection:
        connection.execute("TRUNCATE target")
        connection.execute("INSERT INTO target SELECT * FROM kept")
        connection.execute("DELETE FROM headrace.records")
        connection.execute("INSERT INTO headrace.records SELECT * FROM kept_records")
    with pytest.raises(SinkStateError, match="holds epoch 6") as refused:
        run(file, settings, until=Until.CAUGHT_UP, spark=spark)
    assert "replay" in str(refused.value)
    assert "accept-target" in str(refused.value)
    replay(file, settings, sink="pg", spark=spark)
    to_the_end(world, settings, spark)
    world.check(spark)


@pytest.mark.slow
def test_a_restored_table_is_adopted(world: World, settings: Settings, spark: SparkSession) -> None:
    file = to_the_end(world, settings, spark)
    with psycopg.connect(world.conninfo) as connection:
        connection.execute("DELETE FROM headrace.records")
    with pytest.raises(SinkStateError, match="no record"):
        run(file, settings, until=Until.CAUGHT_UP, spark=spark)
    accept_target(file, settings, sink="pg", spark=spark)
    to_the_end(world, settings, spark)
    world.check(spark)


@pytest.mark.slow
def test_a_row_deleted_behind_the_sink_comes_back_by_replay(
    world: World, settings: Settings, spark: SparkSession
) -> None:
    file = to_the_end(world, settings, spark)
    with psycopg.connect(world.conninfo) as connection:
        connection.execute("DELETE FROM target WHERE id = (SELECT min(id) FROM target)")
    replay(file, settings, sink="pg", from_epoch=1, spark=spark)
    world.check(spark)


@pytest.mark.slow
def test_replay_is_refused_while_the_pipeline_runs(
    world: World, settings: Settings, spark: SparkSession
) -> None:
    from headrace.connectors.ledger.factory import open_ledger

    file = to_the_end(world, settings, spark)
    ledger = open_ledger(settings)
    lease = ledger.acquire(world.name, "main", {"host": "elsewhere", "pid": 1, "launched_by": "test"}, 30)
    with pytest.raises(LeaseHeldError):
        replay(file, settings, sink="pg", from_epoch=1, spark=spark)
    ledger.release(lease)
    ledger.close()
