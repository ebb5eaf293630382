"""The claims on a Kafka topic, in the topic of commit records.

All claimers of one topic have one transactional id, so they exclude each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta

from headrace.connectors.kafka.admin import TopicCluster
from headrace.connectors.kafka.commit_log import CommitLog, LogEntry, TopicSinkState
from headrace.connectors.kafka.producer import ProducerFencedError, TransactionalProducer
from headrace.pipeline.errors import TransientError
from headrace.pipeline.protocol.claims import Claim, TargetClaimant

SHORT_TRANSACTION = timedelta(seconds=10)
"""Timeout of transactions that have only entries of the log."""
_ATTEMPTS = 5


class TopicClaims:
    """The claims on the topic of one sink."""

    def __init__(
        self,
        owner: TargetClaimant,
        cluster: TopicCluster,
        log: CommitLog,
        create_producer: Callable[[str, timedelta], TransactionalProducer],
    ) -> None:
        """`create_producer` returns the producer of a transactional id."""
        self._owner = owner
        self._cluster = cluster
        self._log = log
        self._create_producer = create_producer

    def read(self) -> Sequence[Claim]:
        """Return the claims. A topic made again has none."""
        topic = self._cluster.find()
        return [] if topic is None else self._log.read_claims(topic.topic_id)

    def add(self, target: str) -> bool:
        """Add the owner's claim. The writers of claims that it replaces are fenced first.

        Raise SinkStateError for a rival's claim. Return False if others claim the topic without pause.
        """
        owner, topic_id = self._owner, self._cluster.describe().topic_id

        def entries() -> list[LogEntry]:
            claims = self._log.read_claims(topic_id)
            owner.refuse(claims, target)
            former = owner.former(claims)
            self._fence_writers(former)
            ended = [self._log.claim_end(claim.key) for claim in former]
            return [*ended, self._log.claim_entry(owner.key, topic_id, share=owner.share)]

        claims = self._log.read_claims(topic_id)
        if Claim(owner.key, owner.share) in claims and not owner.former(claims):
            return True
        return self._change(entries)

    def release(self, claims: Sequence[Claim]) -> bool:
        """Fence each sink with the generation after its own, remove its record, then its claim.

        Return False if others claim the topic without pause.
        """
        self._fence_writers(claims)
        return self._change(lambda: [self._log.claim_end(claim.key) for claim in claims])

    def _change(self, entries: Callable[[], list[LogEntry]]) -> bool:
        """Write the entries that `entries` returns after other claimers of the topic were fenced."""
        producer = self._create_producer(f"claims/{self._cluster.topic}", SHORT_TRANSACTION)
        for _ in range(_ATTEMPTS):
            try:
                producer.open()
                with producer.transaction():
                    producer.send_entries(entries())
            except ProducerFencedError:
                continue
            else:
                return True
            finally:
                producer.close()
        return False

    def _fence_writers(self, claims: Iterable[Claim]) -> None:
        """Fence the producers of other sinks, and replace their records by the next generation."""
        for claim in claims:
            producer = self._create_producer(claim.key.text, SHORT_TRANSACTION)
            try:
                producer.open()
                state = self._log.read_state(claim.key.text)
                if state is None:
                    continue
                ended = TopicSinkState(state.generation + 1, state.topic_id, None)
                with producer.transaction():
                    producer.send_entries([self._log.state_entry(claim.key.text, ended)])
            except ProducerFencedError as error:
                msg = f"sink '{claim.key.sink}' of pipeline '{claim.key.name}' started again"
                raise TransientError(msg, node=self._owner.key.sink) from error
            finally:
                producer.close()
