"""Refresh of a hybrid source whose stream is stopped: keys that the stream has changed keep their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date
from typing import Any

import pytest
from helpers.depth import FULL
from helpers.pipeline_world import World, filled_world
from helpers.revised_history import JANUARY, allow_any_order, ask, revise, untouched_keys
from pyspark.sql import SparkSession

from headrace.jobs.checks.audit import ContentAuditOptions, audit
from headrace.jobs.run.events import RunResult, Until
from headrace.jobs.run.runner import run
from headrace.pipeline.file.loader import load_pipeline
from headrace.services import Services

STREAM_NEW = 9_001
pytestmark = pytest.mark.sampled


@pytest.fixture
def world(services: Services, pg: str, ch_db: str, tmp_path) -> Iterator[World]:
    """A pipeline that has not run yet. Its history partitions can be read in any order.

    Only `make test-faults` has a transform and a Delta table.
    """
    with filled_world(services, tmp_path, ch_db, pg) as result:
        if not FULL:
            result.write_file_without_spark()
        allow_any_order(result)
        yield result


@pytest.fixture
def go(world: World, spark: SparkSession) -> Callable[..., RunResult]:
    def call(*days: str, until: Until = Until.CAUGHT_UP, **more: Any) -> RunResult:
        file = load_pipeline(world.file)
        return run(file, world.settings(), until=until, partitions=days or None, spark=spark, **more)

    return call


def check_sinks(world: World, spark: SparkSession) -> None:
    if FULL:
        world.check(spark)
    else:
        assert world.in_postgres() == sorted(world.expected.values())


def check_audit(world: World, spark: SparkSession) -> None:
    result = audit(
        load_pipeline(world.file), world.settings(), spark=spark, content=ContentAuditOptions(full=True)
    )
    assert [one for one in result if one.passed is False] == []


def test_refresh_keeps_the_keys_that_the_stream_has_changed(
    world: World, spark: SparkSession, go: Callable[..., RunResult]
) -> None:
    """Before the refresh the stream has changed, deleted and added keys. It goes on afterwards."""
    keys = untouched_keys(world)
    assert len(keys) > 100
    # Two keys of January that the sinks have in January only because of the stream.
    world.produce(
        [("c", (STREAM_NEW, date(2024, 1, 9), "live", 5), 1), ("d", world.expected[keys[40]], keys[40] % 2)]
    )
    world.expected[STREAM_NEW] = (STREAM_NEW, date(2024, 1, 9), "live", 5)
    del world.expected[keys[40]]
    assert go().caught_up
    check_sinks(world, spark)

    revise(world, keys)
    assert go(JANUARY, until=Until.HISTORY).epochs == 0, "without `refresh`, nothing is read again"
    result = go(JANUARY, refresh=True)
    assert (result.epochs, result.history_complete) == (2, True)
    assert result.counts["pg"].deleted == 20
    check_sinks(world, spark)
    check_audit(world, spark)

    world.produce([("u", (keys[0], date(2024, 3, 1), "newer", 6), keys[0] % 2)])
    world.expected[keys[0]] = (keys[0], date(2024, 3, 1), "newer", 6)
    assert go().caught_up
    check_sinks(world, spark)
    check_audit(world, spark)


@pytest.mark.slow  # test_a_kill_during_a_refresh of test_refresh.py is the daily one
@pytest.mark.parametrize(("point", "nth"), [("planned", 2), ("postgres-committed", 2), ("sinks-written", 2)])
def test_refresh_of_a_hybrid_survives_a_kill(
    world: World,
    spark: SparkSession,
    go: Callable[..., RunResult],
    monkeypatch: pytest.MonkeyPatch,
    point: str,
    nth: int,
) -> None:
    """The next run finishes the refresh from its snapshot, then continues the stream."""
    assert go().caught_up
    keys = untouched_keys(world)
    revise(world, keys)
    monkeypatch.setenv("HEADRACE_TEST_REFRESH", JANUARY)
    world.crash(point, nth, "group")
    monkeypatch.delenv("HEADRACE_TEST_REFRESH")
    world.produce([("d", world.expected[keys[50]], keys[50] % 2)])
    del world.expected[keys[50]]
    ask(world, "ALTER TABLE history UPDATE name = 'after the snapshot' WHERE 1")
    assert go().caught_up
    check_sinks(world, spark)
