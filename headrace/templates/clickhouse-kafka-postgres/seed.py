"""Write 10,001 orders into the table, and an old one, a new one, an update and a delete to the topic."""

import json
from urllib.parse import urlsplit

import clickhouse_connect
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headrace.pipeline.config.settings import load_settings

settings = load_settings()  # the servers that Headrace uses


def fill_table() -> None:
    """Fill the table as if it had been loaded from the topic: its last row has the offset."""
    at = urlsplit(settings.clickhouse_source.url)
    client = clickhouse_connect.get_client(
        host=at.hostname,
        port=at.port,
        secure=at.scheme == "https",
        username=settings.clickhouse_source.user,
        password=settings.clickhouse_source.password.get_secret_value(),
    )
    client.command("CREATE DATABASE IF NOT EXISTS shop")
    client.command("""
        CREATE TABLE shop.$name (
            $key Int64, customer String, cents Int64, placed_at DateTime64(3, 'UTC'),
            _kafka_partition Nullable(Int32), _kafka_offset Nullable(Int64)
        ) ENGINE = MergeTree ORDER BY $key
    """)
    client.command("""
        INSERT INTO shop.$name
        SELECT number, concat('c', toString(number % 100)), number * 7 % 5000,
            toDateTime64('2025-01-01 00:00:00', 3, 'UTC') + number,
               NULL, NULL
        FROM numbers(10000)
    """)
    client.command("INSERT INTO shop.$name VALUES (10000, 'c1', 500, '2025-01-02 00:00:00', 0, 0)")


def fill_topic() -> None:
    """One JSON object per message; the header says what happened to the order.

    A delete needs only the key.
    """
    brokers = {"bootstrap.servers": settings.kafka_source.brokers}
    admin = AdminClient(brokers)  # its futures fail once it is collected
    admin.create_topics([NewTopic("$name", num_partitions=1)])["$name"].result()
    producer = Producer(brokers | {"enable.idempotence": True})  # a retry keeps the order of messages
    for op, order in (
        (
            "c",
            {"$key": 10000, "customer": "c1", "cents": 500, "placed_at": "2025-01-02T00:00:00Z"},
        ),  # the table has this one
        ("c", {"$key": 10001, "customer": "c2", "cents": 900, "placed_at": "2025-01-02T00:00:05Z"}),
        ("u", {"$key": 7, "customer": "c7", "cents": 1, "placed_at": "2025-01-01T00:00:07Z"}),
        ("d", {"$key": 8}),
    ):
        producer.produce("$name", json.dumps(order), key=str(order["$key"]), headers=[("dbz.op", op)])
    producer.flush()


fill_table()
fill_topic()
print("10,001 rows in the table shop.$name, 4 messages on the topic $name")
