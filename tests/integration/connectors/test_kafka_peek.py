"""Looks at single messages of a topic, on a real broker."""

from __future__ import annotations

from collections.abc import Callable

from confluent_kafka import Producer

from headrace.connectors.kafka.peek import MessagePeeker
from headrace.pipeline.config.sections import KafkaConnection
from headrace.services import Services

MESSAGES = 4_000
"""Of a partition, in one batch."""


def test_look_takes_a_few_messages_of_each_partition(services: Services, topic: Callable[..., str]) -> None:
    name, brokers = topic(3), services.kafka.brokers
    producer = Producer({"bootstrap.servers": brokers, "linger.ms": 2_000, "batch.num.messages": MESSAGES})
    for number in range(3 * MESSAGES):
        producer.produce(name, b"x" * 20, partition=number % 3)
    assert producer.flush(30) == 0
    peeker = MessagePeeker("src", name, KafkaConnection(brokers=brokers), "group")
    for at in ({0: 0, 1: 10, 2: 3_990}, {0: 3_999, 1: 2_000}, {1: MESSAGES, 2: 1}, {2: 0}):
        result = peeker.look(at)
        assert {part: messages[0].offset for part, messages in result.items()} == {
            part: offset for part, offset in at.items() if offset < MESSAGES
        }
        assert {message.size for messages in result.values() for message in messages} == {20}
        assert sum(map(len, result.values())) < 1_000  # else the whole batches are read
    peeker.close()
