"""Shared parts of the benchmarks: servers, data, pipelines, and runs in this or a separate process."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
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

from benchmarks.peers.task import PeerTask
from headrace import services as local
from headrace.jobs.run.events import EpochCommitted, Event, Until
from headrace.jobs.run.runner import run
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.file.loader import parse_pipeline

COLUMNS = "id Int64, at DateTime64(6, 'UTC'), name String, amount Float64"
ROW_EXPRESSIONS = (
    "number, toDateTime64('2024-01-01 00:00:00', 6, 'UTC') + number, concat('customer-',"
    " toString(number % 100003)), number / 7"
)

HISTORY = """
name: {name}
sources:
  src: {{type: clickhouse, table_name: {table}, primary_key: id}}
{transforms}
sinks:
  out: {{type: postgres, from: {last}, table: {target}}}
epoch: {{history_rows: 1000000}}
"""
ARROW_TRANSFORM = """transforms:
  shout:
    type: sql
    sql: select id, at, concat('c:', name) as name, amount * 2 as amount from src where amount >= 0
"""
"""SQL that Arrow computes."""
TRANSFORM = "transforms:\n  shout: {type: sql, sql: 'select id, at, initcap(name) as name, amount from src'}"
"""SQL that only Spark computes."""
STREAM = """
name: {name}
sources:
  src: {{type: kafka, topic: {topic}, primary_key: id, schema: {{id: int64, name: string, amount: float64}}}}
sinks:
  out: {{type: postgres, from: src, table: {target}}}
epoch: {{interval: 0s, stream_rows: {rows}}}
"""
SHAPED_STREAM = STREAM.replace("from: src", "from: shaped").replace(
    "sinks:",
    """transforms:
  shaped:
    type: sql
    primary_key: id
    sql: SELECT id, upper(name) AS name, amount * 2 AS amount FROM src WHERE amount > 10
sinks:""",
)
"""A stream with SQL that Arrow computes."""
SPARK_STREAM = SHAPED_STREAM.replace("upper(name)", "initcap(name)")
"""A stream with SQL that only Spark computes."""


@dataclass
class BenchmarkFigure:
    """A line of a result table."""

    what: str
    value: str
    ratio: str = ""


@dataclass
class BenchmarkRunner:
    """Runs benchmarks against servers in a separate folder."""

    folder: Path
    services: Any
    figures: dict[str, list[BenchmarkFigure]] = field(default_factory=dict)

    def settings(self, **more: Any) -> Settings:
        """Return settings for these servers."""
        return Settings.model_validate(self._settings_values() | more)

    def _settings_values(self) -> dict[str, Any]:
        server = self.services.clickhouse
        clickhouse = {"url": server.url, "user": server.username, "password": server.password}
        return {
            "home": str(self.folder),
            "state_backend": {"sqlite": {"path": str(self.folder / "ledger.db")}},
            "postgres_sink": self.postgres_settings(),
            "clickhouse_source": clickhouse,
            "clickhouse_sink": clickhouse,
            "kafka_source": {"brokers": self.services.kafka.brokers},
            "kafka_sink": {"brokers": self.services.kafka.brokers},
        }

    def child_environment(self, text: str) -> dict[str, str]:
        """Return the variable from which `benchmarks.child` reads a pipeline and its settings."""
        return {"HEADRACE_BENCH": json.dumps({"text": text, "settings": self._settings_values()})}

    def postgres_settings(self) -> dict[str, Any]:
        """Return the section `postgres_sink` for the server."""
        postgres = self.services.postgres
        return {
            "host": postgres.host,
            "port": postgres.port,
            "user": postgres.user,
            "password": postgres.password,
            "db": postgres.dbname,
        }

    def has_table(self, table: str) -> bool:
        """Return whether Postgres has the table."""
        with psycopg.connect(self.services.postgres.conninfo()) as connection:
            return bool(connection.execute("SELECT to_regclass(%s)", [table]).fetchall()[0][0])

    def create_task(self, scenario: str, rows: int, **values: Any) -> PeerTask:
        """Return a task for one of `benchmarks.peers` on these servers."""
        postgres = self.services.postgres
        account = f"{postgres.user}:{postgres.password}"
        return PeerTask(
            scenario=scenario,
            rows=rows,
            clickhouse=self.services.clickhouse.client_arguments(),
            postgres_uri=f"postgresql://{account}@{postgres.host}:{postgres.port}/{postgres.dbname}",
            brokers=self.services.kafka.brokers,
            **values,
        )

    def create_table(self, rows: int) -> str:
        """Create a ClickHouse table with this number of rows."""
        name = random_name()
        with clickhouse_connect.get_client(**self.services.clickhouse.client_arguments()) as client:
            client.command(f"CREATE TABLE {name} ({COLUMNS}) ENGINE = MergeTree ORDER BY id")
            client.command(f"INSERT INTO {name} SELECT {ROW_EXPRESSIONS} FROM numbers({rows})")
        return name

    def create_empty_topic(self, name: str, partitions: int = 4) -> None:
        """Create a topic without messages."""
        admin = AdminClient({"bootstrap.servers": self.services.kafka.brokers})
        for future in admin.create_topics([NewTopic(name, partitions, 1)]).values():
            future.result()

    def create_topic(self, messages: int, keys: int, partitions: int = 4) -> str:
        """Create a topic with JSON messages. A key is always in the same partition."""
        name = random_name()
        self.create_empty_topic(name, partitions)
        producer = Producer(
            {
                "bootstrap.servers": self.services.kafka.brokers,
                "linger.ms": 50,
                "queue.buffering.max.messages": 1_000_000,
            }
        )
        for number in range(messages):
            key = number % keys
            producer.produce(
                name, f'{{"id":{key},"name":"n{number}","amount":{number / 7}}}', partition=key % partitions
            )
            if number % 10_000 == 0:
                producer.poll(0)
        producer.flush()
        return name

    def count_rows(self, table: str) -> int:
        """Return the number of rows of a Postgres table."""
        with psycopg.connect(self.services.postgres.conninfo()) as connection:
            return connection.execute(
                sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(table))
            ).fetchall()[0][0]

    def run_pipeline(
        self,
        text: str,
        settings: dict[str, Any] | None = None,
        on_commit: Callable[[], None] | None = None,
    ) -> tuple[float, list[EpochCommitted]]:
        """Run a pipeline in this process, with additional settings. Call `on_commit` after each epoch.

        Return the seconds in epochs, and the epochs.
        """
        epochs: list[EpochCommitted] = []

        def listener(event: Event) -> None:
            if isinstance(event, EpochCommitted):
                epochs.append(event)
                if on_commit is not None:
                    on_commit()

        run(parse_pipeline(text), self.settings(**settings or {}), until=Until.CAUGHT_UP, listener=listener)
        return sum(epoch.steps["total"] for epoch in epochs), epochs

    def start_pipeline(self, text: str) -> subprocess.Popen[str]:
        """Start a pipeline in a separate process, which prints a line of JSON per step."""
        return subprocess.Popen(
            [sys.executable, "-m", "benchmarks.child"],
            env=os.environ | self.child_environment(text),
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def add_figure(self, name: str, what: str, value: str, ratio: str = "") -> None:
        """Store a figure and print it."""
        self.figures.setdefault(name, []).append(BenchmarkFigure(what, value, ratio))
        print(f"{name:8} {what:52} {value:>16} {ratio}", flush=True)

    def take_figures(self) -> dict[str, list[BenchmarkFigure]]:
        """Return the figures by table, and forget them."""
        figures, self.figures = self.figures, {}
        return figures


@contextmanager
def open_runner(folder: Path) -> Iterator[BenchmarkRunner]:
    """Yield a runner whose servers stop afterwards."""
    try:
        yield BenchmarkRunner(folder, local.up(home=folder))
    finally:
        local.down(folder)


def random_name() -> str:
    """Return a new name of a table, a topic or a pipeline."""
    return f"bench_{secrets.token_hex(4)}"


def format_rate(rows: int, seconds: float) -> str:
    """Format rows per second."""
    return f"{rows / seconds / 1e6:.2f} M rows/s"


def tree_size(pid: int) -> int:
    """Return the resident bytes of a process and its descendants.

    Count shared pages once if the system can.
    """
    top = psutil.Process(pid)
    total = 0
    for process in [top, *top.children(recursive=True)]:
        try:
            total += (
                process.memory_full_info().pss
                if hasattr(process.memory_full_info(), "pss")
                else process.memory_info().rss
            )
        except psutil.Error:
            continue
    return total


def read_clock() -> float:
    """Return a clock for intervals, in seconds."""
    return time.perf_counter()
