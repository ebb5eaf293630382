"""The decoder of the driver and the one of Spark: what the first accepts, the second reads alike."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from helpers.depth import FULL
from helpers.json_messages import PLAIN, SCHEMA, batch_of, messages, operations
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from headrace.connectors.kafka.arrow_decoder import ArrowMessageDecoder
from headrace.connectors.kafka.json_decoder import JsonMessageDecoder, payload_schema
from headrace.connectors.kafka.message_batch import MessageBatch
from headrace.connectors.kafka.message_columns import OP_HEADER
from headrace.connectors.postgres_table.convert import flatten_columns, flatten_table
from headrace.connectors.spark_types import row_schema
from headrace.pipeline.sql.system_columns import OP, POS


def frame_of(spark: SparkSession, batch: MessageBatch) -> Any:
    """Return the batch as Spark's Kafka reader has it."""
    rows = [
        (
            value,
            "t",
            batch.partitions[at],
            batch.offsets[at],
            datetime.fromtimestamp(batch.timestamps[at] / 1000, UTC),
            None if batch.operations[at] is None else [(OP_HEADER, (batch.operations[at] or "").encode())],
        )
        for at, value in enumerate(batch.values)
    ]
    columns = (
        "value binary, topic string, partition int, offset bigint, timestamp timestamp,"
        " headers array<struct<key: string, value: binary>>"
    )
    return spark.createDataFrame(rows, columns)


def decode_alone(decoder: ArrowMessageDecoder, batch: MessageBatch, at: int) -> Any:
    one = MessageBatch(
        [batch.values[at]],
        [batch.partitions[at]],
        [batch.offsets[at]],
        [batch.timestamps[at]],
        [batch.operations[at]],
    )
    return decoder.decode(one)


def check_equal(spark: SparkSession, declared: dict[str, str], batch: MessageBatch) -> int:
    """Return how many messages the driver's decoder accepts; Spark's must read all of these alike."""
    decoder = ArrowMessageDecoder(declared, 3, metadata=True)
    good = [at for at in range(len(batch)) if decode_alone(decoder, batch, at) is not None]
    kept = MessageBatch(
        *[
            [getattr(batch, name)[at] for at in good]
            for name in ("values", "partitions", "offsets", "timestamps", "operations")
        ]
    )
    result = decoder.decode(kept)
    if not good:
        return 0
    assert result is not None
    expected = JsonMessageDecoder("src", declared, 3, metadata=True).decode(frame_of(spark, kept))
    assert (
        expected.schema.simpleString()
        == row_schema(payload_schema("src", declared, metadata=True)).simpleString()
    )
    rows = expected.toArrow()
    assert result.schema.names == rows.schema.names
    assert result.drop_columns(POS).schema.types == rows.drop_columns(POS).schema.types
    assert result.to_pylist() == rows.to_pylist()
    flat = flatten_columns(expected, payload_schema("src", declared, metadata=True)).toArrow()
    assert (
        flatten_table(result, payload_schema("src", declared, metadata=True)).schema.types
        == flat.schema.types
    )
    return len(good)


@pytest.mark.sampled
@settings(max_examples=400 if FULL else 5, deadline=None)
@given(st.lists(st.tuples(messages(), operations), min_size=1, max_size=60))
def test_the_driver_reads_what_spark_reads(spark: SparkSession, sent: list[tuple[bytes, str | None]]) -> None:
    check_equal(spark, SCHEMA, batch_of([value for value, _ in sent], [text for _, text in sent]))


@pytest.mark.sampled
@settings(max_examples=60 if FULL else 3, deadline=None)
@given(
    st.lists(
        st.tuples(operations, st.sampled_from(["null", '"D"', '"c"', '"x"', "1", '""'])),
        min_size=1,
        max_size=30,
    )
)
def test_the_payload_names_the_operation(spark: SparkSession, sent: list[tuple[str | None, str]]) -> None:
    values: list[bytes | None] = [f'{{"id": 1, "_gs_op": {text}}}'.encode() for _, text in sent]
    check_equal(spark, {"id": "int64", OP: "string"}, batch_of(values, [text for text, _ in sent]))


def test_plain_messages_are_read_in_the_driver(spark: SparkSession) -> None:
    texts = [
        json.dumps({name: values[at % len(values)] for name, values in PLAIN.items()}) for at in range(10)
    ]
    texts += ["{}", '{ "long" : 1 , "other" : [ { } ] }', '{"long":\n1}', '{"at": "2024-02-29 12:30:00"}']
    operations = [None, "c", "d", "U", "r"]
    batch = batch_of([text.encode() for text in texts], [operations[at % 5] for at in range(len(texts))])
    assert check_equal(spark, SCHEMA, batch) == len(texts)


def test_the_frame_of_a_registry_is_skipped(spark: SparkSession) -> None:
    """As with JSON Schema. The id of a schema may have any bytes."""
    objects = [b'{"long": 1, "price": 1.25}', b'{"name": "a"}', b"{}", b'{"long":\n3}']
    frames = [b"\0\0\0\0\1", b"", b"\0\n{}\n", b"\0}\n{\xff"]
    batch = batch_of([one + value for one, value in zip(frames, objects, strict=True)], [None] * 4)
    assert check_equal(spark, SCHEMA, batch) == 4
    result = ArrowMessageDecoder(SCHEMA, 3, metadata=False).decode(batch)
    assert result is not None
    assert result["long"].to_pylist() == [1, None, None, 3]
    for value in (b"\0", b"\0\0\0\0\1", b"\0\0\0\0\1{}{}", b"{}\0"):
        assert ArrowMessageDecoder(SCHEMA, 0, metadata=False).decode(batch_of([value], [None])) is None


@pytest.mark.parametrize(
    "value",
    [None, b"", b"{}{}", b'{"long": 1}\n{"long": 2}', b'{"long": 1.0}', b'{"name": 1}', b'{"ratio": NaN}'],
)
def test_other_messages_are_left_to_spark(value: bytes | None) -> None:
    decoder = ArrowMessageDecoder(SCHEMA, 0, metadata=False)
    assert decoder.decode(batch_of([b"{}", value], [None, None])) is None
    assert decoder.decode(batch_of([b"{}", b"{}"], [None, None])) is not None


@pytest.mark.parametrize(
    ("kind", "known"),
    [("float32", False), ("binary", False), ("uint256", False), ("time64", False), ("date64", True)],
)
def test_only_types_that_both_read_alike_are_supported(kind: str, *, known: bool) -> None:
    assert ArrowMessageDecoder({"id": "int64", "value": kind}, 0, metadata=False).is_supported is known


def test_an_empty_batch_has_the_columns(spark: SparkSession) -> None:
    result = ArrowMessageDecoder(SCHEMA, 0, metadata=True).decode(MessageBatch())
    assert result is not None
    assert (
        spark.createDataFrame(result, row_schema(payload_schema("src", SCHEMA, metadata=True))).count() == 0
    )
    assert result.schema.names[-2:] == [OP, POS]
