"""Create topics of tests."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic


def create_topic(admin: AdminClient, topic: NewTopic) -> None:
    """Create a topic. Wait while the controller fences the broker, as it does after the machine stood still."""
    from confluent_kafka import KafkaError, KafkaException

    deadline = time.monotonic() + 120
    while True:
        try:
            admin.create_topics([topic])[topic.topic].result(timeout=300)
        except KafkaException as error:
            fenced = error.args[0].code() == KafkaError.INVALID_REPLICATION_FACTOR
            if not fenced or time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return
