"""Dagster's own processes with real servers and Spark."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import dagster as dg
import psycopg
import pytest
from helpers.pipeline_world import World, leftovers
from pyspark.sql import SparkSession

from headrace.orchestration.instance import dagster_home
from headrace.orchestration.materialize import materialize
from headrace.orchestration.pipelines import read_pipeline
from headrace.pipeline.errors import PipelineStateError

MONTHS = ["2024-01-01", "2024-02-01", "2024-03-01"]
CHECKS = ("exactly_once_epochs", "row_count_matches", "handoff_has_no_gap", "content_matches")


@pytest.fixture
def here(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """The world, with settings and Dagster's home in the environment and the working folder."""
    monkeypatch.chdir(world.folder)
    for name, value in world.env().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("DAGSTER_HOME", str(world.folder / ".dagster"))
    return world


def home(world: World) -> Path:
    return world.folder / "home"


def evaluations(instance: dg.DagsterInstance, key: dg.AssetKey) -> dict[str, str]:
    """The newest status of each check of an asset."""
    keys = [dg.AssetCheckKey(key, name) for name in CHECKS]
    latest = instance.event_log_storage.get_latest_asset_check_execution_by_key(keys)
    return {key.name: record.status.value for key, record in latest.items()}


# Daily ones: the demo runs history, stream and checks through Dagster, and test_operations repairs such a row.
@pytest.mark.slow
def test_history_and_stream_through_dagster_and_a_row_that_somebody_removes(
    here: World, spark: SparkSession
) -> None:
    arguments = [str(here.file), MONTHS[0], MONTHS[1], "caught-up"]
    call = [sys.executable, "-m", "headrace.demo.dagster_run", *arguments]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    here.check(spark)
    pipeline = read_pipeline(here.file)
    with dg.DagsterInstance.from_config(str(dagster_home())) as instance:
        assert [run.status for run in instance.get_runs()] == [dg.DagsterRunStatus.SUCCESS] * 2
        for physical in pipeline.sinks.values():
            assert sorted(instance.get_materialized_partitions(physical.key)) == MONTHS
            assert evaluations(instance, physical.key) == dict.fromkeys(CHECKS, "SUCCEEDED")

        with psycopg.connect(here.conninfo) as connection:
            connection.execute("DELETE FROM target WHERE id = (SELECT min(id) FROM target)")
        with pytest.raises(
            PipelineStateError, match=r"1 blocking asset check failed .*target: row_count_matches"
        ) as caught:
            # The refresh of the last partition of history does not bring back a row of the first one, and
            # the sample of its content has only rows of that partition.
            materialize(here.file, home(here), first=MONTHS[1])
        assert "\n" not in caught.value.message
        assert evaluations(instance, pipeline.sinks["pg"].key)["row_count_matches"] == "FAILED"
        assert evaluations(instance, pipeline.sinks["lake"].key) == dict.fromkeys(CHECKS, "SUCCEEDED")
    assert leftovers(here) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["2024-03-01"], "partition 2024-03-01 is after the end of history"),
        (["2099-01-01"], "`2099-01-01` is not a partition"),
        ([], "choose some (2024-01-01 to 2024-02-01)"),
        (["2024-01-01", "--select", "no/such/thing"], "no sink has the asset key `no/such/thing`"),
    ],
)
def test_what_is_refused_is_one_line_and_starts_no_spark(
    here: World, arguments: list[str], message: str
) -> None:
    call = [sys.executable, "-m", "headrace.orchestration.materialize", str(here.file), *arguments]
    result = subprocess.run(call, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert message in result.stderr.splitlines()[0]
    assert "Traceback" not in result.stderr
    assert not (home(here) / "logs" / "spark.log").exists()
