"""Messages of rows in the driver: Arrow writes the bytes that Spark writes, for generated columns and rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from helpers.depth import FULL
from helpers.driver_epochs import epochs, for_arrow, for_spark, rows_of, schemas_with_keys
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from headrace.connectors.kafka.encoder import KEY, VALUE, JsonMessageEncoder
from headrace.connectors.row_errors import explain_failure
from headrace.connectors.spark_types import POS_ARROW
from headrace.pipeline.errors import DataError
from headrace.pipeline.sql.system_columns import OP, POS
from headrace.pipeline.types.int256 import UINT256

Message = tuple[bytes | None, bytes | None, str]


def messages(batches: Any) -> list[Message]:
    return [
        (row[KEY], row[VALUE], row[OP])
        for batch in batches
        for row in batch.select([KEY, VALUE, OP]).to_pylist()
    ]


@pytest.mark.sampled
@settings(
    max_examples=600 if FULL else 30,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(epoch=epochs(schemas_with_keys()), tombstones=st.booleans(), deduplicate=st.booleans(), data=st.data())
def test_arrow_writes_what_spark_writes(
    spark: SparkSession,
    epoch: tuple[pa.Schema, tuple[str, ...], pa.Table],
    data: st.DataObject,
    *,
    tombstones: bool,
    deduplicate: bool,
) -> None:
    schema, key, table = epoch
    encoder = JsonMessageEncoder("out", schema, tombstones=tombstones and bool(key), deduplicate=deduplicate)
    assert encoder.writes_arrow
    expected = messages(encoder.encode_by_spark(for_spark(spark, schema, table, key)))
    assert messages(encoder.encode(for_arrow(schema, table, key))) == expected
    # Slices of larger arrays have offsets, which every function must respect.
    first = data.draw(st.integers(0, table.num_rows))
    last = data.draw(st.integers(first, table.num_rows))
    part = table.take(pa.array(np.arange(table.num_rows))).slice(first, last - first)
    plain = pa.table(part.to_pydict(), schema=part.schema)
    result, expected = (messages(encoder.encode(for_arrow(schema, one, key))) for one in (part, plain))
    assert result == expected


def outcome(encode: Callable[[], Any]) -> list[Message] | str:
    """The messages, or the error as a user sees it."""
    try:
        return messages(encode())
    except DataError as error:
        return str(error)
    except Exception as error:
        if (result := explain_failure(error)) is None:
            raise
        return str(result)


PAIR = pa.schema([("id", pa.int64()), ("name", pa.string())])


@pytest.mark.parametrize("name", ["id", "name"])
def test_a_null_in_a_key_is_one_error(spark: SparkSession, name: str) -> None:
    rows = [{"id": 1, "name": "a"}, {"id": 2, "name": "b"} | {name: None}, {"id": 3, "name": "c"}]
    table = rows_of(PAIR, rows, "iii")
    encoder = JsonMessageEncoder("out", PAIR, tombstones=False, deduplicate=False)
    result = outcome(lambda: encoder.encode(for_arrow(PAIR, table, ("id", "name"))))
    assert f"key column `{name}` is null" in str(result)
    frame = for_spark(spark, PAIR, table, ("id", "name"))
    assert result == outcome(lambda: encoder.encode_by_spark(frame))


def test_a_delete_without_a_key_is_one_error(spark: SparkSession) -> None:
    rows = [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]
    table = rows_of(PAIR, rows, "id")
    encoder = JsonMessageEncoder("out", PAIR, tombstones=False, deduplicate=False)
    result = outcome(lambda: encoder.encode(for_arrow(PAIR, table, ())))
    assert "a delete reached a sink without primary_key" in str(result)
    assert result == outcome(lambda: encoder.encode_by_spark(for_spark(spark, PAIR, table, ())))


def test_wide_numbers_are_their_digits(spark: SparkSession) -> None:
    schema = pa.schema([("id", UINT256), ("much", pa.decimal256(60, 20))])
    rows = [{"id": str(2**255), "much": "1" * 40 + ".5"}, {"id": "7", "much": None}]
    table = rows_of(schema, rows, "iu")
    encoder = JsonMessageEncoder("out", schema, tombstones=False, deduplicate=False)
    expected = messages(encoder.encode_by_spark(for_spark(spark, schema, table)))
    assert messages(encoder.encode(for_arrow(schema, table))) == expected


INVALID = pa.Array.from_buffers(
    pa.string(), 1, [None, pa.array([0, 2], pa.int32()).buffers()[1], pa.py_buffer(b"a\xff")]
)
BEYOND = [("text", INVALID), ("day", pa.array([10**6 * 3], pa.int32()).cast(pa.date32()))]
BEYOND += [("at", pa.array([at], pa.int64()).cast(pa.timestamp("us", "UTC"))) for at in (-(10**17), 10**18)]


@pytest.mark.parametrize(("name", "column"), BEYOND)
def test_spark_writes_values_whose_text_may_differ(spark: SparkSession, name: str, column: pa.Array) -> None:
    schema = pa.schema([("id", pa.int64()), (name, column.type)])
    table = pa.table(
        {"id": [1], name: column, OP: ["i"], POS: pa.array([dict.fromkeys(POS_ARROW.names, 0)], POS_ARROW)}
    )
    encoder = JsonMessageEncoder("out", schema, tombstones=False, deduplicate=False)
    with pytest.raises(AssertionError, match="Arrow must encode"):
        messages(encoder.encode(for_arrow(schema, table)))
    assert len(messages(encoder.encode(for_spark(spark, schema, table)))) == 1


@pytest.mark.parametrize("kind", [pa.float64(), pa.list_(pa.float32()), pa.map_(pa.float64(), pa.int8())])
def test_spark_writes_all_rows_of_a_schema_with_floats(spark: SparkSession, kind: pa.DataType) -> None:
    schema = pa.schema([("id", pa.int64()), ("ratio", kind)])
    encoder = JsonMessageEncoder("out", schema, tombstones=False, deduplicate=False)
    assert not encoder.writes_arrow
    table = rows_of(schema, [{"id": 1, "ratio": None}], "i")
    with pytest.raises(AssertionError, match="Arrow must encode"):
        messages(encoder.encode(for_arrow(schema, table)))
    assert messages(encoder.encode(for_spark(spark, schema, table))) == [
        (b'{"id":1}', b'{"id":1,"ratio":null}', "i")
    ]
