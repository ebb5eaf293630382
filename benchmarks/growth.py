"""The cost per row as rows, partitions and sinks grow."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import psycopg
from psycopg import sql

from benchmarks.kit import HISTORY, BenchmarkRunner, random_name, read_clock
from benchmarks.peers.bare import copy_range, create_history_table

_STREAM = """
name: {name}
sources:
  src: {{type: kafka, topic: {topic}, primary_key: id, schema: {{id: int64, name: string, amount: float64}}}}
sinks:
{sinks}
epoch: {{stream_rows: 100000}}
"""
_SINK = "  out_{number}: {{type: postgres, from: src, table: {target}}}"
_FEW, _MANY = 5, 10
"""The smallest history has a fifth of the default rows, the largest ten times as many."""
_PARTITIONS = (1, 4, 16)
_SINKS = (1, 2, 4, 8)


def growth(runner: BenchmarkRunner, rows: int) -> list[str]:
    """Measure a history of 1, 5 and 50 million rows, a topic of 1 to 16 partitions, and 1 to 8 sinks."""
    counts = (rows // _FEW, rows, rows * _MANY)
    costs = [_load_history(runner, count) for count in counts]
    _add(runner, "rows of history", counts, [cost for cost, _ in costs])
    _add(runner, "rows of the same history, bare", counts, [bare for _, bare in costs])
    messages = rows // _FEW
    costs = [_read_topic(runner, messages, partitions=number) for number in _PARTITIONS]
    _add(runner, "partitions of a topic", _PARTITIONS, costs)
    costs = [_read_topic(runner, messages // 4, sinks=number) for number in _SINKS]
    _add(runner, "sinks, per row of each", _SINKS, costs)
    return []


def _add(runner: BenchmarkRunner, what: str, numbers: Sequence[int], costs: Sequence[float]) -> None:
    for number, cost in zip(numbers, costs, strict=True):
        runner.add_figure(
            "growth", f"{number:,} {what}", f"{cost * 1e6:.2f} µs a row", f"{cost / costs[0]:.2f}"
        )


def _load_history(runner: BenchmarkRunner, rows: int) -> tuple[float, float]:
    """Return the seconds per row from ClickHouse to a keyed Postgres table, by Headrace and by bare COPY."""
    table, target, bare_target = runner.create_table(rows), random_name(), random_name()
    text = HISTORY.format(name=target, table=table, transforms="", last="src", target=target)
    seconds, _ = runner.run_pipeline(text)
    bare_seconds = _copy_history(runner, rows, table, bare_target)
    assert runner.count_rows(target) == runner.count_rows(bare_target) == rows
    _drop(runner, [target, bare_target])
    return seconds / rows, bare_seconds / rows


def _copy_history(runner: BenchmarkRunner, rows: int, table: str, target: str) -> float:
    """Return the seconds of two threads, each of which copies half of the ids in one transaction.

    Two processes, as `copy_history` has them, start for as long as the smallest history takes.
    """
    task = runner.create_task("A", rows, table=table, target=target)
    create_history_table(task)
    began = read_clock()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda first: copy_range(task, first, first + rows // 2), (0, rows // 2)))
    return read_clock() - began


def _read_topic(runner: BenchmarkRunner, messages: int, *, partitions: int = 4, sinks: int = 1) -> float:
    """Return the seconds per row from a topic of new keys to each of some keyed Postgres tables."""
    topic, name = runner.create_topic(messages, messages, partitions), random_name()
    targets = [f"{name}_{number}" for number in range(sinks)]
    lines = [_SINK.format(number=number, target=target) for number, target in enumerate(targets)]
    seconds, _ = runner.run_pipeline(_STREAM.format(name=name, topic=topic, sinks="\n".join(lines)))
    assert all(runner.count_rows(target) == messages for target in targets)
    _drop(runner, targets)
    return seconds / messages / sinks


def _drop(runner: BenchmarkRunner, tables: Sequence[str]) -> None:
    with psycopg.connect(runner.services.postgres.conninfo()) as connection:
        for table in tables:
            connection.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(table)))
