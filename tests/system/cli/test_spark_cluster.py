"""A pipeline on a real Spark standalone cluster: an executor or the driver dies in mid-run.

The ledger is in Postgres. After each failure the next run has an empty home, as on another host. All processes are on this machine.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from helpers.pipeline_world import until
from helpers.spark_cluster import ClusterWorld, spark_cluster
from pyspark.sql import SparkSession

from headrace.services import Services


@pytest.fixture
def world(services: Services, pg: str, ch_db: str, tmp_path: Path) -> Iterator[ClusterWorld]:
    with spark_cluster(tmp_path / "cluster") as cluster:
        made = ClusterWorld(services, tmp_path, ch_db, pg, max_driver_rows=1)  # tasks load every epoch
        made.cluster = cluster
        made.fill()
        made.write_file()
        yield made
        made.close()


def move_to_another_host(world: ClusterWorld) -> None:
    """Lose the disk of the driver."""
    shutil.rmtree(world.folder / world.host)
    world.host = "host-2"


@pytest.mark.slow  # seven JVMs
@pytest.mark.parametrize("victim", ["executor", "driver"])
def test_rows_are_right_after_a_kill(world: ClusterWorld, spark: SparkSession, victim: str) -> None:
    point = "postgres-only" if victim == "driver" else "planned"  # a sink has the epoch, or none has it
    first = world.start(point, 3, "stop")
    until(lambda: psutil.Process(first.pid).status() == psutil.STATUS_STOPPED, "the driver to stop", 400)
    assert world.cluster.executors(), "tasks ran outside the cluster"
    if victim == "driver":
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
    else:
        world.cluster.executors()[0].kill()
        os.kill(first.pid, signal.SIGCONT)
        first.communicate(timeout=600)
    move_to_another_host(world)
    answer = until(lambda: (found := world.run())["code"] == 0 and found, "a run that succeeds", 240)
    assert answer["caught_up"]
    assert not world.ledger.exists()
    world.check(spark)
