"""The rate source."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError
from pyspark.sql import SparkSession

from headrace.connectors.rate.config import RateSourceConfig
from headrace.connectors.rate.source import RateStream
from headrace.connectors.stream_base import ReadLimits
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.sql.system_columns import HIDDEN, OP, POS
from headrace.testing.sources import check_stream

ORDINAL = 3


class Clock:
    """A clock that the test moves. Seconds."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def rate(clock: Clock | None = None, **node: Any) -> RateStream:
    return RateStream(
        "src", RateSourceConfig.model_validate(node), Settings(), ORDINAL, *([clock] if clock else [])
    )


def at(offset: int) -> dict[str, Any]:
    return {"offsets": {"0": offset}}


def test_the_contract_of_streams(spark: SparkSession) -> None:
    """The suite in tests/integration/contract needs an outside system whose rows it can change."""
    rows = check_stream(rate(rows=10))
    assert [row["value"] for row in rows] == list(range(10))


def test_a_row_is_computed_from_its_number_on_both_routes(spark: SparkSession) -> None:
    start = datetime(2024, 2, 29, 23, 59, 59, tzinfo=UTC)
    source = rate(rows=10_000, start_time="2024-03-01T01:59:59+02:00", interval="250ms")
    table = source.read_table(spark, at(7), at(5_000))
    assert table is not None
    assert table.column_names == [*source.schema().names, *HIDDEN]
    assert table.select(source.schema().names).schema == source.schema()
    frame = source.read(spark, at(7), at(5_000))
    assert frame.toArrow().cast(table.schema).sort_by("value") == table
    first, last = table.slice(0, 1).to_pylist()[0], table.slice(table.num_rows - 1).to_pylist()[0]
    assert first["timestamp"] == start + timedelta(milliseconds=250 * 7)
    assert (last["value"], last[OP]) == (4_999, "i")
    assert last[POS] == {"source": ORDINAL, "part": 0, "off": 4_999, "sub": 0}
    assert rate(rows=10_000).read_table(spark, at(7), at(5_000)) != table


def test_a_large_range_is_read_by_spark(spark: SparkSession) -> None:
    source = rate(rows=10**12)
    assert source.read_table(spark, at(0), at(50_001)) is None
    frame = source.read(spark, at(10**11), at(10**11 + 50_001))
    ((low, high, count),) = frame.selectExpr("min(value)", "max(value)", "count(DISTINCT value)").collect()
    assert (low, high, count) == (10**11, 10**11 + 50_000, 50_001)


def test_rows_become_available_from_where_a_run_starts() -> None:
    clock = Clock()
    source = rate(clock, rows_per_second=10)
    assert source.next_end_offsets(at(500), ReadLimits()) == at(500)
    clock.now += 2.5
    assert source.lags(at(500)) == {"0": 25}
    assert source.end_offsets() == source.high_watermarks() == at(525)
    assert source.next_end_offsets(at(500), ReadLimits(rows=7)) == at(507)
    assert source.next_end_offsets(at(507), ReadLimits(rows=100)) == at(525)
    assert source.next_end_offsets(at(20), ReadLimits()) == at(20), "after a rewind"


def test_rows_end() -> None:
    source = rate(rows=30)
    assert source.end_offsets() == source.high_watermarks() == at(30)
    assert source.next_end_offsets(at(0), ReadLimits(rows=20)) == at(20)
    assert source.next_end_offsets(at(20), ReadLimits(rows=20)) == at(30)
    assert source.next_end_offsets(at(30), ReadLimits(rows=20)) == at(30)
    fewer = rate(rows=10)
    assert fewer.next_end_offsets(at(30), ReadLimits()) == at(30), "`rows` was lowered"
    clock = Clock()
    slow = rate(clock, rows=30, rows_per_second=1)
    slow.next_end_offsets(at(0), ReadLimits())
    clock.now += 3600
    assert slow.end_offsets() == at(30)
    assert rate(rows=30, rows_per_second=1).high_watermarks() == at(30), "a run waits for all of them"


@pytest.mark.parametrize("limits", [ReadLimits(rows=5), ReadLimits(per_partition=5), ReadLimits(bytes=200)])
def test_an_epoch_has_a_limit(limits: ReadLimits) -> None:
    assert rate(rows=100).next_end_offsets(at(0), limits) == at(5)


def test_a_time_beyond_the_calendar_is_refused() -> None:
    with pytest.raises(ValidationError, match="year 9999"):
        RateSourceConfig(rows=10**9, interval=timedelta(days=30))


def test_the_schema_is_the_declared_one() -> None:
    assert rate().schema() == pa.schema([("value", pa.int64()), ("timestamp", pa.timestamp("us", tz="UTC"))])
