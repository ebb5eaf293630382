"""The benchmarks. Each takes the runner and a number of rows, adds figures, and returns the missed gates."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg
from confluent_kafka import Producer
from psycopg import sql

from benchmarks.avro import avro
from benchmarks.clickhouse import clickhouse
from benchmarks.functions import format_call, format_capped_rate, format_ratio
from benchmarks.growth import growth
from benchmarks.kit import (
    HISTORY,
    SHAPED_STREAM,
    SPARK_STREAM,
    STREAM,
    TRANSFORM,
    BenchmarkRunner,
    format_rate,
    random_name,
    read_clock,
    tree_size,
)
from benchmarks.lookups import lookups
from benchmarks.peers.bare import copy_history, upsert_messages
from benchmarks.programs import script
from benchmarks.publishing import publishing
from benchmarks.steady import latency, upsert_both
from benchmarks.streams import streams
from benchmarks.tables import tables
from benchmarks.warm import warm_start
from benchmarks.watching import watching
from headrace.connectors.postgres.commit_store import RecordStore
from headrace.jobs.run.events import Until
from headrace.jobs.run.runner import run
from headrace.pipeline.file.loader import parse_pipeline
from headrace.pipeline.protocol.ledger import Ledger

GATE_GIB = 3.0
GATE_GROWTH = 1.25


def history(runner: BenchmarkRunner, rows: int) -> list[str]:
    """Measure ClickHouse to keyed Postgres: bare, bulk copy, Spark."""
    table = runner.create_table(rows)
    bare = _bare_history(runner, table, rows)
    runner.add_figure(
        "history", f"bare: two processes, Arrow to COPY, {rows:,} rows", format_rate(rows, bare), "1.00"
    )
    for what, transforms, last in (("direct", "", "src"), ("rows", TRANSFORM, "shout")):
        name = random_name()
        seconds, _ = runner.run_pipeline(
            HISTORY.format(name=name, table=table, transforms=transforms, last=last, target=name)
        )
        assert runner.count_rows(name) == rows
        runner.add_figure(
            "history", f"headrace, {what} route", format_rate(rows, seconds), f"{bare / seconds:.2f}"
        )
    return []


def _bare_history(runner: BenchmarkRunner, table: str, rows: int) -> float:
    task = runner.create_task("A", rows, table=table, target=random_name())
    began = read_clock()
    copy_history(task)
    seconds = read_clock() - began
    assert runner.count_rows(task.target) == rows
    return seconds


def upsert(runner: BenchmarkRunner, rows: int) -> list[str]:
    """Measure Kafka JSON into Postgres by key, five messages per key."""
    messages = max(rows // 5, 1000)
    topic, name, bare_name = runner.create_topic(messages, messages // 5), random_name(), random_name()
    bare = _bare_upsert(runner, topic, bare_name, messages)
    runner.add_figure(
        "upsert",
        f"bare: one process, 100,000 at a time, {messages:,} messages",
        format_rate(messages, bare),
        "1.00",
    )
    seconds, epochs = runner.run_pipeline(STREAM.format(name=name, topic=topic, target=name, rows=100_000))
    assert runner.count_rows(name) == runner.count_rows(bare_name) == messages // 5
    runner.add_figure(
        "upsert", f"headrace, {len(epochs)} epochs", format_rate(messages, seconds), f"{bare / seconds:.2f}"
    )
    return []


def _bare_upsert(runner: BenchmarkRunner, topic: str, target: str, messages: int) -> float:
    task = runner.create_task("B", messages, topic=topic, target=target)
    began = read_clock()
    upsert_messages(task)
    return read_clock() - began


def epoch(runner: BenchmarkRunner, rows: int) -> list[str]:
    """Measure small epochs at interval 0."""
    del rows
    topic, name = runner.create_topic(60_000, 20_000), random_name()
    with _stopwatch((Ledger, ("plan", "commit")), (RecordStore, ("lock_for_epoch", "advance"))) as spent:
        _, epochs = runner.run_pipeline(STREAM.format(name=name, topic=topic, target=name, rows=1000))
    times = sorted(event.steps["total"] for event in epochs[10:])
    median, high = statistics.median(times), times[int(len(times) * 0.99)]
    shaped = SHAPED_STREAM.format(name=f"{name}_sql", topic=topic, target=f"{name}_sql", rows=1000)
    _, by_sql = runner.run_pipeline(shaped)
    times = sorted(event.steps["total"] for event in by_sql[10:])
    runner.add_figure(
        "epoch", "median of epochs of 1,000 rows, Kafka to Postgres", f"{median * 1000:.0f} ms", "1.00"
    )
    runner.add_figure("epoch", "99th percentile", f"{high * 1000:.0f} ms", f"{high / median:.2f}")
    middle, end = statistics.median(times), times[int(len(times) * 0.99)]
    runner.add_figure(
        "epoch", "median with SQL and a filter", f"{middle * 1000:.0f} ms", f"{middle / median:.2f}"
    )
    runner.add_figure("epoch", "99th percentile of these", f"{end * 1000:.0f} ms", f"{end / median:.2f}")
    total = sum(event.steps["total"] for event in epochs) + sum(
        spent["plan"]
    )  # a plan is stored before an epoch's clock starts
    stored = sum(map(sum, spent.values()))
    runner.add_figure(
        "epoch",
        "without ledger and records (their time taken off)",
        f"{median * (1 - stored / total) * 1000:.0f} ms",
        f"{1 - stored / total:.2f}",
    )
    for what, names in (("ledger", ("plan", "commit")), ("sink's record", ("lock_for_epoch", "advance"))):
        share = sum(sum(spent[name]) for name in names) / total
        runner.add_figure("epoch", f"the {what}'s share, durable", f"{share:.1%}")
    return []


def live(runner: BenchmarkRunner, rows: int) -> list[str]:
    """Measure the time from the broker's acknowledgement of a message to its row in Postgres.

    There is no other traffic.
    """
    del rows
    topic, name, stop = runner.create_topic(100, 100), random_name(), threading.Event()
    file = parse_pipeline(STREAM.format(name=name, topic=topic, target=name, rows=1000))
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run, file, runner.settings(), until=Until.FOREVER, stop=stop)
        try:
            waited = sorted(_measure_arrivals(runner, topic, name, 60)[10:])
        finally:
            stop.set()
        running.result()
    median, high = statistics.median(waited), waited[int(len(waited) * 0.9)]
    runner.add_figure(
        "live", "a message on its own, from broker to Postgres, median", f"{median * 1000:.0f} ms", "1.00"
    )
    runner.add_figure("live", "90th percentile", f"{high * 1000:.0f} ms", f"{high / median:.2f}")
    return []


def _measure_arrivals(runner: BenchmarkRunner, topic: str, target: str, messages: int) -> list[float]:
    """Return the seconds of each single message."""
    producer = Producer({"bootstrap.servers": runner.services.kafka.brokers, "linger.ms": 0})
    query = sql.SQL("SELECT 1 FROM {} WHERE id = %s").format(sql.Identifier(target))
    waited = []
    with psycopg.connect(runner.services.postgres.conninfo(), autocommit=True) as connection:
        while (
            not connection.execute("SELECT to_regclass(%s)", [target]).fetchall()[0][0]
            or runner.count_rows(target) < 100
        ):
            time.sleep(0.2)
        for number in range(messages):
            producer.produce(
                topic, f'{{"id":{1000 + number},"name":"live","amount":1.5}}', partition=number % 4
            )
            producer.flush()
            began = read_clock()
            while not connection.execute(query, [1000 + number]).fetchall():
                time.sleep(0.005)
            waited.append(read_clock() - began)
            time.sleep(0.1 + 0.037 * (number % 7))  # not in step with the run's own pauses
    return waited


@contextmanager
def _stopwatch(*watched: tuple[type, tuple[str, ...]]) -> Iterator[dict[str, list[float]]]:
    """Yield the seconds of each call of these methods, by method name."""
    spent: dict[str, list[float]] = {}
    originals = [(owner, name, getattr(owner, name)) for owner, names in watched for name in names]

    def timing(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            began = read_clock()
            try:
                return original(*args, **kwargs)
            finally:
                spent[name].append(read_clock() - began)

        return wrapped

    for owner, name, original in originals:
        spent[name] = []
        setattr(owner, name, timing(name, original))
    try:
        yield spent
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)


def startup(runner: BenchmarkRunner, rows: int) -> list[str]:
    """Measure the steps of a start, and the time from kill -9 to the first new epoch."""
    del rows
    topic = runner.create_topic(200_000, 50_000)
    for what, pipeline in (
        ("", STREAM),
        ("with SQL: ", SHAPED_STREAM),
        ("with SQL of Spark: ", SPARK_STREAM),
    ):
        name = random_name()
        text = pipeline.format(name=name, topic=topic, target=name, rows=2000)
        first, restart = (_run_to_epoch(runner, text, stop_at) for stop_at in (3, 1))
        runner.add_figure("startup", f"{what}imports", f"{first['imports']:.1f} s")
        for step, after, label in (
            ("lane open", "imports", "sources, sinks, lane open"),
            ("epoch", "lane open", "first epoch committed after that"),
        ):
            runner.add_figure("startup", f"{what}{label}", f"{first[step] - first[after]:.1f} s")
        runner.add_figure(
            "startup",
            f"{what}after kill -9: to the first new committed epoch",
            f"{restart['epoch']:.1f} s",
            f"{restart['epoch'] / first['epoch']:.2f}",
        )
    return []


def _run_to_epoch(runner: BenchmarkRunner, text: str, stop_at: int) -> dict[str, float]:
    """Run a pipeline until it has committed some epochs, then kill it. Return the steps."""
    child = runner.start_pipeline(text)
    steps = _read_steps(child, stop_at)
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    return steps


def _read_steps(child: Any, stop_at: int) -> dict[str, float]:
    """Return the first time of each step. Read until `stop_at` epochs."""
    steps: dict[str, float] = {}
    epochs = 0
    for line in child.stdout:
        message = json.loads(line)
        steps.setdefault(message["step"], message["at"])
        epochs += message["step"] == "epoch"
        if epochs == stop_at:
            break
    return steps


def memory(runner: BenchmarkRunner, rows: int) -> list[str]:
    """Measure the largest size of the process tree, over a history and over one ten times as long."""
    sizes = []
    for count in (rows, rows * 10):
        name = random_name()
        child = runner.start_pipeline(
            HISTORY.format(
                name=name, table=runner.create_table(count), transforms=TRANSFORM, last="shout", target=name
            )
        )
        peak = 0
        while child.poll() is None:
            peak = max(peak, _sample_size(child.pid))
        assert runner.count_rows(name) == count
        sizes.append(peak / 2**30)
        runner.add_figure(
            "memory", f"largest process tree, {count:,} rows, rows route", f"{sizes[-1]:.2f} GiB"
        )
    growth = sizes[1] / sizes[0]
    runner.add_figure("memory", "growth", f"{sizes[1] - sizes[0]:+.2f} GiB", f"{growth:.2f}")
    missed = [f"memory grew by {growth:.2f}, allowed {GATE_GROWTH}"] if growth > GATE_GROWTH else []
    return missed + ([f"memory is {max(sizes):.2f} GiB, allowed {GATE_GIB}"] if max(sizes) > GATE_GIB else [])


def functions(runner: BenchmarkRunner, rows: int) -> list[str]:
    """Measure SQL functions in a separate process with one core.

    The ratio is against the goal of their type.
    """
    del rows
    output = subprocess.run(
        [sys.executable, "-m", "benchmarks.functions"], stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    for result in map(json.loads, output.splitlines()):
        runner.add_figure(
            "functions", format_call(result), format_capped_rate(result["rate"]), format_ratio(result)
        )
    return []


def _sample_size(pid: int) -> int:
    import psutil

    time.sleep(0.2)
    try:
        return tree_size(pid)
    except psutil.Error:
        return 0


CASES: dict[str, Callable[[BenchmarkRunner, int], list[str]]] = {
    "history": history,
    "upsert": upsert,
    "publishing": publishing,
    "avro": avro,
    "clickhouse": clickhouse,
    "tables": tables,
    "growth": growth,
    "epoch": epoch,
    "live": live,
    "latency": latency,
    "both": upsert_both,
    "startup": startup,
    "warm": warm_start,
    "memory": memory,
    "functions": functions,
    "lookups": lookups,
    "script": script,
    "watching": watching,
    "streams": streams,
}
