"""The fixtures return separate databases and topics on real servers."""

from __future__ import annotations

from collections.abc import Callable

import clickhouse_connect
import psycopg
import pytest
from confluent_kafka import Consumer, Producer
from psycopg.conninfo import make_conninfo

from headrace.services import Services


@pytest.mark.parametrize("turn", [1, 2])
def test_each_test_has_a_postgres_database_of_its_own(pg: str, turn: int):
    with psycopg.connect(pg) as connection:
        connection.execute("CREATE TABLE t (turn int)")  # would exist already if the database were shared
        assert connection.execute("SHOW wal_level").fetchone() == ("logical",)
        assert connection.execute("SHOW server_encoding").fetchone() == ("UTF8",)


@pytest.mark.parametrize("turn", [1, 2])
def test_each_test_has_a_clickhouse_database_of_its_own(services: Services, ch_db: str, turn: int):
    with clickhouse_connect.get_client(**services.clickhouse.client_arguments(database=ch_db)) as client:
        client.command("CREATE TABLE t (turn Int32) ENGINE = MergeTree ORDER BY turn")
        client.insert("t", [[turn]], column_names=["turn"])
        assert client.query("SELECT turn FROM t").result_rows == [(turn,)]


def test_topics_hold_what_is_sent_even_if_it_is_years_old(services: Services, topic: Callable[..., str]):
    name = topic(partitions=2, cleanup_policy="delete")
    producer = Producer({"bootstrap.servers": services.kafka.brokers})
    producer.produce(name, b"row", partition=1, timestamp=1_000_000_000_000)
    assert producer.flush(30) == 0
    consumer = Consumer(
        {"bootstrap.servers": services.kafka.brokers, "group.id": name, "auto.offset.reset": "earliest"}
    )
    try:
        consumer.subscribe([name])
        message = consumer.poll(60)
        assert message is not None
        assert (message.value(), message.partition(), message.timestamp()[1]) == (
            b"row",
            1,
            1_000_000_000_000,
        )
    finally:
        consumer.close()


def test_a_topic_is_never_made_by_asking_for_it(services: Services):
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": services.kafka.brokers})
    topic = admin.list_topics("unknown-topic", timeout=300).topics["unknown-topic"]
    assert topic.error is not None
    assert "unknown-topic" not in admin.list_topics(timeout=300).topics


def test_a_wrong_postgres_password_is_refused(services: Services):
    wrong = make_conninfo(services.postgres.conninfo(), password="wrong")
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(wrong)
