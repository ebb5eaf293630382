"""kill -9 while rejected rows go to a place of their own: every row is in one place, once."""

from __future__ import annotations

import json

import psycopg
import pytest
from helpers.broken_messages import BrokenWorld
from helpers.pipeline_world import World
from helpers.rejected_changes import RejectingWorld, replay_changes
from pyspark.sql import SparkSession

from headrace.jobs.checks.audit import audit
from headrace.pipeline.file.loader import load_pipeline
from headrace.pipeline.protocol.ledger import open_sqlite

# Epochs of this world: 1 to 3 are history, then the stream; the broken messages are in its last epochs.
STEPS = [
    ("postgres-only", 16, "driver", 200_000),  # two sinks of a type hit the point in an epoch
    ("delta-only", 16, "group", 0),
    ("sinks-written", 8, "group", 0),
    ("committed", 7, "driver", 200_000),
    ("reading", 8, "jvm", 0),
]


# Daily ones: integration/end_to_end/test_dead_letters.py without kills, test_transforms.py with a kill between sinks.
@pytest.mark.slow
@pytest.mark.parametrize(("point", "nth", "who", "driver_rows"), STEPS)
def test_every_message_is_in_one_sink_once(
    world: World,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
    nth: int,
    who: str,
    driver_rows: int,
) -> None:
    """`driver_rows` decides whether the driver or Spark reads the topic."""
    monkeypatch.setenv("HEADRACE__KAFKA_SOURCE__DRIVER_ROWS", str(driver_rows))
    broken = BrokenWorld(world)
    broken.send()
    assert world.crash(point, nth, who) != 0
    ledger = open_sqlite(world.ledger)
    state = ledger.state(world.name)
    ledger.close()
    assert world.run_here(spark).caught_up
    broken.check(spark)
    assert state
    at_stake = state.open_plan.number if state.open_plan else state.committed
    assert at_stake in broken.epochs().values(), "no broken message was at stake"
    result = audit(load_pipeline(world.file), world.settings(), spark=spark)
    assert all(one.passed is not False for one in result), result
    assert {one.sink for one in result if one.name == "row_count_matches" and one.passed} == {
        "pg",
        "lake",
        "bad",
        "bad_lake",
    }


REFUSING = """
sinks:
  pg: {type: postgres, from: src, table: target, on_error: dead_letter, max_driver_rows: MOST}
"""


@pytest.mark.slow
@pytest.mark.parametrize("most", [1, 20_000], ids=["staged", "driver"])
@pytest.mark.parametrize(
    ("point", "nth", "who"),
    [
        ("postgres-committing", 4, "driver"),
        ("postgres-committing", 7, "group"),
        ("postgres-committed", 4, "driver"),
        ("postgres-committed", 7, "group"),
        ("sinks-written", 2, "driver"),
    ],
)
def test_every_row_is_in_the_table_or_among_the_refused(
    world: World, spark: SparkSession, point: str, nth: int, who: str, most: int
) -> None:
    """The table refuses every 97th amount, of history and of the stream."""
    world.write_file_without_spark()
    text = world.file.read_text()
    plain = "sinks: {pg: {type: postgres, from: src, table: target}}"
    assert plain in text
    world.file.write_text(text.replace(plain, REFUSING.replace("MOST", str(most))))
    with psycopg.connect(world.conninfo) as connection:
        connection.execute(
            "CREATE TABLE target (id bigint PRIMARY KEY, day date, name text,"
            " amount bigint CHECK (amount % 97 <> 0))"
        )
    assert world.crash(point, nth, who) != 0
    assert world.run_here(spark).caught_up
    rows, refused = replay_changes(world)
    assert world.in_postgres() == rows
    with psycopg.connect(world.conninfo) as connection:
        result = connection.execute('SELECT operation, "row" FROM target_errors').fetchall()
    stored = sorted(
        (op, row["id"], row["amount"]) for op, row in ((op, json.loads(row)) for op, row in result)
    )
    assert stored == refused
    checks = audit(load_pipeline(world.file), world.settings(), spark=spark)
    assert all(one.passed is not False for one in checks), checks


@pytest.mark.slow
@pytest.mark.parametrize(("point", "nth", "who", "driver_rows"), STEPS)
def test_every_row_is_computed_or_among_the_rejected(
    world: World,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
    nth: int,
    who: str,
    driver_rows: int,
) -> None:
    """A transform cannot compute every 97th amount, of history and of the stream."""
    monkeypatch.setenv("HEADRACE__KAFKA_SOURCE__DRIVER_ROWS", str(driver_rows))
    rejecting = RejectingWorld(world)
    assert world.crash(point, nth, who) != 0
    assert world.run_here(spark).caught_up
    rejecting.check(spark)
    checks = audit(load_pipeline(world.file), world.settings(), spark=spark)
    assert all(one.passed is not False for one in checks), checks
