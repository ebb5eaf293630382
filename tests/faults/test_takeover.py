"""Two runs of one pipeline.

A paused driver that wakes up after its lane was taken over, and a second door.
"""

from __future__ import annotations

import os
import signal

import pytest
from helpers.pipeline_world import World, until
from pyspark.sql import SparkSession


@pytest.mark.slow  # daily ones: faults/protocol and the connectors
@pytest.mark.parametrize("point", ["planned", "sinks-written"])
def test_a_paused_driver_wakes_up_after_a_takeover(world: World, spark: SparkSession, point: str) -> None:
    zombie = world.start(point, 6, "stop")
    world.await_stop(zombie)
    answer = until(
        lambda: (result := world.run())["code"] == 0 and result,
        "the takeover, once the lease has expired",
        240,
    )
    assert answer["caught_up"]
    os.kill(zombie.pid, signal.SIGCONT)
    assert world.answer(zombie)["error"] == "FencedError"
    assert zombie.returncode != 0
    world.check(spark)


@pytest.mark.slow  # tests/cli has a daily one
def test_a_second_door_is_refused_while_the_first_run_lives(world: World, spark: SparkSession) -> None:
    first = world.start("planned", 3, "stop")
    world.await_stop(first)
    os.kill(first.pid, signal.SIGCONT)
    second = world.run()
    assert world.answer(first)["caught_up"]
    if second["code"] != 0:  # it was refused, unless the first had already come to its end
        assert second["error"] == "LeaseHeldError"
        assert str(first.pid) in second["message"]
    world.check(spark)
