"""Runs of a world that die at random times. HEADRACE_SEED repeats a printed seed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable

import psutil

from helpers.forked_process import ForkedProcess
from helpers.pipeline_world import World

FIRST_RUN = 22.0
"""About the seconds of a run that loads history."""


def create_dice() -> random.Random:
    """Return random numbers whose seed is printed, or given by the environment."""
    seed = int(os.environ.get("HEADRACE_SEED") or random.SystemRandom().randrange(10**6))
    print(f"HEADRACE_SEED={seed}")
    return random.Random(seed)


def kill_runs(
    world: World,
    dice: random.Random,
    kills: int,
    kill: Callable[[ForkedProcess, random.Random], None],
) -> None:
    """Start runs until `kills` of them were killed. The run after that must end by itself.

    Each run has something to do. It is killed within the time of the last run that ended by itself.
    """
    whole_run = FIRST_RUN
    while kills:
        world.produce(list(world.changes(dice, 120)))
        began = time.monotonic()
        process = world.start()
        try:
            process.wait(timeout=whole_run * dice.uniform(0.25, 1))
        except subprocess.TimeoutExpired:
            kill(process, dice)
            kills -= 1
        else:
            whole_run = time.monotonic() - began
        process.communicate(timeout=600)
    answer = world.run()
    assert answer["code"] == 0, answer


def kill_driver_or_group(process: ForkedProcess, dice: random.Random) -> None:
    """kill -9 of the driver alone, or of its whole group with the JVM."""
    if dice.random() < 0.5:
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()


def kill_any_process(process: ForkedProcess, dice: random.Random) -> None:
    """kill -9 of the driver, of its group, or of the JVM alone."""
    if dice.randrange(3):
        kill_driver_or_group(process, dice)
        return
    for child in psutil.Process(process.pid).children():
        if "java" in child.name():
            child.kill()
