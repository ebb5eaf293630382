"""The task of a process of a peer, and the steps that it prints."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.json as pa_json

MESSAGE = pa.schema([("id", pa.int64()), ("name", pa.string()), ("amount", pa.float64())])
ROW = pa.schema(
    [
        ("id", pa.int64()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("name", pa.string()),
        ("amount", pa.float64()),
    ]
)
BATCH = 100_000
"""Messages of one write, as in the epochs of Headrace."""


@dataclass
class PeerTask:
    """A scenario with its addresses.

    `table` and `topic` are the sources, `target` is the Postgres table, `lake` the folder of the Delta table,
    `state` a folder for the tool's own files, `jars` those that a script by hand passes to Spark.
    `postgres_uri` is the address with user and password.
    """

    scenario: str
    rows: int
    clickhouse: dict[str, Any]
    postgres_uri: str
    brokers: str
    table: str = ""
    topic: str = ""
    target: str = ""
    lake: str = ""
    state: str = ""
    jars: Sequence[str] = ()


def read_task() -> PeerTask:
    """Return the task of this process from its first argument."""
    return PeerTask(**json.loads(sys.argv[1]))


def print_step(step: str) -> None:
    """Print a line of JSON with the wall clock in seconds."""
    print(json.dumps({"step": step, "at": time.time()}), flush=True)


def parse_messages(values: list[bytes]) -> pa.Table:
    """Parse JSON messages into a table."""
    return pa_json.read_json(
        pa.py_buffer(b"\n".join(values)), parse_options=pa_json.ParseOptions(explicit_schema=MESSAGE)
    )


def read_batches(task: PeerTask, first: int = 0, last: int | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the ClickHouse table with ids from `first` up to `last`, exclusive."""
    import clickhouse_connect

    end = task.rows if last is None else last
    query = f"SELECT id, at, name, amount FROM {task.table} WHERE id >= {first} AND id < {end}"
    with (
        clickhouse_connect.get_client(**task.clickhouse) as client,
        client.query_arrow_stream(query, use_strings=True) as batches,
    ):
        yield from batches


def read_messages(task: PeerTask, group: str, batch: int = BATCH) -> Iterator[tuple[list[bytes], Any]]:
    """Yield up to `batch` messages with their consumer, from the group's committed offsets to the topic's end."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": task.brokers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    partitions = [TopicPartition(task.topic, number) for number in range(4)]
    committed = _read_committed(consumer, partitions)
    positions = [TopicPartition(task.topic, p.partition, max(p.offset, 0)) for p in committed]
    ends = [consumer.get_watermark_offsets(p, timeout=30)[1] for p in partitions]
    left = sum(end - p.offset for end, p in zip(ends, positions, strict=True))
    consumer.assign(positions)
    while left > 0:
        values = [
            value
            for message in consumer.consume(min(batch, left), 1.0)
            if (value := message.value()) is not None
        ]
        if values:
            left -= len(values)
            yield values, consumer
    consumer.close()


def _read_committed(consumer: Any, partitions: list[Any]) -> list[Any]:
    """Return the committed offsets of the group. A broker that has just started has no coordinator yet."""
    from confluent_kafka import KafkaError, KafkaException

    for _ in range(30):
        try:
            return consumer.committed(partitions, timeout=30)
        except KafkaException as error:
            if error.args[0].code() not in (
                KafkaError.NOT_COORDINATOR,
                KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
            ):
                raise
            time.sleep(0.5)
    return consumer.committed(partitions, timeout=30)
