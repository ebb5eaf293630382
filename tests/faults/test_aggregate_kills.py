"""A hybrid source into totals, with kill -9 and pauses around the transaction of an epoch."""

from __future__ import annotations

import os
import signal
from collections import defaultdict

import psycopg
import pytest
from helpers.appended_rows import expected_rows
from helpers.pipeline_world import HYBRID_SOURCE, World, until
from pyspark.sql import SparkSession

from headrace.jobs.checks.audit import audit
from headrace.jobs.run.repair import replay
from headrace.pipeline.file.loader import load_pipeline

TRANSFORM = """\
transforms:
  shaped: {{type: sql, sql: "select id, day, upper(name) as name, {doubled} as amount from src"}}
"""
SINK = """\
sinks:
  out:
    type: postgres_aggregate
    from: {node}
    landing_table: landing
    agg_table: totals
    max_driver_rows: {rows}
    group_by: {{day: {{}}}}
    aggregate:
      amount: {{fn: sum}}
      n: {{fn: count}}
      low: {{from: amount, fn: min}}
      high: {{from: amount, fn: max}}
epoch: {{interval: 0s, stream_rows: 250, history_rows: 1000}}
"""

# Commits of a run: 1 the generation, 2 the first record, 3 to 5 history, then the stream.
STEPS = [
    ("postgres-committing", 1, "group"),
    ("postgres-committed", 2, "driver"),
    ("postgres-committing", 3, "driver"),
    ("postgres-committing", 6, "group"),
    ("postgres-committing", 7, "jvm"),
    ("postgres-committed", 4, "group"),
    ("postgres-committed", 7, "driver"),
    ("sinks-written", 2, "driver"),
    ("sinks-written", 5, "group"),
]


def with_totals(world: World, *, large: bool = False, shaped: bool = True) -> World:
    """The world with a pipeline into totals. Without a transform, a small epoch starts no JVM."""
    text = HYBRID_SOURCE + (TRANSFORM if shaped else "") + SINK
    node = "shaped" if shaped else "src"
    world.file.write_text(text.format(**world.file_values, node=node, rows=1 if large else 20_000))
    return world


def check(world: World, *, shaped: bool = True) -> None:
    """The totals are those of the rows that this test computes without a database."""
    days = defaultdict(list)
    for _, day, _, amount in expected_rows(world) if shaped else world.expected.values():
        days[day].append(amount)
    wanted = [
        (day, sum(result), len(result), min(result), max(result)) for day, result in sorted(days.items())
    ]
    with psycopg.connect(world.conninfo) as client:
        assert (
            client.execute("SELECT day, amount, n, low, high FROM totals ORDER BY day").fetchall() == wanted
        )


@pytest.mark.slow  # test_a_run_that_dies_within_its_transaction is the daily sample
@pytest.mark.parametrize(("point", "nth", "who"), STEPS)
@pytest.mark.parametrize("large", [False, True], ids=["driver", "staged"])
def test_totals_are_right_after_kills(
    world: World, spark: SparkSession, point: str, nth: int, who: str, large: bool
) -> None:
    with_totals(world, large=large)
    assert world.crash(point, nth, who) != 0
    assert world.run_here(spark).caught_up
    check(world)


def test_a_run_that_dies_within_its_transaction(world: World, spark: SparkSession) -> None:
    with_totals(world, shaped=False)
    world.enlarge_epochs()
    assert world.crash("postgres-committing", 4, "driver") != 0  # the first epoch of the stream
    assert world.run_here(spark).caught_up
    check(world, shaped=False)
    file, settings = load_pipeline(world.file), world.settings()
    replay(file, settings, sink="out", from_epoch=1, spark=spark)
    check(world, shaped=False)
    checks = {one.name: one.passed for one in audit(file, settings, spark=spark)}
    assert checks["exactly_once_epochs"] is True
    assert checks["row_count_matches"] is True


@pytest.mark.slow
@pytest.mark.parametrize("point", ["postgres-committing", "postgres-committed", "sinks-written"])
def test_a_paused_run_wakes_up_after_a_takeover(world: World, point: str) -> None:
    with_totals(world)
    zombie = world.start(point, 6, "stop")
    world.await_stop(zombie)
    answer = until(
        lambda: (result := world.run())["code"] == 0 and result, "the takeover after the lease", 240
    )
    assert answer["caught_up"]
    check(world)
    os.kill(zombie.pid, signal.SIGCONT)
    world.answer(zombie)
    assert zombie.returncode != 0
    check(world)
