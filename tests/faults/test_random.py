"""Kills at random times in all phases. HEADRACE_SEED repeats a printed seed."""

from __future__ import annotations

import os
import random
import signal
import subprocess

import psutil
import pytest
from helpers.depth import FULL
from helpers.forked_process import ForkedProcess
from helpers.pipeline_world import World
from pyspark.sql import SparkSession

KILLS = 20 if FULL else 2

pytestmark = pytest.mark.slow


@pytest.mark.timeout(1800)
def test_random_kills(world: World, spark: SparkSession) -> None:
    world.use_spark()
    seed = int(os.environ.get("HEADRACE_SEED") or random.SystemRandom().randrange(10**6))
    print(f"HEADRACE_SEED={seed}")
    dice = random.Random(seed)
    kills = 0
    while kills < KILLS:
        world.produce(list(world.changes(dice, 120)))  # so that no run finds nothing to do
        process = world.start()
        try:
            process.wait(timeout=dice.uniform(6, 22))
        except subprocess.TimeoutExpired:
            kill(process, dice.choice(["driver", "group", "jvm"]))
            kills += 1
        process.communicate(timeout=600)
    answer = world.run()
    assert answer["code"] == 0, (seed, answer)
    world.check(spark)


def kill(process: ForkedProcess, who: str) -> None:
    """kill -9 of the driver, of its group, or of the JVM alone."""
    if who == "group":
        os.killpg(process.pid, signal.SIGKILL)
    elif who == "driver":
        process.kill()
    else:
        children = psutil.Process(process.pid).children()
        for child in children:
            if "java" in child.name():
                child.kill()
