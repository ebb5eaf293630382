"""Kafka Avro with SQL into a sink that keeps nothing, compared with a consumer that only reads the messages."""

from __future__ import annotations

import struct
from typing import Any

from confluent_kafka import Consumer, Producer

from benchmarks.kit import BenchmarkRunner, format_rate, random_name, read_clock
from tests.helpers.schema_registry import SchemaRegistry

_BATCH = 100_000
_SCHEMA = {
    "type": "record",
    "name": "trade",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "symbol", "type": "string"},
        {"name": "account", "type": "string"},
        {"name": "price", "type": "double"},
        {"name": "amount", "type": "double"},
        {"name": "day", "type": "int"},
    ],
}
_PIPELINE = """
name: {name}_{epochs}
sources:
  src: {{type: kafka, topic: {name}, primary_key: id}}
transforms:
  priced:
    type: sql
    sql: SELECT id, upper(symbol) AS symbol, price * amount AS total, day FROM src WHERE id % 10 <> 0
sinks:
  out: {{type: blackhole, from: priced}}
epoch: {{interval: 0s{size}}}
"""
_SIZES = {"large": ", stream_rows: 1000000", "default": ""}
"""Of the epochs: a million messages, which Spark's tasks decode, and the default, which the driver decodes."""


def avro(runner: BenchmarkRunner, rows: int) -> list[str]:
    """Measure messages of about 76 bytes in one partition: decode, project, and filter out a tenth."""
    name = random_name()
    registry = SchemaRegistry(runner.folder)
    registry.start()
    try:
        size = _fill_topic(runner, name, rows, registry.register(f"{name}-value", _SCHEMA))
        bare = _read_messages(runner, name, rows)
        runner.add_figure(
            "avro",
            f"bare: one consumer, nothing decoded, {rows:,} messages of {size} bytes",
            format_rate(rows, bare),
            "1.00",
        )
        kafka = {"brokers": runner.services.kafka.brokers, "schema_registry_url": registry.url}
        for kind, more in _SIZES.items():
            text = _PIPELINE.format(name=name, epochs=kind, size=more)
            _add_figures(runner, kind, rows, bare, *runner.run_pipeline(text, {"kafka_source": kafka}))
    finally:
        registry.stop()
    return []


def _add_figures(
    runner: BenchmarkRunner, kind: str, rows: int, bare: float, seconds: float, epochs: list[Any]
) -> None:
    """Check the rows of a run, and add its rate, and that of its second half."""
    assert sum(epoch.largest_rows for epoch in epochs) == rows - (rows + 9) // 10
    name = f"headrace, {len(epochs)} epochs of {kind} size"
    runner.add_figure("avro", name, format_rate(rows, seconds), f"{bare / seconds:.2f}")
    steady = epochs[len(epochs) // 2 :]
    warm = sum(epoch.largest_rows for epoch in steady) / 0.9
    took = sum(epoch.steps["total"] for epoch in steady)
    runner.add_figure(
        "avro", "the second half of them", format_rate(round(warm), took), f"{bare * warm / rows / took:.2f}"
    )


def _fill_topic(runner: BenchmarkRunner, topic: str, rows: int, schema: int) -> int:
    """Send the messages. Return the bytes of the last one."""
    brokers = runner.services.kafka.brokers
    runner.create_empty_topic(topic, 1)
    producer = Producer(
        {"bootstrap.servers": brokers, "linger.ms": 50, "queue.buffering.max.messages": 1_000_000}
    )
    head = struct.pack(">bI", 0, schema)
    symbols = [_text(f"pair-{number:04d}") for number in range(1000)]
    accounts = [_text(f"account-{number:024d}") for number in range(1000)]
    numbers = struct.Struct("<dd").pack
    message = b""
    for number in range(rows):
        values = numbers(number / 7, number % 1000), _long(number % 20_000)
        message = b"".join((head, _long(number), symbols[number % 1000], accounts[number % 997], *values))
        while True:
            try:
                producer.produce(topic, message)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()
    return len(message)


def _long(value: int) -> bytes:
    value <<= 1
    result = bytearray()
    while value > 0x7F:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*result, value])


def _text(value: str) -> bytes:
    return _long(len(value)) + value.encode()


def _read_messages(runner: BenchmarkRunner, topic: str, rows: int) -> float:
    """Return the seconds in which one consumer reads all messages."""
    options: dict[str, Any] = {"group.id": topic, "auto.offset.reset": "earliest"}
    consumer = Consumer({"bootstrap.servers": runner.services.kafka.brokers} | options)
    consumer.subscribe([topic])
    began, seen = 0.0, 0
    while seen < rows:
        seen += len(consumer.consume(_BATCH, 1.0))
        began = began or read_clock()
    seconds = read_clock() - began
    consumer.close()
    return seconds
