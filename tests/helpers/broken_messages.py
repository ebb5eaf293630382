"""A pipeline whose topic has broken messages among good ones, with dead letters in two sinks."""

from __future__ import annotations

import random
from typing import Any

import psycopg
from confluent_kafka import Message, Producer
from pyspark.sql import SparkSession

from headrace.pipeline.model.error_outputs import LIMITED_ROWS
from helpers.pipeline_world import HYBRID_SOURCE, World

SOURCE = HYBRID_SOURCE.replace("schema:", "on_error: dead_letter, max_error_rate: {rate}, schema:")
PIPELINE = (
    SOURCE
    + """\
transforms:
  shaped: {{type: sql, sql: "select id, day, upper(name) as name, {doubled} as amount from src"}}
sinks:
  pg: {{type: postgres, from: shaped, table: target}}
  lake: {{type: delta, from: shaped, path: {lake}}}
  bad: {{type: postgres, from: src.errors, table: broken}}
  bad_lake: {{type: delta, from: src.errors, path: {lake}-errors}}
epoch: {{interval: 0s, {epochs}}}
"""
)
SMALL_EPOCHS = "stream_rows: 250, history_rows: 1000"
LARGE_EPOCHS = "stream_rows: 600, history_rows: 4000"
"""One of history; a few hundred messages more than those of a world are two of the stream."""
COLUMNS = "__kafka_partition, __kafka_offset, __kafka_key, __kafka_value"
FAULTS = {
    b"": "the message does not fit `schema`: it is not valid JSON",
    b"\xff\x00": "the payload is not UTF-8",
    b'{"id": "one"}': "the message does not fit `schema`: column `id` is int64, found `one`",
    b'{"id": 1, "day": "2024-13-01"}': "column `day` is date32, which cannot hold `2024-13-01`",
    None: "the message has no payload (a tombstone)",
}
Place = tuple[int, int]


class BrokenWorld:
    """A world whose topic ends with good and broken messages. `expected` are the broken ones by place."""

    def __init__(self, world: World, rate: float = 0.5, epochs: str = SMALL_EPOCHS) -> None:
        assert LIMITED_ROWS < 250, "epochs are too small for a limit"
        self.world = world
        self.epoch_sizes = epochs
        self.expected: dict[Place, tuple[bytes | None, bytes | None]] = {}
        self.write_file(rate)

    def write_file(self, rate: float) -> None:
        """Write the pipeline file with a limit of rejected rows."""
        self.world.file.write_text(
            PIPELINE.format(**self.world.file_values, rate=rate, epochs=self.epoch_sizes)
        )

    def send(self, rounds: int = 20) -> None:
        """Send good changes with broken messages among them."""
        dice = random.Random(rounds)
        for number in range(rounds):
            self.world.produce(list(self.world.changes(dice, 10)))
            self.send_broken(number)

    def send_broken(self, number: int, times: int = 1) -> None:
        """Send every fault, acknowledged."""
        producer = Producer(
            {"bootstrap.servers": self.world.services.kafka.brokers, "enable.idempotence": True}
        )
        for at, value in enumerate(list(FAULTS) * times):
            key = f"k{at}".encode() if at % 2 else None
            producer.produce(self.world.name, value, key, partition=(number + at) % 2, callback=self._note)
        assert producer.flush(30) == 0

    def _note(self, error: Any, message: Message) -> None:
        assert error is None, error
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        key = message.key()
        self.expected[partition, offset] = (
            key.encode() if isinstance(key, str) else key,
            message.value() or (b"" if message.value() is not None else None),
        )

    def check(self, spark: SparkSession) -> None:
        """All four sinks have exactly the rows that they must have."""
        self.world.check(spark)
        for rows in (self.in_postgres(), self.in_delta(spark)):
            result = {(part, offset): (key, value) for part, offset, key, value, *_ in rows}
            assert len(result) == len(rows)
            assert result == self.expected
            for *_, value, node, reason, topic in rows:
                assert (node, reason, topic) == ("src", FAULTS[value], self.world.name)

    def in_postgres(self) -> list[tuple[Any, ...]]:
        """All dead letters in Postgres."""
        with psycopg.connect(self.world.conninfo) as connection:
            return connection.execute(
                f"SELECT {COLUMNS}, node, reason, __kafka_topic FROM broken".encode()
            ).fetchall()

    def epochs(self) -> dict[Place, int]:
        """The epoch of every dead letter."""
        with psycopg.connect(self.world.conninfo) as connection:
            result = connection.execute(
                "SELECT __kafka_partition, __kafka_offset, epoch FROM broken"
            ).fetchall()
        return {(part, offset): epoch for part, offset, epoch in result}

    def in_delta(self, spark: SparkSession) -> list[tuple[Any, ...]]:
        """All dead letters in Delta."""
        names = [*COLUMNS.split(", "), "node", "reason", "__kafka_topic"]
        table = spark.read.format("delta").load(f"{self.world.lake}-errors").select(*names).toArrow()
        return list(zip(*[column.to_pylist() for column in table.columns], strict=True))
