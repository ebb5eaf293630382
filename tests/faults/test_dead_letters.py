"""kill -9 while broken messages go to their own sinks: every row is in one sink, once."""

from __future__ import annotations

import pytest
from helpers.broken_messages import BrokenWorld
from helpers.pipeline_world import World
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
    found = audit(load_pipeline(world.file), world.settings(), spark=spark)
    assert all(one.passed is not False for one in found), found
    assert {one.sink for one in found if one.name == "row_count_matches" and one.passed} == {
        "pg",
        "lake",
        "bad",
        "bad_lake",
    }
