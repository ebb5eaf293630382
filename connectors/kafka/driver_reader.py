"""Reads the messages of ranges in the driver with one consumer, without a Spark job."""

from __future__ import annotations

import bisect
import contextlib
import itertools
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from headrace.connectors.driver_share import add_stream, divide_limit, remove_stream
from headrace.connectors.frame import DRIVER_BYTES
from headrace.connectors.kafka.client_config import client_options
from headrace.connectors.kafka.decoded_batch import DecodedBatch
from headrace.connectors.kafka.message_batch import MessageBatch
from headrace.connectors.kafka.message_columns import OP_HEADER
from headrace.pipeline.config.sections import KafkaConnection
from headrace.pipeline.protocol.log_context import with_log_context

if TYPE_CHECKING:
    import pyarrow as pa
    from confluent_kafka import Consumer, Message

log = logging.getLogger(__name__)

PATIENCE_S = 5.0
"""How long one range is waited for before Spark reads it."""
_WAIT_S = 0.05
"""How long one call of the client waits for a message."""
_AT_ONCE = 4_096
"""Messages of one call of the client."""
_MOST_AHEAD = 900_000
"""Messages after a range that are kept for the next one, not decoded."""
_MOST_DECODED = 96 << 20
"""Bytes of the messages after a range that are decoded for the next one, in all streams of the process."""
_BACKLOG = 10_000
"""Messages of a range after which the next ones are received while the epoch is written."""
_DECODED_AT_ONCE = 25_000
"""Messages of a partition that are decoded together while an epoch is written.

The next read waits for them.
"""

Range = tuple[int, int]
Decoder = Callable[[MessageBatch], "pa.Table | None"]
"""Returns one row per message, or None for messages that only Spark decodes."""


def count_offsets(ranges: Mapping[int, Range]) -> int:
    """Return the number of offsets in ranges."""
    return sum(end - start for start, end in ranges.values())


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
        self._ahead: dict[int, MessageBatch] = {}
        """Messages that arrived after the end of their range, and after those of `_decoded`."""
        self._decoded: dict[int, list[DecodedBatch]] = {}
        """Rows of messages that arrived after the end of their range."""
        self._ahead_size, self._decoded_size = 0, 0
        """Bytes of the messages of `_ahead`, and of those of `_decoded`."""
        self.mean_size = 0.0
        """Bytes of a message, in the last range. 0 before the first one."""
        self._receiver: threading.Thread | None = None
        """Receives messages between two reads. Only it uses the consumer until `_stop_receiving`."""
        self._is_stopping = threading.Event()

    def take_decoded(self, ranges: Mapping[int, Range]) -> dict[int, list[DecodedBatch]]:
        """Return by partition the rows with which its range [start, end) begins, if some are decoded.

        The messages after them are still to be read.
        """
        self._stop_receiving()
        if any(self._returned.get(part) != start for part, (start, _) in ranges.items()):
            return {}
        taken: dict[int, list[DecodedBatch]] = {}
        for part, (_, end) in ranges.items():
            pieces = [batch.split_at(end) for batch in self._decoded.pop(part, [])]
            if later := [late for _, late in pieces if len(late)]:
                self._decoded[part] = later
            if here := [early for early, _ in pieces if len(early)]:
                taken[part] = here
                self._decoded_size -= sum(batch.size for batch in here)
                self._returned[part] = here[-1].end
        return taken

    def read(self, ranges: Mapping[int, Range]) -> MessageBatch | None:
        """Return the messages of the offsets [start, end) by partition, in the order of offsets.

        No message of them is decoded: see `take_decoded`.

        Return None if Spark must read them: the broker reports an error, a message does not arrive in time,
        or there are more bytes than the driver should hold, as expected by the last range or as received.
        """
        from confluent_kafka import KafkaException

        self._stop_receiving()
        if self.mean_size * count_offsets(ranges) > DRIVER_BYTES:
            self.release()
            return None

        try:
            result = self._read(ranges)
        except KafkaException as error:
            log.info(
                "event=driver_read_failed node=%s topic=%s error=%s", self._node, self._topic, error.args[0]
            )
            result = None
        if result is None:
            self.release()
        return result

    def release(self) -> None:
        """Close the connections until the next `read`."""
        self._stop_receiving()
        self._returned, self._seen, self._ahead, self._decoded = {}, {}, {}, {}
        self._ahead_size, self._decoded_size = 0, 0
        remove_stream(self)
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _read(self, ranges: Mapping[int, Range]) -> MessageBatch | None:
        self._assign({part: start for part, (start, _) in ranges.items()})
        result = {part: self._take_ahead(part, end) for part, (_, end) in ranges.items()}
        size = sum(batch.size for batch in result.values())
        deadline = time.monotonic() + PATIENCE_S
        while any(self._seen[part] < end for part, (_, end) in ranges.items()):
            received = self._receive()
            if received is None:
                return None
            size += self._keep(received, ranges, result)
            if size > DRIVER_BYTES or self._is_far_ahead() or time.monotonic() > deadline:
                self.mean_size = size / max(1, sum(map(len, result.values())))
                return None
        self._returned |= {part: end for part, (_, end) in ranges.items()}
        whole = MessageBatch()
        for part in sorted(result):
            whole.extend(result[part])
        if len(whole):
            self.mean_size = size / len(whole)
        return whole

    def _receive(self) -> list[Message] | None:
        """Wait shortly for a message. Return those that have arrived, or None after an error."""
        from confluent_kafka import Message

        consumer = self._consumer
        assert consumer is not None  # noqa: S101  `_assign` created it
        first = consumer.poll(_WAIT_S)
        if first is None:
            return []
        received = [first, *consumer.consume(_AT_ONCE, 0)]
        if not any(map(Message.error, received)):
            return received
        if any(map(self._has_failed, received)):
            return None
        return [message for message in received if message.error() is None]

    def receive_ahead(self, rows: int, decode: Decoder | None = None) -> None:
        """Receive the messages after a range of `rows` messages in a thread, while its rows are written.

        Called when the range is decoded: the two would wait for each other's turn in Python. Do nothing after
        a small range: few messages are likely to wait. With `decode`, the thread also decodes them.
        """
        if rows < _BACKLOG:
            return
        self._is_stopping.clear()
        self._receiver = threading.Thread(
            target=with_log_context(self._receive_until_stopped),
            args=(decode,),
            name=f"receive {self._node}",
            daemon=True,
        )
        self._receiver.start()

    def _receive_until_stopped(self, decode: Decoder | None) -> None:
        from confluent_kafka import KafkaException

        with contextlib.suppress(KafkaException):  # the next read meets it again
            while not (
                self._is_stopping.is_set()
                or self._decoded_size > divide_limit(_MOST_DECODED)
                or self._is_far_ahead(share=1 / 2)
            ):
                received = self._receive()
                if received is None:
                    self._returned = {}  # the next read connects again
                    return
                self._keep(received, {}, {})
                if decode is not None and not self._decode_ahead(decode, _DECODED_AT_ONCE):
                    decode = None
                if not received:
                    break
        if decode is not None:
            self._decode_ahead(decode, 1)

    def _decode_ahead(self, decode: Decoder, least: int) -> bool:
        """Decode the messages of partitions that have `least` of them, until the next read.

        Return False if some cannot be decoded. They stay, and the next read meets them.
        """
        for part, batch in list(self._ahead.items()):
            if self._is_stopping.is_set():
                break
            if len(batch) < least:
                continue
            try:
                rows = decode(batch)
            except Exception:  # noqa: BLE001  the next read raises it to its caller
                return False
            if rows is None:
                return False
            self._decoded.setdefault(part, []).append(DecodedBatch.of(batch, rows))
            del self._ahead[part]
            self._ahead_size -= batch.size
            self._decoded_size += batch.size
        return True

    def _stop_receiving(self) -> None:
        if self._receiver is not None:
            self._is_stopping.set()
            self._receiver.join()
            self._receiver = None

    def _take_ahead(self, part: int, end: int) -> MessageBatch:
        """Return the messages before `end` that arrived earlier."""
        ahead = self._ahead.pop(part, MessageBatch())
        self._ahead_size -= ahead.size
        here, later = ahead.split_at(bisect.bisect_left(ahead.offsets, end))
        self._keep_ahead(part, later)
        return here

    def _keep_ahead(self, part: int, batch: MessageBatch) -> None:
        if len(batch):
            self._ahead.setdefault(part, MessageBatch()).extend(batch)
            self._ahead_size += batch.size

    def _assign(self, starts: Mapping[int, int]) -> None:
        """Make sure that the consumer has returned everything before `starts`.

        That is the one of the last ranges if these follow them, else a new one: a consumer that seeks back
        may still have messages from where it was.
        """
        if self._consumer is not None and all(
            self._returned.get(part) == start for part, start in starts.items()
        ):
            return
        from confluent_kafka import TopicPartition

        returned = self._returned | dict(starts)
        self.release()
        self._consumer = self._connect()
        add_stream(self)
        self._returned, self._seen = returned, dict(returned)
        self._consumer.assign(
            [TopicPartition(self._topic, part, offset) for part, offset in returned.items()]
        )

    def _has_failed(self, message: Message) -> bool:
        """Return whether the client returned an error in place of a message. The end of a log is none."""
        if (error := message.error()) is None:
            return False
        from confluent_kafka import KafkaError

        part, offset = message.partition(), message.offset()
        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  librdkafka's local codes have no other name
            # Markers and messages of aborted transactions before the end are not returned.
            if part in self._seen and offset is not None:
                self._seen[part] = max(self._seen[part], offset)
            return False
        log.info(
            "event=driver_read_failed node=%s topic=%s partition=%s error=%s",
            self._node,
            self._topic,
            part,
            error,
        )
        return True

    def _keep(
        self, messages: list[Message], ranges: Mapping[int, Range], batches: Mapping[int, MessageBatch]
    ) -> int:
        """Add messages to their ranges, or to those after them. Return the bytes of those in ranges."""
        from confluent_kafka import Message

        size = 0
        for part, run in itertools.groupby(messages, Message.partition):
            if part not in self._seen:
                continue
            batch = _as_columns(list(run))
            self._seen[part] = max(self._seen[part], batch.offsets[-1] + 1)
            if part in ranges:
                here, batch = batch.split_at(bisect.bisect_left(batch.offsets, ranges[part][1]))
                batches[part].extend(here)
                size += here.size
            self._keep_ahead(part, batch)
        return size

    def _is_far_ahead(self, share: float = 1.0) -> bool:
        """Return whether a share of the messages that may be kept for later ranges has arrived."""
        return (
            self._ahead_size > share * 2 * DRIVER_BYTES
            or sum(map(len, self._ahead.values())) > share * _MOST_AHEAD
        )

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


def _as_columns(messages: list[Message]) -> MessageBatch:
    """Return the messages without the client's objects.

    The garbage collector visits objects of the client again and again, which doubled the time of a read, and
    each one keeps the buffer of its fetch. map() with the client's methods takes a quarter of the time of a
    comprehension that calls them.
    """
    from confluent_kafka import Message

    return MessageBatch(
        values=list(map(Message.value, messages)),
        partitions=list(map(Message.partition, messages)),  # pyright: ignore[reportArgumentType]
        offsets=list(map(Message.offset, messages)),  # pyright: ignore[reportArgumentType]
        timestamps=[at for _, at in map(Message.timestamp, messages)],
        operations=[_operation(headers) if headers else None for headers in map(Message.headers, messages)],
        keys=[key.encode() if isinstance(key, str) else key for key in map(Message.key, messages)],
    )


def _operation(headers: Any) -> str | None:
    """Return the text of the last header dbz.op, or None without one."""
    texts = [value for name, value in headers if name == OP_HEADER]
    if not texts:
        return None
    last = texts[-1]
    return last if isinstance(last, str) else (last or b"").decode(errors="replace")
