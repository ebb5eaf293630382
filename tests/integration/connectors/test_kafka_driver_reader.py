"""Small ranges of a topic, read by a consumer of the driver: the same rows as by Spark, or Spark's errors."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from threading import current_thread
from typing import Any

import pyarrow as pa
import pytest
from helpers.depth import with_slow
from helpers.kafka_log import read_rows
from pyspark.sql import SparkSession

from headrace.connectors.kafka import driver_reader
from headrace.connectors.kafka import reader as reader_module
from headrace.connectors.kafka.config import KafkaSourceConfig
from headrace.connectors.kafka.decoded_batch import DecodedBatch
from headrace.connectors.kafka.driver_reader import DriverReader
from headrace.connectors.kafka.message_batch import MessageBatch
from headrace.connectors.kafka.source import KafkaStream
from headrace.connectors.stream_base import ReadLimits
from headrace.pipeline.config.sections import KafkaConnection
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.sql.system_columns import POS
from tests.integration.connectors.test_kafka import Broker, failure

SCHEMA = {"id": "int64", "name": "string"}


@pytest.fixture(scope="module")
def broker(services: Any) -> Broker:
    return Broker(services.kafka.brokers)


@pytest.fixture
def stream(broker: Broker) -> Iterator[Callable[..., KafkaStream]]:
    made: list[KafkaStream] = []

    def make(topic: str, driver_rows: int = 20_000) -> KafkaStream:
        node = KafkaSourceConfig.model_validate({"topic": topic, "schema": SCHEMA})
        connection = KafkaConnection(brokers=broker.brokers, driver_rows=driver_rows)
        made.append(KafkaStream("src", node, Settings(kafka_source=connection), 0))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def reader(broker: Broker) -> Iterator[Callable[[str], DriverReader]]:
    made: list[DriverReader] = []

    def make(topic: str) -> DriverReader:
        made.append(DriverReader("src", topic, KafkaConnection(brokers=broker.brokers), "readers"))
        return made[-1]

    yield make
    for one in made:
        one.release()


def is_local(frame: Any) -> bool:
    return frame._jdf.queryExecution().optimizedPlan().nodeName() == "LocalRelation"


def offsets(source: KafkaStream, spark: SparkSession, start: Any, end: Any) -> tuple[bool, list[Any]]:
    """Return whether the driver read the range, and its rows in order."""
    frame = read_rows(source, spark, start, end)
    rows = frame.orderBy(f"{POS}.part", f"{POS}.off").collect()
    return is_local(frame), [row.asDict(recursive=True) for row in rows]


def count_decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that receives the number of rows of each range that were decoded before it was read."""
    result: list[int] = []
    take = DriverReader.take_decoded

    def counted(self: DriverReader, ranges: Any) -> dict[int, list[DecodedBatch]]:
        taken = take(self, ranges)
        result.append(sum(len(batch) for batches in taken.values() for batch in batches))
        return taken

    monkeypatch.setattr(DriverReader, "take_decoded", counted)
    return result


@pytest.mark.parametrize("piece", [7, reader_module._PIECE])
@pytest.mark.parametrize("backlog", with_slow({1}, (driver_reader._BACKLOG, 1)))
@pytest.mark.parametrize("seed", with_slow({0, 2}, range(3)))
def test_a_walk_reads_what_spark_reads(
    broker: Broker,
    topic: Any,
    stream: Any,
    spark: SparkSession,
    seed: int,
    backlog: int,
    piece: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Transactions, aborted ones among them, partitions without rows, and messages after the end of a range.

    With a backlog of 1, the reader receives and decodes the next messages after each range. With a piece of
    7, it decodes the messages of a range in several parts.
    """
    monkeypatch.setattr(driver_reader, "_BACKLOG", backlog)
    monkeypatch.setattr(reader_module, "_PIECE", piece)
    decoded = count_decoded(monkeypatch)
    some = random.Random(seed)
    name = topic(3)
    driver, other = stream(name), stream(name, driver_rows=0)
    at, number, by_driver = driver.earliest_offsets(), 0, 0
    for _ in range(12):
        for _ in range(some.randrange(4)):
            values = [
                {"id": number + n, "name": "x" * some.randrange(50)} for n in range(some.randrange(1, 30))
            ]
            number += len(values)
            if some.random() < 0.4:
                broker.transaction(name, *values, commit=some.random() < 0.5)
            else:
                broker.send(name, *values, partition=some.randrange(3))
        end = driver.next_end_offsets(at, ReadLimits(rows=some.choice((5, 20, 1000))))
        if end == at:
            continue
        local, rows = offsets(driver, spark, at, end)
        by_driver += local
        assert rows == offsets(other, spark, at, end)[1]
        if some.random() < 0.3:  # an attempt that failed reads the range again
            assert offsets(driver, spark, at, end)[1] == rows
        receiver = driver._reader._driver._receiver
        if receiver is not None and some.random() < 0.7:  # else the next read stops it
            receiver.join()
        at = end
    assert by_driver > 3
    assert (sum(decoded) > 0) == (backlog == 1)


def test_the_consumer_stays_where_a_range_ended(broker: Broker, topic: Any, reader: Any) -> None:
    name = topic(2)
    broker.send(name, *({"id": n} for n in range(10)))
    one = reader(name)
    assert one.read({0: (0, 4)}).offsets == [0, 1, 2, 3]
    consumer = one._consumer
    assert one.read({0: (4, 9)}).offsets == [4, 5, 6, 7, 8]
    assert one._consumer is consumer
    assert one.read({0: (2, 5)}).offsets == [2, 3, 4]
    assert one._consumer is not consumer
    broker.send(name, {"id": 10}, partition=1)
    result = one.read({0: (5, 10), 1: (0, 1)})
    assert list(zip(result.partitions, result.offsets, strict=True)) == [
        *((0, n) for n in range(5, 10)),
        (1, 0),
    ]


def test_a_range_that_does_not_arrive_is_left_to_spark(
    broker: Broker, topic: Any, reader: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic(1)
    broker.send(name, *({"id": n} for n in range(10)))
    monkeypatch.setattr(driver_reader, "PATIENCE_S", 0.5)
    one = reader(name)
    assert one.read({0: (0, 11)}) is None
    broker.delete_before(name, 5)
    assert one.read({0: (0, 10)}) is None
    assert one.read({0: (5, 10)}).offsets == [5, 6, 7, 8, 9]
    monkeypatch.setattr(driver_reader, "DRIVER_BYTES", 20)
    assert one.read({0: (5, 10)}) is None
    monkeypatch.undo()
    monkeypatch.setattr(driver_reader, "_MOST_AHEAD", 2)
    assert one.read({0: (5, 6)}) is None


def test_a_large_range_and_what_follows_it_are_read_once(broker: Broker, topic: Any, reader: Any) -> None:
    """The consumer returns most of a full partition before the first message of the other one."""
    name = topic(2)
    broker.send(name, *[b"1"] * 80_000)
    broker.send(name, b"2", partition=1)
    one = reader(name)
    first = one.read({0: (0, 30_000), 1: (0, 1)})
    consumer = one._consumer
    second = one.read({0: (30_000, 80_000)})
    assert first.offsets == [*range(30_000), 0]
    assert second.offsets == list(range(30_000, 80_000))
    assert one._consumer is consumer


def test_the_next_range_arrives_while_the_last_one_is_written(
    broker: Broker, topic: Any, reader: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_reader, "_BACKLOG", 5)
    name = topic(1)
    broker.send(name, *({"id": n} for n in range(10)))
    one = reader(name)
    assert len(one.read({0: (0, 5)})) == 5
    one.receive_ahead(5)
    one._receiver.join()
    assert one._ahead[0].offsets == [5, 6, 7, 8, 9]
    with monkeypatch.context() as disconnected:
        disconnected.setattr(one, "_receive", None)
        assert one.read({0: (5, 9)}).offsets == [5, 6, 7, 8]
        assert one._receiver is None
    broker.send(name, {"id": 10})
    assert one.read({0: (9, 11)}).offsets == [9, 10]


def as_rows(batch: MessageBatch) -> pa.Table:
    return pa.table({"value": batch.values})


def test_the_rows_of_the_next_range_are_decoded_while_the_last_one_is_written(
    broker: Broker, topic: Any, reader: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A range ends inside a decoded batch, and another one after it, where the markers of a transaction are."""
    monkeypatch.setattr(driver_reader, "_BACKLOG", 5)
    name = topic(2)
    broker.send(name, *[b"a", b"b", b"c", b"d", b"e"])
    broker.send(name, b"v", b"w", partition=1)
    broker.transaction(name, "aborted", commit=False)
    broker.transaction(name, "f", commit=True)
    end = 9  # two messages, and a marker after each, follow the five
    one = reader(name)
    one.read({0: (0, 1), 1: (0, 1)})
    one.receive_ahead(5, as_rows)
    one._receiver.join()
    taken = one.take_decoded({0: (1, 3), 1: (1, 2)})
    assert {
        part: [batch.rows["value"].to_pylist() for batch in batches] for part, batches in taken.items()
    } == {
        0: [[b"b", b"c"]],
        1: [[b"w"]],
    }
    assert not len(one.read({0: (3, 3), 1: (2, 2)}))
    assert one._receiver is None
    taken = one.take_decoded({0: (3, end)})
    rows = [value for batch in taken[0] for value in batch.rows["value"].to_pylist()]
    rest = one.read({0: (taken[0][-1].end, end)})
    assert rows + rest.values == [b"d", b"e", b'"f"']
    assert one._ahead_size == 0
    assert not one.take_decoded({0: (0, 2)})  # the range before it, read again
    assert one.read({0: (0, 2)}).values == [b"a", b"b"]


@pytest.mark.parametrize("error", [None, ValueError("broken")], ids=["only Spark can", "error"])
def test_messages_that_cannot_be_decoded_ahead_are_there_for_the_next_range(
    broker: Broker, topic: Any, reader: Any, monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    monkeypatch.setattr(driver_reader, "_BACKLOG", 5)
    name = topic(1)
    broker.send(name, *({"id": n} for n in range(10)))
    one = reader(name)
    one.read({0: (0, 5)})

    def refuse(batch: MessageBatch) -> None:
        if error is not None:
            raise error

    one.receive_ahead(5, refuse)
    one._receiver.join()
    assert not one.take_decoded({0: (5, 10)})
    assert one.read({0: (5, 10)}).offsets == [5, 6, 7, 8, 9]


def test_a_broken_message_after_rows_that_are_decoded_is_named_as_by_spark(
    broker: Broker, topic: Any, stream: Any, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_reader, "_BACKLOG", 1)
    decoded = count_decoded(monkeypatch)
    name = topic(1)
    broker.send(name, *[b'{"id": 1}'] * 8)
    source = stream(name)
    at = source.earliest_offsets()
    first = source.next_end_offsets(at, ReadLimits(rows=2))
    assert len(source.read_table(spark, at, first)) == 2
    source._reader._driver._receiver.join()
    broker.send(name, b'{"id": "x"}')
    end = source.end_offsets()
    assert source.read_table(spark, first, end) is None
    assert decoded[-1] == 6
    result, expected = failure(source, spark), failure(stream(name, driver_rows=0), spark)
    assert result.message == expected.message


def test_an_error_between_two_ranges_is_met_by_the_next_read(
    broker: Broker, topic: Any, reader: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_reader, "_BACKLOG", 5)
    name = topic(1)
    broker.send(name, *({"id": n} for n in range(10)))
    one = reader(name)
    received = one._receive
    monkeypatch.setattr(one, "_receive", lambda: None if current_thread() is one._receiver else received())
    assert len(one.read({0: (0, 5)})) == 5
    first = one._consumer
    one.receive_ahead(5)
    one._receiver.join()
    monkeypatch.setattr(one, "_receive", received)
    assert one.read({0: (5, 10)}).offsets == [5, 6, 7, 8, 9]
    assert one._consumer is not first


def test_a_range_that_will_be_too_large_is_not_read(
    broker: Broker, topic: Any, reader: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic(1)
    broker.send(name, *[b"x" * 100] * 100)
    monkeypatch.setattr(driver_reader, "DRIVER_BYTES", 6_000)
    one = reader(name)
    assert len(one.read({0: (0, 10)})) == 10
    with monkeypatch.context() as disconnected:
        disconnected.setattr(one, "_connect", None)
        assert one.read({0: (10, 100)}) is None
    assert len(one.read({0: (10, 20)})) == 10


def test_a_range_of_many_bytes_is_read_in_pieces_up_to_a_limit(
    broker: Broker, topic: Any, stream: Any, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first pieces have few messages, because their size is unknown."""
    name = topic(2)
    for part in range(2):
        broker.send(name, *({"id": n, "name": "x" * 80} for n in range(100)), partition=part)
    monkeypatch.setattr(driver_reader, "DRIVER_BYTES", 12_000)
    monkeypatch.setattr(reader_module, "DRIVER_BYTES", 12_000)
    monkeypatch.setattr(reader_module, "_FIRST_PIECE", 40)
    source = stream(name)
    driver = source._reader._driver
    at, end = source.earliest_offsets(), source.end_offsets()
    for _ in range(2):
        table = source.read_table(spark, at, end)
        assert [row["off"] for row in table[POS].to_pylist()] == [*range(100)] * 2
        assert 90 < driver.mean_size < 110
    monkeypatch.setattr(reader_module, "_MOST_BYTES", 10_000)
    monkeypatch.setattr(driver, "_connect", None)
    assert source.read_table(spark, at, end) is None
    monkeypatch.undo()
    monkeypatch.setattr(reader_module, "_MOST_BYTES", 10_000)
    other = stream(name)
    assert other.read_table(spark, at, end) is None
    assert other._reader._driver.mean_size > 0


def test_messages_after_a_range_have_a_limit_in_bytes(
    broker: Broker, topic: Any, reader: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message of the other partition never arrives."""
    name = topic(2)
    broker.send(name, *[b"x" * 100] * 100)
    monkeypatch.setattr(driver_reader, "DRIVER_BYTES", 2_000)
    monkeypatch.setattr(driver_reader, "PATIENCE_S", 600)
    assert reader(name).read({0: (0, 1), 1: (0, 1)}) is None


def test_brokers_that_do_not_answer_are_left_to_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_reader, "PATIENCE_S", 0.5)
    one = DriverReader("src", "t", KafkaConnection(brokers="127.0.0.1:1"), "readers")
    assert one.read({0: (0, 1)}) is None
    assert one._consumer is None


def test_messages_that_only_spark_reads_pause_the_driver(
    broker: Broker, topic: Any, stream: Any, spark: SparkSession
) -> None:
    """Spark reads the range, and the next ones without another try of the driver: 1, then 3."""
    name = topic(1)
    ways = []
    source = stream(name)
    at = source.earliest_offsets()
    for name_of in (7, "a", 8, "b", "c", "d", "e", "f"):
        broker.send(name, json.dumps({"id": 1, "name": name_of}).encode())
        end = source.next_end_offsets(at, ReadLimits(rows=1))
        local, rows = offsets(source, spark, at, end)
        assert [row["name"] for row in rows] == [str(name_of)]
        ways.append(local)
        at = end
    assert ways == [False, False, False, False, False, False, True, True]


def test_a_broken_message_is_named_as_by_spark(
    broker: Broker, topic: Any, stream: Any, spark: SparkSession
) -> None:
    name = topic(1)
    broker.send(name, b'{"id": 1}', b'{"id": "x"}')
    result, expected = failure(stream(name), spark), failure(stream(name, driver_rows=0), spark)
    assert result.message == expected.message
    assert result.hint == expected.hint
