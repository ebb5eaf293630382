"""A function as the history of a hybrid source, with an exact handoff to a topic."""

from __future__ import annotations

import sys

import pytest
from helpers.pipeline_world import World
from helpers.python_history import write_python_history
from pyspark.sql import SparkSession

from headrace.jobs.run.events import Until
from headrace.jobs.run.runner import run
from headrace.pipeline.errors import SettingsError
from headrace.pipeline.file.loader import load_pipeline


@pytest.fixture
def python_world(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    write_python_history(world, monkeypatch)
    monkeypatch.delitem(sys.modules, "world_history", raising=False)
    return world


@pytest.mark.parametrize(
    "crash",
    [
        None,
        *(
            pytest.param(step, marks=pytest.mark.slow)
            for step in (
                ("planned", 1, "driver"),
                ("postgres-committed", 3, "group"),
                ("handoff", 1, "driver"),
                ("postgres-committed", 6, "driver"),
            )
        ),
    ],
    ids=str,
)
def test_history_and_stream_are_there_once(
    python_world: World, spark: SparkSession, crash: tuple[str, int, str] | None
) -> None:
    if crash is not None:
        assert python_world.crash(*crash) != 0
    settings = python_world.settings()
    settings.python_transforms.allow = ["world_history"]
    assert run(load_pipeline(python_world.file), settings, until=Until.CAUGHT_UP, spark=spark).caught_up
    assert python_world.in_postgres() == sorted(python_world.expected.values())


def test_a_cluster_needs_a_folder_that_its_hosts_share(python_world: World, spark: SparkSession) -> None:
    """Nothing is called and nothing is stored before."""
    settings = python_world.settings()
    settings.python_transforms.allow = ["world_history"]
    cluster = settings.model_copy(
        update={"spark": settings.spark.model_copy(update={"master": "spark://spark.internal:7077"})}
    )
    with pytest.raises(SettingsError, match=r"stored in `staging\.path`, which is not set") as refused:
        run(load_pipeline(python_world.file), cluster, until=Until.CAUGHT_UP, spark=spark)
    assert refused.value.node == "src"
    assert not settings.staging_folder.exists()
