"""A topic as an unbounded source, on a real broker."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, cast

import pytest
from helpers.kafka_log import await_marker, read_rows
from pyspark.sql import SparkSession

from headrace.connectors.kafka.config import KafkaSourceConfig
from headrace.connectors.kafka.growth import founding_moments
from headrace.connectors.kafka.source import KafkaStream
from headrace.connectors.row_errors import explain_failure
from headrace.connectors.stream_base import ReadLimits
from headrace.pipeline.config.sections import KafkaConnection
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import (
    DataError,
    HeadraceError,
    RetentionError,
    SchemaError,
    TargetError,
    TransientError,
    UserError,
)

PLAIN = {"id": "int64", "name": "string"}
MANY = ReadLimits(rows=1_000_000)


class Broker:
    """What a test does to the cluster."""

    def __init__(self, brokers: str) -> None:
        from confluent_kafka import Producer
        from confluent_kafka.admin import AdminClient

        self.brokers = brokers
        self.admin = AdminClient({"bootstrap.servers": brokers, "log_level": 0})
        # Without idempotence, a message that is sent again can follow a later one.
        self.producer = Producer({"bootstrap.servers": brokers, "log_level": 0, "enable.idempotence": True})

    def send(self, topic: str, *values: object, partition: int = 0, **more: Any) -> None:
        for value in values:
            payload = value if isinstance(value, bytes | None) else json.dumps(value).encode()
            self.producer.produce(topic, payload, partition=partition, **more)
        assert self.producer.flush(30) == 0

    def transaction(self, topic: str, *values: object, commit: bool | None) -> Any:
        """`commit` None leaves it open and returns its producer."""
        from confluent_kafka import Producer

        producer = Producer(
            {
                "bootstrap.servers": self.brokers,
                "log_level": 0,
                "transactional.id": f"tx-{topic}-{time.monotonic_ns()}",
            }
        )
        producer.init_transactions(30)
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, json.dumps(value).encode(), partition=0)
        assert producer.flush(30) == 0
        if commit is not None:
            with await_marker(self.brokers, topic):
                (producer.commit_transaction if commit else producer.abort_transaction)(30)
        return producer

    def delete_before(self, topic: str, offset: int) -> None:
        from confluent_kafka import TopicPartition

        for done in self.admin.delete_records([TopicPartition(topic, 0, offset)]).values():
            done.result(30)


@pytest.fixture(scope="module")
def broker(services: Any) -> Broker:
    return Broker(services.kafka.brokers)


driver_is_daily = pytest.mark.parametrize(
    "driver_rows", [20_000, pytest.param(0, marks=pytest.mark.slow)], ids=["driver", "spark"]
)
"""For messages one by one: the driver leaves to Spark what it cannot read, so Spark names every mistake.

test_the_driver_reads_what_spark_reads is the daily test of what both can read.
"""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Read rows in both ways: in the driver, and by Spark."""
    own = any("driver_rows" in mark.args[0] for mark in metafunc.definition.iter_markers("parametrize"))
    if {"spark", "driver_rows"} <= set(metafunc.fixturenames) and not own:
        metafunc.parametrize("driver_rows", [20_000, 0], ids=["driver", "spark"])


@pytest.fixture
def driver_rows() -> int:
    return 20_000


@pytest.fixture
def stream(broker: Broker, driver_rows: int) -> Iterator[Callable[..., KafkaStream]]:
    made: list[KafkaStream] = []

    def make(
        topic: str, schema: dict[str, str] | None = None, *, ordinal: int = 0, **more: Any
    ) -> KafkaStream:
        node = KafkaSourceConfig.model_validate({"topic": topic, "schema": schema or PLAIN, **more})
        connection = KafkaConnection(brokers=broker.brokers, driver_rows=driver_rows)
        made.append(KafkaStream("src", node, Settings(kafka_source=connection), ordinal))
        return made[-1]

    yield make
    for one in made:
        one.close()


def until(result: Callable[[], bool]) -> None:
    """Polls what the cluster only learns after a moment."""
    deadline = time.monotonic() + 60
    while not result():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def rows(source: KafkaStream, spark: SparkSession) -> list[dict[str, Any]]:
    start = source.earliest_offsets()
    return [
        row.asDict(recursive=True)
        for row in read_rows(source, spark, start, source.next_end_offsets(start, MANY)).collect()
    ]


def failure(source: KafkaStream, spark: SparkSession) -> HeadraceError:
    with pytest.raises(Exception) as caught:  # noqa: PT011  whatever Spark wraps it in
        rows(source, spark)
    explained = explain_failure(caught.value)
    assert explained is not None, caught.value
    return explained


def test_rows_carry_payload_operation_and_order(
    broker: Broker, topic: Any, stream: Any, spark: SparkSession
) -> None:
    name = topic(2)
    broker.send(name, {"name": "a", "id": 1, "more": [1]}, {"id": 2})
    broker.send(name, {"id": 3, "name": None}, partition=1)
    source = stream(name, ordinal=7, include_metadata=True)
    result = sorted(rows(source, spark), key=lambda row: row["id"])
    assert source.schema().names == ["id", "name", "__kafka_partition", "__kafka_offset", "__kafka_timestamp"]
    assert [(row["id"], row["name"], row["_gs_op"]) for row in result] == [
        (1, "a", "i"),
        (2, None, "i"),
        (3, None, "i"),
    ]
    assert [row["_gs_pos"] for row in result] == [
        {"source": 7, "part": 0, "off": 0, "sub": 0},
        {"source": 7, "part": 0, "off": 1, "sub": 0},
        {"source": 7, "part": 1, "off": 0, "sub": 0},
    ]
    assert [(row["__kafka_partition"], row["__kafka_offset"]) for row in result] == [(0, 0), (0, 1), (1, 0)]
    assert all(row["__kafka_timestamp"].year > 2020 for row in result)


def test_frame_has_the_schema_that_the_source_announces(topic: Any, stream: Any, spark: SparkSession) -> None:
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    kinds = {
        "a": "int8",
        "b": "uint8",
        "c": "uint16",
        "d": "uint32",
        "e": "uint64",
        "f": "float16",
        "g": "timestamp",
        "h": "date64",
    }
    kinds |= {
        "i": "decimal(5,2)",
        "j": "binary",
        "k": "boolean",
        "l": "time64",
        "m": "float64",
        "n": "decimal256(30,3)",
    }
    source = stream(topic(), kinds)
    frame = read_rows(source, spark, source.earliest_offsets(), source.earliest_offsets())
    assert frame.count() == 0
    payload = StructType([field for field in frame.schema.fields if not field.name.startswith("_gs_")])
    assert to_arrow_schema(payload) == source.schema()


def test_operation_comes_from_the_header(
    broker: Broker, topic: Any, stream: Any, spark: SparkSession
) -> None:
    name = topic()
    for op in ("r", "C", "u", "D"):
        broker.send(name, {"id": 1}, headers=[("other", b"x"), ("dbz.op", op.encode())])
    broker.send(name, {"id": 1}, headers=[("other", b"d")])
    broker.send(name, {"id": 1})
    assert [row["_gs_op"] for row in rows(stream(name), spark)] == ["i", "i", "u", "d", "i", "i"]


def test_unknown_operation_is_named_with_its_place(
    broker: Broker, topic: Any, stream: Any, spark: SparkSession
) -> None:
    name = topic()
    broker.send(name, {"id": 1})
    broker.send(name, {"id": 1}, headers=[("dbz.op", b"t")])
    error = failure(stream(name), spark)
    assert isinstance(error, DataError)
    assert error.node == "src"
    assert f"topic {name}, partition 0, offset 1: header dbz.op says `t`" in error.message


def test_payload_may_bring_the_operation_itself(
    broker: Broker, topic: Any, stream: Any, spark: SparkSession
) -> None:
    name = topic()
    broker.send(name, {"id": 1, "_gs_op": "d"}, {"id": 2})
    source = stream(name, {"id": "int64", "_gs_op": "string"})
    assert source.schema().names == ["id"]
    assert [row["_gs_op"] for row in rows(source, spark)] == ["d", "i"]


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b'{"id": 1,', "Expecting property name"),
        (b'{"id": 1} and more', "Extra data"),
        pytest.param(b'{"id": 1}{"id": 2}', "Extra data", marks=pytest.mark.slow),
        (b'[{"id": 1}]', "one object per message is expected, found an array"),
        pytest.param(b"5", "one object per message is expected, found a number", marks=pytest.mark.slow),
        (b"null", "one object per message is expected, found null"),
        (b"", "Expecting value"),
        pytest.param(b"{'id': 1}", "Expecting property name", marks=pytest.mark.slow),
        (b'{"id": "5"}', 'column `id` is int64, found a text "5"'),
        pytest.param(b'{"id": 1.5}', "column `id` is int64, found a number 1.5", marks=pytest.mark.slow),
        (b'{"id": 9223372036854775808}', "column `id` is int64, found a number 9223372036854775808"),
        (b'{"name": "\xff"}', "the payload is not UTF-8"),
        (None, "the message has no payload (a tombstone)"),
    ],
)
@driver_is_daily
def test_broken_message_is_named(
    broker: Broker, topic: Any, stream: Any, spark: SparkSession, payload: bytes | None, message: str
) -> None:
    name = topic()
    broker.send(name, {"id": 1, "name": 'with ${x} <y> "quotes"'}, payload)
    error = failure(stream(name), spark)
    assert isinstance(error, DataError)
    assert f"topic {name}, partition 0, offset 1: " in error.message
    assert message in error.message


def test_a_tombstone_deletes_the_row_of_its_key(
    broker: Broker, topic: Any, stream: Any, spark: SparkSession
) -> None:
    name = topic()
    broker.send(name, {"id": 1, "name": "a"}, None, key=b'{"id": 7}')
    source = stream(name, tombstone="delete", primary_key="id")
    frame = read_rows(source, spark, source.earliest_offsets(), source.end_offsets())
    assert sorted(map(tuple, frame.select("id", "name", "_gs_op").collect())) == [
        (1, "a", "i"),
        (7, None, "d"),
    ]


@pytest.mark.parametrize(
    ("key", "says"),
    [
        (None, "the message has no payload (a tombstone)"),
        (b"7", "one object per message is expected, found a number"),
        (b'{"name": "a"}', "the message has no payload (a tombstone), and its key lacks `id`"),
    ],
)
@driver_is_daily
def test_a_tombstone_without_its_key_is_named(
    broker: Broker, topic: Any, stream: Any, spark: SparkSession, key: bytes | None, says: str
) -> None:
    name = topic()
    broker.send(name, {"id": 1, "name": "a"})
    broker.send(name, None, key=key)
    error = failure(stream(name, tombstone="delete", primary_key="id"), spark)
    assert f"topic {name}, partition 0, offset 1: " in error.message
    assert says in error.message


def test_broken_message_fails_also_where_its_columns_are_not_used(
    broker: Broker, topic: Any, stream: Any, spark: SparkSession
) -> None:
    name = topic()
    broker.send(name, {"id": 1, "name": "a"}, {"id": "x", "name": "b"})
    source = stream(name)
    frame = (
        read_rows(source, spark, source.earliest_offsets(), source.end_offsets())
        .select("name")
        .where("name = 'b'")
    )
    with pytest.raises(Exception, match="headrace-row"):
        frame.collect()


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("int8", -128, -128),
        pytest.param("uint8", 255, 255, marks=pytest.mark.slow),
        ("uint64", 2**64 - 1, Decimal(2**64 - 1)),
        pytest.param("int64", -(2**63), -(2**63), marks=pytest.mark.slow),
        ("float64", 0.1, 0.1),
        pytest.param("boolean", True, True, marks=pytest.mark.slow),
        ("string", {"a": [1]}, '{"a":[1]}'),
        ("decimal(38,0)", "9" * 38, Decimal("9" * 38)),
        (
            "decimal",
            "12345678901234567890123456789.123456789",
            Decimal("12345678901234567890123456789.123456789"),
        ),
        pytest.param("decimal(18,2)", 12.5, Decimal("12.50"), marks=pytest.mark.slow),
        ("binary", "00fF", b"\x00\xff"),
        ("date32", "2024-02-29", "2024-02-29"),
        ("timestamp", "2024-01-02T03:04:05.123456Z", "2024-01-02T03:04:05.123456"),
        pytest.param("timestamp", "2024-01-02 03:04:05+02:00", "2024-01-02T01:04:05", marks=pytest.mark.slow),
        pytest.param("timestamp", "2024-01-02", "2024-01-02T00:00:00", marks=pytest.mark.slow),
        ("time64", "03:04:05", "03:04:05"),
    ],
)
@driver_is_daily
def test_value_is_held_exactly(
    broker: Broker, topic: Any, stream: Any, spark: SparkSession, kind: str, value: object, expected: object
) -> None:
    name = topic()
    broker.send(name, {"v": value}, {"v": None})
    source = stream(name, {"v": kind})
    frame = read_rows(source, spark, source.earliest_offsets(), source.end_offsets())
    first, second = (row["v"] for row in frame.toArrow().to_pylist())
    if hasattr(first, "isoformat"):
        first = first.isoformat().removesuffix("+00:00")
    assert (first, second) == (expected, None)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("int8", 200),
        pytest.param("int8", 40000, marks=pytest.mark.slow),
        ("uint8", -1),
        pytest.param("uint16", 65536, marks=pytest.mark.slow),
        pytest.param("uint32", -1, marks=pytest.mark.slow),
        pytest.param("uint64", -1, marks=pytest.mark.slow),
        ("uint64", 1.5),
        ("uint64", 2**64),
        ("uint256", 2**256),
        ("decimal(5,2)", 1.005),
        ("decimal(5,2)", "1000.00"),
        pytest.param("decimal(5,2)", "abc", marks=pytest.mark.slow),
        ("boolean", "true"),
        ("binary", "xy"),
        ("date32", "2024-01-02T03:04:05"),
        ("date32", 19000),
        ("timestamp", "12:30"),
        pytest.param("timestamp", "2024", marks=pytest.mark.slow),
        ("timestamp", 1_700_000_000),
        ("timestamp", "2024-13-01T00:00:00Z"),
    ],
)
@driver_is_daily
def test_value_that_the_type_cannot_hold_is_refused(
    broker: Broker, topic: Any, stream: Any, spark: SparkSession, kind: str, value: object
) -> None:
    name = topic()
    broker.send(name, {"v": value})
    error = failure(stream(name, {"v": kind}), spark)
    assert f"topic {name}, partition 0, offset 0: " in error.message
    assert f"column `v` is {kind}" in error.message


@pytest.mark.parametrize("kind", ["duration", "interval"])
def test_type_that_json_cannot_carry_is_refused(stream: Any, kind: str) -> None:
    with pytest.raises(
        SchemaError,
        match=f"column `v`: JSON messages cannot carry {kind}".replace("(", r"\(").replace(")", r"\)"),
    ):
        stream("t", {"v": kind}).schema()


def test_only_committed_rows_are_read(broker: Broker, topic: Any, stream: Any, spark: SparkSession) -> None:
    name = topic()
    broker.send(name, {"id": 1})
    broker.transaction(name, {"id": 2}, {"id": 3}, commit=False)
    broker.transaction(name, {"id": 4}, commit=True)
    pending = broker.transaction(name, {"id": 5}, commit=None)
    broker.send(name, {"id": 6})
    source = stream(name)
    assert [row["id"] for row in rows(source, spark)] == [1, 4]
    before = source.next_end_offsets(source.earliest_offsets(), MANY)
    assert before == source.end_offsets()
    assert source.backlog(before) == 2, "rows that wait for an open transaction have arrived"
    (stall,) = source.stalls(before)
    assert (stall.partition, stall.last_stable, stall.high_watermark) == ("0", 6, 8)
    assert stall.since_ms is not None
    assert abs(time.time() * 1000 - stall.since_ms) < 600_000
    assert source.next_end_offsets(before, MANY) == before
    pending.commit_transaction(30)
    until(lambda: source.end_offsets() != before)
    after = source.next_end_offsets(before, MANY)
    assert [row["id"] for row in read_rows(source, spark, before, after).collect()] == [5, 6]
    assert source.stalls(after) == []


def test_epoch_takes_a_fair_share(broker: Broker, topic: Any, stream: Any) -> None:
    name = topic(3)
    broker.send(name, *({"id": n} for n in range(50)), partition=0)
    broker.send(name, *({"id": n} for n in range(3)), partition=1)
    source = stream(name)
    at = source.earliest_offsets()
    assert at["offsets"] == {"0": 0, "1": 0, "2": 0}
    at = source.next_end_offsets(at, ReadLimits(rows=20))
    assert at["offsets"] == {"0": 17, "1": 3, "2": 0}
    assert source.next_end_offsets(at, ReadLimits(rows=100, per_partition=5))["offsets"] == {
        "0": 22,
        "1": 3,
        "2": 0,
    }
    assert stream(name, batch_size=4).next_end_offsets(at, ReadLimits(rows=100))["offsets"] == {
        "0": 21,
        "1": 3,
        "2": 0,
    }
    assert source.backlog(at) == 33


def test_same_range_gives_the_same_rows_again(
    broker: Broker, topic: Any, stream: Any, spark: SparkSession
) -> None:
    name = topic(2)
    broker.send(name, *({"id": n} for n in range(30)))
    broker.send(name, *({"id": n} for n in range(30, 60)), partition=1)
    source = stream(name)
    start = source.next_end_offsets(source.earliest_offsets(), ReadLimits(rows=10))
    end = source.next_end_offsets(start, ReadLimits(rows=20))
    first = read_rows(source, spark, start, end).toArrow().sort_by("id")
    broker.send(name, {"id": 99})
    again = read_rows(stream(name), spark, start, end).toArrow().sort_by("id")
    assert first.num_rows == 20
    assert first == again


def test_new_partition_begins_at_its_first_row(
    broker: Broker, topic: Any, stream: Any, spark: SparkSession
) -> None:
    from confluent_kafka.cimpl import NewPartitions

    name = topic(1)
    broker.send(name, {"id": 1})
    source = stream(name)
    before = source.end_offsets()
    broker.admin.create_partitions([NewPartitions(name, 2)])[name].result(30)
    until(lambda: len(source.end_offsets()["offsets"]) == 2)
    Broker(broker.brokers).send(
        name, {"id": 2}, partition=1
    )  # the other producer learns of partitions only after minutes
    after = source.next_end_offsets(before, MANY)
    assert after["offsets"] == {"0": 1, "1": 1}
    assert [row["id"] for row in read_rows(source, spark, before, after).collect()] == [2]


def grow(broker: Broker, source: KafkaStream, name: str, partitions: int) -> Broker:
    """Add partitions to a topic; the producer of the broker that is returned knows them."""
    from confluent_kafka.cimpl import NewPartitions

    broker.admin.create_partitions([NewPartitions(name, partitions)])[name].result(30)
    until(lambda: len(source.end_offsets()["offsets"]) == partitions)
    return Broker(broker.brokers)


def test_known_partitions_are_drained_before_a_new_one_is_read(
    broker: Broker, topic: Any, stream: Any
) -> None:
    """Rows from before the growth, then the rest of the known partitions, then the new one.

    A resumed position keeps the barriers.
    """
    name = topic(2)
    source = stream(name)
    new = int(time.time() * 1000)
    old = new - 600_000
    before = source.next_end_offsets(source.earliest_offsets(), MANY)
    broker.send(name, *({"id": n} for n in range(10)), timestamp=old)
    broker.send(name, *({"id": n} for n in range(10)), partition=1, timestamp=old)
    grown = grow(broker, source, name, 3)
    at = source.next_end_offsets(before, ReadLimits(rows=6))
    assert at["offsets"] == {"0": 3, "1": 3}, "a partition without rows does not count yet"
    assert "growing" not in at
    grown.send(name, {"id": 100}, partition=2, timestamp=new)
    grown.send(name, {"id": 101}, timestamp=new)
    at = source.next_end_offsets(at, ReadLimits(rows=6))
    assert at["growing"] == {"partitions": ["2"], "ends": [{"0": 10, "1": 10}, {"0": 11, "1": 10}]}
    grown.send(name, {"id": 102}, timestamp=new)
    seen = [at["offsets"]]
    while (further := stream(name).next_end_offsets(json.loads(json.dumps(at)), MANY)) != at:
        at = further
        seen.append(at["offsets"])
    assert seen == [{"0": 6, "1": 6}, {"0": 10, "1": 10}, {"0": 11, "1": 10}, {"0": 12, "1": 10, "2": 1}]
    assert "growing" not in at


@pytest.mark.parametrize("apart_s", [1_800, 2])
def test_a_topic_that_grew_twice_while_nothing_ran(
    broker: Broker, topic: Any, stream: Any, apart_s: int
) -> None:
    """Keys that moved to the first new partition, and back to a known one with the second growth, are read in this order."""
    name = topic(1)
    source = stream(name)
    at = source.end_offsets()
    first = int(time.time() * 1000) - 3_600_000
    second = first + apart_s * 1_000
    broker.send(name, {"id": 1}, timestamp=first - 1)
    grown = grow(broker, source, name, 2)
    grown.send(name, {"id": 1}, partition=1, timestamp=first)
    grown = grow(grown, source, name, 4)
    grown.send(name, {"id": 2}, partition=3, timestamp=second)
    grown.send(name, {"id": 1}, timestamp=second + 1)
    seen = []
    while (further := stream(name).next_end_offsets(json.loads(json.dumps(at)), MANY)) != at:
        at = further
        seen.append(at["offsets"])
    assert seen == [{"0": 1}, {"0": 1, "1": 1}, {"0": 2, "1": 1}, {"0": 2, "1": 1, "3": 1}]


@pytest.mark.parametrize("step", [2_000, 1])
def test_many_partitions_with_few_rows_need_few_barriers(step: int) -> None:
    moments = founding_moments({part: 1_000_000 + part * step for part in range(200)})
    assert len(moments) == (16 if step == 2_000 else 0)
    assert moments == sorted(moments)


def test_an_open_transaction_before_a_growth_holds_the_new_partition_back(
    broker: Broker, topic: Any, stream: Any
) -> None:
    name = topic(1)
    source = stream(name)
    before = source.end_offsets()
    pending = broker.transaction(name, {"id": 1}, commit=None)
    grow(broker, source, name, 2).send(name, {"id": 1}, partition=1)
    assert source.next_end_offsets(before, MANY) == before
    pending.commit_transaction(30)
    until(lambda: source.end_offsets()["offsets"]["0"] == 2)
    seen = [before]
    while (further := source.next_end_offsets(seen[-1], MANY)) != seen[-1]:
        seen.append(further)
    assert [at["offsets"] for at in seen] == [{"0": 0}, {"0": 1}, {"0": 2}, {"0": 2, "1": 1}], (
        "its commit is later than the new row"
    )


def test_a_topic_that_has_grown_is_read_by_the_times_of_first_rows(
    broker: Broker, topic: Any, stream: Any
) -> None:
    """No order across partitions is known.

    Borders of epochs at the first row of each later partition separate most moved keys.
    """
    name = topic(2)
    new = int(time.time() * 1000)
    old = new - 600_000
    broker.send(name, {"id": 1}, {"id": 2}, timestamp=old)
    broker.send(name, {"id": 3}, partition=1, timestamp=old)
    source = stream(name)
    grown = grow(broker, source, name, 3)
    grown.send(name, {"id": 3}, partition=2, timestamp=new)
    grown.send(name, {"id": 3}, timestamp=new)
    at = source.initial_offsets()
    assert at["growing"] == {"partitions": [], "ends": [{"0": 2, "1": 1, "2": 0}]}
    at = source.next_end_offsets(at, MANY)
    assert at["offsets"] == {"0": 2, "1": 1, "2": 0}
    assert source.next_end_offsets(at, MANY)["offsets"] == {"0": 3, "1": 1, "2": 1}


def test_times_of_producers_are_no_fence(broker: Broker, topic: Any, stream: Any) -> None:
    """Rows appended now may carry any time; only times that the broker sets say when a row arrived."""
    now = int(time.time() * 1000)
    for kind, fence in (("CreateTime", 0), ("LogAppendTime", 2)):
        name = topic(1, message_timestamp_type=kind)
        broker.send(name, {"id": 1}, timestamp=now - 3 * 3_600_000)
        time.sleep(1.5 if fence else 0)  # more than the time until the fence is worked out
        since = int(time.time() * 1000)
        broker.send(name, {"id": 2}, timestamp=now - 3 * 3_600_000)
        assert stream(name).offsets_for_time(since)["offsets"] == {"0": min(fence, 1)}


def test_a_clock_ahead_of_the_brokers_moves_no_fence(
    broker: Broker, topic: Any, stream: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table lacks the messages of the last minute, by the brokers' clock."""
    name = topic(2, message_timestamp_type="LogAppendTime")
    broker.send(name, {"id": 1}, {"id": 2})
    real = time.time
    monkeypatch.setattr("headrace.connectors.kafka.source.time", SimpleNamespace(time=lambda: real() + 90))
    assert stream(name).offsets_for_time(int((real() + 90 - 60) * 1000))["offsets"] == {"0": 0, "1": 0}


def test_new_partition_that_lost_rows_already_is_refused(broker: Broker, topic: Any, stream: Any) -> None:
    name = topic(1)
    source = stream(name)
    before = source.end_offsets() | {"offsets": {}}
    broker.send(name, {"id": 1}, {"id": 2})
    broker.delete_before(name, 1)
    with pytest.raises(RetentionError, match="partition 0: next to read 0, earliest held 1"):
        source.next_end_offsets(before, MANY)


def test_topic_made_anew_is_refused(broker: Broker, topic: Any, stream: Any, spark: SparkSession) -> None:
    from confluent_kafka.cimpl import NewTopic

    name = topic(1)
    broker.send(name, {"id": 1})
    source = stream(name)
    start, end = source.earliest_offsets(), source.end_offsets()
    broker.admin.delete_topics([name])[name].result(30)

    def try_create() -> bool:
        from confluent_kafka import KafkaException

        try:
            broker.admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)
        except KafkaException:
            return False
        return True

    until(try_create)
    broker.send(name, {"id": 7})
    with pytest.raises(TargetError, match="was deleted and recreated: its topic id is"):
        source.next_end_offsets(end, MANY)
    with pytest.raises(TargetError, match="was deleted and recreated"):
        read_rows(stream(name), spark, start, end)


def test_fewer_partitions_or_another_cluster_is_refused(topic: Any, stream: Any) -> None:
    source = stream(topic(1))
    at = source.end_offsets()
    with pytest.raises(TargetError, match="lost its partitions 3"):
        source.next_end_offsets(at | {"offsets": {"0": 0, "3": 5}}, MANY)
    with pytest.raises(TargetError, match="is of another cluster: its cluster id is"):
        source.next_end_offsets(at | {"cluster_id": "elsewhere"}, MANY)
    with pytest.raises(TargetError, match="next to read 5, end 0"):
        source.next_end_offsets(at | {"offsets": {"0": 5}}, MANY)


def test_retention_that_passed_the_position_stops_with_numbers(
    broker: Broker, topic: Any, stream: Any, spark: SparkSession
) -> None:
    name = topic(1)
    broker.send(name, *({"id": n} for n in range(10)))
    source = stream(name)
    start, end = source.earliest_offsets(), source.end_offsets()
    broker.delete_before(name, 4)
    with pytest.raises(
        RetentionError, match=r"4 offsets .* \(partition 0: next to read 0, earliest held 4\)"
    ):
        source.next_end_offsets(start, MANY)
    with pytest.raises(RetentionError, match="earliest held 4"):
        read_rows(stream(name), spark, start, end)
    assert source.earliest_offsets()["offsets"] == {"0": 4}
    assert source.next_end_offsets(start | {"offsets": {"0": 4}}, MANY) == end


@pytest.mark.parametrize("driver_rows", [0])
def test_retention_that_passes_while_rows_are_read_is_explained(
    broker: Broker, topic: Any, stream: Any, spark: SparkSession
) -> None:
    name = topic(1)
    broker.send(name, *({"id": n} for n in range(10)))
    source = stream(name)
    start = source.earliest_offsets()
    frame = read_rows(source, spark, start, source.next_end_offsets(start, MANY))
    broker.delete_before(name, 10)
    with pytest.raises(Exception) as caught:  # noqa: PT011  whatever Spark wraps it in
        frame.collect()
    assert isinstance(explain_failure(caught.value), RetentionError)


def test_starting_offsets(broker: Broker, topic: Any, stream: Any) -> None:
    name = topic(2)
    broker.send(name, {"id": 1}, timestamp=1_700_000_000_000)
    broker.send(name, {"id": 2}, timestamp=1_700_000_010_000)
    assert stream(name).initial_offsets()["offsets"] == {"0": 0, "1": 0}
    assert stream(name, starting_offsets="latest").initial_offsets()["offsets"] == {"0": 2, "1": 0}
    assert stream(name, starting_offsets="1700000000001").initial_offsets()["offsets"] == {"0": 1, "1": 0}
    assert stream(name, starting_offsets="1700000020000").initial_offsets()["offsets"] == {"0": 2, "1": 0}
    with pytest.raises(UserError, match="starting_offsets `soon` is none of"):
        stream(name, starting_offsets="soon").initial_offsets()


def test_fence_that_retention_may_have_passed_is_refused(broker: Broker, topic: Any, stream: Any) -> None:
    name = topic(retention_ms="3600000", message_timestamp_type="LogAppendTime")
    broker.send(name, {"id": 1}, {"id": 2})
    now = int(time.time() * 1000)
    source = stream(name)
    assert source.offsets_for_time(now - 7_200_000)["offsets"] == {
        "0": 0
    }  # all that ever came is still there
    broker.delete_before(name, 1)
    assert source.offsets_for_time(now - 1_800_000)["offsets"] == {"0": 1}
    with pytest.raises(
        RetentionError,
        match=r"the fence lies 720. s back, .* keeps rows for 3600 s and has lost some of partitions 0",
    ):
        source.offsets_for_time(now - 7_200_000)
    assert stream(name, starting_offsets=str(now - 7_200_000)).initial_offsets()["offsets"] == {"0": 1}


def test_filter_sees_all_columns_and_names_unknown_ones(
    broker: Broker, topic: Any, stream: Any, spark: SparkSession
) -> None:
    name = topic()
    broker.send(name, *({"id": n, "name": "x"} for n in range(5)))
    assert [row["id"] for row in rows(stream(name, filter="id >= 3 AND _gs_op = 'i'"), spark)] == [3, 4]
    with pytest.raises(SchemaError, match="filter `idd > 1` cannot be used") as caught:
        rows(stream(name, filter="idd > 1"), spark)
    assert "Did you mean `id`?" in caught.value.hint
    with pytest.raises(SchemaError, match="is not a predicate in Spark SQL"):
        rows(stream(name, filter="id >"), spark)
    with pytest.raises(SchemaError, match="'now' is implicitly cast to "):
        rows(stream(name, filter="timestamp_seconds(id) < 'now'"), spark)


@pytest.mark.parametrize("driver_rows", [0])
def test_filter_does_not_parse_messages_twice(
    broker: Broker, topic: Any, stream: Any, spark: SparkSession
) -> None:
    name = topic()
    broker.send(name, {"id": 1})
    source = stream(name, filter="id = 1 AND name IS NULL")
    frame = read_rows(source, spark, source.earliest_offsets(), source.end_offsets())
    plan = cast("Any", frame)._jdf.queryExecution().optimizedPlan().toString()
    # beside it, texts that look like numbers are read again in a branch of their own
    whole = "from_json(StructField(v,StructType"
    assert plan.count(whole) == 1


def test_commit_shows_in_the_group(broker: Broker, topic: Any, stream: Any) -> None:
    from confluent_kafka import ConsumerGroupTopicPartitions

    name = topic()
    broker.send(name, {"id": 1}, {"id": 2})
    source = stream(name)
    source.commit(source.end_offsets())
    groups = [ConsumerGroupTopicPartitions(source.group)]
    offsets = broker.admin.list_consumer_group_offsets(groups)[source.group].result(30)
    assert source.group == "headrace-src"
    assert {(part.topic, part.offset) for part in offsets.topic_partitions if part.topic == name} == {
        (name, 2)
    }


def test_missing_topic_names_what_is_near(topic: Any, stream: Any) -> None:
    name = topic()
    with pytest.raises(TargetError, match=f"topic `{name}x` does not exist at .* Did you mean `{name}`"):
        stream(f"{name}x").initial_offsets()


def test_brokers_that_do_not_answer_are_worth_another_try(monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.connectors.kafka import admin

    monkeypatch.setattr(admin, "_TIMEOUT", 0.5)
    monkeypatch.setattr(admin.TopicCluster.describe, "__defaults__", (0.5,))
    node = KafkaSourceConfig.model_validate({"topic": "t", "schema": PLAIN})
    source = KafkaStream("src", node, Settings(kafka_source=KafkaConnection(brokers="127.0.0.1:1")))
    with pytest.raises(TransientError, match=r"Kafka at 127\.0\.0\.1:1 did not answer about topic `t`"):
        source.initial_offsets()


def test_a_partition_whose_leader_changes_is_asked_again(
    topic: Any, stream: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is for a moment after a topic was made."""
    from confluent_kafka import KafkaError, KafkaException

    source = stream(topic(2))
    expected, real, requests = source.earliest_offsets(), source._cluster.admin.list_offsets, []

    def moving(*args: Any, **more: Any) -> Any:
        requests.append(args)
        if len(requests) < 3:
            raise KafkaException(
                KafkaError(
                    (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE)[len(requests) - 1]
                )
            )
        return real(*args, **more)

    monkeypatch.setattr(source._cluster.admin, "list_offsets", moving)
    assert source.earliest_offsets() == expected
    assert len(requests) == 3


def test_describe_opens_nothing() -> None:
    node = KafkaSourceConfig.model_validate({"topic": "t", "schema": PLAIN})
    source = KafkaStream("src", node, Settings(kafka_source=KafkaConnection(brokers="127.0.0.1:1")))
    assert source.describe()["asset_key"] == ["kafka", "t"]
