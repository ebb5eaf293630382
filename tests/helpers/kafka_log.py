"""The end of a partition's log, for tests that depend on what the broker has written, and rows of a topic."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import DataFrame, SparkSession

from headrace.connectors.lazy_session import create_frame


@contextmanager
def await_marker(brokers: str, topic: str, partition: int = 0) -> Iterator[None]:
    """Return from the block only when the log has the marker that the block's commit or abort writes.

    A broker answers the producer before it writes the marker, so the next message could get an offset below
    it. The block writes its messages before it enters, and nothing but the commit or abort inside.
    """
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": f"end-of-{topic}"})
    place = TopicPartition(topic, partition)
    try:
        before = consumer.get_watermark_offsets(place, timeout=300)[1]
        yield
        deadline = time.monotonic() + 30
        while consumer.get_watermark_offsets(place, timeout=300)[1] == before:
            assert time.monotonic() < deadline, f"no marker in partition {partition} of {topic}"
            time.sleep(0.02)
    finally:
        consumer.close()


def read_rows(source: Any, spark: SparkSession, start: Any, end: Any) -> DataFrame:
    """Return the rows of a range as a run reads them: from the driver if it reads them, else from Spark."""
    table = source.read_table(spark, start, end)
    if table is None:
        return source.read(spark, start, end)
    return source.filter_rows(create_frame(spark, table, source.schema()))
