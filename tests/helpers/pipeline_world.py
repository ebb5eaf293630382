"""A small pipeline with real servers.

History in ClickHouse, a topic, a pipeline into Postgres and Delta, and what must come out.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import clickhouse_connect
import psutil
import psycopg
import pyarrow as pa
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from pyspark.sql import SparkSession

from headrace.pipeline.config.settings import Settings
from headrace.pipeline.file.loader import load_pipeline
from headrace.services import Services
from headrace.services.clickhouse import ClickHouse
from helpers.forked_process import ForkedProcess, run_command, start_fault_run
from helpers.kafka_topics import create_topic
from helpers.spark_settings import SHORT_LIVED_SPARK_ENVIRONMENT

if TYPE_CHECKING:
    from headrace.jobs.run.events import RunResult

SHORT_LEASE = {"lease_seconds": 4, "commit_timeout_seconds": 2}
"""Settings of runs whose successors need not wait long."""
SHORT_LEASE_ENVIRONMENT = {f"HEADRACE__{key.upper()}": str(value) for key, value in SHORT_LEASE.items()}
HISTORY = 3_000
FROM_TOPIC = 100
MESSAGES = 900
DOUBLED = {"arrow": "amount * 2", "spark": "amount * 2 div 1"}
"""The amounts of `World.check`. Arrow has no `div`, so Spark computes the transform, and a run starts a JVM."""
Row = tuple[int, date, str, int]

HYBRID_SOURCE = """
name: {name}
sources:
  src:
    type: hybrid
    primary_key: id
    bounded_sources: [{{source_type: clickhouse, table_name: {database}.history, split_rows: 500}}]
    unbounded_source: {{source_type: kafka, topic: {topic}, schema: {{id: int64, day: date32, name: string, amount: int64}}}}
    offset_table: {{}}
"""
"""The start of a pipeline file: ClickHouse, then Kafka."""
MONTHS_AND_EPOCHS = """\
partitions: {{column: day, every: month, start: 2024-01, end: 2024-04, history_end: 2024-03-01}}
epoch: {{interval: 0s, stream_rows: 250, history_rows: 1000}}
"""
PIPELINE = (
    HYBRID_SOURCE
    + """\
transforms:
  shaped: {{type: sql, sql: "select id, day, {change}(name) as name, {doubled} as amount from src"}}
sinks:
  pg: {{type: postgres, from: shaped, table: target, max_driver_rows: {max_driver_rows}}}
  lake: {{type: delta, from: shaped, path: {lake}}}
"""
    + MONTHS_AND_EPOCHS
)
PIPELINE_WITHOUT_SPARK = (
    HYBRID_SOURCE
    + """\
sinks: {{pg: {{type: postgres, from: src, table: target}}}}
"""
    + MONTHS_AND_EPOCHS
)
"""The rows of the source in Postgres alone: a run starts no JVM, and takes a quarter of the time."""


@dataclass
class World:
    """One pipeline and everything around it. `expected` is worked out here, row by row, without Headrace."""

    services: Services
    folder: Path
    database: str
    conninfo: str
    name: str = field(default_factory=lambda: f"w{secrets.token_hex(4)}")
    max_driver_rows: int = 20_000
    change: str = "upper"
    sql_engine: str = "arrow"
    """What computes the SQL of the file: a key of `DOUBLED`."""
    expected: dict[int, Row] = field(default_factory=dict)
    processes: list[ForkedProcess | subprocess.Popen[str]] = field(default_factory=list)
    other_clickhouse: ClickHouse | None = None
    """The ClickHouse server of sinks, if it is not that of the history."""
    registry_url: str | None = None
    """The schema registry of topics, if one has Avro."""

    @property
    def sink_clickhouse(self) -> ClickHouse:
        """The ClickHouse server of sinks."""
        return self.other_clickhouse or self.services.clickhouse

    @property
    def file(self) -> Path:
        """The pipeline file."""
        return self.folder / "pipeline.yaml"

    @property
    def lake(self) -> Path:
        """The Delta table."""
        return self.folder / "lake"

    @property
    def ledger(self) -> Path:
        """The SQLite ledger."""
        return self.folder / "home" / "ledger.db"

    @property
    def file_values(self) -> dict[str, Any]:
        """The values of the templates of pipeline files."""
        return {
            "name": self.name,
            "database": self.database,
            "topic": self.name,
            "lake": self.lake,
            "max_driver_rows": self.max_driver_rows,
            "change": self.change,
            "doubled": DOUBLED[self.sql_engine],
        }

    def use_spark(self) -> None:
        """Write a pipeline file whose SQL Spark computes, for tests of Spark's own paths."""
        self.sql_engine = "spark"
        self.write_file()

    def write_file_without_spark(self) -> None:
        """Writes a pipeline file that a run executes without Spark, for tests of commands and processes."""
        self.file.write_text(PIPELINE_WITHOUT_SPARK.format(**self.file_values))

    def write_file(self, **changes: Any) -> None:
        """Writes the pipeline file, with changes to the world's own values."""
        self.file.write_text(PIPELINE.format(**(self.file_values | changes)))

    def enlarge_epochs(self) -> None:
        """Let a run have one epoch per history partition and two of the stream, where their number does not matter."""
        text = self.file.read_text()
        few = text.replace("stream_rows: 250, history_rows: 1000", "stream_rows: 500, history_rows: 4000")
        assert few != text
        self.file.write_text(few)

    def settings(self, **kafka: Any) -> Settings:
        """The settings of a run in this process. `kafka` are more of its source."""
        clickhouse = self.services.clickhouse
        target = self.sink_clickhouse
        home = self.folder / "home"
        return Settings.model_validate(
            {
                "home": home,
                "state_backend": {"sqlite": {"path": home / "ledger.db"}},
                "clickhouse_source": {
                    "url": clickhouse.url,
                    "user": clickhouse.username,
                    "password": clickhouse.password,
                },
                "clickhouse_sink": {
                    "url": target.url,
                    "user": target.username,
                    "password": target.password,
                },
                "kafka_source": {"brokers": self.services.kafka.brokers} | self._registry() | kafka,
                "kafka_sink": {"brokers": self.services.kafka.brokers} | self._registry(),
                "postgres_source": postgres_sink(self.conninfo),
                "postgres_sink": postgres_sink(self.conninfo),
                **SHORT_LEASE,
            }
        )

    def env(self) -> dict[str, str]:
        """The environment of a run: its own home and ledger, the servers of the test session."""
        return os.environ | {
            "HEADRACE_HOME": str(self.folder / "home"),
            "HEADRACE__CLICKHOUSE_SOURCE__URL": self.services.clickhouse.url,
            "HEADRACE__CLICKHOUSE_SOURCE__USER": self.services.clickhouse.username,
            "HEADRACE__CLICKHOUSE_SOURCE__PASSWORD": self.services.clickhouse.password,
            "HEADRACE__CLICKHOUSE_SINK__URL": self.sink_clickhouse.url,
            "HEADRACE__CLICKHOUSE_SINK__USER": self.sink_clickhouse.username,
            "HEADRACE__CLICKHOUSE_SINK__PASSWORD": self.sink_clickhouse.password,
            "HEADRACE__KAFKA_SOURCE__BROKERS": self.services.kafka.brokers,
            "HEADRACE__KAFKA_SINK__BROKERS": self.services.kafka.brokers,
            **postgres_sink_environment(self.conninfo),
            **{
                f"HEADRACE__{section}__{key.upper()}": value
                for section in ("KAFKA_SOURCE", "KAFKA_SINK")
                for key, value in self._registry().items()
            },
            **SHORT_LIVED_SPARK_ENVIRONMENT,
            **SHORT_LEASE_ENVIRONMENT,
        }

    def _registry(self) -> dict[str, str]:
        return {} if self.registry_url is None else {"schema_registry_url": self.registry_url}

    # --- data

    def fill(self) -> None:
        """History, of which the last rows came from the topic.

        Then messages with updates, deletes and returns of deleted keys.
        """
        dice = random.Random(7)
        day = date(2024, 1, 1)
        history = [(i, day + timedelta(days=i % 60), f"n{i}", i * 3) for i in range(HISTORY)]
        with clickhouse_connect.get_client(
            **self.services.clickhouse.client_arguments(database=self.database)
        ) as client:
            client.command(
                "CREATE TABLE history (id Int64, day Date, name String, amount Int64, _kafka_partition"
                " Nullable(Int32),"
                " _kafka_offset Nullable(Int64)) ENGINE = MergeTree ORDER BY (day, id)"
            )
            rows = [
                (*row, 0 if row[0] >= HISTORY - FROM_TOPIC else None, offset_of(row[0])) for row in history
            ]
            client.insert(
                "history",
                rows,
                column_names=["id", "day", "name", "amount", "_kafka_partition", "_kafka_offset"],
            )
        admin = AdminClient({"bootstrap.servers": self.services.kafka.brokers})
        create_topic(admin, NewTopic(self.name, 2, 1))
        for row in history:
            self.expected[row[0]] = row
        self.produce([("c", row, 0) for row in history[-FROM_TOPIC:]] + list(self.changes(dice, MESSAGES)))

    def changes(self, dice: random.Random, count: int) -> Iterator[tuple[str, Row, int]]:
        """Messages that reach back into history.

        A key always takes the same partition, so that its order is one.
        """
        for number in range(count):
            key = dice.randrange(HISTORY + 300)
            op = dice.choices("cud", [3, 5, 2])[0]
            row = (key, date(2024, 3, 1) + timedelta(days=number % 20), f"m{number}", number)
            if op == "d":
                self.expected.pop(key, None)
            else:
                self.expected[key] = row
            yield op, row, 1 if key % 2 else 0

    def produce(self, messages: list[tuple[str, Row, int]]) -> None:
        """Puts messages on the topic, acknowledged."""
        producer = Producer({"bootstrap.servers": self.services.kafka.brokers, "enable.idempotence": True})
        for op, (key, day, name, amount), partition in messages:
            body = json.dumps({"id": key, "day": day.isoformat(), "name": name, "amount": amount})
            producer.produce(self.name, body, partition=partition, headers={"dbz.op": op})
        assert producer.flush(30) == 0

    # --- runs

    def start(self, point: str = "none", nth: int = 1, action: str = "driver") -> ForkedProcess:
        """Starts a run in a process group of its own."""
        process = start_fault_run(self.file, point, nth, action, env=self.env())
        self.processes.append(process)
        return process

    def await_stop(self, process: ForkedProcess, seconds: float = 240) -> None:
        """Wait until a run has stopped itself: it prints that before it does."""
        stopped = psutil.STATUS_STOPPED
        until(lambda: psutil.Process(process.pid).status() == stopped, "the run to stop itself", seconds)

    def run(self) -> dict[str, Any]:
        """A run to the end; its answer."""
        process = self.start()
        return self.answer(process) | {"code": process.returncode}

    def run_here(self, spark: SparkSession, **kafka: Any) -> RunResult:
        """Run to the end in this process: it has what a new process has, except for a JVM that must start.

        `kafka` are more settings of the Kafka source.
        """
        # Imported here: every test session imports this module, and the runner imports Spark.
        from headrace.jobs.run.events import Until
        from headrace.jobs.run.runner import run

        return run(load_pipeline(self.file), self.settings(**kafka), until=Until.CAUGHT_UP, spark=spark)

    def run_cli(self, *arguments: str) -> str:
        """Return what the command prints to standard output."""
        return run_command(*arguments, env=self.env(), cwd=self.folder).stdout

    def answer(self, process: ForkedProcess) -> dict[str, Any]:
        """What a run said at its end."""
        out, _ = process.communicate(timeout=600)
        last = out.strip().splitlines()[-1] if out.strip() else ""
        log = (self.folder / "run.log").read_text()[-3000:]
        assert last.startswith("{"), f"exit {process.returncode}, said {out!r}, log:\n{log}"
        return json.loads(last)

    def crash(self, point: str, nth: int, action: str = "driver") -> int:
        """A run that must die at its point; its exit code."""
        process = self.start(point, nth, action)
        out, _ = process.communicate(timeout=600)
        assert "now: " in out, f"the run never came to {point} {nth}: {out}"
        return process.wait()

    def close(self) -> None:
        """No process of this world outlives it."""
        for process in self.processes:
            with_children = _family(process)
            for one in with_children:
                one.kill()
            process.wait()

    # --- what came out

    def check(self, spark: SparkSession) -> None:
        """Both sinks hold exactly the expected rows, each once, as the pipeline shapes them."""
        wanted = sorted(
            (key, day, getattr(name, self.change)(), amount * 2)
            for key, day, name, amount in self.expected.values()
        )
        assert self.in_postgres() == wanted
        assert self.in_delta(spark) == wanted

    def check_without_spark(self) -> None:
        """Postgres has exactly the expected rows, each once, and no run of this world started a JVM."""
        assert self.in_postgres() == sorted(self.expected.values())
        assert not self.has_started_spark()

    def has_started_spark(self) -> bool:
        """Return whether a run of this world started a JVM."""
        return (self.folder / "home" / "logs" / "spark.log").exists()

    def in_postgres(self) -> list[Row]:
        """All rows of the Postgres table."""
        with psycopg.connect(self.conninfo) as connection:
            return connection.execute("SELECT id, day, name, amount FROM target ORDER BY id").fetchall()

    def in_delta(self, spark: SparkSession) -> list[Row]:
        """All rows of the Delta table."""
        table: pa.Table = (
            spark.read.format("delta").load(str(self.lake)).select("id", "day", "name", "amount").toArrow()
        )
        return sorted(zip(*[column.to_pylist() for column in table.columns], strict=True))

    def count_rows(self) -> int:
        """Rows in Postgres now; 0 where the table is not there yet."""
        with psycopg.connect(self.conninfo) as connection:
            if connection.execute("SELECT to_regclass('target')").fetchone() == (None,):
                return 0
            return connection.execute(sql.SQL("SELECT count(*) FROM target")).fetchall()[0][0]


def postgres_sink(conninfo: str) -> dict[str, Any]:
    """The settings `postgres_sink` for a database."""
    result = conninfo_to_dict(conninfo)
    return {name: result[name] for name in ("host", "port", "user", "password")} | {"db": result["dbname"]}


def postgres_sink_environment(conninfo: str) -> dict[str, str]:
    """The environment with `postgres_sink` for a database."""
    settings = postgres_sink(conninfo)
    return {
        f"HEADRACE__{section}__{key.upper()}": str(value)
        for section in ("POSTGRES_SOURCE", "POSTGRES_SINK")
        for key, value in settings.items()
    }


def postgres_ledger(conninfo: str) -> dict[str, str]:
    """The environment of a run with its ledger in this Postgres database."""
    result = conninfo_to_dict(conninfo)
    names = {"HOST": "host", "PORT": "port", "USER": "user", "PASSWORD": "password", "DB": "dbname"}
    prefix = "HEADRACE__STATE_BACKEND__"
    return {f"{prefix}BACKEND_TYPE": "postgres"} | {
        f"{prefix}POSTGRES__{name}": str(result[key]) for name, key in names.items()
    }


@contextmanager
def postgres_database(services: Services) -> Iterator[str]:
    """The conninfo of a Postgres database that is made here, and dropped at the end."""
    name = f"test_{secrets.token_hex(4)}"
    with psycopg.connect(services.postgres.conninfo(), autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    yield services.postgres.conninfo(name)
    with psycopg.connect(services.postgres.conninfo(), autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@contextmanager
def clickhouse_database(services: Services) -> Iterator[str]:
    """The name of a ClickHouse database that is made here, and dropped at the end."""
    name = f"test_{secrets.token_hex(4)}"
    with clickhouse_connect.get_client(**services.clickhouse.client_arguments()) as client:
        client.command(f"CREATE DATABASE {name}")
    yield name
    with clickhouse_connect.get_client(**services.clickhouse.client_arguments()) as client:
        client.command(f"DROP DATABASE {name}")


@contextmanager
def filled_world(
    services: Services, folder: Path, database: str, conninfo: str, sql_engine: str = "arrow"
) -> Iterator[World]:
    """A world with its data and its pipeline file; what it started is ended."""
    made = World(services, folder, database, conninfo, sql_engine=sql_engine)
    made.fill()
    made.write_file()
    yield made
    made.close()


@contextmanager
def caught_up_world(services: Services, spark: SparkSession, folder: Path) -> Iterator[World]:
    """Yield a world with databases of its own, whose pipeline has caught up in a few epochs."""
    with (
        postgres_database(services) as conninfo,
        clickhouse_database(services) as database,
        filled_world(services, folder, database, conninfo) as world,
    ):
        world.enlarge_epochs()
        assert world.run_here(spark).caught_up
        yield world


def offset_of(key: int) -> int | None:
    """The offset on partition 0 that a history row came from."""
    return key - (HISTORY - FROM_TOPIC) if key >= HISTORY - FROM_TOPIC else None


def _family(process: ForkedProcess | subprocess.Popen[str]) -> list[psutil.Process]:
    if process.poll() is not None:
        return []  # another process may have its number by now
    try:
        top = psutil.Process(process.pid)
        return [*top.children(recursive=True), top]
    except psutil.NoSuchProcess:
        return []


def leftovers(world: World) -> list[str]:
    """Command lines of processes that still belong to a world's runs, by their arguments or their folder."""
    mine = str(world.folder)
    result = (
        process.info for process in psutil.process_iter(["cmdline", "cwd"]) if process.pid != os.getpid()
    )
    return [
        " ".join(info["cmdline"])[:100]
        for info in result
        if info["cmdline"] and any(mine in part for part in [*info["cmdline"], info["cwd"] or ""])
    ]


def until(condition: Callable[[], Any], what: str, seconds: float = 300) -> Any:
    """Polls until `condition` is true; its value."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if result := condition():
            return result
        time.sleep(0.01)
    raise AssertionError(f"waited {seconds} s for {what}")


@contextmanager
def paused(process: ForkedProcess) -> Iterator[None]:
    """The process stands still inside."""
    os.kill(process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process.pid, signal.SIGCONT)
