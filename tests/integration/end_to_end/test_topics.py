"""Topics with new partitions, open transactions or times of producers, through a whole run into Postgres."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import clickhouse_connect
import psycopg
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions
from psycopg.conninfo import conninfo_to_dict
from pyspark.sql import SparkSession

from headrace.connectors.clickhouse import split_planner
from headrace.jobs.run import stalls
from headrace.jobs.run.events import EpochCommitted, Event, RunMessage, RunResult, Until
from headrace.jobs.run.runner import run
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import TargetError
from headrace.pipeline.file.loader import load_pipeline
from headrace.services import Services

PIPELINE = """
name: {name}
sources:
  src: {source}
sinks:
  pg: {{type: postgres, from: src, table: target, primary_key: id}}
epoch: {{interval: 0s{epoch}}}
"""


class Lane:
    """A pipeline from one topic into one Postgres table."""

    def __init__(
        self, services: Services, conninfo: str, folder: Path, topic: str, spark: SparkSession
    ) -> None:
        self.topic = topic
        self.brokers = services.kafka.brokers
        self.conninfo = conninfo
        self._file = folder / "pipeline.yaml"
        self._spark = spark
        result, clickhouse = conninfo_to_dict(conninfo), services.clickhouse
        self.settings = Settings.model_validate(
            {
                "home": folder / "home",
                "state_backend": {"sqlite": {"path": folder / "ledger.db"}},
                "clickhouse_source": {
                    "url": clickhouse.url,
                    "user": clickhouse.username,
                    "password": clickhouse.password,
                },
                "kafka_source": {"brokers": self.brokers},
                "postgres_sink": {name: result[name] for name in ("host", "port", "user", "password")}
                | {"db": result["dbname"]},
                "lease_seconds": 4,
                "commit_timeout_seconds": 2,
            }
        )
        self.write(("{type: kafka, topic: %s, primary_key: id, schema: {id: int64, v: int64}}") % topic)  # noqa: UP031  braces

    def write(self, source: str, epoch: str = "") -> None:
        self._file.write_text(PIPELINE.format(name=self.topic.replace("-", "_"), source=source, epoch=epoch))

    def send(self, values: dict[int, int], **more: Any) -> dict[int, int]:
        """Keep each key in the partition that a producer of the JVM would choose; return the partitions."""
        producer = Producer({"bootstrap.servers": self.brokers, "partitioner": "murmur2_random"})
        result: dict[int, int] = {}

        def record_partition(error: object, message: Any) -> None:
            assert error is None
            result[int(message.key())] = message.partition()

        for key, value in values.items():
            producer.produce(
                self.topic,
                json.dumps({"id": key, "v": value}),
                key=str(key),
                on_delivery=record_partition,
                **more,
            )
        assert producer.flush(30) == 0
        return result

    def grow(self, partitions: int) -> None:
        admin = AdminClient({"bootstrap.servers": self.brokers})  # kept: its answers end with it
        admin.create_partitions([NewPartitions(self.topic, partitions)])[self.topic].result(30)
        deadline = time.monotonic() + 30
        while len(admin.list_topics(self.topic, timeout=300).topics[self.topic].partitions) < partitions:
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def run(self, listener: Callable[[Event], None] | None = None) -> RunResult:
        return run(
            load_pipeline(self._file),
            self.settings,
            until=Until.CAUGHT_UP,
            spark=self._spark,
            listener=listener,
        )

    def rows(
        self, query: str = "SELECT v, count(*) FROM target GROUP BY 1 ORDER BY 1"
    ) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.conninfo) as connection:
            return connection.execute(query.encode()).fetchall()


@pytest.fixture
def lane(services: Services, pg: str, tmp_path: Path, topic: Any, spark: SparkSession) -> Lane:
    return Lane(services, pg, tmp_path, topic(2), spark)


@pytest.mark.parametrize("begun", [True, False])
def test_keys_that_move_while_a_topic_grows_keep_their_newest_value(lane: Lane, *, begun: bool) -> None:
    """Keys move to the new partition, and between the old ones.

    Also where the first run comes after the growth.
    """
    if begun:
        lane.send({5000: 0})
        lane.run()
    now = int(time.time() * 1000)
    before = lane.send(dict.fromkeys(range(300), 1), timestamp=now - 600_000)
    lane.grow(3)
    after = lane.send(dict.fromkeys(range(300), 2), timestamp=now)
    assert sum(after[key] < before[key] for key in before) > 20, "some keys moved to a lower partition"
    assert lane.run().caught_up
    assert lane.rows("SELECT v, count(*) FROM target WHERE id < 5000 GROUP BY 1 ORDER BY 1") == [(2, 300)]


def test_a_hung_transaction_is_reported_and_never_caught_up(
    lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"CHECK_EVERY": 0.1, "REPORT_AFTER": 0.2, "MARGIN": -1e9}.items():
        monkeypatch.setattr(stalls, name, value)
    hung = Producer(
        {"bootstrap.servers": lane.brokers, "transactional.id": lane.topic, "transaction.timeout.ms": 600000}
    )
    hung.init_transactions(30)
    hung.begin_transaction()
    hung.produce(lane.topic, json.dumps({"id": 999, "v": 0}), partition=0)
    hung.flush(30)
    lane.send(dict.fromkeys(range(20), 1))
    notices: list[RunMessage] = []
    with pytest.raises(
        TargetError, match=r"partition 0 of topic .* has an open transaction since 20.*last stable offset 0"
    ) as caught:
        lane.run(lambda event: notices.append(event) if isinstance(event, RunMessage) else None)
    assert "kafka-transactions.sh" in caught.value.hint
    assert f"abort --topic {lane.topic} --partition 0 --start-offset 0" in caught.value.hint
    assert (
        any("open transaction" in notice.message for notice in notices if notice.level == "warning")
        or not notices
    )
    hung.abort_transaction(30)
    assert lane.run().caught_up
    assert lane.rows() == [(1, 20)]


def test_rows_with_an_old_time_of_their_producer_are_not_lost(
    lane: Lane, ch_db: str, services: Services
) -> None:
    """Rows appended a moment ago are stamped three hours ago; the table, which lags, lacks half of them."""
    with clickhouse_connect.get_client(**services.clickhouse.client_arguments(database=ch_db)) as client:
        client.command("CREATE TABLE h (id Int64, v Int64) ENGINE = MergeTree ORDER BY id")
        client.command("INSERT INTO h SELECT number, 1 FROM numbers(5)")
    lane.send(dict.fromkeys(range(10), 1), timestamp=int((time.time() - 3 * 3600) * 1000))
    history = f"bounded_sources: [{{source_type: clickhouse, table_name: {ch_db}.h}}]"
    stream = f"unbounded_source: {{source_type: kafka, topic: {lane.topic}, schema: {{id: int64, v: int64}}}}"
    lane.write(f"{{type: hybrid, primary_key: id, {history}, {stream}, handoff_lag: 1h}}")
    assert lane.run().caught_up
    assert lane.rows() == [(1, 10)]


def test_epochs_of_a_stream_are_bounded_by_bytes(lane: Lane) -> None:
    """Few rows, but large ones: they go by several epochs, the first of which is planned by samples alone."""
    lane.write(
        f"{{type: kafka, topic: {lane.topic}, primary_key: id, schema: {{id: int64, v: int64}}}}",
        ", max_bytes: 64KiB",
    )
    producer = Producer({"bootstrap.servers": lane.brokers})
    for number in range(60):
        producer.produce(
            lane.topic, json.dumps({"id": number, "v": 1, "more": "x" * 10_000}), partition=number % 2
        )
    assert producer.flush(30) == 0
    sizes: list[int] = []
    result = lane.run(
        lambda event: sizes.append(event.counts["pg"].rows) if isinstance(event, EpochCommitted) else None
    )
    assert result.caught_up
    assert lane.rows() == [(1, 60)]
    assert len(sizes) >= 60 * 10_000 // (64 << 10)
    assert max(sizes) <= 8


def test_epochs_of_history_are_bounded_by_bytes(
    lane: Lane, ch_db: str, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wide rows make smaller splits, and fewer of them make an epoch."""
    monkeypatch.setattr(split_planner, "SPLIT_BYTES", 32 << 10)
    with clickhouse_connect.get_client(**services.clickhouse.client_arguments(database=ch_db)) as client:
        client.command("CREATE TABLE h (id Int64, v Int64, more String) ENGINE = MergeTree ORDER BY id")
        client.command("INSERT INTO h SELECT number, 1, repeat('x', 4000) FROM numbers(100)")
    lane.write(f"{{type: clickhouse, table_name: {ch_db}.h, primary_key: id}}", ", max_bytes: 64KiB")
    sizes: list[int] = []
    assert lane.run(
        lambda event: sizes.append(event.counts["pg"].rows) if isinstance(event, EpochCommitted) else None
    ).history_complete
    assert lane.rows() == [(1, 100)]
    assert len(sizes) >= 6
    assert max(sizes) <= 20
