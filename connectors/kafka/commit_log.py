"""The compacted topic with the commit records and claims of all Kafka sinks of a cluster.

A transaction that writes rows to a topic writes the state of the sink here too. An open transaction holds
back all readers of its partitions. Therefore sinks are spread over several partitions, and claims have others
than states: a run that hangs in a commit does not keep its successor from reading the claims.
"""

from __future__ import annotations

import json
import logging
import time
import zlib
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from headrace.connectors.kafka.admin import TopicCluster
from headrace.connectors.kafka.client_config import client_options
from headrace.pipeline.config.sections import KafkaCluster
from headrace.pipeline.errors import InternalError, TargetError, TransientError
from headrace.pipeline.protocol.claims import Claim
from headrace.pipeline.protocol.epochs import CommitRecord, Json, SinkKey

if TYPE_CHECKING:
    from confluent_kafka import Consumer

log = logging.getLogger(__name__)

COMMIT_TOPIC = "__headrace_commits"
_PARTITIONS = 16
"""Partitions of claims, and as many of states after them."""
_CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": str(16 << 20),
    "segment.ms": str(24 * 3600 * 1000),
    "min.cleanable.dirty.ratio": "0.1",
}
"""Small segments, so that compaction leaves little to read at a start."""
_FORMAT = 1
_PATIENCE_S = 60.0
_AT_ONCE = 4_096  # messages


@dataclass(frozen=True, slots=True)
class TopicSinkState:
    """The entry of one sink. `topic_id` identifies the topic that has the rows of the record."""

    generation: int
    topic_id: str
    record: CommitRecord | None

    def to_json(self) -> Json:
        """Return the entry as plain JSON values."""
        record = None if self.record is None else self.record.to_json()
        return {
            "format": _FORMAT,
            "generation": self.generation,
            "topic_id": self.topic_id,
            "record": record,
        }

    @classmethod
    def from_json(cls, data: Json) -> TopicSinkState:
        """Create an entry from the output of `to_json`. Raise InternalError for an unknown format."""
        if (result := data.get("format")) != _FORMAT:
            msg = f"an entry of topic `{COMMIT_TOPIC}` has format {result}, this Headrace knows {_FORMAT}"
            raise InternalError(msg, hint="Run the Headrace version that wrote it, or a newer one.")
        record = data["record"]
        return cls(
            data["generation"], data["topic_id"], None if record is None else CommitRecord.from_json(record)
        )


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A message of the log. `value` None removes the key."""

    partition: int
    key: bytes
    value: bytes | None


class CommitLog:
    """The entries of one topic. Sinks are named by `SinkKey.text`."""

    def __init__(self, node: str, topic: str, connection: KafkaCluster) -> None:
        self._node = node
        self._topic = topic
        self._connection = connection
        self._cluster = TopicCluster(node, COMMIT_TOPIC, connection, "kafka_sink")

    def create(self, replicas: int | None) -> None:
        """Create the log's topic if it is missing. Raise TargetError if it would lose entries."""
        self._cluster.create(2 * _PARTITIONS, replicas, _CONFIG)
        self.check()

    def check(self) -> None:
        """Raise TargetError if the log's topic exists and would lose entries."""
        topic = self._cluster.find()
        if topic is None:
            return
        policy = self._cluster.cleanup_policy()
        if len(topic.partitions) < 2 * _PARTITIONS or (policy and policy != {"compact"}):
            shown = ",".join(sorted(policy)) or "unknown"
            msg = (
                f"topic `{COMMIT_TOPIC}` has {len(topic.partitions)} partitions and cleanup.policy {shown},"
                " so it cannot keep commit records"
            )
            hint = (
                f"It needs at least {2 * _PARTITIONS} partitions and cleanup.policy=compact. If it has no"
                " records yet, delete it: the next start creates it."
            )
            raise TargetError(msg, hint=hint, node=self._node)

    def state_entry(self, sink: str, state: TopicSinkState) -> LogEntry:
        """Return the entry that sets the state of a sink."""
        return LogEntry(_state_partition(sink), self._key("state", sink), _dump(state.to_json()))

    def claim_entry(self, key: SinkKey, topic_id: str, *, share: bool) -> LogEntry:
        """Return the entry that sets a claim to the topic with this identity."""
        value = _dump({"key": asdict(key), "share": share, "topic_id": topic_id})
        return LogEntry(self._claim_partition, self._key("claim", key.text), value)

    def claim_end(self, key: SinkKey) -> LogEntry:
        """Return the entry that removes a claim."""
        return LogEntry(self._claim_partition, self._key("claim", key.text), None)

    def read_state(self, sink: str, *, waits: bool = True) -> TopicSinkState | None:
        """Return the state of a sink after all transactions of this moment.

        Wait for open ones, and raise TransientError if one stays open. Without `waits` leave them out, and
        what follows them in the partition.
        """
        result = self._read(_state_partition(sink), waits=waits).get(self._key("state", sink))
        return None if result is None else TopicSinkState.from_json(json.loads(result))

    def read_claims(self, topic_id: str) -> list[Claim]:
        """Return the claims to the topic with this identity, like `read_state`. They have no epoch."""
        values = self._read(self._claim_partition, waits=True)
        mine = self._key("claim", "")[:-2]
        result = [json.loads(value) for key, value in values.items() if key.startswith(mine)]
        return [
            Claim(SinkKey(**claim["key"]), claim["share"])
            for claim in result
            if claim["topic_id"] == topic_id
        ]

    def close(self) -> None:
        """Close the client."""
        self._cluster.close()

    @property
    def _claim_partition(self) -> int:
        return zlib.crc32(self._topic.encode()) % _PARTITIONS

    def _key(self, kind: str, sink: str) -> bytes:
        return _dump([kind, self._topic, sink])

    def _read(self, partition: int, *, waits: bool) -> dict[bytes, bytes]:
        """Return the last value of each key, up to the end that the partition has now."""
        from confluent_kafka import Consumer, KafkaException, TopicPartition

        if self._cluster.find() is None:
            return {}
        find_end = self._cluster.high_watermark if waits else self._cluster.stable_end
        end = find_end([partition])[partition]
        start = self._cluster.earliest([partition])[partition]
        consumer = Consumer(self._options())
        try:
            consumer.assign([TopicPartition(COMMIT_TOPIC, partition, start)])
            return self._consume(consumer, partition, start, end)
        except KafkaException as error:
            raise self._cluster.explain(error) from error
        finally:
            consumer.close()

    def _consume(self, consumer: Consumer, partition: int, start: int, end: int) -> dict[bytes, bytes]:
        from confluent_kafka import KafkaError, KafkaException

        result: dict[bytes, bytes] = {}
        reached, deadline = start, time.monotonic() + _PATIENCE_S
        while reached < end:
            for message in consumer.consume(_AT_ONCE, 0.02):
                error, offset = message.error(), message.offset() or 0
                if error is None:
                    reached = offset + 1
                    _apply(result, message.key(), message.value())
                elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  librdkafka's local codes have no other name
                    # Markers and messages of aborted transactions are not returned.
                    reached = max(reached, offset)
                elif error.fatal() or not error.retriable():
                    raise KafkaException(error)
            if time.monotonic() > deadline:
                msg = (
                    f"an open transaction holds back partition {partition} of topic `{COMMIT_TOPIC}` at"
                    f" offset {reached}"
                )
                hint = (
                    "Another pipeline hangs in its commit. Its transaction ends with its next start, or after"
                    " its `transaction_timeout`."
                )
                raise TransientError(msg, hint=hint, node=self._node)
        return result

    def _options(self) -> dict[str, Any]:
        return {
            **client_options(self._connection),
            "logger": log,
            "group.id": "headrace-commits",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 10,
        }


def _apply(states: dict[bytes, bytes], key: bytes | str | None, value: bytes | str | None) -> None:
    raw = key.encode() if isinstance(key, str) else key or b""
    if value is None:
        states.pop(raw, None)
    else:
        states[raw] = value.encode() if isinstance(value, str) else value


def _state_partition(sink: str) -> int:
    return _PARTITIONS + zlib.crc32(sink.encode()) % _PARTITIONS


def _dump(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
