"""A Kafka topic as a sink, exactly once.

One Kafka transaction has the messages of an epoch and the commit record, which is an entry of the topic
`__headrace_commits`. The transactional id belongs to the sink. Opening its producer fences the producers of
older runs and aborts their open transaction; only then are generation and record read. So the record cannot
change before the own transaction ends, or that transaction fails.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar

from headrace.connectors.addresses import describe_topic
from headrace.connectors.json_text import check_keys
from headrace.connectors.kafka.admin import Topic, TopicCluster
from headrace.connectors.kafka.avro.encoder import AvroFormat
from headrace.connectors.kafka.commit_log import CommitLog, TopicSinkState
from headrace.connectors.kafka.config import KafkaSinkConfig, KafkaSourceConfig
from headrace.connectors.kafka.output_format import JsonFormat, OutputFormat
from headrace.connectors.kafka.producer import ProducerFencedError, TransactionalProducer, explain_fenced
from headrace.connectors.kafka.topic_claims import TopicClaims
from headrace.connectors.row_errors import translate_row_errors
from headrace.connectors.sink_base import SinkContext
from headrace.connectors.transactional_sink import CommitKind, SinkCommit, SinkState, TransactionalSink
from headrace.pipeline.errors import GuaranteeError, TargetError, UserError
from headrace.pipeline.model.capabilities import SinkCapabilities
from headrace.pipeline.model.connectors import sink_entries
from headrace.pipeline.model.run_options import spell_duration
from headrace.pipeline.protocol.claims import Claim
from headrace.pipeline.protocol.epochs import CommitRecord, Json, WriteCounts

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.connectors.frame import EpochFrame

log = logging.getLogger(__name__)

_CHECK_SECONDS = 5.0
_IDS = "headrace"
"""Prefix of all transactional ids."""
_FORMATS: Mapping[str, type[OutputFormat]] = {"json": JsonFormat, "avro": AvroFormat}


class KafkaSink(TransactionalSink):
    """One topic. Delivery is exactly once: messages and record of an epoch share one transaction.

    The driver sends all messages, because a transaction has one producer. A topic also has the messages of
    other producers, so rows are not counted and not compared.
    """

    capabilities: ClassVar[SinkCapabilities] = sink_entries()["kafka"].capabilities

    def __init__(self, context: SinkContext) -> None:
        """Store the context without opening a connection."""
        super().__init__(context)
        self._node: KafkaSinkConfig = context.node
        self._connection = context.settings.kafka_sink
        self._cluster = TopicCluster(self._name, self._node.topic, self._connection, "kafka_sink")
        self._log = CommitLog(self._name, self._node.topic, self._connection)
        self._producer = self._create_producer(context.key.text, self._node.transaction_timeout)
        self._claims = TopicClaims(context.owner, self._cluster, self._log, self._create_producer)
        self._format = _FORMATS[self._node.data_format](self._name, self._node, self._connection)
        self._state: TopicSinkState | None = None
        """The own entry, valid while the producer is open."""

    @property
    def target(self) -> str:
        """The topic as messages name it."""
        return f"the Kafka topic `{self._node.topic}`"

    def prepare(self, schema: pa.Schema, generation: int) -> None:
        """Close the producer of an earlier `prepare`, then prepare the topic."""
        self._producer.close()
        super().prepare(schema, generation)

    def prepare_target(self, schema: pa.Schema) -> None:
        """Create the topic and the topic of commit records, or check them."""
        self._check(schema)
        node, key = self._node, self._key
        self._format.register(schema, key)
        config = {
            "cleanup.policy": node.cleanup_policy or ("compact" if key else "delete"),
            "retention.ms": "-1"
            if node.retention is None
            else str(int(node.retention.total_seconds() * 1000)),
        }
        if node.message_max_bytes is not None:
            config["max.message.bytes"] = str(node.message_max_bytes)
        self._cluster.create(node.topic_partitions, node.replication_factor, config)
        self._log.create(node.replication_factor)

    def validate_target(self) -> None:
        """Check the options and an existing topic. A missing topic is fine: `prepare` would create it."""
        self._cluster.knock(_CHECK_SECONDS)
        self._check(self._context.schema)
        self._log.check()

    def read_state(self) -> SinkState | None:
        """Return generation and record of this sink's entry; the record is None for a topic made again.

        After `prepare` this opens the producer, unless a newer generation has an entry.
        """
        topic = self._cluster.find()
        if topic is None:
            return None
        if self._generation < 0:
            return _state_in(topic, self._read_own())
        if not self._producer.is_open:
            # First without the producer, which would fence a newer run. An older one may hang in a commit.
            result = self._read_own(waits=False)
            if result is not None and result.generation > self._generation:
                return _state_in(topic, result)
            self._producer.open()
            self._state = self._read_own()
        return _state_in(topic, self._state)

    def commit(self, expected: SinkState, change: SinkCommit) -> SinkState:
        """Commit the epoch's messages and the sink's entry in one transaction.

        Raise FencedError if a newer generation fenced the producer. After TransientError the outcome may be
        unknown: the next `write` reads the entry again.
        """
        topic: Topic = expected.version
        try:
            with translate_row_errors(), self._producer.transaction():
                record = change.record
                if change.kind is CommitKind.EPOCH and change.frame is not None:
                    rows = self._send(change.frame)
                    record = change.complete(WriteCounts(rows, None, None, None))
                state = TopicSinkState(change.generation, topic.topic_id, record)
                self._producer.send_entries([self._log.state_entry(self._context.key.text, state)])
        except ProducerFencedError as error:
            self._producer.close()
            self._read_own_state()
            timeout = spell_duration(self._node.transaction_timeout)
            raise explain_fenced(self._name, self.target, timeout) from error
        self._state = state
        return SinkState(state.generation, record, topic)

    def claim_target(self) -> None:
        """Add this sink's claim. Claimers of one topic exclude each other."""
        if not self._claims.add(self.target):
            raise self._busy_error()

    def claims(self) -> Sequence[Claim]:
        """Return the claims in the topic of commit records. A topic made again has none."""
        return self._claims.read()

    def release(self, claims: Sequence[Claim]) -> None:
        """Fence each sink with the generation after its own, remove its record, then its claim."""
        if not self._claims.release(claims):
            raise self._busy_error()

    def find_conflicting_record(self) -> CommitRecord | None:
        """Return the record of the same pipeline name, `lane` and sink under another UUID."""
        key = self.find_conflicting_key()
        state = self._log.read_state(key.text) if key is not None else None
        return state.record if state is not None else None

    def read_row_count(self) -> tuple[CommitRecord | None, int] | None:
        """Return the record and the number of offsets in the topic: 0 only if it has no message.

        Return None if other sinks share the topic. Offsets include markers of transactions; as the counts of
        this sink have no inserted rows, audits compare nothing with them.
        """
        topic = self._cluster.find()
        if topic is None:
            return None, 0
        if any(claim.key != self._context.key for claim in self._log.read_claims(topic.topic_id)):
            return None
        first = self._cluster.earliest(topic.partitions)
        last = self._cluster.high_watermark(topic.partitions)
        state = _state_in(topic, self._read_own())
        return state.record, sum(last[part] - first[part] for part in topic.partitions)

    def describe(self) -> Json:
        """Return the type, asset key and topic."""
        return describe_topic(self._node.topic, self._connection.brokers)

    def close(self) -> None:
        """Close the clients."""
        self._producer.close()
        self._log.close()
        self._cluster.close()
        self._format.close()

    @property
    def _key(self) -> tuple[str, ...]:
        return tuple(self._context.extra.get("key", self._node.primary_key))

    def _read_own(self, *, waits: bool = True) -> TopicSinkState | None:
        return self._log.read_state(self._context.key.text, waits=waits)

    def _send(self, frame: EpochFrame) -> int:
        """Send the messages of an epoch. Return their number."""
        rows = 0
        for messages in self._format.create_encoder(frame.schema, frame.key).encode(frame):
            self._producer.send(messages)
            rows += messages.num_rows
        return rows

    def _create_producer(self, name: str, timeout: timedelta) -> TransactionalProducer:
        return TransactionalProducer(self._cluster, self._connection, f"{_IDS}/{name}", self._node, timeout)

    def _check(self, schema: pa.Schema) -> None:
        """Raise an error for options, columns and a topic that do not fit."""
        node, key = self._node, self._key
        for field in schema:
            check_keys(self._name, field)
        self._format.check(schema, key)
        hint = "Give the sink a primary_key, or "
        if node.tombstones and not key:
            msg = "`tombstones` needs a key: a message without key and value ends nothing"
            raise UserError(msg, hint=f"{hint}remove it.", node=self._name, keys=("tombstones",))
        if node.cleanup_policy and "compact" in node.cleanup_policy and not key:
            msg = f"cleanup_policy `{node.cleanup_policy}` needs a key: compaction keeps one message per key"
            raise UserError(msg, hint=f"{hint}use `delete`.", node=self._name, keys=("cleanup_policy",))
        self._refuse_loop()
        if not key and self._cluster.find() is not None and "compact" in self._cluster.cleanup_policy():
            msg = f"topic `{node.topic}` is compacted, and the sink has no primary key for its messages"
            raise TargetError(msg, hint=f"{hint}choose another topic.", node=self._name)

    def _refuse_loop(self) -> None:
        """Raise GuaranteeError if a source of the same file reads the topic: its rows would come again."""
        for stream in self._context.extra.get("streams", ()):
            if not isinstance(stream, KafkaSourceConfig) or stream.topic != self._node.topic:
                continue
            source = TopicCluster(self._name, stream.topic, self._context.settings.kafka_source)
            mine, its = self._cluster.find(), source.find()
            source.close()
            if mine is not None and its is not None and mine.cluster_id == its.cluster_id:
                msg = (
                    f"topic `{self._node.topic}` is a source of this pipeline too: its rows would come again"
                )
                hint = "Write to another topic, or to another cluster (setting `kafka_sink`)."
                raise GuaranteeError(msg, hint=hint, node=self._name, keys=("topic",))


def _state_in(topic: Topic, state: TopicSinkState | None) -> SinkState:
    """Return the state that holds for a topic: without the record if its rows were in a former topic."""
    if state is None:
        return SinkState(version=topic)
    record = state.record if state.topic_id == topic.topic_id else None
    return SinkState(state.generation, record, topic)
