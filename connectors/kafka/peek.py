"""Single messages of a topic, read without Spark: when they were written and how large they are.

Nothing here commits an offset.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.connectors.kafka.client_config import client_options
from headrace.pipeline.config.sections import KafkaConnection

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

log = logging.getLogger(__name__)

_PATIENCE = 10.0
_FETCH_BYTES = 64 * 2**10
"""Of one partition in one look. A broker sends at least one whole batch, however large."""
_AT_ONCE = 256
"""Messages that are taken from the client at once. A partition whose messages are among them is done."""


@dataclass(frozen=True, slots=True)
class MessageInfo:
    """A message without its content. `written_ms` is its timestamp, None where it has none."""

    offset: int
    size: int
    written_ms: int | None
    by_broker: bool
    """Whether the broker set the timestamp as it appended the message."""


class MessagePeeker:
    """Looks at single messages, those of open and aborted transactions included.

    Connects at the first look.
    """

    def __init__(self, node: str, topic: str, connection: KafkaConnection, group: str) -> None:
        self._node = node
        self._topic = topic
        self._connection = connection
        self._group = group
        self._consumer: Consumer | None = None

    def look(self, at: Mapping[int, int]) -> dict[int, list[MessageInfo]]:
        """Return the first messages at or after an offset per partition.

        Partitions that are empty or fail are left out.
        """
        from confluent_kafka import KafkaException, TopicPartition

        result: dict[int, list[MessageInfo]] = {}
        if not at:
            return result
        open_ones, deadline = set(at), time.monotonic() + _PATIENCE
        try:
            consumer = self._connect()
            consumer.assign([TopicPartition(self._topic, part, offset) for part, offset in at.items()])
            while open_ones and time.monotonic() < deadline:
                if (first := consumer.poll(0.05)) is None:
                    continue
                before = set(open_ones)
                for message in (first, *consumer.consume(_AT_ONCE, 0)):
                    self._note(message, result, open_ones)
                # The client drops the rest of their batches, which can be thousands of messages.
                consumer.incremental_unassign(
                    [TopicPartition(self._topic, part) for part in before - open_ones]
                )
            consumer.unassign()
        except KafkaException as error:
            log.warning("event=peek_failed node=%s topic=%s error=%s", self._node, self._topic, error.args[0])
        return result

    def first(self, at: Mapping[int, int]) -> dict[int, MessageInfo]:
        """Return the first message at or after an offset, per partition."""
        return {part: messages[0] for part, messages in self.look(at).items()}

    def _note(self, message: Message, messages: dict[int, list[MessageInfo]], open_ones: set[int]) -> None:
        """Store a message. A partition is done after its first messages, or at its end."""
        from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, TIMESTAMP_NOT_AVAILABLE, KafkaError

        part, offset = message.partition(), message.offset()
        if (error := message.error()) is not None:
            if error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001  librdkafka's local codes have no other name
                log.info(
                    "event=peek_failed node=%s topic=%s partition=%s error=%s",
                    self._node,
                    self._topic,
                    part,
                    error,
                )
                just_added = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION)  # noqa: SLF001
                if error.retriable() or error.code() in just_added:
                    return
            open_ones.discard(part)  # pyright: ignore[reportArgumentType]  an error without a partition discards nothing
            return
        if part is None or offset is None:
            return
        kind, written = message.timestamp()
        size = (
            len(message.value() or b"")
            + len(message.key() or b"")
            + sum(len(k) + len(v or b"") for k, v in message.headers() or ())
        )
        none = kind == TIMESTAMP_NOT_AVAILABLE
        messages.setdefault(part, []).append(
            MessageInfo(offset, size, None if none else written, kind == TIMESTAMP_LOG_APPEND_TIME)
        )
        open_ones.discard(part)

    def _connect(self) -> Consumer:
        if self._consumer is None:
            from confluent_kafka import Consumer

            options: dict[str, Any] = {
                **client_options(self._connection),
                "logger": log,
                "group.id": self._group,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_uncommitted",
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 10,
                "max.partition.fetch.bytes": _FETCH_BYTES,
                "queued.max.messages.kbytes": 4096,
            }
            self._consumer = Consumer(options)
        return self._consumer

    def close(self) -> None:
        """Close the connections."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None
