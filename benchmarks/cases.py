"""The benchmarks themselves. Each takes the servers and a number of rows, notes figures, and returns what a gate missed."""

from __future__ import annotations

import json
import os
import secrets
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any

import clickhouse_connect
import psycopg
import pyarrow as pa
import pyarrow.json as pa_json
from confluent_kafka import Consumer, Producer
from psycopg import sql

from benchmarks.functions import shown_rate, shown_ratio, shown_what
from benchmarks.kit import HISTORY, STREAM, TRANSFORM, Bench, rate, timed, tree_size
from benchmarks.lookups import lookups
from benchmarks.programs import script
from benchmarks.watching import watching
from headrace.connectors.postgres.commit_store import RecordStore
from headrace.jobs.run.events import Until
from headrace.jobs.run.runner import run
from headrace.pipeline.file.loader import parse_pipeline
from headrace.pipeline.protocol.ledger import Ledger

TARGET = "CREATE TABLE {} (id BIGINT PRIMARY KEY, at TIMESTAMPTZ, name TEXT, amount DOUBLE PRECISION)"
LATEST = "CREATE TABLE {} (id BIGINT PRIMARY KEY, name TEXT, amount DOUBLE PRECISION)"
GATE_GIB = 3.0
GATE_GROWTH = 1.25


def history(bench: Bench, rows: int) -> list[str]:
    """ClickHouse to keyed Postgres: bare, direct, rows."""
    table = bench.table(rows)
    bare = _bare_history(bench, table, rows)
    bench.add("history", f"bare: two processes, Arrow to COPY, {rows:,} rows", rate(rows, bare), "1.00")
    for what, transforms, last in (("direct", "", "src"), ("rows", TRANSFORM, "shout")):
        name = _name()
        seconds, _ = bench.headrace(HISTORY.format(name=name, table=table, transforms=transforms, last=last, target=name))
        assert bench.count(name) == rows
        bench.add("history", f"headrace, {what} route", rate(rows, seconds), f"{bare / seconds:.2f}")
    return []


def _bare_history(bench: Bench, table: str, rows: int) -> float:
    target = _name()
    with psycopg.connect(bench.services.postgres.conninfo()) as connection:
        connection.execute(sql.SQL(TARGET).format(sql.Identifier(target)))
    uri, client = _uri(bench), bench.services.clickhouse.client_arguments()
    halves = [(0, rows // 2), (rows // 2, rows)]
    began = timed()
    with get_context("spawn").Pool(2) as pool:
        pool.starmap(_copy, [(client, uri, table, target, *half) for half in halves])
    seconds = timed() - began
    assert bench.count(target) == rows
    return seconds


def _copy(client: dict[str, Any], uri: str, table: str, target: str, first: int, last: int) -> None:
    from adbc_driver_postgresql import dbapi

    query = f"SELECT id, at, name, amount FROM {table} WHERE id >= {first} AND id < {last}"
    with clickhouse_connect.get_client(**client) as source, dbapi.connect(uri) as connection, connection.cursor() as cursor:
        with source.query_arrow_stream(query, use_strings=True) as batches:
            for batch in batches:
                cursor.adbc_ingest(target, batch, mode="append")
        connection.commit()


def upsert(bench: Bench, rows: int) -> list[str]:
    """Kafka JSON into Postgres by key, five messages a key."""
    messages = max(rows // 5, 1000)
    topic, name, bare_name = bench.topic(messages, messages // 5), _name(), _name()
    bare = _bare_upsert(bench, topic, bare_name, messages)
    bench.add("upsert", f"bare: one process, 100,000 at a time, {messages:,} messages", rate(messages, bare), "1.00")
    seconds, epochs = bench.headrace(STREAM.format(name=name, topic=topic, target=name, rows=100_000))
    assert bench.count(name) == bench.count(bare_name) == messages // 5
    bench.add("upsert", f"headrace, {len(epochs)} epochs", rate(messages, seconds), f"{bare / seconds:.2f}")
    return []


def _bare_upsert(bench: Bench, topic: str, target: str, messages: int) -> float:
    from adbc_driver_postgresql import dbapi

    with psycopg.connect(bench.services.postgres.conninfo()) as connection:
        connection.execute(sql.SQL(LATEST).format(sql.Identifier(target)))
    consumer = Consumer({"bootstrap.servers": bench.services.kafka.brokers, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("amount", pa.float64())])
    began, seen = timed(), 0
    with dbapi.connect(_uri(bench)) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE TEMP TABLE stage (n BIGINT, LIKE {target})")
        while seen < messages:
            values = [value for message in consumer.consume(100_000, 1.0) if (value := message.value()) is not None]
            if not values:
                continue
            table = pa_json.read_json(pa.py_buffer(b"\n".join(values)), parse_options=pa_json.ParseOptions(explicit_schema=schema))
            table = table.add_column(0, "n", pa.array(range(len(table)), pa.int64()))
            cursor.adbc_ingest("stage", table, mode="append", temporary=True)
            cursor.execute(
                f"INSERT INTO {target} SELECT DISTINCT ON (id) id, name, amount FROM stage ORDER BY id, n DESC"
                " ON CONFLICT (id) DO UPDATE SET name = excluded.name, amount = excluded.amount"
            )
            cursor.execute("TRUNCATE stage")
            connection.commit()
            seen += len(values)
    consumer.close()
    return timed() - began


def epoch(bench: Bench, rows: int) -> list[str]:
    """Small epochs at interval 0."""
    del rows
    topic, name = bench.topic(60_000, 20_000), _name()
    with _stopwatch((Ledger, ("plan", "commit")), (RecordStore, ("expect", "advance"))) as spent:
        _, epochs = bench.headrace(STREAM.format(name=name, topic=topic, target=name, rows=1000))
    times = sorted(one.steps["total"] for one in epochs[10:])
    median, high = statistics.median(times), times[int(len(times) * 0.99)]
    bench.add("epoch", "median of epochs of 1,000 rows, Kafka to Postgres", f"{median * 1000:.0f} ms", "1.00")
    bench.add("epoch", "99th percentile", f"{high * 1000:.0f} ms", f"{high / median:.2f}")
    total = sum(one.steps["total"] for one in epochs) + sum(spent["plan"])  # a plan is stored before an epoch's clock starts
    kept = sum(map(sum, spent.values()))
    bench.add(
        "epoch",
        "without ledger and records (their time taken off)",
        f"{median * (1 - kept / total) * 1000:.0f} ms",
        f"{1 - kept / total:.2f}",
    )
    for what, names in (("ledger", ("plan", "commit")), ("sink's record", ("expect", "advance"))):
        share = sum(sum(spent[one]) for one in names) / total
        bench.add("epoch", f"the {what}'s share, durable", f"{share:.1%}")
    return []


def live(bench: Bench, rows: int) -> list[str]:
    """From a message's acknowledgement by the broker to its row in Postgres, while nothing else arrives."""
    del rows
    topic, name, stop = bench.topic(100, 100), _name(), threading.Event()
    file = parse_pipeline(STREAM.format(name=name, topic=topic, target=name, rows=1000))
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run, file, bench.settings(), until=Until.FOREVER, stop=stop)
        try:
            waited = sorted(_arrivals(bench, topic, name, 60)[10:])
        finally:
            stop.set()
        running.result()
    median, high = statistics.median(waited), waited[int(len(waited) * 0.9)]
    bench.add("live", "a message on its own, from broker to Postgres, median", f"{median * 1000:.0f} ms", "1.00")
    bench.add("live", "90th percentile", f"{high * 1000:.0f} ms", f"{high / median:.2f}")
    return []


def _arrivals(bench: Bench, topic: str, target: str, messages: int) -> list[float]:
    """Seconds that each of so many single messages takes."""
    producer = Producer({"bootstrap.servers": bench.services.kafka.brokers, "linger.ms": 0})
    query = sql.SQL("SELECT 1 FROM {} WHERE id = %s").format(sql.Identifier(target))
    waited = []
    with psycopg.connect(bench.services.postgres.conninfo(), autocommit=True) as connection:
        while not connection.execute("SELECT to_regclass(%s)", [target]).fetchall()[0][0] or bench.count(target) < 100:
            time.sleep(0.2)
        for number in range(messages):
            producer.produce(topic, f'{{"id":{1000 + number},"name":"live","amount":1.5}}', partition=number % 4)
            producer.flush()
            began = timed()
            while not connection.execute(query, [1000 + number]).fetchall():
                time.sleep(0.005)
            waited.append(timed() - began)
            time.sleep(0.1 + 0.037 * (number % 7))  # not in step with the run's own pauses
    return waited


@contextmanager
def _stopwatch(*watched: tuple[type, tuple[str, ...]]) -> Iterator[dict[str, list[float]]]:
    """The seconds that each call of these methods takes, by the method's name."""
    spent: dict[str, list[float]] = {}
    originals = [(owner, name, getattr(owner, name)) for owner, names in watched for name in names]

    def timing(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            began = timed()
            try:
                return original(*args, **kwargs)
            finally:
                spent[name].append(timed() - began)

        return wrapped

    for owner, name, original in originals:
        spent[name] = []
        setattr(owner, name, timing(name, original))
    try:
        yield spent
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)


def startup(bench: Bench, rows: int) -> list[str]:
    """A start in parts, and from kill -9 to the first new epoch."""
    del rows
    topic, name = bench.topic(200_000, 50_000), _name()
    text = STREAM.format(name=name, topic=topic, target=name, rows=2000)
    child = bench.child(text)
    steps = _steps(child, stop_at=3)
    bench.add("startup", "imports", f"{steps['imports']:.1f} s")
    bench.add("startup", "Spark, sources, sinks, lane open", f"{steps['lane open'] - steps['imports']:.1f} s")
    bench.add("startup", "first epoch committed after that", f"{steps['epoch'] - steps['lane open']:.1f} s")
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    again = bench.child(text)
    restart = _steps(again, stop_at=1)
    os.killpg(again.pid, signal.SIGKILL)
    again.wait()
    bench.add(
        "startup",
        "after kill -9: to the first new committed epoch",
        f"{restart['epoch']:.1f} s",
        f"{restart['epoch'] / steps['epoch']:.2f}",
    )
    return []


def _steps(child: Any, stop_at: int) -> dict[str, float]:
    """When each step was first reached; reads on until that many epochs."""
    found: dict[str, float] = {}
    epochs = 0
    for line in child.stdout:
        said = json.loads(line)
        found.setdefault(said["step"], said["at"])
        epochs += said["step"] == "epoch"
        if epochs == stop_at:
            break
    return found


def memory(bench: Bench, rows: int) -> list[str]:
    """The largest size of the process tree, over one history and over one four times as long."""
    sizes = []
    for count in (rows, rows * 4):
        name = _name()
        child = bench.child(HISTORY.format(name=name, table=bench.table(count), transforms=TRANSFORM, last="shout", target=name))
        peak = 0
        while child.poll() is None:
            peak = max(peak, _size(child.pid))
        assert bench.count(name) == count
        sizes.append(peak / 2**30)
        bench.add("memory", f"largest process tree, {count:,} rows, rows route", f"{sizes[-1]:.2f} GiB")
    growth = sizes[1] / sizes[0]
    bench.add("memory", "growth", f"{sizes[1] - sizes[0]:+.2f} GiB", f"{growth:.2f}")
    missed = [f"memory grew by {growth:.2f}, allowed {GATE_GROWTH}"] if growth > GATE_GROWTH else []
    return missed + ([f"memory is {max(sizes):.2f} GiB, allowed {GATE_GIB}"] if max(sizes) > GATE_GIB else [])


def functions(bench: Bench, rows: int) -> list[str]:
    """Functions of SQL, in a process of their own with one core. The ratio is against the goal of their kind."""
    del rows
    output = subprocess.run([sys.executable, "-m", "benchmarks.functions"], stdout=subprocess.PIPE, text=True, check=True).stdout
    for one in map(json.loads, output.splitlines()):
        bench.add("functions", shown_what(one), shown_rate(one["rate"]), shown_ratio(one))
    return []


def _size(pid: int) -> int:
    import psutil

    time.sleep(0.2)
    try:
        return tree_size(pid)
    except psutil.Error:
        return 0


def _name() -> str:
    return f"bench_{secrets.token_hex(4)}"


def _uri(bench: Bench) -> str:
    postgres = bench.services.postgres
    return f"postgresql://{postgres.user}:{postgres.password}@{postgres.host}:{postgres.port}/{postgres.dbname}"


CASES: dict[str, Callable[[Bench, int], list[str]]] = {
    "history": history,
    "upsert": upsert,
    "epoch": epoch,
    "live": live,
    "startup": startup,
    "memory": memory,
    "functions": functions,
    "lookups": lookups,
    "script": script,
    "watching": watching,
}
