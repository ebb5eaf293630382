"""Two pipelines on one target.

The second one is refused before anything is written, and there is a way out.
"""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from helpers.pipeline_world import World
from pyspark.sql import SparkSession

from headrace.jobs.checks.audit import audit
from headrace.jobs.run import repair
from headrace.jobs.run.events import Until
from headrace.jobs.run.runner import run
from headrace.pipeline.errors import SinkStateError
from headrace.pipeline.file.loader import PipelineFile, load_pipeline

APPENDS = """
name: {name}
sources:
  src: {{type: file, path: {folder}/rows.csv, format: csv, mode: bounded, schema: {{id: int64, v: string}}}}
sinks:
  pg: {{type: postgres, from: src, table: target}}
"""
LAKE = "  lake: {{type: delta, from: src, path: {folder}/appended}}\n"


@pytest.fixture
def world(empty_world: World) -> World:
    """The targets of one test, whose rows are in a file."""
    return empty_world


def written(world: World, name: str, *, lake: bool = True) -> PipelineFile:
    path = Path(world.folder) / f"{name}.yaml"
    path.write_text(
        APPENDS.format(name=name, folder=world.folder) + (LAKE.format(folder=world.folder) if lake else "")
    )
    return load_pipeline(path)


def rows_of(world: World, spark: SparkSession) -> tuple[int, int]:
    with psycopg.connect(world.conninfo) as connection:
        ((rows,),) = connection.execute("SELECT count(*) FROM target").fetchall()
    return rows, spark.read.format("delta").load(f"{world.folder}/appended").count()


def test_a_renamed_pipeline_does_not_write_its_rows_twice(world: World, spark: SparkSession) -> None:
    (world.folder / "rows.csv").write_text("id,v\n" + "\n".join(f"{n},a" for n in range(500)))
    settings = world.settings()
    run(written(world, "one"), settings, until=Until.HISTORY, spark=spark)
    assert rows_of(world, spark) == (500, 500)
    two = written(world, "two")
    with pytest.raises(
        SinkStateError, match=r"target of another pipeline: sink 'pg' of 'one' \(.*, epoch 1\)"
    ) as refused:
        run(two, settings, until=Until.HISTORY, spark=spark)
    assert f"headrace accept-target {two.path} --sink pg --take-over" in (refused.value.hint or "")
    assert rows_of(world, spark) == (500, 500)
    checks = [one for one in audit(two, settings, spark=spark) if one.name == "exactly_once_epochs"]
    assert [(one.passed, one.message) for one in checks] == [
        (True, "no epoch is committed, and the sink has no commit record")
    ] * 2
    with pytest.raises(SinkStateError, match="target of another pipeline"):
        repair.accept_target(
            two, settings, sink="pg", take_over=True, spark=spark
        )  # the Delta table is still that of `one`
    run(written(world, "one"), settings, until=Until.HISTORY, spark=spark)
    assert {
        one.passed
        for one in audit(written(world, "one"), settings, spark=spark)
        if one.name != "handoff_has_no_gap"
    } == {True}


def test_a_target_changes_hands_only_by_a_command(world: World, spark: SparkSession) -> None:
    (world.folder / "rows.csv").write_text("id,v\n1,a\n2,a\n")
    settings = world.settings()
    one, two = (written(world, name, lake=False) for name in ("one", "two"))
    run(one, settings, until=Until.HISTORY, spark=spark)
    repair.accept_target(two, settings, sink="pg", take_over=True, spark=spark)
    run(two, settings, until=Until.HISTORY, spark=spark)
    with psycopg.connect(world.conninfo) as connection:
        assert connection.execute("SELECT count(*) FROM target").fetchall() == [(4,)]
    with pytest.raises(SinkStateError, match="sink 'pg' of 'two'"):
        run(one, settings, until=Until.HISTORY, spark=spark)
    repair.accept_target(one, settings, sink="pg", take_over=True, spark=spark)
    run(one, settings, until=Until.HISTORY, spark=spark)
    assert {
        result.passed for result in audit(one, settings, spark=spark) if result.name != "handoff_has_no_gap"
    } == {True}
