"""A stream of files into tables that append, with kill -9 while new files come: every row arrives once."""

from __future__ import annotations

import os
import time
from collections import Counter

import psutil
import psycopg
import pytest
from helpers.depth import with_slow
from helpers.pipeline_world import World, until
from pyspark.sql import SparkSession

from headrace.pipeline.errors import DataError, PipelineStateError

ROWS = 100
PIPELINE = """\
version: 1
name: {name}
sources:
  events:
    type: file
    path: {folder}/in
    format: {format}
    min_file_age: 0s
    schema: {{id: int64, v: string}}
    {filter}
sinks:
  pg: {{type: postgres, from: events, table: target, delivery: exactly_once}}
  lake: {{type: delta, from: events, path: {folder}/lake}}
epoch: {{interval: 0s, stream_rows: 250}}
"""
STEPS = [
    ("planned", 1, "driver"),
    ("planned", 3, "group"),
    ("postgres-only", 1, "driver"),
    ("postgres-only", 3, "group"),
    ("delta-only", 2, "driver"),
    ("delta-only", 4, "jvm"),
    ("sinks-written", 1, "driver"),
    ("sinks-written", 3, "group"),
]
CASES = [(*step, kind) for step in reversed(STEPS) for kind in ("csv", "json")]


def write_file(world: World, number: int, kind: str) -> None:
    """Put a complete file into the folder, as a producer that renames it does."""
    ids = range(number * ROWS, (number + 1) * ROWS)
    lines = [f"{at},v{at}" if kind == "csv" else f'{{"id": {at}, "v": "v{at}"}}' for at in ids]
    text = "\n".join((["id,v"] if kind == "csv" else []) + lines)
    path = world.folder / "in" / f".{number}.{kind}"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.rename(path.with_name(path.name[1:]))


def pipeline(world: World, kind: str, who: str = "driver") -> World:
    """The file of a pipeline. Spark applies its filter, so that a run has a JVM that can be killed."""
    has_filter = who == "jvm" or world.sql_engine == "spark"
    values = {"format": kind, "filter": "filter: id >= 0" if has_filter else ""}
    world.file.write_text(PIPELINE.format(name=world.name, folder=world.folder, **values))
    for number in range(8):
        write_file(world, number, kind)
    return world


def check(world: World, spark: SparkSession, files: int) -> None:
    """Both sinks have every row of the first files once, as they were written."""
    expected = Counter((number, f"v{number}") for number in range(files * ROWS))
    with psycopg.connect(world.conninfo) as connection:
        assert Counter(connection.execute("SELECT id, v FROM target").fetchall()) == expected
    lake = spark.read.format("delta").load(str(world.folder / "lake"))
    assert Counter((row.id, row.v) for row in lake.collect()) == expected


@pytest.mark.parametrize("case", with_slow(CASES[1:], CASES), ids=str)
def test_every_row_arrives_once(
    empty_world: World, spark: SparkSession, case: tuple[str, int, str, str]
) -> None:
    point, nth, who, kind = case
    world = pipeline(empty_world, kind, who)
    assert world.crash(point, nth, who) != 0
    if "filter" not in world.file.read_text():
        assert not world.has_started_spark()
    write_file(world, 8, kind)
    os.utime(world.folder / "in" / f"8.{kind}", (time.time() - 9_000, time.time() - 9_000))
    assert world.run_here(spark).caught_up
    check(world, spark, 9)
    write_file(world, 9, kind)
    assert world.run_here(spark).caught_up
    check(world, spark, 10)


@pytest.mark.parametrize("point", with_slow(("delta-only",), ("postgres-only", "delta-only")))
def test_a_paused_run_wakes_up_after_a_takeover(empty_world: World, spark: SparkSession, point: str) -> None:
    world = pipeline(empty_world, "csv")
    zombie = world.start(point, 2, "stop")
    world.await_stop(zombie)
    until(lambda: world.run()["code"] == 0, "the takeover after the lease", 240)
    check(world, spark, 8)
    psutil.Process(zombie.pid).resume()
    assert world.answer(zombie)["error"] == "FencedError"
    check(world, spark, 8)


def test_a_file_can_be_corrected_until_a_sink_has_its_rows(empty_world: World, spark: SparkSession) -> None:
    world = pipeline(empty_world, "csv")
    assert world.run_here(spark).caught_up
    path = world.folder / "in" / "8.csv"
    path.write_text("id,v\nx,1\n")
    with pytest.raises(DataError, match=r"8\.csv, row 1: column `id` is int64, which cannot hold `x`"):
        world.run_here(spark)
    # The epoch with the file is open. Without the file it is planned again, and with other files.
    path.unlink()
    write_file(world, 8, "csv")
    write_file(world, 9, "csv")
    assert world.run_here(spark).caught_up
    check(world, spark, 10)


def test_a_file_of_an_epoch_that_a_sink_has_must_stay(empty_world: World, spark: SparkSession) -> None:
    world = pipeline(empty_world, "csv")
    assert world.crash("postgres-only", 4, "driver") != 0
    path, text = world.folder / "in" / "7.csv", (world.folder / "in" / "7.csv").read_text()
    about = path.stat()
    path.write_text(text.replace("v799", "other"))
    with pytest.raises(PipelineStateError, match=r"7\.csv` changed after it was pinned"):
        world.run_here(spark)
    path.write_text(text)
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert world.run_here(spark).caught_up
    check(world, spark, 8)
