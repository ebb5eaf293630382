"""Entries of rows in the driver: Arrow writes the bytes that Spark writes, for generated columns and rows."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from helpers.depth import FULL
from helpers.driver_epochs import epochs, for_arrow, for_spark, keyed_schemas, rows_of
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from headrace.connectors.frame import EpochFrame
from headrace.connectors.redis.encoder import RowEncoder

BULK = re.compile(rb"\$(\d+)\r\n")


def bulks(parts: Any) -> list[bytes]:
    """The bulk strings of some buffers, without their lengths."""
    data, result, at = b"".join(bytes(part) for part in parts), [], 0
    while at < len(data):
        size = BULK.match(data, at)
        assert size
        end = size.end() + int(size[1])
        result.append(data[size.end() : end])
        assert data[end : end + 2] == b"\r\n"
        at = end + 2
    return result


def entries(encoder: RowEncoder, frame: EpochFrame) -> tuple[dict[bytes, list[bytes]], set[bytes]]:
    """The values of each entry to write, and the entries to delete."""
    written: dict[bytes, list[bytes]] = {}
    deleted: set[bytes] = set()
    for rows in encoder.encode(frame):
        names, values = bulks(rows.keys), bulks(rows.values)
        for at, name in enumerate(names[: rows.upserts]):
            written[name] = values[at * rows.columns : (at + 1) * rows.columns]
        deleted |= set(names[rows.upserts :])
        assert rows.upserts + rows.deletes == len(names)
    return written, deleted


@pytest.mark.sampled
@settings(
    max_examples=400 if FULL else 20,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(epoch=epochs(keyed_schemas()), is_hash=st.booleans())
def test_arrow_writes_the_entries_that_spark_writes(
    spark: SparkSession, epoch: tuple[pa.Schema, tuple[str, ...], pa.Table], *, is_hash: bool
) -> None:
    schema, key, table = epoch
    encoder = RowEncoder("out", "rows", schema.names if is_hash else ())
    frame = for_spark(spark, schema, table, key)
    with mock.patch.object(RowEncoder, "_is_supported", return_value=False):
        expected = entries(encoder, frame)
    if encoder._is_supported(frame):  # else Spark writes decimals whose text could have an exponent
        frame = for_arrow(schema, table, key)
    assert entries(encoder, frame) == expected


SMALL = pa.schema([("id", pa.decimal128(12, 8)), ("v", pa.decimal128(12, 8))])


@pytest.mark.parametrize("columns", [(), ("id", "v")])
def test_names_have_no_exponents(spark: SparkSession, columns: tuple[str, ...]) -> None:
    """Arrow would write 1E-8."""
    table = rows_of(SMALL, [{"id": Decimal("0.00000001"), "v": Decimal("0E-8")}], "i")
    written, _ = entries(RowEncoder("out", "rows", columns), for_spark(spark, SMALL, table))
    assert list(written) == [b"rows:0.00000001"]
