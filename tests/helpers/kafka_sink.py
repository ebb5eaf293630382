"""Kafka sinks with topics of their own, and the rows that Headrace's own source reads back from them."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
from confluent_kafka import Consumer, IsolationLevel, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # pyright: ignore[reportPrivateImportUsage]
from pyarrow import types as kinds
from pyspark.sql import SparkSession

from headrace.connectors.kafka import driver_reader
from headrace.connectors.kafka.config import KafkaSinkConfig, KafkaSourceConfig
from headrace.connectors.kafka.source import KafkaStream
from headrace.connectors.sink_base import Sink
from headrace.pipeline.config.sections import KafkaCluster, KafkaConnection
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.protocol.epochs import SinkKey
from headrace.pipeline.sql.system_columns import OP, POS
from headrace.pipeline.types.arrow import is_nested
from helpers.sink_makers import SinkMaker


@dataclass(frozen=True, slots=True)
class SentMessage:
    """A message that a consumer of committed transactions reads."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    operation: str | None


def await_markers(brokers: str, topic: str) -> None:
    """Wait until the messages of ended transactions can be read.

    The broker answers a commit before it has written the markers of the partitions. Wait five seconds at the
    most, because a transaction may be open.
    """
    admin = AdminClient({"bootstrap.servers": brokers})
    parts = admin.list_topics(topic, timeout=300).topics[topic].partitions
    ends: dict[Any, Any] = {TopicPartition(topic, part): OffsetSpec.latest() for part in parts}

    def read_ends(level: IsolationLevel) -> set[tuple[int, int]]:
        answers = admin.list_offsets(ends, isolation_level=level)
        return {(part.partition, future.result().offset) for part, future in answers.items()}

    end = time.monotonic() + 5
    while time.monotonic() < end:
        if read_ends(IsolationLevel.READ_COMMITTED) == read_ends(IsolationLevel.READ_UNCOMMITTED):
            return
        time.sleep(0.01)


def read_messages(brokers: str, topic: str, *, committed: bool = True) -> list[SentMessage]:
    """Return the messages of a topic by partition and offset, up to the end that it has now."""
    if committed:
        await_markers(brokers, topic)
    consumer = Consumer(
        {
            "bootstrap.servers": brokers,
            "group.id": "test-messages",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 10,
        }
    )
    try:
        parts = sorted(consumer.list_topics(topic, timeout=300).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, part, 0) for part in parts])
        open_parts, result = set(parts), list[SentMessage]()
        while open_parts:
            for message in consumer.consume(10_000, 1):
                if (error := message.error()) is not None:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    open_parts.discard(message.partition())
                    continue
                headers = dict(message.headers() or [])
                operation: Any = headers.get("dbz.op")
                result.append(
                    SentMessage(
                        message.partition() or 0,
                        message.offset() or 0,
                        message.key(),
                        message.value(),
                        operation.decode() if operation is not None else None,
                    )
                )
        return sorted(result, key=lambda one: (one.partition, one.offset))
    finally:
        consumer.close()


def declared_type(kind: Any) -> str:
    """Return how a pipeline file declares the column of a topic that a sink wrote."""
    if is_nested(kind):
        return "string"
    if kinds.is_decimal(kind):
        return f"decimal({kind.precision}, {kind.scale})"
    if kinds.is_timestamp(kind):
        return "timestamp"
    names = {pa.bool_(): "boolean", pa.float32(): "float32", pa.float64(): "float64", pa.date32(): "date32"}
    return names.get(kind, str(kind))


def read_back(
    spark: SparkSession, brokers: str, topic: str, schema: pa.Schema, *, by: str = "any"
) -> list[dict[str, Any]]:
    """Return the rows of a topic as a Headrace source reads them, in the order of partition and offset.

    `by` is what decodes them: `driver`, `spark` or `any`. Lists, structs and maps are parsed JSON with exact
    numbers.
    """
    node = KafkaSourceConfig.model_validate(
        {"topic": topic, "schema": {one.name: declared_type(one.type) for one in schema}}
    )
    connection = KafkaConnection(brokers=brokers, driver_rows=0 if by == "spark" else 20_000)
    source = KafkaStream("back", node, Settings(kafka_source=connection), 0)
    await_markers(brokers, topic)
    try:
        start, end = source.earliest_offsets(), source.end_offsets()
        # On a slow machine the driver may need longer than a user should wait before Spark reads the range.
        with mock.patch.object(driver_reader, "PATIENCE_S", 120.0):
            table = source.read_table(spark, start, end)
        assert by == "any" or (table is None) == (by == "spark")
        if table is None:
            table = source.read(spark, start, end).toArrow()
    finally:
        source.close()
    rows = table.to_pylist()
    rows.sort(key=lambda row: (row[POS]["part"], row[POS]["off"]))
    return [
        {one.name: _value(row[one.name], one.type) for one in schema} | {OP: row[OP], POS: row[POS]}
        for row in rows
    ]


def _value(value: Any, kind: Any) -> Any:
    if value is None:
        return None
    if is_nested(kind):
        return json.loads(value, parse_float=Decimal)
    if kinds.is_timestamp(kind):
        return value.replace(tzinfo=None) if kind.tz is None else value.astimezone(UTC)
    return value


@dataclass
class KafkaSinkMaker(SinkMaker):
    """Creates sinks of one topic. `rows` folds the changes of each key, as a consumer would."""

    brokers: str = ""
    topic: str = ""
    last: dict[str, Any] = field(default_factory=dict)
    """Schema and key of the last sink."""

    def open(self, schema: pa.Schema, columns: tuple[str, ...] = ("id",)) -> Sink:
        """See `SinkMaker.open`."""
        self.last |= {"schema": schema, "key": columns}
        return super().open(schema, columns)


def kafka_sink_maker(
    spark: SparkSession, brokers: str, folder: Path, topic: str = "", registry: str = "", **node: Any
) -> KafkaSinkMaker:
    """Return the maker of sinks into a topic that they create. `node` are further keys of the node.

    `registry` is the address of a schema registry. `rows` reads JSON only.
    """
    name = topic or f"sink-{secrets.token_hex(4)}"
    last: dict[str, Any] = {}

    def rows(names: list[str]) -> list[tuple[Any, ...]]:
        result = _fold(read_back(spark, brokers, name, last["schema"]), last["key"])
        return [tuple(row[column] for column in names) for row in result]

    def make_node(columns: tuple[str, ...]) -> KafkaSinkConfig:
        return KafkaSinkConfig.model_validate(
            {"topic": name, "primary_key": columns, "from": "x", "topic_partitions": 2} | node
        )

    return KafkaSinkMaker(
        "kafka",
        make_node,
        Settings(
            home=folder,
            kafka_sink=KafkaCluster(brokers=brokers, schema_registry_url=registry or "http://127.0.0.1:1"),
            kafka_source=KafkaConnection(brokers=brokers),
        ),
        spark,
        rows,
        SinkKey(secrets.token_hex(16), "contract", "main", f"s{secrets.token_hex(3)}"),
        brokers=brokers,
        topic=name,
        last=last,
    )


def _fold(rows: list[dict[str, Any]], key: tuple[str, ...]) -> list[Mapping[str, Any]]:
    if not key:
        return list(rows)
    result: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        at = repr([row[name] for name in key])
        if row[OP] == "d":
            result.pop(at, None)
        else:
            result[at] = row
    return list(result.values())
