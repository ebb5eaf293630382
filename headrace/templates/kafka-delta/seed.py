"""Write example data: 1,000 readings of 50 sensors to the topic, and one impossible reading."""

import json
from datetime import UTC, datetime, timedelta

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headrace.pipeline.config.settings import load_settings

brokers = {"bootstrap.servers": load_settings().kafka_source.brokers}  # those that Headrace uses
admin = AdminClient(brokers)  # its futures fail once it is collected
admin.create_topics([NewTopic("$name", num_partitions=2)])["$name"].result()
producer = Producer(brokers | {"enable.idempotence": True})  # a retry keeps the order of messages


def send(sensor: str, celsius: float, at: datetime) -> None:
    """Send one JSON object per message. Messages of one key stay in order: they go to one partition."""
    body = {"$key": sensor, "celsius": celsius, "measured_at": at.isoformat()}
    producer.produce("$name", json.dumps(body), key=sensor)


start = datetime(2025, 1, 1, tzinfo=UTC)
for number in range(1000):
    send(f"s{number % 50}", number % 40 - 5.0, start + timedelta(minutes=number))
send("broken", 999.0, start + timedelta(days=1))
producer.flush()
print("1,001 messages on the topic $name")
