"""A pipeline on a real Spark standalone cluster: an executor, the driver, a worker or the master dies in mid-run.

The ledger is in Postgres. After each failure the next run has an empty home, as on another host. All processes are on this machine.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.forked_process import ForkedProcess
from helpers.pipeline_world import until
from helpers.python_history import write_python_history
from helpers.spark_cluster import ClusterWorld, spark_cluster, unread_bytes
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


def stop_between_sinks(world: ClusterWorld) -> ForkedProcess:
    """A run that is stopped in its third epoch: Postgres has it, the Delta table does not."""
    process = world.start("postgres-only", 3, "stop")
    world.await_stop(process, seconds=400)
    return process


@pytest.mark.slow  # seven JVMs
@pytest.mark.parametrize("victim", ["executor", "driver"])
def test_rows_are_right_after_a_kill(world: ClusterWorld, spark: SparkSession, victim: str) -> None:
    point = "postgres-only" if victim == "driver" else "planned"  # a sink has the epoch, or none has it
    first = world.start(point, 3, "stop")
    world.await_stop(first, seconds=400)
    assert world.cluster.executors(), "tasks ran outside the cluster"
    if victim == "driver":
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
    else:
        world.cluster.executors()[0].kill()
        os.kill(first.pid, signal.SIGCONT)
        first.communicate(timeout=600)
    move_to_another_host(world)
    answer = until(lambda: (result := world.run())["code"] == 0 and result, "a run that succeeds", 240)
    assert answer["caught_up"]
    assert not world.ledger.exists()
    world.check(spark)


@pytest.mark.slow
def test_rows_are_right_after_a_worker_dies_with_a_task(world: ClusterWorld, spark: SparkSession) -> None:
    """A host is lost: its worker and its executor, which has received a task of the Delta sink."""
    first = stop_between_sinks(world)
    executors = world.cluster.executors()
    assert len(executors) == 2
    for executor in executors:
        executor.suspend()
    os.kill(first.pid, signal.SIGCONT)
    # Messages without a task are smaller.
    victim = until(lambda: next((one for one in executors if unread_bytes(one) > 1000), None), "a task")
    world.cluster.kill(world.cluster.worker_of(victim))
    victim.kill()
    for executor in executors:
        if executor != victim:
            executor.resume()
    answer = world.answer(first)
    assert answer["caught_up"], answer
    world.check(spark)


@pytest.mark.slow
def test_rows_are_right_after_the_master_dies(world: ClusterWorld, spark: SparkSession) -> None:
    """A run keeps its executors. A run that starts without a master fails, and one with a new master goes on."""
    first = stop_between_sinks(world)
    world.cluster.kill("master")
    os.kill(first.pid, signal.SIGCONT)
    answer = world.answer(first)
    assert answer["caught_up"], answer
    world.check(spark)
    world.produce(list(world.changes(random.Random(3), 60)))
    refused = world.run()
    assert refused["code"] == 1, refused
    assert world.cluster.address in refused["message"], refused
    world.cluster.start_master()
    until(lambda: world.run()["code"] == 0, "a run that succeeds", 300)
    world.check(spark)


@pytest.mark.slow
def test_the_history_of_a_function_is_read_by_workers(
    world: ClusterWorld, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stored in a folder that all hosts share, its rows survive the loss of the driver's host."""
    del spark
    write_python_history(world, monkeypatch)
    text = world.file.read_text()
    world.file.write_text(text.replace("table: target", "table: target, max_driver_rows: 1"))
    monkeypatch.setenv("HEADRACE__STAGING__PATH", str(world.folder / "shared"))
    first = world.start("postgres-committed", 5, "stop")
    world.await_stop(first, seconds=400)
    assert world.cluster.executors(), "tasks ran outside the cluster"
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    move_to_another_host(world)
    answer = until(lambda: (result := world.run())["code"] == 0 and result, "a run that succeeds", 240)
    assert answer["caught_up"]
    assert world.in_postgres() == sorted(world.expected.values())
