"""The demo's Kafka producer. It writes December to the topic while the pipeline runs."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import stamina

from headrace.demo.flights import LIVE, PARTITIONS, Message, messages
from headrace.pipeline.errors import ServiceError

if TYPE_CHECKING:
    from confluent_kafka import Producer

TOPIC = "flights"
_LEAD_MESSAGES = 16_000
"""The lead of the producer over the pipeline. It prevents that a run catches up in the middle of December."""
_BATCH_SIZE = 500
_EARLY_DAYS = 2


class FlightProducer:
    """Writes `messages()` to the topic, each once, in order.

    The demo is the topic's only producer, so the n-th message of a partition has offset n. After a crash the
    offsets of the broker show where to continue.
    """

    def __init__(self, brokers: str) -> None:
        self._brokers = brokers
        self._stopped = threading.Event()
        self._pacing_stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    @cached_property
    def _producer(self) -> Producer:
        from confluent_kafka import Producer

        return Producer(
            {"bootstrap.servers": self._brokers, "enable.idempotence": True, "linger.ms": 20, "log_level": 2}
        )

    def prepare(self) -> None:
        """Create the topic, and write the first days of December.

        The topic must be ahead of the table that is loaded from it.
        """
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient
        from confluent_kafka.cimpl import NewTopic

        admin = AdminClient({"bootstrap.servers": self._brokers})
        if TOPIC not in admin.list_topics(timeout=30).topics:
            try:
                admin.create_topics([NewTopic(TOPIC, num_partitions=PARTITIONS, replication_factor=1)])[
                    TOPIC
                ].result(timeout=30)
            except KafkaException as error:
                msg = f"the topic {TOPIC} cannot be created: {error}"
                raise ServiceError(msg) from error
        early = sum(
            1 for message in messages() if (message.key[0] - LIVE).days < _EARLY_DAYS and message.op == "c"
        )
        self._send_batch(self.find_missing()[: max(0, early - self.count_sent())])

    def offsets(self) -> dict[int, int]:
        """Return the number of messages per partition. A new topic has no leader for a moment."""
        from confluent_kafka import Consumer, TopicPartition

        from headrace.connectors.kafka.admin import is_moving

        consumer = Consumer(
            {
                "bootstrap.servers": self._brokers,
                "group.id": "headrace-demo-feed",
                "enable.auto.commit": False,
            }
        )
        try:
            for attempt in stamina.retry_context(on=is_moving, attempts=None, timeout=30.0):
                with attempt:
                    return {
                        part: consumer.get_watermark_offsets(TopicPartition(TOPIC, part), timeout=30)[1]
                        for part in range(PARTITIONS)
                    }
            raise AssertionError
        finally:
            consumer.close()

    def count_sent(self) -> int:
        """Return the number of messages in the topic."""
        return sum(self.offsets().values())

    def find_missing(self) -> list[Message]:
        """Return the messages that the topic does not contain yet, in order."""
        offsets = self.offsets()
        seen: dict[int, int] = defaultdict(int)
        missing = []
        for message in messages():
            if seen[message.partition] >= offsets[message.partition]:
                missing.append(message)
            seen[message.partition] += 1
        return missing

    def start(self, count_consumed: Callable[[], int]) -> None:
        """Write in the background, `_LEAD_MESSAGES` ahead of `count_consumed()`, the committed messages."""
        self._stopped.clear()
        self._thread = threading.Thread(
            target=self._run, args=(count_consumed,), name="demo-feed", daemon=True
        )
        self._thread.start()

    def stop_pacing(self) -> None:
        """Stop waiting for the pipeline."""
        self._pacing_stopped.set()

    def finish(self) -> None:
        """Wait until the whole topic is written. Raise the error of the background thread."""
        if self._thread:
            self._thread.join()
        if self._failure:
            raise self._failure

    def stop(self) -> None:
        """Stop writing. The next producer continues from here."""
        self._stopped.set()
        if self._thread:
            self._thread.join(timeout=10)

    def _run(self, count_consumed: Callable[[], int]) -> None:
        try:
            missing = self.find_missing()
            sent = len(messages()) - len(missing)
            while missing and not self._stopped.is_set():
                if not self._pacing_stopped.is_set() and sent - count_consumed() > _LEAD_MESSAGES:
                    self._stopped.wait(0.2)
                    continue
                batch, missing = missing[:_BATCH_SIZE], missing[_BATCH_SIZE:]
                self._send_batch(batch)
                sent += len(batch)
        except BaseException as error:  # noqa: BLE001  raised again by finish, in the thread that can act on it
            self._failure = error

    def _send_batch(self, batch: Sequence[Message]) -> None:
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
