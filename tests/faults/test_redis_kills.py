"""A hybrid source into a Redis server, with kill -9 and pauses around the scripts of an epoch.

A script has at most 100 rows, so that an epoch is several scripts. Each time every key must have its last row, and
the record must count the entries that are there.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from functools import partial

import pyarrow as pa
import pytest
from helpers.appended_rows import expected_rows
from helpers.pipeline_world import HYBRID_SOURCE, Row, World, until
from helpers.redis_server import RedisServer, redis_server
from helpers.redis_sink import read_entries
from pyspark.sql import SparkSession

from headrace.jobs.checks.audit import audit
from headrace.jobs.run.repair import replay
from headrace.pipeline.file.loader import load_pipeline

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("name", pa.string()), ("amount", pa.int64())])
SINK = """\
transforms:
  shaped: {{type: sql, sql: "select id, day, upper(name) as name, {doubled} as amount from src"}}
sinks:
  out: {{type: redis, from: shaped, prefix: rows, url: "{url}"}}
epoch: {{interval: 0s, stream_rows: 250, history_rows: 1000}}
"""

# Scripts of a run: 10 for each of the 3 epochs of history, then 2 or 3 for each of the stream. (point, nth, who dies)
STEPS = [
    ("entries-written", 15, "driver"),
    ("sinks-written", 2, "driver"),
    ("entries-writing", 1, "driver"),
    ("entries-writing", 15, "group"),
    ("entries-written", 10, "driver"),
    ("entries-written", 12, "group"),
    ("entries-written", 33, "driver"),
    ("entries-under-way", 7, "group"),
    ("entries-under-way", 34, "driver"),
    ("entries-under-way", 18, "jvm"),
    ("sinks-written", 5, "group"),
]


@pytest.fixture
def server(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[RedisServer]:
    """A server, and the world with a pipeline into it."""
    monkeypatch.setenv("HEADRACE_TEST_REDIS_ROWS", "100")
    with redis_server(world.folder / "redis") as started:
        world.file.write_text((HYBRID_SOURCE + SINK).format(**world.file_values, url=started.url))
        yield started


def rows(server: RedisServer) -> list[Row]:
    """The rows of all entries, sorted."""
    result = read_entries(server, "rows", SCHEMA).values()
    return sorted((row["id"], row["day"], row["name"], row["amount"]) for row in result)


def count_entries(server: RedisServer) -> int:
    """Return the number of entries, also while a run deletes some: no value is read."""
    with server.client as client:
        return len(set(client.scan_iter("rows:*", count=1000)))


def check(world: World, server: RedisServer) -> None:
    """Compare the entries with the expected rows, and with the counts of the record."""
    assert rows(server) == expected_rows(world)
    result = {one.name: one for one in audit(load_pipeline(world.file), world.settings())}
    for name in ("exactly_once_epochs", "row_count_matches"):
        assert result[name].passed is True, result[name]


@pytest.mark.slow  # test_a_run_that_dies_between_two_scripts is the daily sample
@pytest.mark.parametrize(("point", "nth", "who"), STEPS)
def test_every_key_has_its_last_row(
    world: World, server: RedisServer, spark: SparkSession, point: str, nth: int, who: str
) -> None:
    assert world.crash(point, nth, who) != 0
    assert world.run_here(spark).caught_up
    check(world, server)


def test_a_run_that_dies_between_two_scripts(world: World, server: RedisServer, spark: SparkSession) -> None:
    world.enlarge_epochs()
    assert world.crash("entries-written", 15, "driver") != 0
    assert world.run_here(spark).caught_up
    check(world, server)


@pytest.mark.slow
@pytest.mark.parametrize(("point", "nth"), [("entries-writing", 15), ("entries-written", 32)])
def test_a_paused_run_is_refused_after_a_takeover(
    world: World, server: RedisServer, point: str, nth: int
) -> None:
    zombie = world.start(point, nth, "stop")
    world.await_stop(zombie)
    answer = until(
        lambda: (result := world.run())["code"] == 0 and result, "the takeover after the lease", 240
    )
    assert answer["caught_up"]
    check(world, server)
    os.kill(zombie.pid, signal.SIGCONT)
    assert world.answer(zombie)["error"] == "FencedError"
    check(world, server)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_server_is_killed_and_comes_back(world: World, server: RedisServer) -> None:
    """The run reconnects by itself, or the next one continues."""
    process, dice, reached = world.start(), random.Random(11), 0

    def has_more(limit: int) -> bool:
        return count_entries(server) > limit or process.poll() is not None

    for _ in range(4):
        until(partial(has_more, reached), "more entries", 240)
        server.kill()
        server.start()
        reached = count_entries(server) + dice.randrange(300)
    process.communicate(timeout=600)
    assert world.run()["caught_up"]
    check(world, server)


def test_audits_and_replays_of_entries(world: World, server: RedisServer, spark: SparkSession) -> None:
    world.enlarge_epochs()
    file, settings = load_pipeline(world.file), world.settings()
    assert world.run_here(spark).caught_up
    check(world, server)
    replay(file, settings, sink="out", from_epoch=1, spark=spark)
    check(world, server)
    with server.client as client:
        assert client.delete("rows:7") == 1
    result = {one.name: one for one in audit(file, settings)}
    assert result["row_count_matches"].passed is False
