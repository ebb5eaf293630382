"""Rejected rows leave the good ones in the driver and by Spark alike, within their limit."""

from __future__ import annotations

import pytest
from helpers.json_messages import batch_of
from pyspark.sql import SparkSession

from headrace.connectors.kafka.config import KafkaSourceConfig
from headrace.connectors.kafka.json_messages import JsonMessages
from headrace.connectors.spark_types import row_schema
from headrace.jobs.sources.source_batch import SourceBatch, separate_rows
from headrace.pipeline.config.sections import KafkaConnection
from headrace.pipeline.errors import DataError
from headrace.pipeline.model.error_outputs import errors_output

GOOD, BAD = b'{"id": 1, "v": "a"}', b"x"


def separated(spark: SparkSession, values: list[bytes], way: str, rate: float = 1.0) -> SourceBatch:
    node = KafkaSourceConfig.model_validate(
        {
            "topic": "t",
            "schema": {"id": "int64", "v": "string"},
            "on_error": "dead_letter",
            "max_error_rate": rate,
        }
    )
    output = errors_output("src", node)
    assert output is not None
    messages, batch = (
        JsonMessages("src", node, KafkaConnection(), 3),
        batch_of([*values], [None] * len(values)),
    )
    if way == "driver":
        read = messages.decode_batch(spark, batch, "t")
        assert read is not None
    else:
        read = messages.decode(spark.createDataFrame(batch.as_table("t")))
    return separate_rows(read, messages.columns, output, 7, spark)


@pytest.mark.parametrize(
    "values",
    [[GOOD, BAD, GOOD], [BAD, BAD], pytest.param([GOOD], marks=pytest.mark.slow)],
    ids=["both", "bad", "good"],
)
def test_both_routes_separate_alike(spark: SparkSession, values: list[bytes]) -> None:
    result = [separated(spark, values, way) for way in ("driver", "spark")]
    for one in result:
        assert one.rejected is not None
        assert one.rejected.rows == values.count(BAD)
        assert (
            one.frame.schema.names
            == row_schema(
                JsonMessages(
                    "src",
                    KafkaSourceConfig.model_validate(
                        {"topic": "t", "schema": {"id": "int64", "v": "string"}}
                    ),
                    KafkaConnection(),
                    3,
                ).columns
            ).names
        )
        for batch in (one, one.rejected):
            if batch.table is not None:
                assert batch.table.to_pylist() == batch.frame.toArrow().to_pylist()
    driver, spark_ = result
    assert driver.rejected is not None
    assert spark_.rejected is not None
    assert driver.frame.toArrow().to_pylist() == spark_.frame.toArrow().to_pylist()
    rejected = driver.rejected.frame.toArrow().to_pylist()
    assert rejected == spark_.rejected.frame.toArrow().to_pylist()
    assert driver.rejected.frame.schema.simpleString() == spark_.rejected.frame.schema.simpleString()
    assert len(rejected) == values.count(BAD)
    assert all((row["node"], row["epoch"], row["_gs_op"]) == ("src", 7, "i") for row in rejected)
    assert (driver.persisted, spark_.persisted is not None) == (None, True)


@pytest.mark.parametrize("way", ["driver", "spark"])
def test_a_limit_of_rejected_rows(spark: SparkSession, way: str) -> None:
    values = [GOOD] * 90 + [BAD] * 10
    assert separated(spark, values, way, 0.1).rejected is not None
    with pytest.raises(DataError) as raised:
        separated(spark, values, way, 0.09)
    assert raised.value.message == (
        "10 of 100 rows are rejected, more than `max_error_rate` 0.09 allows; the first one: the message does"
        " not fit `schema`: it is not valid JSON"
    )
    assert raised.value.node == "src"
    few = separated(spark, values[1:], way, 0)
    assert few.rejected is not None
    assert few.rejected.rows == 10
