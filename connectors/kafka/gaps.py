"""Whether offsets that a table lacks are messages. Transaction markers and compacted offsets are not."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace.connectors.kafka.client_config import client_options
from headrace.pipeline.config.sections import KafkaConnection
from headrace.pipeline.protocol.table_offsets import Range

if TYPE_CHECKING:
    from confluent_kafka import Consumer

log = logging.getLogger(__name__)

PATIENCE_S = 30.0
"""How long all partitions together are looked at."""


def find_filled_gaps(
    connection: KafkaConnection, group: str, topic: str, gaps: Mapping[str, Sequence[Range]]
) -> dict[str, int]:
    """Return per partition the index of the first gap that has committed messages.

    Partitions without such a gap are left out. A gap that cannot be read in time, or that is above the last
    stable offset, counts as one with messages.
    """
    from confluent_kafka import Consumer

    options: dict[str, Any] = {
        **client_options(connection),
        "group.id": group,
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "isolation.level": "read_committed",
        "fetch.wait.max.ms": 10,
        "fetch.message.max.bytes": 2**16,
        "queued.min.messages": 1,
        "logger": log,
    }
    deadline = time.monotonic() + PATIENCE_S
    consumer = Consumer(options)
    try:
        result = {part: _first(consumer, topic, int(part), listed, deadline) for part, listed in gaps.items()}
    finally:
        consumer.close()
    return {part: at for part, at in result.items() if at is not None}


def _first(
    consumer: Consumer, topic: str, partition: int, gaps: Sequence[Range], deadline: float
) -> int | None:
    """Return the index of the first gap with messages, or None."""
    empty_to = 0
    for place, (first, end) in enumerate(gaps):
        if end <= empty_to:
            continue
        following = _next(consumer, topic, partition, first, deadline)
        if following is None or following < end:
            return place
        empty_to = following
    return None


def _next(consumer: Consumer, topic: str, partition: int, offset: int, deadline: float) -> int | None:
    """Return the offset of the first message at or after `offset`, or of the log's stable end.

    Return None if it cannot be read.
    """
    from confluent_kafka import KafkaError, TopicPartition

    consumer.assign([TopicPartition(topic, partition, offset)])
    while time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is None:
            continue
        if (error := message.error()) is None:
            return message.offset()
        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  the client's own name for it
            return message.offset()
        log.warning(
            "event=offset_not_readable topic=%s partition=%d offset=%d error=%s",
            topic,
            partition,
            offset,
            error,
        )
        return None
    return None
