"""A hybrid source into a topic, with kill -9 and pauses around the transaction of an epoch.

Each time a consumer of committed transactions must read every change once, those of a key in their order.
"""

from __future__ import annotations

import os
import signal

import pytest
from helpers.pipeline_world import World, until
from helpers.topic_changes import expected_changes, read_changes, write_topic_pipeline
from pyspark.sql import SparkSession

from headrace.jobs.checks.audit import ContentAuditOptions, audit
from headrace.jobs.run.repair import replay
from headrace.pipeline.errors import SinkStateError
from headrace.pipeline.file.loader import load_pipeline

# Transactions of a run: 1 the generation, 2 the claim, 3 the first record, 4 to 6 history, then the stream.
# Rows of the stream are encoded in the driver, from the first epoch of the stream on.
STEPS = [
    ("topic-encoding", 1, "driver"),
    ("topic-encoded", 2, "driver"),
    ("topic-encoded", 3, "group"),
    ("topic-sending", 2, "driver"),
    ("topic-sent", 1, "driver"),
    ("topic-sent", 5, "group"),
    ("topic-committing", 5, "driver"),
    ("topic-committing", 8, "group"),
    ("topic-committed", 2, "driver"),
    ("topic-committed", 6, "group"),
    ("topic-committed", 8, "driver"),
    ("topic-sending", 5, "jvm"),
]


@pytest.fixture
def topic_world(world: World) -> World:
    """The world with a pipeline into the topic `<name>-out`."""
    write_topic_pipeline(world, "json")
    return world


# The daily sample has no Spark: end_to_end/test_start_without_spark.py, topic-committed.
@pytest.mark.slow
@pytest.mark.parametrize(("point", "nth", "who"), STEPS)
def test_every_change_is_there_once(
    topic_world: World, spark: SparkSession, point: str, nth: int, who: str
) -> None:
    assert topic_world.crash(point, nth, who) != 0
    assert topic_world.run_here(spark).caught_up
    assert read_changes(topic_world) == expected_changes(topic_world)


@pytest.mark.slow
def test_a_run_that_dies_after_its_commit(topic_world: World, spark: SparkSession) -> None:
    assert topic_world.crash("topic-committed", 7, "driver") != 0
    assert topic_world.run_here(spark).caught_up
    assert read_changes(topic_world) == expected_changes(topic_world)


@pytest.mark.slow  # the contract and tests/integration/connectors have daily ones
@pytest.mark.parametrize("point", ["topic-sending", "topic-sent", "topic-committed"])
def test_a_paused_run_wakes_up_after_a_takeover(topic_world: World, point: str) -> None:
    nth = 4 if point == "topic-sending" else 7
    zombie = topic_world.start(point, nth, "stop")
    topic_world.await_stop(zombie)
    answer = until(
        lambda: (result := topic_world.run())["code"] == 0 and result, "the takeover after the lease", 240
    )
    assert answer["caught_up"]
    assert read_changes(topic_world) == expected_changes(topic_world)
    os.kill(zombie.pid, signal.SIGCONT)
    assert topic_world.answer(zombie)["error"] == "FencedError"
    assert zombie.returncode != 0
    assert read_changes(topic_world) == expected_changes(topic_world)


def test_audits_and_replays_of_a_topic(topic_world: World, spark: SparkSession) -> None:
    topic_world.enlarge_epochs()
    file, settings = load_pipeline(topic_world.file), topic_world.settings()
    assert topic_world.run_here(spark).caught_up
    once = expected_changes(topic_world)
    assert read_changes(topic_world) == once
    checks = {
        check.name: check for check in audit(file, settings, spark=spark, content=ContentAuditOptions())
    }
    assert checks["exactly_once_epochs"].passed is True
    assert checks["handoff_has_no_gap"].passed is True
    assert checks["row_count_matches"].passed is None
    assert checks["content_matches"].passed is None
    with pytest.raises(SinkStateError):
        replay(file, settings, sink="out", from_epoch=99, spark=spark)
    replay(file, settings, sink="out", from_epoch=1, spark=spark)
    again = read_changes(topic_world)
    assert again == {key: changes * 2 for key, changes in once.items()}
    assert audit(file, settings, spark=spark)[0].passed is True
