"""Spark starts when something needs it. A stream whose messages pass through the driver never does."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import clickhouse_connect
import psutil
import psycopg
import pyarrow as pa
import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable
from helpers import fault_driver
from helpers.dagster_ui import is_alive
from helpers.kafka_sink import read_messages
from helpers.pipeline_world import World, leftovers, until
from helpers.redis_server import redis_server
from helpers.redis_sink import read_entries
from pyspark.sql import SparkSession

from headrace.pipeline.protocol.ledger.sqlite import open_sqlite
from headrace.services import Services

PIPELINE = """
name: {name}
sources: {{src: {{type: kafka, topic: {topic}, primary_key: id, schema: {{id: int64, v: int64}}}}}}
sinks:
  pg: {{type: postgres, from: src, table: target}}
  ch: {{type: clickhouse, from: src, table: {database}.target}}
  out: {{type: kafka, from: src, topic: {topic}-out}}
epoch: {{interval: 0s, stream_rows: 150}}
"""
SENT = {key: key * 7 for key in range(500)}


class Stream(World):
    """A topic into Postgres, ClickHouse and another topic. `driver_rows` is the setting of the source."""

    driver_rows = 100_000

    topic = ""

    def create(self, topic: str) -> None:
        self.topic = topic
        self.file.write_text(PIPELINE.format(name=self.name, topic=topic, database=self.database))
        producer = Producer({"bootstrap.servers": self.services.kafka.brokers})
        for key, value in SENT.items():
            producer.produce(topic, json.dumps({"id": key, "v": value}))
        assert producer.flush(30) == 0

    def run(self) -> dict[str, Any]:
        """Run to the end in a new process: what it imports counts here."""
        command = [sys.executable, fault_driver.__file__, str(self.file), "none", "1", "driver"]
        done = subprocess.run(
            command, env=self.env(), cwd=self.folder, capture_output=True, text=True, timeout=600, check=False
        )
        return json.loads(done.stdout.splitlines()[-1]) | {"code": done.returncode}

    def env(self) -> dict[str, str]:
        return super().env() | {"HEADRACE__KAFKA_SOURCE__DRIVER_ROWS": str(self.driver_rows)}

    def check_sinks(self) -> None:
        with psycopg.connect(self.conninfo) as connection:
            rows = connection.execute("SELECT id, v FROM target").fetchall()
        assert sorted(rows) == sorted(SENT.items())
        with clickhouse_connect.get_client(**self.services.clickhouse.client_arguments()) as client:
            result = client.query(f"SELECT id, v FROM {self.database}.target").result_rows
        assert sorted(tuple(row) for row in result) == sorted(SENT.items())
        sent = read_messages(self.services.kafka.brokers, f"{self.topic}-out")
        assert sorted((one.key, one.value) for one in sent) == sorted(
            (b'{"id":%d}' % key, b'{"id":%d,"v":%d}' % (key, value)) for key, value in SENT.items()
        )

    def find_jvm(self) -> psutil.Process | None:
        """The JVM that the ledger has for the run that owns the pipeline."""
        ledger = open_sqlite(self.ledger)
        state = ledger.state(self.name)
        ledger.close()
        jvm = ((state.holder if state else None) or {}).get("jvm")
        return psutil.Process(jvm["pid"]) if jvm else None


@pytest.fixture
def stream(
    services: Services, pg: str, ch_db: str, topic: Callable[..., str], tmp_path: Path
) -> Iterator[Stream]:
    result = Stream(services, tmp_path, ch_db, pg)
    result.create(topic())
    yield result
    result.close()


# The producer's transactions: the generation, the claim, the first record, then one for each epoch.
@pytest.mark.parametrize(
    ("point", "nth"),
    [
        ("stage-attached", 2),
        ("topic-committed", 5),
        pytest.param("sinks-written", 2, marks=pytest.mark.slow),
        pytest.param("topic-encoded", 2, marks=pytest.mark.slow),
        pytest.param("topic-sending", 2, marks=pytest.mark.slow),
    ],
)
def test_small_epochs_start_no_jvm(stream: Stream, point: str, nth: int) -> None:
    assert stream.crash(point, nth) != 0
    answer = until(lambda: (result := stream.run())["code"] == 0 and result, "a run after the lease", 300)
    assert not answer["pandas"], "an import of half a second"
    stream.check_sinks()
    assert not stream.has_started_spark()
    assert leftovers(stream) == []


WITH_SQL = """
name: {name}
sources: {{src: {{type: kafka, topic: {topic}, primary_key: id, schema: {{id: int64, v: int64}}}}}}
transforms:
  small: {{type: sql, sql: "SELECT id, v, CASE WHEN v < 700 THEN 'first' ELSE 'second' END AS half FROM src WHERE v < 1400"}}
  named: {{type: sql, sql: "SELECT id, half || '-' || CAST(id AS STRING) AS name FROM small WHERE half IS NOT NULL"}}
sinks:
  pg: {{type: postgres, from: small, table: target}}
  ch: {{type: clickhouse, from: named, table: {database}.target}}
  lake: {{type: delta, from: named, path: '{lake}'}}
epoch: {{interval: 0s, stream_rows: 200}}
"""
"""An update can make a row fail the filter of the first transform. Both transforms get its deletes."""


@pytest.mark.parametrize(
    ("point", "nth"),
    [
        ("sinks-written", 3),
        *(
            pytest.param(point, nth, marks=pytest.mark.slow)
            for point, nth in [("postgres-committed", 2), ("delta-committed", 4), ("stage-attached", 3)]
        ),
    ],
)
def test_small_epochs_of_portable_sql_start_no_jvm(
    stream: Stream, spark: SparkSession, point: str, nth: int
) -> None:
    lake = stream.folder / "lake"
    stream.file.write_text(
        WITH_SQL.format(name=stream.name, topic=stream.topic, database=stream.database, lake=lake)
    )
    newest = dict(SENT) | {key: 5000 - key * 7 for key in range(0, 500, 3)}
    producer = Producer({"bootstrap.servers": stream.services.kafka.brokers})
    for key in range(0, 500, 3):
        producer.produce(stream.topic, json.dumps({"id": key, "v": newest[key]}))
    assert producer.flush(30) == 0
    assert stream.crash(point, nth) != 0
    assert until(lambda: stream.run()["code"] == 0, "a run after the lease of the first", 300)
    halves = {key: "first" if v < 700 else "second" for key, v in newest.items() if v < 1400}
    with psycopg.connect(stream.conninfo) as connection:
        rows = connection.execute("SELECT id, v, half FROM target").fetchall()
    assert sorted(rows) == sorted((key, newest[key], half) for key, half in halves.items())
    names = sorted((key, f"{half}-{key}") for key, half in halves.items())
    with clickhouse_connect.get_client(**stream.services.clickhouse.client_arguments()) as client:
        result = client.query(f"SELECT id, name FROM {stream.database}.target FINAL").result_rows
    assert sorted(tuple(row) for row in result) == names
    rows = spark.read.format("delta").load(str(lake)).collect()
    assert sorted((row["id"], row["name"]) for row in rows) == names
    assert not stream.has_started_spark()


INTO_REDIS = """
name: {name}
sources: {{src: {{type: kafka, topic: {topic}, primary_key: id, schema: {{id: int64, v: int64}}}}}}
sinks:
  documents: {{type: redis, from: src, prefix: documents, url: "{url}"}}
  hashes: {{type: redis, from: src, prefix: hashes, format: hash, url: "{url}"}}
epoch: {{interval: 0s, stream_rows: 150}}
"""


def test_small_epochs_into_redis_start_no_jvm(stream: Stream) -> None:
    schema = pa.schema([("id", pa.int64()), ("v", pa.int64())])
    with redis_server(stream.folder / "redis") as server:
        stream.file.write_text(INTO_REDIS.format(name=stream.name, topic=stream.topic, url=server.url))
        assert stream.crash("entries-written", 3) != 0
        assert until(lambda: stream.run()["code"] == 0, "a run after the lease of the first", 300)
        for prefix in ("documents", "hashes"):
            result = read_entries(server, prefix, schema)
            assert {int(name): row["v"] for name, row in result.items()} == SENT
    assert not stream.has_started_spark()


BACKLOG = """
name: {name}
sources: {{src: {{type: kafka, topic: {topic}, primary_key: id, schema: {{id: int64, v: int64}}}}}}
sinks: {{pg: {{type: postgres, from: src, table: target}}}}
"""


def send_backlog(stream: Stream, keys: int, messages: int) -> list[int]:
    """Send messages with these keys in turn. Return the values of the last message of each key."""
    producer = Producer(
        {"bootstrap.servers": stream.services.kafka.brokers, "queue.buffering.max.messages": 0}
    )
    for number in range(messages - len(SENT)):
        producer.produce(stream.topic, b'{"id":%d,"v":%d}' % (number % keys, number))
    assert producer.flush(60) == 0
    return list(range(messages - len(SENT) - keys, messages - len(SENT)))


def test_epochs_of_a_backlog_grow_in_the_driver(stream: Stream) -> None:
    keys, messages = 50_000, 320_000
    newest = send_backlog(stream, keys, messages)
    stream.driver_rows = 2_000_000
    stream.file.write_text(BACKLOG.format(name=stream.name, topic=stream.topic))
    assert stream.run()["code"] == 0
    ledger = open_sqlite(stream.ledger)
    epochs = [row.plan for row in ledger.epochs(stream.name, "main")]
    ledger.close()
    ends = [0, *(sum(plan.end["src"]["stream"]["offsets"].values()) for plan in epochs)]
    sizes = [end - start for start, end in itertools.pairwise(ends)]
    assert sizes[0] == 100_000
    assert max(sizes) > 100_000
    with psycopg.connect(stream.conninfo) as connection:
        result = connection.execute("SELECT count(*), min(v), max(v), sum(v) FROM target").fetchone()
    assert result == (keys, newest[0], newest[-1], sum(newest))
    assert not stream.has_started_spark()


WITH_ALL_MESSAGES = """
name: {name}
sources:
  src: {{type: kafka, topic: {topic}, primary_key: id, schema: {{id: int64, v: int64}}}}
  every: {{type: kafka, topic: {topic}, include_metadata: true, schema: {{id: int64, v: int64}}}}
sinks:
  pg: {{type: postgres, from: src, table: target}}
  lake: {{type: delta, from: every, path: '{lake}'}}
epoch: {{interval: 0s, stream_rows: 60000}}
"""


@pytest.mark.slow
def test_kills_while_the_next_messages_are_decoded(stream: Stream) -> None:
    """Each process dies with rows of later epochs in memory."""
    keys, messages = 50_000, 600_000
    newest = send_backlog(stream, keys, messages)
    lake = stream.folder / "lake"
    stream.file.write_text(WITH_ALL_MESSAGES.format(name=stream.name, topic=stream.topic, lake=lake))
    for point in ("messages-decoded", "sinks-written", "delta-committed", "postgres-committed"):
        assert stream.crash(point, 3) != 0
    for delay in (1.5, 2.5, 3.5):
        process = stream.start()
        time.sleep(delay)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert until(lambda: stream.run()["code"] == 0, "a run after the lease of the last one", 300)
    with psycopg.connect(stream.conninfo) as connection:
        result = connection.execute("SELECT count(*), min(v), max(v), sum(v) FROM target").fetchone()
    assert result == (keys, newest[0], newest[-1], sum(newest))
    rows = DeltaTable(lake).to_pyarrow_table()
    places = rows.select(["__kafka_partition", "__kafka_offset"])
    distinct = places.group_by(places.column_names).aggregate([])
    assert rows.num_rows == distinct.num_rows == messages
    assert not stream.has_started_spark()


def test_a_jvm_that_starts_with_an_epoch_is_known_to_successors(stream: Stream, spark: SparkSession) -> None:
    stream.driver_rows = 100  # epochs have 150 messages, the last one 50
    process = stream.start("sinks-written", 1, "stop")
    stream.await_stop(process)
    jvm = stream.find_jvm()
    assert jvm is not None
    assert "java" in jvm.name()
    os.kill(process.pid, 9)
    process.wait()
    assert stream.has_started_spark()
    assert stream.run_here(spark).caught_up
    stream.check_sinks()
    until(lambda: not is_alive(jvm), "the end of the first JVM")


HISTORY = """
name: {name}
sources: {{src: {{type: clickhouse, table_name: {database}.history, primary_key: id, split_rows: 50}}}}
sinks: {{pg: {{type: postgres, from: src, table: target}}}}
epoch: {{history_rows: 250}}
"""


class History(World):
    """A table of ClickHouse into a table of Postgres, by two epochs of five splits."""

    def create(self) -> None:
        self.file.write_text(HISTORY.format(name=self.name, database=self.database))
        arguments = self.services.clickhouse.client_arguments(database=self.database)
        with clickhouse_connect.get_client(**arguments) as client:
            client.command("CREATE TABLE history (id Int64, v Int64) ENGINE = MergeTree ORDER BY id")
            client.command("INSERT INTO history SELECT number, number * 7 FROM numbers(500)")

    def rows(self) -> list[tuple[int, int]]:
        with psycopg.connect(self.conninfo) as connection:
            return connection.execute("SELECT id, v FROM target ORDER BY id").fetchall()


@pytest.fixture
def history(services: Services, pg: str, ch_db: str, tmp_path: Path) -> Iterator[History]:
    result = History(services, tmp_path, ch_db, pg)
    result.create()
    yield result
    result.close()


@pytest.mark.parametrize(
    ("point", "nth"),
    [
        ("split-loaded", 3),
        pytest.param("split-loaded", 5, marks=pytest.mark.slow),
        pytest.param("split-loaded", 8, marks=pytest.mark.slow),
        pytest.param("split-loading", 2, marks=pytest.mark.slow),
        pytest.param("split-loading", 7, marks=pytest.mark.slow),
    ],
)
def test_a_kill_among_splits_that_threads_load(history: History, point: str, nth: int) -> None:
    assert history.crash(point, nth) != 0
    assert until(lambda: history.run()["code"] == 0, "a run after the lease of the first", 300)
    assert history.rows() == [(key, key * 7) for key in range(500)]
    assert not (history.folder / "home" / "logs" / "spark.log").exists()


@pytest.mark.slow
def test_threads_of_a_paused_run_write_nothing_after_their_successor(history: History) -> None:
    old = history.start("split-loading", 3, "stop")
    history.await_stop(old)
    assert until(lambda: history.run()["code"] == 0, "a run after the lease of the first", 300)
    with psycopg.connect(history.conninfo) as connection:
        connection.execute("DELETE FROM target WHERE id < 250")  # whatever the old run wrote would show
    os.kill(old.pid, signal.SIGCONT)
    answer = history.answer(old)
    assert answer["error"] == "FencedError"
    assert history.rows() == [(key, key * 7) for key in range(250, 500)]
