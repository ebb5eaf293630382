"""kill -9 of the driver, the JVM or the process group at every step of an epoch.

Each time the rows are compared one by one.
"""

from __future__ import annotations

import contextlib
import os

import psutil
import psycopg
import pytest
from helpers.pipeline_world import World, until
from pyspark.sql import SparkSession

# Epochs of this world: 1 to 4 are history (two windows), 5 to 8 stream. (point, nth, who dies)
STEPS = [
    ("pinned", 1, "driver"),
    ("planned", 1, "driver"),
    ("planned", 6, "driver"),
    ("postgres-only", 2, "driver"),
    ("postgres-only", 6, "group"),
    ("delta-only", 6, "driver"),
    ("delta-only", 3, "group"),
    ("sinks-written", 2, "driver"),
    ("sinks-written", 6, "group"),
    ("committed", 4, "driver"),
    ("handoff", 1, "group"),
    ("postgres-only", 7, "jvm"),
    ("reading", 6, "jvm"),
]


@pytest.mark.slow  # test_transforms is the daily sample
@pytest.mark.parametrize(("point", "nth", "who"), STEPS)
def test_nothing_is_lost_or_doubled(
    world: World, spark: SparkSession, point: str, nth: int, who: str
) -> None:
    assert world.crash(point, nth, who) != 0
    answer = world.run()
    assert answer["code"] == 0, answer
    assert answer["caught_up"]
    world.check(spark)


@pytest.mark.slow
def test_the_group_dies_inside_a_copy(world: World, spark: SparkSession) -> None:
    world.max_driver_rows = 1  # all epochs go through the staged path, by tasks
    world.write_file()
    process = world.start()
    with psycopg.connect(world.conninfo, autocommit=True) as connection:
        until(
            lambda: connection.execute("SELECT pid FROM pg_stat_progress_copy").fetchall(),
            "a COPY under way",
            240,
        )
        os.killpg(process.pid, 9)
    process.wait()
    assert world.run()["code"] == 0
    world.check(spark)


@pytest.mark.slow
def test_one_python_worker_dies(world: World, spark: SparkSession) -> None:
    world.max_driver_rows = 1
    world.write_file()
    process = world.start()

    def is_daemon(child: psutil.Process) -> bool:
        with contextlib.suppress(psutil.Error):  # gone, or a zombie, since it was listed
            return "pyspark.daemon" in child.cmdline()
        return False

    def workers() -> list[psutil.Process]:
        """Those that the daemon has forked; the daemon itself comes first."""
        return list(filter(is_daemon, psutil.Process(process.pid).children(recursive=True)))[1:]

    until(workers, "a Python worker", 240)[0].kill()
    process.communicate(timeout=600)
    answer = world.run()  # the run may have mended it by itself; then there is nothing left to do
    assert answer["code"] == 0, answer
    world.check(spark)
