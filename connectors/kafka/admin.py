"""What a topic's cluster says about it: identity, partitions, offsets. Nothing here reads a message."""

from __future__ import annotations

import difflib
import logging
import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import stamina

from headrace.connectors.kafka.client_config import client_options
from headrace.pipeline.config.sections import KafkaCluster
from headrace.pipeline.errors import HeadraceError, TargetError, TransientError

if TYPE_CHECKING:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

log = logging.getLogger(__name__)

_COORDINATING = frozenset({"NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS"})
_MOVING = frozenset({"NOT_LEADER_FOR_PARTITION", "LEADER_NOT_AVAILABLE"})
_INVALID_TOPIC = frozenset(
    {
        "TOPIC_EXCEPTION",
        "INVALID_PARTITIONS",
        "INVALID_REPLICATION_FACTOR",
        "INVALID_CONFIG",
        "POLICY_VIOLATION",
    }
)
_TIMEOUT = 15.0
_RIGHTS = {
    "kafka_source": "DESCRIBE and READ",
    "kafka_sink": "DESCRIBE, WRITE and CREATE, IDEMPOTENT_WRITE, and READ and WRITE of the topic"
    " `__headrace_commits`, for the transactional ids `headrace/*`",
}


def is_moving(error: Exception) -> bool:
    """Return whether the error means that a partition has a new leader that the client does not know yet.

    This happens to new topics and moving partitions. The client learns the leader on the next request.
    """
    return bool(error.args) and getattr(error.args[0], "name", str)() in _MOVING


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as it is now. A topic created again under the same name has another `topic_id`."""

    topic_id: str
    cluster_id: str
    partitions: tuple[int, ...]


class TopicCluster:
    """One topic of one cluster, seen through an admin client. Connects at the first question."""

    def __init__(
        self, node: str, topic: str, connection: KafkaCluster, setting: str = "kafka_source"
    ) -> None:
        """Store the arguments. `setting` is the section of the settings that `connection` comes from."""
        self.node = node
        self.topic = topic
        self._connection = connection
        self._setting = setting
        self._admin: AdminClient | None = None
        self._cluster_id = ""

    @property
    def admin(self) -> AdminClient:
        """The client, which keeps its connections."""
        if self._admin is None:
            from confluent_kafka.admin import AdminClient

            options: dict[str, Any] = {**client_options(self._connection), "logger": log}
            self._admin = AdminClient(options)
        return self._admin

    def describe(self, timeout: float = _TIMEOUT) -> Topic:
        """Return identity and partitions. Never creates a topic.

        Raise TargetError if there is no such topic, and TransientError if no broker answers.
        """
        result = self.find(timeout)
        if result is None:
            raise self._missing()
        return result

    def find(self, timeout: float = _TIMEOUT) -> Topic | None:
        """Return identity and partitions, or None if there is no such topic. Never creates a topic."""
        from confluent_kafka import KafkaError, KafkaException, TopicCollection

        cluster = self.admin.describe_cluster(request_timeout=timeout) if not self._cluster_id else None
        futures = self.admin.describe_topics(TopicCollection([self.topic]), request_timeout=timeout)[
            self.topic
        ]
        try:
            if cluster is not None:
                self._cluster_id = str(cluster.result().cluster_id)
            result = futures.result()
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            raise self.explain(error) from error
        return Topic(
            str(result.topic_id), self._cluster_id, tuple(sorted(part.id for part in result.partitions))
        )

    def knock(self, timeout: float) -> None:
        """Raise TransientError immediately if no broker accepts a connection.

        The client itself would retry until its own timeout.
        """
        text = "no address"
        for broker in self._connection.brokers.split(","):
            host, _, port = broker.strip().rpartition(":")
            try:
                socket.create_connection((host.strip("[]"), int(port)), timeout).close()
            except (OSError, ValueError) as error:
                text = getattr(error, "strerror", None) or str(error)
            else:
                return
        msg = f"Kafka at {self._connection.brokers} cannot be reached: {text}"
        raise TransientError(
            msg, hint=f"Are the brokers up, and is {self._setting}.brokers right?", node=self.node
        )

    def earliest(self, partitions: Iterable[int]) -> dict[int, int]:
        """Return the first offset that each partition still has."""
        return self._offsets(partitions, "earliest", committed=True)

    def stable_end(self, partitions: Iterable[int]) -> dict[int, int]:
        """Return the last stable offset: after the last row that no open transaction can still abort."""
        return self._offsets(partitions, "latest", committed=True)

    def high_watermark(self, partitions: Iterable[int]) -> dict[int, int]:
        """Return the offset after the last row, committed or not."""
        return self._offsets(partitions, "latest", committed=False)

    def at_time(self, partitions: Iterable[int], moment_ms: int) -> dict[int, int]:
        """Return the first offset at or after a time; -1 for a partition without one."""
        return self._offsets(partitions, moment_ms, committed=True)

    def at_times(self, moments: Mapping[int, int]) -> dict[int, int]:
        """Return the first offset at or after a separate time for each partition."""
        from confluent_kafka.admin import OffsetSpec  # pyright: ignore[reportPrivateImportUsage]

        offsets = self._list_offsets(
            {part: OffsetSpec.for_timestamp(moment) for part, moment in moments.items()}, committed=True
        )
        return {part: offset for part, (offset, _) in offsets.items()}

    def newest_ms(self, partitions: Iterable[int]) -> dict[int, int]:
        """Return the time of the newest row of each partition, without those that have none."""
        from confluent_kafka.admin import OffsetSpec  # pyright: ignore[reportPrivateImportUsage]

        offsets = self._list_offsets(
            {part: OffsetSpec.max_timestamp() for part in partitions}, committed=False
        )
        return {part: moment for part, (_, moment) in offsets.items() if moment >= 0}

    def _offsets(self, partitions: Iterable[int], what: str | int, *, committed: bool) -> dict[int, int]:
        """Return the offset of each partition; `what` is `earliest`, `latest` or epoch milliseconds."""
        from confluent_kafka.admin import OffsetSpec  # pyright: ignore[reportPrivateImportUsage]

        named = {"earliest": OffsetSpec.earliest, "latest": OffsetSpec.latest}
        spec = OffsetSpec.for_timestamp(what) if isinstance(what, int) else named[what]()
        return {
            part: offset
            for part, (offset, _) in self._list_offsets(
                dict.fromkeys(partitions, spec), committed=committed
            ).items()
        }

    def _list_offsets(self, specs: Mapping[int, Any], *, committed: bool) -> dict[int, tuple[int, int]]:
        """Return the offset and the time that the brokers report for each partition."""
        from confluent_kafka import IsolationLevel, KafkaException, TopicPartition

        wanted: dict[Any, Any] = {TopicPartition(self.topic, part): spec for part, spec in specs.items()}
        if not wanted:
            return {}
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        offsets: dict[int, tuple[int, int]] = {}
        try:
            for attempt in stamina.retry_context(
                on=is_moving, wait_initial=0.05, wait_max=1.0, attempts=None, timeout=_TIMEOUT
            ):
                with attempt:
                    futures = self.admin.list_offsets(wanted, isolation_level=level, request_timeout=_TIMEOUT)
                    answers = {part.partition: answer.result() for part, answer in futures.items()}
                    offsets = {part: (answer.offset, answer.timestamp) for part, answer in answers.items()}
        except KafkaException as error:
            raise self.explain(error) from error
        return offsets

    def retention_ms(self) -> int | None:
        """Return how long the topic keeps rows by their time, or None if unlimited or unreadable."""
        result = self._config()
        kept = int(result.get("retention.ms", -1))
        return kept if "delete" in result.get("cleanup.policy", "") and kept >= 0 else None

    def cleanup_policy(self) -> frozenset[str]:
        """Return the parts of the topic's cleanup.policy; empty if unreadable."""
        return frozenset(filter(None, self._config().get("cleanup.policy", "").split(",")))

    def create(self, partitions: int, replicas: int | None, config: Mapping[str, str]) -> Topic:
        """Create the topic if it is missing, and return it. `replicas`: None is the brokers' default.

        Another process may create it at the same time.
        """
        if (result := self.find()) is not None:
            return result
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.cimpl import NewTopic

        new_topic = NewTopic(
            self.topic, partitions, -1 if replicas is None else replicas, config=dict(config)
        )
        try:
            self.admin.create_topics([new_topic], request_timeout=_TIMEOUT)[self.topic].result()
        except KafkaException as error:
            cause = error.args[0]
            if cause.name() in _INVALID_TOPIC:
                msg = f"topic `{self.topic}` cannot be created: {cause.str()}"
                raise TargetError(msg, hint="Correct the options of the sink.", node=self.node) from error
            if cause.code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise self.explain(error) from error
        # The controller has the topic before every broker knows it.
        deadline = time.monotonic() + _TIMEOUT
        while (result := self.find()) is None:
            if time.monotonic() > deadline:
                raise self._missing()
            time.sleep(0.02)
        return result

    def has_broker_time(self) -> bool:
        """Return whether the broker sets the time of every message (LogAppendTime). False if unreadable."""
        return self._config().get("message.timestamp.type") == "LogAppendTime"

    def _config(self) -> dict[str, str]:
        """Return the topic's configuration; empty if reading it is not permitted."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import ConfigResource, ResourceType  # pyright: ignore[reportPrivateImportUsage]

        resource = ConfigResource(ResourceType.TOPIC, self.topic)
        try:
            result = self.admin.describe_configs([resource], request_timeout=_TIMEOUT)[resource].result()
        except KafkaException as error:
            log.warning(
                "event=topic_configuration_unknown node=%s topic=%s error=%s",
                self.node,
                self.topic,
                error.args[0],
            )
            return {}
        return {name: str(entry.value) for name, entry in result.items()}

    def longest_transaction_s(self) -> float:
        """Return the brokers' transaction.max.timeout.ms in seconds; Kafka's default if unreadable."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import ConfigResource, ResourceType  # pyright: ignore[reportPrivateImportUsage]

        default = 15 * 60 * 1000
        try:
            broker = min(self.admin.list_topics(self.topic, timeout=_TIMEOUT).brokers)
            resource = ConfigResource(ResourceType.BROKER, str(broker))
            result = self.admin.describe_configs([resource], request_timeout=_TIMEOUT)[resource].result()
        except (KafkaException, ValueError) as error:
            log.info("event=transaction_timeout_unknown node=%s error=%s", self.node, error)
            return default / 1000
        entry = result.get("transaction.max.timeout.ms")
        return int(entry.value if entry is not None else default) / 1000

    def commit(self, group: str, offsets: Mapping[int, int]) -> None:
        """Set a group's offsets for lag tools.

        Errors are only logged, because Headrace never reads these offsets back.
        """
        from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition

        wanted = ConsumerGroupTopicPartitions(
            group, [TopicPartition(self.topic, part, offset) for part, offset in offsets.items()]
        )
        try:
            done = self.admin.alter_consumer_group_offsets([wanted], request_timeout=_TIMEOUT)[group].result()
            failed = [part for part in done.topic_partitions if part.error is not None]
            problem = failed[0].error if failed else None
        except KafkaException as error:
            problem = error.args[0]
        if problem is not None:
            # A coordinator that is still starting is ready by the next epoch, which sets the offsets again.
            level = logging.INFO if problem.name() in _COORDINATING else logging.WARNING
            log.log(level, "event=group_offsets_not_set node=%s group=%s error=%s", self.node, group, problem)

    def explain(self, error: KafkaException) -> HeadraceError:
        """Return the Headrace error of a client error."""
        from confluent_kafka import KafkaError

        cause = error.args[0]
        brokers = self._connection.brokers
        if cause.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return self._missing()
        refused = {
            KafkaError.TOPIC_AUTHORIZATION_FAILED,
            KafkaError.CLUSTER_AUTHORIZATION_FAILED,
            KafkaError.SASL_AUTHENTICATION_FAILED,
            KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            KafkaError._AUTHENTICATION,  # noqa: SLF001  librdkafka's local codes have no other name
        }
        if cause.code() in refused:
            msg = f"the brokers at {brokers} refuse access to topic `{self.topic}`: {cause.str()}"
            return TargetError(
                msg,
                hint=f"Set user and rights in {self._setting}.options (sasl.*, ssl.*)."
                f" Needed: {_RIGHTS[self._setting]}.",
                node=self.node,
            )
        msg = f"Kafka at {brokers} did not answer about topic `{self.topic}`: {cause.str()}"
        return TransientError(
            msg, hint=f"Are the brokers up, and is {self._setting}.brokers right?", node=self.node
        )

    def _missing(self) -> HeadraceError:
        from confluent_kafka import KafkaException

        try:
            names = [
                name for name in self.admin.list_topics(timeout=_TIMEOUT).topics if not name.startswith("__")
            ]
        except KafkaException as error:
            return self.explain(error)
        near = difflib.get_close_matches(self.topic, names, n=3)
        meant = (
            f" Did you mean {' or '.join(f'`{name}`' for name in near)}?"
            if near
            else f" It has: {', '.join(sorted(names)[:20]) or 'no topics'}."
        )
        msg = f"topic `{self.topic}` does not exist at {self._connection.brokers}.{meant}"
        return TargetError(
            msg,
            hint="Correct `topic` in the pipeline file, or create the topic; Headrace never creates it.",
            node=self.node,
        )

    def close(self) -> None:
        """Close the client and its connections."""
        self._admin = None
        self._cluster_id = ""
