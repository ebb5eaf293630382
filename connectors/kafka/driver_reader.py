"""Reads the messages of small ranges in the driver with one consumer, without a Spark job."""

from __future__ import annotations

import bisect
import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace.connectors.frame import DRIVER_BYTES
from headrace.connectors.kafka.arrow_decoder import MessageBatch
from headrace.connectors.kafka.client_config import client_options
from headrace.connectors.kafka.message_columns import OP_HEADER
from headrace.pipeline.config.sections import KafkaConnection

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

log = logging.getLogger(__name__)

PATIENCE_S = 5.0
"""How long one range is waited for before Spark reads it."""
_WAIT_S = 0.05
"""How long one call of the client waits for a message."""
_AT_ONCE = 4_096
"""Messages of one call of the client."""
_MOST_AHEAD = 200_000
"""Messages after a range that are kept for the next one."""

Range = tuple[int, int]


class DriverReader:
    """Reads ranges of one topic, messages of committed transactions only.

    The consumer stays where a range ended. The next range then needs no seek, and its messages are often
    there already.
    """

    def __init__(self, node: str, topic: str, connection: KafkaConnection, group: str) -> None:
        self._node = node
        self._topic = topic
        self._connection = connection
        self._group = group
        self._consumer: Consumer | None = None
        self._returned: dict[int, int] = {}
        """By assigned partition, the end of its last range."""
        self._seen: dict[int, int] = {}
        """By assigned partition, the offset up to which the consumer has read."""
        self._ahead: dict[int, list[Message]] = {}
        """Messages that arrived after the end of their range."""
        self._ahead_size = 0
        """Bytes of these messages."""
        self._mean_size = 0.0
        """Bytes of a message, in the last range."""

    def read(self, ranges: Mapping[int, Range]) -> MessageBatch | None:
        """Return the messages of the offsets [start, end) by partition, in the order of offsets.

        Return None if Spark must read them: the broker reports an error, a message does not arrive in time,
        or there are more bytes than the driver should hold, as expected by the last range or as received.
        """
        from confluent_kafka import KafkaException

        if self._mean_size * sum(end - start for start, end in ranges.values()) > DRIVER_BYTES:
            self.release()
            return None

        try:
            found = self._read(ranges)
        except KafkaException as error:
            log.info(
                "event=driver_read_failed node=%s topic=%s error=%s", self._node, self._topic, error.args[0]
            )
            found = None
        if found is None:
            self.release()
        return found

    def release(self) -> None:
        """Close the connections until the next `read`."""
        self._returned, self._seen, self._ahead, self._ahead_size = {}, {}, {}, 0
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _read(self, ranges: Mapping[int, Range]) -> MessageBatch | None:
        consumer = self._assigned({part: start for part, (start, _) in ranges.items()})
        found: dict[int, list[Message]] = {}
        for part, (_, end) in ranges.items():
            ahead = self._ahead.pop(part, [])
            count = bisect.bisect_left(ahead, end, key=_offset)
            found[part] = ahead[:count]
            if rest := ahead[count:]:
                self._ahead[part] = rest
        deadline = time.monotonic() + PATIENCE_S
        size = sum(_size(one) for messages in found.values() for one in messages)
        self._ahead_size -= size
        while any(self._seen[part] < end for part, (_, end) in ranges.items()):
            first = consumer.poll(_WAIT_S)
            for message in (first, *consumer.consume(_AT_ONCE, 0)) if first is not None else ():
                if self._has_failed(message):
                    return None
                if self._keep(message, ranges, found):
                    size += _size(message)
            if size > DRIVER_BYTES or self._is_far_ahead() or time.monotonic() > deadline:
                self._mean_size = size / max(1, sum(map(len, found.values())))
                return None
        self._returned |= {part: end for part, (_, end) in ranges.items()}
        self._mean_size = size / max(1, sum(map(len, found.values())))
        return _batch([message for part in sorted(found) for message in found[part]])

    def _assigned(self, starts: Mapping[int, int]) -> Consumer:
        """Return the consumer that has returned everything before `starts`.

        That is the one of the last ranges if these follow them, else a new one: a consumer that seeks back
        may still have messages from where it was.
        """
        if self._consumer is not None and all(
            self._returned.get(part) == start for part, start in starts.items()
        ):
            return self._consumer
        from confluent_kafka import TopicPartition

        returned = self._returned | dict(starts)
        self.release()
        self._consumer = self._connect()
        self._returned, self._seen = returned, dict(returned)
        self._consumer.assign(
            [TopicPartition(self._topic, part, offset) for part, offset in returned.items()]
        )
        return self._consumer

    def _has_failed(self, message: Message) -> bool:
        """Return whether the client returned an error in place of a message. The end of a log is none."""
        if (error := message.error()) is None:
            return False
        from confluent_kafka import KafkaError

        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  librdkafka's local codes have no other name
            return False
        log.info(
            "event=driver_read_failed node=%s topic=%s partition=%s error=%s",
            self._node,
            self._topic,
            message.partition(),
            error,
        )
        return True

    def _keep(self, message: Message, ranges: Mapping[int, Range], found: dict[int, list[Message]]) -> bool:
        """Add a message to its range, or to those after it. Return whether it is in its range."""
        part, offset = message.partition(), message.offset()
        if part not in self._seen or offset is None:
            return False
        if message.error() is not None:
            # Markers and messages of aborted transactions before the end are not returned.
            self._seen[part] = max(self._seen[part], offset)
            return False
        self._seen[part] = offset + 1
        if part in ranges and offset < ranges[part][1]:
            found[part].append(message)
            return True
        self._ahead.setdefault(part, []).append(message)
        self._ahead_size += _size(message)
        return False

    def _is_far_ahead(self) -> bool:
        return self._ahead_size > 2 * DRIVER_BYTES or sum(map(len, self._ahead.values())) > _MOST_AHEAD

    def _connect(self) -> Consumer:
        from confluent_kafka import Consumer

        options: dict[str, Any] = {
            **client_options(self._connection),
            "logger": log,
            "group.id": self._group,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "fetch.queue.backoff.ms": 10,
            "queued.max.messages.kbytes": 16_384,
        }
        return Consumer(options)


def _offset(message: Message) -> int:
    offset = message.offset()
    assert offset is not None  # noqa: S101  messages without an error have one
    return offset


def _size(message: Message) -> int:
    return len(message.value() or message.key() or b"")


def _batch(messages: list[Message]) -> MessageBatch:
    return MessageBatch(
        values=[message.value() for message in messages],
        partitions=[part for message in messages if (part := message.partition()) is not None],
        offsets=[_offset(message) for message in messages],
        timestamps=[message.timestamp()[1] for message in messages],
        operations=[_operation(message) for message in messages],
        keys=[_key(message) for message in messages],
    )


def _key(message: Message) -> bytes | None:
    key = message.key()
    return key.encode() if isinstance(key, str) else key


def _operation(message: Message) -> str | None:
    """Return the text of the last header dbz.op, or None without one."""
    texts = [value for name, value in message.headers() or () if name == OP_HEADER]
    if not texts:
        return None
    last = texts[-1]
    return last if isinstance(last, str) else (last or b"").decode(errors="replace")
