"""Delta tables on a local disk that are created and filled without Spark, by runs that are killed."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import clickhouse_connect
import pytest
from confluent_kafka import Producer
from helpers.pipeline_world import World, leftovers, until
from pyspark.sql import SparkSession

from headrace.services import Services

KEYS = 300
STREAM = """
name: {name}
sources:
  src: {{type: kafka, topic: {topic}, primary_key: id, schema: {{id: int64, v: int64}}}}
  raw: {{type: kafka, topic: {topic}, schema: {{id: int64, v: int64}}}}
sinks:
  keyed: {{type: delta, from: src, path: "{folder}/keyed"}}
  log: {{type: delta, from: raw, path: "{folder}/log"}}
epoch: {{interval: 0s, stream_rows: {rows}}}
"""
HISTORY = """
name: {name}
sources: {{src: {{type: clickhouse, table_name: {database}.history, primary_key: id, split_rows: 50}}}}
sinks: {{keyed: {{type: delta, from: src, path: "{folder}/keyed"}}}}
epoch: {{history_rows: 250}}
"""


class DeltaWorld(World):
    """A pipeline into tables on the local disk."""

    def stream(self, topic: str, rows: int) -> None:
        """Each key has two messages. The second one updates the row of the first."""
        self.file.write_text(STREAM.format(name=self.name, topic=topic, folder=self.folder, rows=rows))
        producer = Producer({"bootstrap.servers": self.services.kafka.brokers})
        for factor in (1, 7):
            for key in range(KEYS):
                producer.produce(topic, json.dumps({"id": key, "v": key * factor}))
        assert producer.flush(30) == 0

    def history(self) -> None:
        self.file.write_text(HISTORY.format(name=self.name, database=self.database, folder=self.folder))
        arguments = self.services.clickhouse.client_arguments(database=self.database)
        with clickhouse_connect.get_client(**arguments) as client:
            client.command("CREATE TABLE history (id Int64, v Int64) ENGINE = MergeTree ORDER BY id")
            client.command("INSERT INTO history SELECT number, number * 7 FROM numbers(500)")

    def rows(self, spark: SparkSession, table: str) -> list[tuple[int, int]]:
        """What Spark reads."""
        result = spark.read.format("delta").load(str(self.folder / table)).collect()
        return sorted((row.id, row.v) for row in result)

    def check_stream(self, spark: SparkSession) -> None:
        assert self.rows(spark, "keyed") == [(key, key * 7) for key in range(KEYS)]
        expected = [(key, key * factor) for factor in (1, 7) for key in range(KEYS)]
        assert self.rows(spark, "log") == sorted(expected)


@pytest.fixture
def world(services: Services, pg: str, ch_db: str, tmp_path: Path) -> Iterator[DeltaWorld]:
    result = DeltaWorld(services, tmp_path, ch_db, pg)
    yield result
    result.close()


# Commits of the two tables: the first version, the generation, the claim, the first record, then the epochs.
STEPS = [
    ("delta-committed", 13),
    *(pytest.param("delta-committing", nth, marks=pytest.mark.slow) for nth in range(1, 16)),
    *(pytest.param("delta-committed", nth, marks=pytest.mark.slow) for nth in (1, 2, 4, 6, 8, 9, 10, 12)),
    pytest.param("sinks-written", 2, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("point", "nth"), STEPS)
def test_stream_of_a_killed_run(
    world: DeltaWorld, spark: SparkSession, topic: Callable[..., str], point: str, nth: int
) -> None:
    world.stream(topic(), rows=100)
    assert world.crash(point, nth) != 0
    assert until(lambda: world.run()["code"] == 0, "a run after the lease of the first", 300)
    world.check_stream(spark)
    assert not world.has_started_spark()
    assert leftovers(world) == []


@pytest.mark.parametrize(
    ("point", "nth"),
    [
        ("delta-file-written", 7),
        *(pytest.param("delta-file-written", nth, marks=pytest.mark.slow) for nth in (1, 5, 10)),
        *(pytest.param("delta-committing", nth, marks=pytest.mark.slow) for nth in (5, 6)),
        *(pytest.param("delta-committed", nth, marks=pytest.mark.slow) for nth in (5, 6)),
    ],
)
def test_history_of_a_killed_run(world: DeltaWorld, spark: SparkSession, point: str, nth: int) -> None:
    world.history()
    assert world.crash(point, nth) != 0
    assert until(lambda: world.run()["code"] == 0, "a run after the lease of the first", 300)
    assert world.rows(spark, "keyed") == [(key, key * 7) for key in range(500)]
    assert json.loads(world.run_cli("validate", str(world.file), "--json"))["errors"] == []
    passed = {
        check["name"]: check["passed"]
        for check in json.loads(world.run_cli("audit", str(world.file), "--json"))
    }
    assert passed == {"exactly_once_epochs": True, "row_count_matches": True, "handoff_has_no_gap": None}
    assert not world.has_started_spark()


@pytest.mark.slow
@pytest.mark.parametrize(("point", "nth"), [("delta-committing", 9), ("delta-committed", 10)])
def test_paused_run_writes_nothing_after_its_successor(
    world: DeltaWorld, spark: SparkSession, topic: Callable[..., str], point: str, nth: int
) -> None:
    world.stream(topic(), rows=100)
    old = world.start(point, nth, "stop")
    world.await_stop(old)
    assert until(lambda: world.run()["code"] == 0, "a run after the lease of the first", 300)
    world.check_stream(spark)
    os.kill(old.pid, signal.SIGCONT)
    assert world.answer(old)["error"] == "FencedError"
    world.check_stream(spark)


@pytest.mark.slow  # test_delta_local_log has a daily one, with the Spark of the session
def test_spark_starts_for_a_checkpoint(
    world: DeltaWorld, spark: SparkSession, topic: Callable[..., str]
) -> None:
    """The 50th commit of a table writes one, so that no reader replays a long log."""
    world.stream(topic(), rows=20)
    assert world.run()["code"] == 0
    assert world.has_started_spark()
    for table in ("keyed", "log"):
        result = [path.name for path in (world.folder / table / "_delta_log").glob("*.checkpoint.parquet")]
        assert result == [f"{50:020d}.checkpoint.parquet"]
    world.check_stream(spark)
