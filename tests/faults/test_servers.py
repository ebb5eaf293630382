"""Servers that stop during an epoch."""

from __future__ import annotations

import signal
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from helpers.pipeline_world import World, until
from pyspark.sql import SparkSession

from headrace import services as local

pytestmark = pytest.mark.slow


def test_postgres_is_killed_in_mid_merge_and_comes_back(
    world: World, fresh_home: Path, spark: SparkSession
) -> None:
    """A Postgres of its own: the run must reconnect by itself, without a restart."""
    own = local.up(("postgres",), home=fresh_home)
    world.conninfo = own.postgres.conninfo()
    world.max_driver_rows = 1  # staged in unlogged tables, which a crash of the server empties
    world.write_file()
    process = world.start()
    until(lambda: world.count_rows() > 0, "the first epoch", 240)
    with closing(psycopg.connect(world.conninfo)) as lock:
        lock.execute("LOCK TABLE target IN EXCLUSIVE MODE")
        with psycopg.connect(world.conninfo, autocommit=True) as look:
            waiting = (
                "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name"
                " LIKE 'headrace%'"
            )
            until(lambda: look.execute(waiting).fetchall(), "a merge that waits for the table", 240)
        own.postgres.kill(signal.SIGKILL)
    own.postgres.start()
    out, _ = process.communicate(timeout=600)
    assert process.returncode == 0, out
    world.check(spark)
