"""What the benchmarks share: servers, data, pipelines, and a run in this process or in one of its own."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import clickhouse_connect
import psutil
import psycopg
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from psycopg import sql

from headrace import services as local
from headrace.jobs.run.events import EpochCommitted, Event, Until
from headrace.jobs.run.runner import run
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.file.loader import parse_pipeline

COLUMNS = "id Int64, at DateTime64(6, 'UTC'), name String, amount Float64"
MAKE = "number, toDateTime64('2024-01-01 00:00:00', 6, 'UTC') + number, concat('customer-', toString(number % 100003)), number / 7"

HISTORY = """
name: {name}
sources:
  src: {{type: clickhouse, table_name: {table}, primary_key: id}}
{transforms}
sinks:
  out: {{type: postgres, from: {last}, table: {target}}}
epoch: {{history_rows: 1000000}}
"""
TRANSFORM = "transforms:\n  shout: {type: sql, sql: 'select id, at, upper(name) as name, amount from src'}"
STREAM = """
name: {name}
sources:
  src: {{type: kafka, topic: {topic}, primary_key: id, schema: {{id: int64, name: string, amount: float64}}}}
sinks:
  out: {{type: postgres, from: src, table: {target}}}
epoch: {{interval: 0s, stream_rows: {rows}}}
"""


@dataclass
class Figure:
    """One line of a result table."""

    what: str
    value: str
    ratio: str = ""


@dataclass
class Bench:
    """Servers in a folder of their own."""

    folder: Path
    services: Any
    figures: dict[str, list[Figure]] = field(default_factory=dict)

    def settings(self, **more: Any) -> Settings:
        """Settings for these servers."""
        postgres, clickhouse = self.services.postgres, self.services.clickhouse
        return Settings.model_validate(
            {
                "home": self.folder,
                "state_backend": {"sqlite": {"path": self.folder / "ledger.db"}},
                "postgres_sink": {
                    "host": postgres.host,
                    "port": postgres.port,
                    "user": postgres.user,
                    "password": postgres.password,
                    "db": postgres.dbname,
                },
                "clickhouse_source": {"url": clickhouse.url, "user": clickhouse.username, "password": clickhouse.password},
                "kafka_source": {"brokers": self.services.kafka.brokers},
            }
            | more
        )

    def table(self, rows: int) -> str:
        """A ClickHouse table with that many rows."""
        name = f"bench_{secrets.token_hex(4)}"
        with clickhouse_connect.get_client(**self.services.clickhouse.client_arguments()) as client:
            client.command(f"CREATE TABLE {name} ({COLUMNS}) ENGINE = MergeTree ORDER BY id")
            client.command(f"INSERT INTO {name} SELECT {MAKE} FROM numbers({rows})")
        return name

    def topic(self, messages: int, keys: int) -> str:
        """A topic with JSON messages in four partitions, a key always in the same one."""
        name = f"bench_{secrets.token_hex(4)}"
        admin = AdminClient({"bootstrap.servers": self.services.kafka.brokers})
        for made in admin.create_topics([NewTopic(name, 4, 1)]).values():
            made.result()
        producer = Producer({"bootstrap.servers": self.services.kafka.brokers, "linger.ms": 50, "queue.buffering.max.messages": 1_000_000})
        for number in range(messages):
            key = number % keys
            producer.produce(name, f'{{"id":{key},"name":"n{number}","amount":{number / 7}}}', partition=key % 4)
            if number % 10_000 == 0:
                producer.poll(0)
        producer.flush()
        return name

    def count(self, table: str) -> int:
        """Rows of a Postgres table."""
        with psycopg.connect(self.services.postgres.conninfo()) as connection:
            return connection.execute(sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(table))).fetchall()[0][0]

    def headrace(self, text: str, settings: dict[str, Any] | None = None) -> tuple[float, list[EpochCommitted]]:
        """Runs a pipeline here, with settings beside those for the servers; seconds in epochs, and the epochs."""
        epochs: list[EpochCommitted] = []

        def listener(event: Event) -> None:
            if isinstance(event, EpochCommitted):
                epochs.append(event)

        run(parse_pipeline(text), self.settings(**settings or {}), until=Until.CAUGHT_UP, listener=listener)
        return sum(epoch.steps["total"] for epoch in epochs), epochs

    def child(self, text: str) -> subprocess.Popen[str]:
        """Runs a pipeline in a process of its own, which prints a line of JSON per step."""
        environment = os.environ | {"HEADRACE_BENCH": json.dumps({"text": text, "folder": str(self.folder)})}
        return subprocess.Popen(
            [sys.executable, "-m", "benchmarks.child"], env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
        )

    def add(self, name: str, what: str, value: str, ratio: str = "") -> None:
        """Notes a figure, and shows it."""
        self.figures.setdefault(name, []).append(Figure(what, value, ratio))
        print(f"{name:8} {what:52} {value:>16} {ratio}", flush=True)


@contextmanager
def bench(folder: Path) -> Iterator[Bench]:
    """Servers that live as long as the benchmarks."""
    try:
        yield Bench(folder, local.up(home=folder))
    finally:
        local.down(folder)


def rate(rows: int, seconds: float) -> str:
    """Rows per second, for people."""
    return f"{rows / seconds / 1e6:.2f} M rows/s"


def tree_size(pid: int) -> int:
    """Resident bytes of a process and everything below it, pages that they share counted once where the system tells."""
    top = psutil.Process(pid)
    total = 0
    for process in [top, *top.children(recursive=True)]:
        try:
            total += process.memory_full_info().pss if hasattr(process.memory_full_info(), "pss") else process.memory_info().rss
        except psutil.Error:
            continue
    return total


def timed() -> float:
    """A clock for intervals."""
    return time.perf_counter()
