"""A transactional producer: messages and commit records in one Kafka transaction, fenced by its id."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.connectors.kafka.admin import TopicCluster
from headrace.connectors.kafka.client_config import client_options
from headrace.connectors.kafka.commit_log import COMMIT_TOPIC, LogEntry
from headrace.connectors.kafka.config import KafkaSinkConfig
from headrace.connectors.kafka.encoder import KEY, VALUE
from headrace.connectors.kafka.message_columns import OP_HEADER
from headrace.pipeline.config.sections import KafkaCluster
from headrace.pipeline.errors import DataError, HeadraceError, TargetError, TransientError, UserError
from headrace.pipeline.model.run_options import spell_duration
from headrace.pipeline.sql.system_columns import OP

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, KafkaException, Producer

log = logging.getLogger(__name__)
client_log = log.getChild("client")
"""The log of librdkafka, without attempts that it repeats by itself, as while a coordinator loads."""
client_log.addFilter(lambda record: not record.getMessage().endswith(": retrying"))

_HEADERS: dict[str, Any] = {op: [(OP_HEADER, text)] for op, text in (("i", b"c"), ("u", b"u"), ("d", b"d"))}
_PATIENCE_S = 60.0
"""How long the brokers may take to begin or to end a transaction."""
_CALL_S = 10.0
_QUEUE_KB = 65_536
"""Messages that wait to be sent have at most this size."""
_POLL_EVERY = 5_000  # messages
_FENCED = frozenset(
    {
        "_FENCED",
        "PRODUCER_FENCED",
        "INVALID_PRODUCER_EPOCH",
        "INVALID_PRODUCER_ID_MAPPING",
        "UNKNOWN_PRODUCER_ID",
    }
)
_ENDED = frozenset({"_STATE", "_FATAL"})
_TOO_LARGE = frozenset({"MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE"})


class ProducerFencedError(Exception):
    """The brokers gave the transactional id to another producer, or ended a transaction that took too long.

    Whether the transaction was committed is unknown.
    """


class TransactionalProducer:
    """The producer of one transactional id.

    `open` aborts an open transaction of this id and fences its other producers. The producer is closed after
    an error that leaves the outcome of a transaction unknown.
    """

    def __init__(
        self,
        cluster: TopicCluster,
        connection: KafkaCluster,
        transactional_id: str,
        node: KafkaSinkConfig,
        timeout: timedelta,
    ) -> None:
        """Store the arguments. The brokers abort a transaction that is open for longer than `timeout`."""
        self._cluster = cluster
        self._timeout = timeout
        self._connection = connection
        self._id = transactional_id
        self._node = node
        self._producer: Producer | None = None

    @property
    def is_open(self) -> bool:
        """Whether the producer can begin a transaction, as far as it knows."""
        return self._producer is not None

    def open(self) -> None:
        """Connect and fence. Raise UserError for a transaction timeout that the brokers refuse."""
        from confluent_kafka import KafkaException, Producer

        self._producer = Producer(self._options())
        try:
            self._repeat(self._producer.init_transactions)
        except KafkaException as error:
            self.close()
            raise self._explain(error) from error

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit what the block sends, or abort it if the block raises.

        Raise ProducerFencedError or TransientError if the outcome is unknown, and another HeadraceError if
        the brokers refuse a message; nothing is committed then.
        """
        from confluent_kafka import KafkaException

        try:
            self._open_producer.begin_transaction()
            yield
            self._commit()
        except KafkaException as error:
            cause = self._find_cause(error)
            self._abort()
            self.close()
            raise self._explain(cause) from error
        except BaseException:
            if not self._abort():
                self.close()
            raise

    def send(self, messages: pa.Table | pa.RecordBatch) -> None:
        """Send messages to the target, in their order."""
        producer, topic, send = self._open_producer, self._cluster.topic, self._send
        columns = (messages.column(name).to_pylist() for name in (KEY, VALUE, OP))
        for number, (key, value, operation) in enumerate(zip(*columns, strict=True)):
            send(producer, topic, key, value, headers=_HEADERS[operation])
            if number % _POLL_EVERY == 0:
                producer.poll(0)

    def send_entries(self, entries: Iterable[LogEntry]) -> None:
        """Send entries to the log of commit records."""
        for entry in entries:
            self._send(self._open_producer, COMMIT_TOPIC, entry.key, entry.value, partition=entry.partition)

    def close(self) -> None:
        """Close the connections. A transaction that is still open is aborted when the id is next opened."""
        producer, self._producer = self._producer, None
        if producer is not None:
            # Its own `close` would wait for brokers that may not answer.
            producer.purge(blocking=False)

    @property
    def _open_producer(self) -> Producer:
        if self._producer is None:
            msg = "the producer is closed"
            raise ProducerFencedError(msg)
        return self._producer

    def _send(
        self, producer: Producer, topic: str, key: bytes | None, value: bytes | None, **more: Any
    ) -> None:
        from confluent_kafka import KafkaException

        while True:
            try:
                producer.produce(topic, value, key, **more)
            except BufferError:
                producer.poll(0.05)
            except KafkaException as error:
                if error.args[0].name() in _TOO_LARGE:
                    raise self._too_large(key, value) from error
                raise
            else:
                return

    def _commit(self) -> None:
        """Send what is queued, and commit the open transaction."""
        self._repeat(self._open_producer.commit_transaction)

    def _repeat(self, call: Any) -> None:
        """Call a transactional method until the brokers answer, within `_PATIENCE_S`."""
        from confluent_kafka import KafkaException

        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                call(_CALL_S)
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise
            else:
                return

    def _find_cause(self, error: KafkaException) -> KafkaException:
        """Return the error that ended the transaction, if `error` only means that it was ended.

        The client returns it from a commit. In these states a commit never succeeds.
        """
        from confluent_kafka import KafkaException

        if error.args[0].name() in _ENDED:
            try:
                self._open_producer.commit_transaction(_CALL_S)
            except KafkaException as cause:
                return cause
        return error

    def _abort(self) -> bool:
        """Abort the open transaction, so that readers need not wait for its end. Return whether it worked."""
        from confluent_kafka import KafkaException

        try:
            self._open_producer.abort_transaction(_CALL_S)
        except (KafkaException, ProducerFencedError) as error:
            log.debug("event=abort_failed transactional_id=%s error=%s", self._id, error)
            return False
        return True

    def _options(self) -> dict[str, Any]:
        node = self._node
        own = {} if node.message_max_bytes is None else {"message.max.bytes": node.message_max_bytes}
        return {
            "linger.ms": 20,
            "compression.type": node.compression,
            **client_options(self._connection),
            **own,
            "logger": client_log,
            "transactional.id": self._id,
            "transaction.timeout.ms": int(self._timeout.total_seconds() * 1000),
            "partitioner": "murmur2_random",
            "queue.buffering.max.kbytes": _QUEUE_KB,
            "delivery.report.only.error": True,
        }

    def _explain(self, error: KafkaException) -> HeadraceError | ProducerFencedError:
        cause: KafkaError = error.args[0]
        name, node = cause.name(), self._cluster.node
        if name in _FENCED:
            return ProducerFencedError(cause.str())
        if name in _TOO_LARGE:
            return self._too_large(None, None)
        if name == "INVALID_TRANSACTION_TIMEOUT":
            msg = f"the brokers refuse a transaction_timeout of {spell_duration(self._timeout)}"
            hint = "It may be at most `transaction.max.timeout.ms` of the brokers, 15 minutes by default."
            return UserError(msg, hint=hint, node=node, keys=("transaction_timeout",))
        if name == "INVALID_RECORD":
            msg = f"topic `{self._cluster.topic}` refuses a message: {cause.str()}"
            hint = "A compacted topic takes no message without a key: give the sink a primary_key."
            return TargetError(msg, hint=hint, node=node)
        return self._cluster.explain(error)

    def _too_large(self, key: bytes | None, value: bytes | None) -> DataError:
        text = "" if value is None else f" of {len(value):,} bytes"
        of = "" if key is None else f", key {key.decode(errors='replace')[:200]}"
        msg = f"a message{text} is larger than topic `{self._cluster.topic}` takes{of}"
        hint = "Raise `message_max_bytes` of the sink, and `max.message.bytes` of a topic that exists."
        return DataError(msg, hint=hint, node=self._cluster.node)


def explain_fenced(node: str, target: str, timeout: str) -> TransientError:
    """Return the error for a transaction that the brokers ended although no newer run exists."""
    msg = f"the brokers ended the transaction to {target}"
    hint = (
        f"An epoch must be sent within `transaction_timeout` ({timeout}). Raise it, or make epochs smaller:"
        " `epoch.history_rows`, `epoch.stream_rows`."
    )
    return TransientError(msg, hint=hint, node=node)
