"""The demo's producer: December on the topic, while the pipeline runs."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from headrace.demo.flights import LIVE, PARTITIONS, Message, messages
from headrace.pipeline.errors import ServiceError

if TYPE_CHECKING:
    from confluent_kafka import Producer

TOPIC = "flights"
_LEAD = 16_000
"""How many messages the feed keeps ahead of the pipeline: enough that a run has not caught up in the middle of December."""
_STEP = 500
_EARLY_DAYS = 2


class Feed:
    """Writes `messages()` to the topic, each once, in order.

    The demo is the topic's only producer, so the n-th message of a partition has offset n: where to go on after a crash is
    what the broker says it has.
    """

    def __init__(self, brokers: str) -> None:
        self._brokers = brokers
        self._halt = threading.Event()
        self._hurry = threading.Event()
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    @cached_property
    def _producer(self) -> Producer:
        from confluent_kafka import Producer

        return Producer({"bootstrap.servers": self._brokers, "enable.idempotence": True, "linger.ms": 20, "log_level": 2})

    def prepare(self) -> None:
        """Makes the topic, and fills it up to the second of December: a table that is loaded from a topic lags behind it."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient
        from confluent_kafka.cimpl import NewTopic

        admin = AdminClient({"bootstrap.servers": self._brokers})
        if TOPIC not in admin.list_topics(timeout=30).topics:
            try:
                admin.create_topics([NewTopic(TOPIC, num_partitions=PARTITIONS, replication_factor=1)])[TOPIC].result(timeout=30)
            except KafkaException as error:
                msg = f"the topic {TOPIC} cannot be made: {error}"
                raise ServiceError(msg) from error
        early = sum(1 for message in messages() if (message.key[0] - LIVE).days < _EARLY_DAYS and message.op == "c")
        self._send(self.missing()[: max(0, early - self.sent())])

    def offsets(self) -> dict[int, int]:
        """How many messages each partition holds."""
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({"bootstrap.servers": self._brokers, "group.id": "headrace-demo-feed", "enable.auto.commit": False})
        try:
            return {part: consumer.get_watermark_offsets(TopicPartition(TOPIC, part), timeout=30)[1] for part in range(PARTITIONS)}
        finally:
            consumer.close()

    def sent(self) -> int:
        """How many messages the topic holds."""
        return sum(self.offsets().values())

    def missing(self) -> list[Message]:
        """What the topic does not hold yet, in order."""
        have = self.offsets()
        seen: dict[int, int] = defaultdict(int)
        left = []
        for message in messages():
            if seen[message.partition] >= have[message.partition]:
                left.append(message)
            seen[message.partition] += 1
        return left

    def start(self, consumed: Callable[[], int]) -> None:
        """Goes on in the background, `_LEAD` messages ahead of `consumed()`, which says how many the pipeline has committed."""
        self._halt.clear()
        self._thread = threading.Thread(target=self._run, args=(consumed,), name="demo-feed", daemon=True)
        self._thread.start()

    def hurry(self) -> None:
        """No longer waits for the pipeline."""
        self._hurry.set()

    def finish(self) -> None:
        """Waits until the whole topic is written. Raises what went wrong in the background."""
        if self._thread:
            self._thread.join()
        if self._failure:
            raise self._failure

    def stop(self) -> None:
        """Ends it where it stands; the next feed goes on from there."""
        self._halt.set()
        if self._thread:
            self._thread.join(timeout=10)

    def _run(self, consumed: Callable[[], int]) -> None:
        try:
            left = self.missing()
            sent = len(messages()) - len(left)
            while left and not self._halt.is_set():
                if not self._hurry.is_set() and sent - consumed() > _LEAD:
                    self._halt.wait(0.2)
                    continue
                batch, left = left[:_STEP], left[_STEP:]
                self._send(batch)
                sent += len(batch)
        except BaseException as error:  # noqa: BLE001  raised again by finish, in the thread that can act on it
            self._failure = error

    def _send(self, batch: Sequence[Message]) -> None:
        if not batch:
            return
        problems: list[str] = []
        for message in batch:
            self._produce(message, problems)
        if self._producer.flush(60) or problems:
            msg = f"the broker did not take {len(problems) or 'all'} messages: {problems[:1]}"
            raise ServiceError(msg)

    def _produce(self, message: Message, problems: list[str]) -> None:
        row = {**message.row, "time_hour": message.row["time_hour"].strftime("%Y-%m-%dT%H:%M:%SZ")}
        key = f"{row['time_hour']}/{row['carrier']}/{row['flight']}"
        self._producer.produce(
            TOPIC,
            json.dumps(row).encode(),
            key=key.encode(),
            partition=message.partition,
            headers=[("dbz.op", message.op.encode())],
            on_delivery=lambda error, _: problems.append(str(error)) if error else None,
        )
        self._producer.poll(0)
