"""Broken messages of a real topic in tables of their own, by both routes."""

from __future__ import annotations

import json

import psycopg
import pytest
from helpers.broken_messages import FAULTS, LARGE_EPOCHS, BrokenWorld
from helpers.pipeline_world import World
from pyspark.sql import SparkSession

from headrace.jobs.checks.audit import ContentAuditOptions, audit
from headrace.jobs.run.repair import replay
from headrace.pipeline.errors import DataError, HeadraceError
from headrace.pipeline.file.loader import load_pipeline


# The replay takes the other route: one case has both. The next test writes by the driver.
@pytest.mark.parametrize(
    "driver_rows",
    [pytest.param(100_000, id="driver", marks=pytest.mark.slow), pytest.param(0, id="spark")],
)
def test_good_and_broken_messages_have_their_own_sinks(
    world: World, spark: SparkSession, driver_rows: int
) -> None:
    broken = BrokenWorld(world, epochs=LARGE_EPOCHS)
    broken.send(4)
    result = world.run_here(spark, driver_rows=driver_rows)
    assert result.caught_up
    broken.check(spark)
    count = len(broken.expected)
    assert count == 4 * len(FAULTS)
    assert result.rejected == {"src": count}
    assert result.counts["bad"].rows == result.counts["bad_lake"].rows == count
    file, settings = load_pipeline(world.file), world.settings(driver_rows=driver_rows)
    checks = audit(file, settings, content=ContentAuditOptions(full=True), spark=spark)
    assert [one for one in checks if one.passed is False] == []
    passed = {(one.name, one.sink) for one in checks if one.passed}
    assert {("content_matches", "pg"), ("content_matches", "lake"), ("row_count_matches", "bad")} <= passed
    unknown = {
        one.sink: one.message for one in checks if one.name == "content_matches" and one.passed is None
    }
    assert set(unknown) == {"bad", "bad_lake"}
    assert "rejected rows" in unknown["bad"]
    (state,) = json.loads(world.run_cli("status", str(world.file), "--json", "--epochs", "20"))
    assert sum(one["rejected"] for one in state["epochs"]) == count

    epochs = broken.epochs()
    with psycopg.connect(world.conninfo) as connection:
        connection.execute("DELETE FROM broken")
    replay(file, world.settings(driver_rows=100_000 - driver_rows), sink="bad", from_epoch=1, spark=spark)
    broken.check(spark)
    assert broken.epochs() == epochs


# Both routes count rejected rows in test_good_and_broken_messages_have_their_own_sinks. Few rows have no limit.
@pytest.mark.parametrize(
    "driver_rows",
    [pytest.param(100_000, id="driver"), pytest.param(0, id="spark", marks=pytest.mark.slow)],
)
def test_too_many_broken_messages_fail_the_epoch_before_it_writes(
    world: World, spark: SparkSession, driver_rows: int
) -> None:
    broken = BrokenWorld(world, rate=0.2, epochs=LARGE_EPOCHS)
    broken.send(4)
    world.run_here(spark, driver_rows=driver_rows)
    before = broken.in_postgres()
    broken.send_broken(1, times=30)
    with pytest.raises(
        DataError, match=r"150 of 150 rows are rejected, more than `max_error_rate` 0.2"
    ) as raised:
        world.run_here(spark, driver_rows=driver_rows)
    assert raised.value.node == "src"
    assert raised.value.place is not None
    assert broken.in_postgres() == before
    broken.write_file(1)
    assert world.run_here(spark, driver_rows=driver_rows).rejected == {"src": 150}
    broken.check(spark)

    broken.write_file(0)  # few rows have no limit
    broken.send_broken(0)
    assert world.run_here(spark, driver_rows=driver_rows).rejected == {"src": len(FAULTS)}
    broken.check(spark)


def test_a_blocked_pipeline_goes_on_with_dead_letters(world: World, spark: SparkSession) -> None:
    """The open epoch was planned by a file that fails; no sink has it."""
    broken = BrokenWorld(world, epochs=LARGE_EPOCHS)
    world.file.write_text(
        world.file.read_text()
        .replace("on_error: dead_letter, max_error_rate: 0.5, ", "")
        .replace("  bad: {", "  # bad: {")
        .replace("  bad_lake: {", "  # bad_lake: {")
    )
    broken.send(2)
    for _ in range(3):
        with pytest.raises(HeadraceError):
            world.run_here(spark, driver_rows=100_000)
    broken.write_file(0.5)
    assert world.run_here(spark, driver_rows=100_000).rejected == {"src": len(broken.expected)}
    broken.check(spark)
