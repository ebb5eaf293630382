"""Rows that a transform cannot compute, of history and of the stream, in two sinks by every route."""

from __future__ import annotations

import json

import psycopg
import pytest
from helpers.pipeline_world import World
from helpers.rejected_changes import RejectingWorld, replay_changes
from pyspark.sql import SparkSession

from headrace.jobs.checks.audit import ContentAuditOptions, audit
from headrace.jobs.run.repair import replay
from headrace.pipeline.errors import DataError
from headrace.pipeline.file.loader import load_pipeline

EVERY = 997
"""A rejected row costs about 15 computations."""


@pytest.mark.parametrize(
    "driver_rows",
    [pytest.param(100_000, id="driver"), pytest.param(0, id="spark", marks=pytest.mark.slow)],
)
def test_rows_are_in_their_sinks_or_among_the_rejected(
    world: World, spark: SparkSession, driver_rows: int
) -> None:
    rejecting = RejectingWorld(world, every=EVERY)
    world.enlarge_epochs()
    result = world.run_here(spark, driver_rows=driver_rows)
    assert result.caught_up
    rejecting.check(spark)
    count = len(replay_changes(world, EVERY)[1])
    assert result.rejected == {"shaped": count}
    file, settings = load_pipeline(world.file), world.settings(driver_rows=driver_rows)
    checks = audit(file, settings, content=ContentAuditOptions(full=True), spark=spark)
    assert [one for one in checks if one.passed is False] == []
    unknown = {one.sink: one.message for one in checks if one.passed is None}
    assert "`shaped` rejected rows of epoch 1" in unknown["pg"]
    assert "`shaped` rejected rows of epoch 1" in unknown["lake"]
    (state,) = json.loads(world.run_cli("status", str(world.file), "--json", "--epochs", "50"))
    assert sum(one["rejected"] for one in state["epochs"]) == count

    before = rejecting.in_postgres()
    with psycopg.connect(world.conninfo) as connection:
        connection.execute("DELETE FROM broken")
    replay(file, world.settings(driver_rows=100_000 - driver_rows), sink="bad", from_epoch=1, spark=spark)
    assert rejecting.in_postgres() == before
    rejecting.check(spark)


def test_too_many_rejected_rows_block_the_pipeline_until_the_limit_is_raised(
    world: World, spark: SparkSession
) -> None:
    """The open epoch was planned by a file with another limit; no sink has it."""
    rejecting = RejectingWorld(world, rate=0, every=EVERY)
    with pytest.raises(DataError, match="rows are rejected, more than `max_error_rate` 0 allows") as raised:
        world.run_here(spark, driver_rows=100_000)
    assert raised.value.node == "shaped"
    assert raised.value.place is not None
    assert world.in_postgres() == rejecting.in_postgres() == []
    rejecting.write_file(1)
    assert world.run_here(spark, driver_rows=100_000).caught_up
    rejecting.check(spark)
