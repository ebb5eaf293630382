"""Kills at random times in all phases."""

from __future__ import annotations

import pytest
from helpers.depth import FULL
from helpers.pipeline_world import World
from helpers.random_kills import create_dice, kill_any_process, kill_runs
from pyspark.sql import SparkSession

KILLS = 20 if FULL else 2

pytestmark = pytest.mark.slow


@pytest.mark.timeout(1800)
def test_random_kills(world: World, spark: SparkSession) -> None:
    world.use_spark()
    kill_runs(world, create_dice(), KILLS, kill_any_process)
    world.check(spark)
