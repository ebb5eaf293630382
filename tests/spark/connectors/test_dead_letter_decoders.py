"""Broken messages: decoders with dead letters reject exactly the messages that fail a task without them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from helpers.depth import FULL
from helpers.json_messages import SCHEMA, batch_of, messages, operations
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from headrace.connectors.dead_letters import ERROR, good_rows
from headrace.connectors.kafka.config import KafkaSourceConfig
from headrace.connectors.kafka.json_decoder import JsonMessageDecoder
from headrace.connectors.kafka.json_messages import JsonMessages
from headrace.connectors.kafka.message_batch import MessageBatch
from headrace.connectors.kafka.message_columns import OP_HEADER
from headrace.connectors.local_relation import collect_local_rows
from headrace.connectors.row_errors import explain_failure
from headrace.pipeline.config.sections import KafkaConnection

Row = dict[str, Any]
FIELDS = ("values", "partitions", "offsets", "timestamps", "operations", "keys")


def some_of(batch: MessageBatch, places: list[int]) -> MessageBatch:
    columns: list[Any] = [getattr(batch, name) or [None] * len(batch) for name in FIELDS]
    parts: list[list[Any]] = [[column[at] for at in places] for column in columns]
    return MessageBatch(*parts)


def decoded(spark: SparkSession, decoder: JsonMessageDecoder, batch: MessageBatch, **way: bool) -> list[Row]:
    frame = decoder.decode(spark.createDataFrame(batch.as_table("t")), **way)
    table = collect_local_rows(frame) if way else frame.toArrow()
    assert table is not None, "the plan needs a job"
    return table.to_pylist()


def check_rejected(
    spark: SparkSession, declared: dict[str, str], batch: MessageBatch, **options: Any
) -> list[Row]:
    """Return the rows. Both routes must return the same ones, and the good ones must be those without errors."""
    splits = JsonMessageDecoder("src", declared, 3, metadata=True, dead_letters=True, **options)
    fails = JsonMessageDecoder("src", declared, 3, metadata=True, **options)
    rows = decoded(spark, splits, batch)
    assert rows == decoded(spark, splits, batch, in_driver=True)
    good = [at for at, row in enumerate(rows) if row[ERROR] is None]
    expected = decoded(spark, fails, some_of(batch, good)) if good else []
    assert [{**row, ERROR: None} for row in expected] == [rows[at] for at in good]
    for at, row in enumerate(rows):
        if at in good:
            continue
        with pytest.raises(Exception) as raised:  # noqa: PT011  Spark's
            decoded(spark, fails, some_of(batch, [at]))
        error = explain_failure(raised.value)
        assert error is not None, raised.value
        assert error.message.startswith(
            f"topic t, partition {batch.partitions[at]}, offset {batch.offsets[at]}: "
        )
        result = row[ERROR]
        # The reason of a dead letter says more where the error's own comes from Python.
        text = result["reason"].split("schema`")[0]
        assert text in error.message.replace("\0", "\ufffd")
        assert result["__kafka_topic"] == "t"
        assert result["__kafka_partition"] == batch.partitions[at]
        assert result["__kafka_offset"] == batch.offsets[at]
        assert int(result["__kafka_timestamp"].timestamp() * 1000) == batch.timestamps[at]
        assert result["__kafka_key"] == (batch.keys[at] if batch.keys else None)
        assert result["__kafka_value"] == batch.values[at]
    return rows


@pytest.mark.sampled
@settings(max_examples=60 if FULL else 2, deadline=None)
@given(st.lists(st.tuples(st.one_of(messages(), st.binary()), operations), min_size=1, max_size=15))
def test_messages_that_fail_a_task_are_rejected(
    spark: SparkSession, sent: list[tuple[bytes, str | None]]
) -> None:
    check_rejected(spark, SCHEMA, batch_of([value for value, _ in sent], [text for _, text in sent]))


CASES = {
    b"": "the message does not fit `schema`: it is not valid JSON",
    b"[1]": "the message does not fit `schema`: it is not an object",
    b'{"small": 1}x': "the message does not fit `schema`: it is not valid JSON",
    b'{"long": "ten", "int": 3}': "the message does not fit `schema`: column `long` is int64, found `ten`",
    b'{"small": 128}': "column `small` is int8, which cannot hold `128`",
    b'{"day": "2024-02-30"}': "column `day` is date32, which cannot hold `2024-02-30`",
    b'{"name": "\\ud83d"}': "the payload holds half a character: a \\u escape of one surrogate",
    b'{"name": "\xff"}': "the payload is not UTF-8",
    b'{"wide": "x"}': "column `wide` is uint256, which cannot hold `x`",
    b'{"code": "0g"}': "column `code` is binary, which cannot hold `0g`",
    None: "the message has no payload (a tombstone)",
}


def test_reasons_name_the_fault(spark: SparkSession) -> None:
    declared = {**SCHEMA, "wide": "uint256", "code": "binary"}
    batch = batch_of([*CASES, b'{"small": 1, "wide": "007"}', b"{}"], [None] * (len(CASES) + 1) + ["x"])
    rows = check_rejected(spark, declared, batch)
    reasons = [row[ERROR] and row[ERROR]["reason"] for row in rows]
    assert reasons == [*CASES.values(), None, "header dbz.op says `x`"]


def test_tombstones_need_their_key(spark: SparkSession) -> None:
    batch = batch_of([None, None, None, b'{"id": 3, "v": "c"}'], [None] * 4)
    batch.keys.extend([b'{"id": 1}', b"{}", None, b"k"])
    rows = check_rejected(spark, {"id": "int64", "v": "string"}, batch, tombstone_key=("id",))
    assert [row[ERROR] and row[ERROR]["reason"] for row in rows] == [
        None,
        "the message has no payload (a tombstone), and its key lacks `id`",
        "the message has no payload (a tombstone)",
        None,
    ]


def source_of(schema: dict[str, str], *key: str) -> JsonMessages:
    node = KafkaSourceConfig.model_validate(
        {"topic": "t", "schema": schema, "on_error": "dead_letter", "primary_key": key}
    )
    return JsonMessages("src", node, KafkaConnection(), 3)


def test_a_message_needs_its_key(spark: SparkSession) -> None:
    """The driver's decoder would take it."""
    messages, batch = (
        source_of({"id": "int64", "v": "string"}, "ID"),
        batch_of([b'{"v": "a"}', b'{"id": 1}'], [None] * 2),
    )
    result = messages.decode_batch(spark, batch, "t")
    assert result is not None
    by_tasks = messages.decode(spark.createDataFrame(batch.as_table("t"))).toArrow()
    for table in (result, by_tasks):
        assert [row[ERROR] and row[ERROR]["reason"] for row in table.to_pylist()] == [
            "the key column `id` is NULL",
            None,
        ]


def test_reasons_are_texts_that_every_sink_takes(spark: SparkSession) -> None:
    headers = [(OP_HEADER, b"\xff\x00")]
    values = [b'{"long": "\\u0000"}', b"{}"]
    frame = spark.createDataFrame(
        [
            (None, value, "t", 0, at, datetime(2025, 1, 1, tzinfo=UTC), headers)
            for at, value in enumerate(values)
        ],
        "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp,"
        " headers array<struct<key: string, value: binary>>",
    )
    decoder = JsonMessageDecoder("src", SCHEMA, 3, metadata=False, dead_letters=True)
    assert [row[ERROR]["reason"] for row in decoder.decode(frame).toArrow().to_pylist()] == [
        "the message does not fit `schema`: column `long` is int64, found `\ufffd`",
        "header dbz.op says `\ufffd\ufffd`",
    ]


def test_a_batch_in_the_driver_needs_no_job(spark: SparkSession) -> None:
    messages = source_of({"id": "int64"})
    plain = messages.decode_batch(spark, batch_of([b'{"id": 1}'], [None]), "t")
    assert plain is not None
    assert plain[ERROR].null_count == 1
    broken = messages.decode_batch(spark, batch_of([b'{"id": 1}', b"x"], [None, None]), "t")
    assert broken is not None
    assert [row[ERROR] is None for row in broken.to_pylist()] == [True, False]
    assert plain.schema.names == broken.schema.names
    rows = messages.decode(spark.createDataFrame(batch_of([b'{"id": 1}', b"x"], [None, None]).as_table("t")))
    assert good_rows(rows).toArrow().to_pylist() == plain.drop_columns([ERROR]).to_pylist()
    large = batch_of([b"x"] * 10_001, [None] * 10_001)
    assert messages.decode_batch(spark, large, "t") is None
