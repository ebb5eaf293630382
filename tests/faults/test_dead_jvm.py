"""Spark's JVM dies during an epoch repeatedly: the error names it, the failures are counted, and the epoch is blocked.

Afterwards the rows are right.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from typing import Any

import dagster as dg
import pytest
from helpers.checkout import ROOT
from helpers.pipeline_world import World
from pyspark.sql import SparkSession

from headrace.connectors.ledger.factory import open_ledger
from headrace.orchestration.build import build_definitions
from headrace.orchestration.instance import dagster_home
from headrace.orchestration.pipelines import read_pipeline

KILLED = "Spark's JVM was ended by signal 9; the system may have run out of memory"


@pytest.fixture(autouse=True)
def _with_spark(world: World) -> None:
    world.use_spark()


def fail(world: World, point: str, nth: int = 1) -> dict[str, Any]:
    """A run whose JVM is killed; what a user reads."""
    process = world.start(point, nth, "jvm")
    answer = world.answer(process)
    assert process.returncode == 1
    return answer


def test_a_killed_jvm_is_named_and_counts_as_a_failure_of_its_epoch(world: World) -> None:
    world.file.write_text(world.file.read_text().replace("epoch: {", "epoch: {max_attempts: 1, "))
    answer = fail(world, "reading")
    assert answer["error"] == "BlockedError"
    assert (
        f"blocked at epoch 1, node '?', after 1 equal failures: SparkJvmError: {KILLED}" in answer["message"]
    )
    assert "`headrace run " in answer["message"]
    assert "--skip-open" in answer["message"]
    assert "Connection" not in answer["message"]
    ledger = open_ledger(world.settings())
    (row,) = ledger.epochs(world.name)
    ledger.close()
    assert (row.attempts, row.repeats) == (1, 1)


@pytest.mark.slow
@pytest.mark.parametrize(("point", "nth", "blocked"), [("reading", 6, 6), ("postgres-only", 6, 7)])
def test_runs_fail_until_the_epoch_is_blocked_and_a_last_one_goes_on(
    world: World, spark: SparkSession, point: str, nth: int, blocked: int
) -> None:
    """After `postgres-only` the Delta sink still finishes its epoch: the rows are in the driver."""
    for attempt in (1, 2):
        answer = fail(world, *((point, nth) if attempt == 1 else ("reading", 1)))
        assert answer["error"] == "SparkJvmError"
        assert KILLED in answer["message"]
        assert "spark.driver_memory" in answer["message"]
    answer = fail(world, "reading")
    assert answer["error"] == "BlockedError"
    assert f"blocked at epoch {blocked}" in answer["message"]
    assert world.run()["code"] == 0
    world.check(spark)


class Dagster:
    """Runs of the stream's job in processes of their own, and ticks of its supervisor."""

    def __init__(self, world: World, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> None:
        self._world = world
        self.instance = instance
        self._defs = build_definitions([world.file])
        self._sensor = self._defs.resolve_sensor_def(f"{read_pipeline(world.file).name}_supervisor")
        self._cursor: str | None = None
        self.later = 0.0
        monkeypatch.setattr(
            "headrace.orchestration.sensors.time.time", lambda: time.time_ns() / 1e9 + self.later
        )

    def stream(self, point: str = "none") -> str:
        """One run; the description of its failure."""
        script = ROOT / "tests/helpers/dagster_stream.py"
        call = [sys.executable, str(script), str(self._world.file), point, "1", "jvm"]
        done = subprocess.run(call, capture_output=True, text=True, check=False, timeout=600)
        (run,) = self.instance.get_runs(limit=1)
        if done.returncode == 0:
            return ""
        assert run.status is dg.DagsterRunStatus.FAILURE, done.stderr[-3000:]
        (failure,) = self.instance.all_logs(run.run_id, of_type=dg.DagsterEventType.STEP_FAILURE)
        assert failure.dagster_event is not None
        described = failure.dagster_event.step_failure_data.user_failure_data
        assert described is not None, failure
        return described.description or ""

    def tick(self) -> Any:
        context = dg.build_sensor_context(instance=self.instance, cursor=self._cursor, definitions=self._defs)
        result = self._sensor.evaluate_tick(context)
        self._cursor = result.cursor
        return result


@pytest.mark.slow
def test_the_supervisor_starts_the_stream_less_and_less_often_until_its_epoch_is_blocked(
    world: World, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert world.run()["code"] == 0
    world.produce(list(world.changes(random.Random(3), 50)))
    monkeypatch.chdir(world.folder)
    for name, value in world.env().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("DAGSTER_HOME", str(world.folder / ".dagster"))
    with dg.DagsterInstance.from_config(str(dagster_home())) as instance:
        dagster = Dagster(world, instance, monkeypatch)
        for wait in (15, 30):
            assert KILLED in dagster.stream("reading")
            dagster.later = wait - 10
            assert "next start in" in (dagster.tick().skip_message or "")
            dagster.later = wait + 1
            assert len(dagster.tick().run_requests or ()) == 1
        assert "blocked at epoch" in dagster.stream("reading")
        with pytest.raises(Exception, match="gave up") as caught:
            dagster.tick()
        message = str(caught.value.__cause__ or caught.value)
        assert KILLED in message
        assert f"headrace run {world.file}" in message
        assert dagster.stream() == ""
        dagster.later = 0.0
        assert len(dagster.tick().run_requests or ()) == 1
    world.check(spark)
