"""A hybrid source into folders of files, with kill -9 and pauses around the renames of an epoch.

Each time a reader of the folders `headrace_commit=…`, which knows nothing else, must see every row once.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from helpers.appended_rows import expected_appends, expected_rows
from helpers.depth import FULL
from helpers.file_sink import fold
from helpers.pipeline_world import HYBRID_SOURCE, Row, World, until
from helpers.random_kills import create_dice, kill_driver_or_group, kill_runs
from pyspark.sql import SparkSession

from headrace.jobs.checks.audit import audit
from headrace.jobs.run.events import Until
from headrace.jobs.run.repair import replay
from headrace.jobs.run.runner import run
from headrace.pipeline.file.loader import load_pipeline

SINK = """\
transforms:
  shaped: {{type: sql, sql: "select id, day, upper(name) as name, {doubled} as amount from src{where}"}}
sinks:
  out: {{type: file, from: shaped, path: {path}, format: {format}, partition_by: [{by}]}}
epoch: {{interval: 0s, stream_rows: 250, history_rows: 1000}}
"""
KILLS = 15 if FULL else 2

# Epochs of a run: 1 to 3 are history, then the stream. (point, nth, who dies)
STEPS = [
    ("folder-fenced", 1, "driver"),
    ("folder-state", 1, "group"),
    ("folder-state", 2, "driver"),
    ("folder-writing", 2, "group"),
    ("folder-writing-files", 2, "driver"),
    ("folder-writing-files", 5, "jvm"),
    ("folder-written", 1, "driver"),
    ("folder-written", 5, "group"),
    ("folder-publishing", 2, "driver"),
    ("folder-publishing", 6, "group"),
    ("folder-moved", 3, "driver"),
    ("folder-renamed", 2, "driver"),
    ("folder-renamed", 6, "group"),
    ("folder-published", 5, "driver"),
    ("sinks-written", 4, "group"),
]


def with_folder(world: World, *, keyed: bool) -> World:
    """The world with a pipeline into `out`: changes as parquet, or rows without a key as csv by day."""
    more = {
        "path": world.folder / "out",
        "format": "parquet" if keyed else "csv",
        "by": "" if keyed else "day",
    }
    where = "" if keyed else " where _gs_op <> 'd'"
    text = (HYBRID_SOURCE + SINK).format(**world.file_values, **more, where=where)
    world.file.write_text(text if keyed else text.replace("    primary_key: id\n", ""))
    return world


def rows(world: World, *, keyed: bool) -> list[Row]:
    """The rows as the documented rule gives them to a program that knows only Hive folders."""
    folders = sorted((world.folder / "out").glob("headrace_commit=*"))
    files = [str(file) for folder in folders for file in folder.rglob("*.*")]
    result = ds.dataset(
        files, format="parquet" if keyed else "csv", partitioning=ds.partitioning(flavor="hive")
    )
    table: pa.Table = result.to_table()
    day = pc.cast(table["day"], pa.string()).cast(pa.date32())
    table = table.set_column(table.schema.get_field_index("day"), "day", day)
    kept = fold(table.to_pylist(), ("id",) if keyed else ())
    return sorted((row["id"], row["day"], row["name"], row["amount"]) for row in kept)


def check(world: World, *, keyed: bool) -> None:
    assert rows(world, keyed=keyed) == (expected_rows(world) if keyed else expected_appends(world))


@pytest.mark.slow  # test_a_run_that_dies_within_its_rename is the daily sample
@pytest.mark.parametrize(("point", "nth", "who"), STEPS)
@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "appended"])
def test_every_row_is_there_once(
    world: World, spark: SparkSession, point: str, nth: int, who: str, keyed: bool
) -> None:
    with_folder(world, keyed=keyed)
    assert world.crash(point, nth, who) != 0
    assert world.run_here(spark).caught_up
    check(world, keyed=keyed)


def test_a_run_that_dies_within_its_rename(world: World, spark: SparkSession) -> None:
    with_folder(world, keyed=False)
    world.enlarge_epochs()
    assert world.crash("folder-renamed", 2, "driver") != 0
    assert world.run_here(spark).caught_up
    check(world, keyed=False)


@pytest.mark.slow  # the contract and tests/spark/connectors have daily ones
@pytest.mark.parametrize("point", ["folder-writing", "folder-written", "folder-moved", "folder-renamed"])
@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "appended"])
def test_a_paused_run_wakes_up_after_a_takeover(world: World, point: str, keyed: bool) -> None:
    with_folder(world, keyed=keyed)
    zombie = world.start(point, 5, "stop")
    world.await_stop(zombie)
    answer = until(
        lambda: (result := world.run())["code"] == 0 and result, "the takeover after the lease", 240
    )
    assert answer["caught_up"]
    check(world, keyed=keyed)
    os.kill(zombie.pid, signal.SIGCONT)
    assert world.answer(zombie)["error"] == "FencedError"
    assert zombie.returncode != 0
    check(world, keyed=keyed)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_random_kills_of_a_folder(world: World) -> None:
    with_folder(world, keyed=False)
    kill_runs(world, create_dice(), KILLS, kill_driver_or_group)
    check(world, keyed=False)


def test_audits_and_replays_of_a_folder(world: World, spark: SparkSession) -> None:
    with_folder(world, keyed=True)
    world.enlarge_epochs()
    file, settings = load_pipeline(world.file), world.settings()
    assert run(file, settings, until=Until.CAUGHT_UP, spark=spark).caught_up
    check(world, keyed=True)

    def passed() -> dict[str, bool | None]:
        return {one.name: one.passed for one in audit(file, settings, spark=spark)}

    assert all(passed()[name] is True for name in ("exactly_once_epochs", "row_count_matches"))
    replay(file, settings, sink="out", from_epoch=1, spark=spark)
    check(world, keyed=True)
    assert passed()["row_count_matches"] is True
    next(Path(world.folder / "out").rglob("headrace_commit=*/*.parquet")).unlink()
    assert passed()["row_count_matches"] is False
