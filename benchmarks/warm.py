"""The time from the command to a new row in the target, cold and by a warm engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import psutil
import psycopg
from confluent_kafka import Producer
from psycopg import sql

from benchmarks.kit import SPARK_STREAM, STREAM, BenchmarkRunner, random_name

_ATTEMPTS = 3


def warm_start(runner: BenchmarkRunner, rows: int) -> list[str]:
    """Measure starts of a caught-up stream: the median of three, without and with an engine."""
    del rows
    _measure(runner, STREAM, "without SQL")
    _measure(runner, SPARK_STREAM, "with SQL of Spark")
    return []


def _measure(runner: BenchmarkRunner, stream: str, what: str) -> None:
    topic, name = runner.create_topic(1_000, 500), random_name()
    (runner.folder / "warm.yaml").write_text(stream.format(name=name, topic=topic, target=name, rows=1000))
    for seconds in (0, 600):
        environment = os.environ | {
            "HEADRACE_HOME": str(runner.folder),
            "HEADRACE__POSTGRES_SINK": json.dumps(runner.postgres_settings()),
            "HEADRACE__KAFKA_SOURCE__BROKERS": runner.services.kafka.brokers,
            "HEADRACE__SPARK__WARM_ENGINE_SECS": str(seconds),
        }
        times = []
        for attempt in range(_ATTEMPTS + 1):
            if seconds and attempt:
                _wait_for_engine()
            key = 1_000_000 + seconds + attempt
            producer = Producer({"bootstrap.servers": runner.services.kafka.brokers})
            producer.produce(topic, f'{{"id":{key},"name":"warm","amount":11.5}}', partition=0)
            producer.flush()
            began = time.monotonic()
            client = _run(runner, environment)
            _wait_for_row(runner, name, key)
            times.append(time.monotonic() - began)
            client.wait()
        # The first one loads history, or leaves the first engine.
        times = sorted(times[1:])
        start = "by a warm engine" if seconds else "cold"
        runner.add_figure("warm", f"{start}: command to a new row, {what}", f"{times[1]:.1f} s")
    for engine in _engines():
        engine.kill()


def _run(runner: BenchmarkRunner, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "headrace", "run", "warm.yaml", "--until", "caught-up"]
    return subprocess.Popen(command, cwd=runner.folder, env=environment, stdout=subprocess.DEVNULL)


def _wait_for_row(runner: BenchmarkRunner, table: str, key: int) -> None:
    query = sql.SQL("SELECT 1 FROM {} WHERE id = %s").format(sql.Identifier(table))
    with psycopg.connect(runner.services.postgres.conninfo(), autocommit=True) as connection:
        while not connection.execute("SELECT to_regclass(%s)", [table]).fetchall()[0][0]:
            time.sleep(0.05)
        while not connection.execute(query, [key]).fetchall():
            time.sleep(0.005)


def _engines() -> list[psutil.Process]:
    return [
        one
        for one in psutil.process_iter(["cmdline"])
        if "headrace.warm_engine" in (one.info["cmdline"] or ())
    ]


def _wait_for_engine() -> None:
    while not any(
        "headrace-" in str(one.laddr) for engine in _engines() for one in engine.net_connections("unix")
    ):
        time.sleep(0.2)
    time.sleep(1)  # its compilers have ended
