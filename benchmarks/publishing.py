"""A topic into a topic, compared with a bare transactional producer."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Consumer, Producer

from benchmarks.kit import STREAM, BenchmarkRunner, format_rate, random_name, read_clock
from headrace.connectors.kafka import sink
from headrace.connectors.kafka.producer import TransactionalProducer

_TRANSACTION = 100_000
"""Messages of one transaction, and of one epoch."""
_ROUNDS = 3
_HEADERS: list[tuple[str, str | bytes | None]] = [("dbz.op", b"c")]


def publishing(runner: BenchmarkRunner, rows: int) -> list[str]:
    """Measure Kafka JSON into Kafka by key, with transactions of 100,000 messages."""
    messages = max(rows // 5, 1000)
    topic, name = runner.create_topic(messages, messages // 5), random_name()
    bare = _bare_publishing(runner, topic, f"{name}_bare", messages)
    runner.add_figure(
        "publishing",
        f"bare: one process, one transactional producer, {messages:,} messages",
        format_rate(messages, bare),
        "1.00",
    )
    without: list[float] = []
    with_transactions: list[float] = []
    for number in range(_ROUNDS):
        with _without_transactions():
            without.append(_publish(runner, topic, f"{name}_plain_{number}", messages))
        with_transactions.append(_publish(runner, topic, f"{name}_{number}", messages))
    seconds, plain = statistics.median(with_transactions), statistics.median(without)
    runner.add_figure(
        "publishing", "headrace, median", format_rate(messages, seconds), f"{bare / seconds:.2f}"
    )
    runner.add_figure(
        "publishing",
        "the same sink without transactions, median, and what they cost",
        format_rate(messages, plain),
        f"{seconds / plain - 1:+.0%}",
    )
    return []


def _publish(runner: BenchmarkRunner, topic: str, target: str, messages: int) -> float:
    """Return the seconds that Headrace's epochs take."""
    text = STREAM.format(name=target, topic=topic, target=target, rows=_TRANSACTION)
    text = text.replace("type: postgres", "type: kafka").replace("table:", "topic:")
    seconds, epochs = runner.run_pipeline(text)
    assert sum(epoch.largest_rows for epoch in epochs) == messages
    return seconds


class _PlainProducer(TransactionalProducer):
    """The producer of the sink without transactions: rows can be twice in the topic after a failure."""

    def open(self) -> None:
        options = {name: value for name, value in self._options().items() if "transaction" not in name}
        self._producer = Producer(options | {"enable.idempotence": True})

    @contextmanager
    def transaction(self) -> Iterator[None]:
        yield
        assert not self._open_producer.flush(60)


@contextmanager
def _without_transactions() -> Iterator[None]:
    sink.TransactionalProducer = _PlainProducer
    try:
        yield
    finally:
        sink.TransactionalProducer = TransactionalProducer


def _bare_publishing(runner: BenchmarkRunner, topic: str, target: str, messages: int) -> float:
    """Read each message, take its key, and send it."""
    brokers = runner.services.kafka.brokers
    runner.create_empty_topic(target)
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    producer = Producer(
        {
            "bootstrap.servers": brokers,
            "transactional.id": target,
            "compression.type": "lz4",
            "linger.ms": 20,
            "partitioner": "murmur2_random",
            "delivery.report.only.error": True,
        }
    )
    producer.init_transactions(30)
    began, seen = read_clock(), 0
    while seen < messages:
        batch = consumer.consume(_TRANSACTION, 1.0)
        values = [value for message in batch if (value := message.value()) is not None]
        producer.begin_transaction()
        for value in values:
            key = json.dumps({"id": json.loads(value)["id"]}).encode()
            while True:
                try:
                    producer.produce(target, value, key, headers=_HEADERS)
                    break
                except BufferError:
                    producer.poll(0.05)
        producer.commit_transaction(60)
        seen += len(values)
    consumer.close()
    return read_clock() - began
