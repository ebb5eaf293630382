"""Messages as text and as bytes: the driver and Spark read them alike, and broken ones are named or rejected."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from headrace.connectors.dead_letters import ERROR
from headrace.connectors.kafka.config import KafkaSourceConfig
from headrace.connectors.kafka.message_batch import MessageBatch
from headrace.connectors.kafka.plain_messages import PlainMessages
from headrace.connectors.row_errors import explain_failure
from headrace.pipeline.sql.system_columns import OP, POS

Row = dict[str, Any]
GOOD = [
    (b"k1", b"a", None),
    (None, "\u00e4\U0010ffff".encode(), "u"),
    (b"k2", b"", "d"),
    (b"", b'{"id": 1}\n\0', "c"),
]
BYTES = [*GOOD, (b"\xff", b"\x00\xfe", None)]


def node(data_format: str, **more: Any) -> KafkaSourceConfig:
    values = {"topic": "t", "data_format": data_format, "include_metadata": True} | more
    return KafkaSourceConfig.model_validate(values)


def batch_of(messages: list[tuple[bytes | None, bytes | None, str | None]]) -> MessageBatch:
    count = len(messages)
    return MessageBatch(
        [value for _, value, _ in messages],
        [at % 3 for at in range(count)],
        list(range(10, 10 + count)),
        [1_700_000_000_123 + at for at in range(count)],
        [operation for *_, operation in messages],
        [key for key, *_ in messages],
    )


def by_spark(spark: SparkSession, plain: PlainMessages, batch: MessageBatch) -> list[Row]:
    frame = plain.decode(spark.createDataFrame(batch.as_table("t")))
    return sorted(frame.toArrow().to_pylist(), key=lambda row: row[POS]["off"])


@pytest.mark.parametrize(("data_format", "messages"), [("text", GOOD), ("bytes", BYTES)])
@pytest.mark.parametrize("more", [{}, {"on_error": "dead_letter"}], ids=["fail", "dead letters"])
def test_the_driver_reads_what_spark_reads(
    spark: SparkSession, data_format: str, messages: list[Any], more: dict[str, Any]
) -> None:
    plain, batch = PlainMessages("src", node(data_format, **more), 9), batch_of(messages)
    table = plain.decode_batch(spark, batch, "t")
    assert table is not None
    rows = by_spark(spark, plain, batch)
    assert table.to_pylist() == rows
    assert [field.name for field in plain.columns] == list(rows[0])[: len(plain.columns)]
    read = bytes.decode if data_format == "text" else bytes
    expected = [(key if key is None else read(key), read(value)) for key, value, _ in messages]
    assert [(row["key"], row["value"]) for row in rows] == expected
    assert [row[OP] for row in rows[:4]] == ["i", "u", "d", "i"]
    assert [(row["__kafka_partition"], row["__kafka_offset"]) for row in rows[:3]] == [
        (0, 10),
        (1, 11),
        (2, 12),
    ]
    assert all(row.get(ERROR) is None for row in rows)


BROKEN = [
    ((b"k", None, None), {}, "the message has no payload (a tombstone)"),
    ((b"k", b"\xff", None), {}, "the value is not UTF-8"),
    ((b"\xff", b"a", None), {}, "the key is not UTF-8"),
    ((b"k", b"a", "x"), {}, "header dbz.op says `x`"),
    ((None, None, None), {"tombstone": "delete", "primary_key": "key"}, "its key lacks `key`"),
]


@pytest.mark.parametrize(("message", "more", "reason"), BROKEN)
def test_a_broken_message_is_named_or_rejected(
    spark: SparkSession, message: Any, more: dict[str, Any], reason: str
) -> None:
    batch = batch_of([(b"k0", b"good", None), message])
    fails = PlainMessages("src", node("text", **more), 9)
    assert fails.decode_batch(spark, batch, "t") is None, "Spark raises the error"
    with pytest.raises(Exception) as raised:  # noqa: PT011  Spark's
        fails.decode(spark.createDataFrame(batch.as_table("t"))).select(POS).toArrow()
    error = explain_failure(raised.value)
    assert error is not None, raised.value
    assert "topic t, partition 1, offset 11: " in error.message
    assert reason in error.message
    splits = PlainMessages("src", node("text", on_error="dead_letter", **more), 9)
    assert splits.decode_batch(spark, batch, "t") is None
    good, bad = by_spark(spark, splits, batch)
    assert (good["value"], good[ERROR]) == ("good", None)
    assert reason in bad[ERROR]["reason"]
    result = (bad[ERROR]["__kafka_offset"], bad[ERROR]["__kafka_key"], bad[ERROR]["__kafka_value"])
    assert result == (11, message[0], message[1])


def test_a_tombstone_deletes_by_the_key(spark: SparkSession) -> None:
    plain = PlainMessages("src", node("text", tombstone="delete", primary_key="key"), 9)
    batch = batch_of([(b"k0", b"a", None), (b"k0", None, None)])
    table = plain.decode_batch(spark, batch, "t")
    assert table is not None
    assert table.to_pylist() == by_spark(spark, plain, batch)
    assert [(row["key"], row["value"], row[OP]) for row in table.to_pylist()] == [
        ("k0", "a", "i"),
        ("k0", None, "d"),
    ]


def test_an_empty_batch_has_the_columns(spark: SparkSession) -> None:
    table = PlainMessages("src", node("bytes"), 9).decode_batch(spark, MessageBatch(), "t")
    assert table is not None
    assert (table.num_rows, table.column_names[:2]) == (0, ["key", "value"])
