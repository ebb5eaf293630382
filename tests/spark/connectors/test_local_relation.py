"""Rows that Catalyst computes in the driver: no Spark job, and the same rows as by one."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from headrace.connectors.local_relation import collect_arrow, compute_locally, frame_of_table
from headrace.connectors.spark_types import row_schema
from headrace.pipeline.sql.system_columns import OP, POS

PAYLOAD = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("price", pa.decimal128(12, 2)),
        ("at", pa.timestamp("us", tz="UTC")),
        ("day", pa.date32()),
        ("raw", pa.binary()),
        ("ratio", pa.float64()),
        ("flag", pa.bool_()),
        ("tags", pa.list_(pa.string())),
    ]
)


def rows(count: int) -> pa.Table:
    full: tuple[Any, ...] = (
        "ä\0",
        Decimal("1.50"),
        datetime(2024, 2, 29, 12, 30, 0, 123456, UTC),
        date(1999, 1, 2),
        b"\xff",
        -0.0,
        True,
        ["a", None],
    )
    values = [(n, *(full if n % 3 else (None,) * 8), "i", (0, 1, n, 0)) for n in range(count)]
    names = [*PAYLOAD.names, OP, POS]
    kinds = [
        *PAYLOAD.types,
        pa.string(),
        pa.struct([("source", pa.int32()), ("part", pa.int32()), ("off", pa.int64()), ("sub", pa.int64())]),
    ]
    columns = {}
    for name, kind, column in zip(names, kinds, zip(*values, strict=True), strict=True):
        cells = [
            dict(zip(("source", "part", "off", "sub"), cell, strict=True)) if name == POS else cell
            for cell in column
        ]
        columns[name] = pa.array(cells, kind)
    return pa.table(columns)


@pytest.fixture
def count_jobs(spark: SparkSession) -> Callable[[Callable[[], Any]], tuple[Any, int]]:
    def count(call: Callable[[], Any]) -> tuple[Any, int]:
        context: Any = spark.sparkContext
        group = f"jobs-{id(call)}"
        context.setJobGroup(group, "")
        try:
            return call(), len(context.statusTracker().getJobIdsForGroup(group))
        finally:
            context.setLocalProperty("spark.jobGroup.id", None)

    return count


def test_sql_over_local_rows_runs_no_job(spark: SparkSession, count_jobs: Any) -> None:
    frame = spark.createDataFrame(rows(100), row_schema(PAYLOAD))
    chosen = frame.selectExpr("*", "upper(name) AS loud", "price * 2 AS twice").where("id % 2 = 0")
    result, jobs = count_jobs(lambda: collect_arrow(chosen))
    expected, usual = count_jobs(chosen.toArrow)
    assert (jobs, usual) == (0, 1)
    assert result.schema == expected.schema
    assert result.to_pylist() == expected.to_pylist()


@pytest.mark.parametrize("condition", ["id < 0", "id >= 0"])
def test_empty_and_large_results_are_those_of_spark(spark: SparkSession, condition: str) -> None:
    chosen = spark.createDataFrame(rows(11_000), row_schema(PAYLOAD)).where(condition)
    result, expected = collect_arrow(chosen), chosen.toArrow()
    assert result.schema == expected.schema
    assert result.num_rows == expected.num_rows


def test_what_needs_a_job_runs_as_one(spark: SparkSession, count_jobs: Any) -> None:
    frame = spark.createDataFrame(rows(10), row_schema(PAYLOAD))
    grouped = frame.groupBy("flag").count()
    assert compute_locally(grouped) is None
    result, jobs = count_jobs(lambda: collect_arrow(grouped))
    assert jobs > 0
    assert sorted(result["count"].to_pylist()) == [4, 6]


def test_rows_are_computed_once_for_several_readers(spark: SparkSession, count_jobs: Any) -> None:
    frame = spark.createDataFrame(rows(10), row_schema(PAYLOAD)).selectExpr("id", "rand() AS chance", OP, POS)
    computed = compute_locally(frame)
    assert computed is not None
    readers = [computed.select("id", "chance"), computed.where("id > 4").select("id", "chance")]
    (first, second), jobs = count_jobs(lambda: [collect_arrow(reader).to_pylist() for reader in readers])
    assert jobs == 0
    assert first[5:] == second


@pytest.mark.parametrize("sizes", [(1, 0, 2), (0, 1), (2, 0, 0, 1, 0), (0,)], ids=str)
def test_a_batch_without_rows_hides_none(spark: SparkSession, sizes: tuple[int, ...]) -> None:
    """Spark ends reading Arrow rows at such a batch."""
    whole = rows(10)
    pieces = [whole.slice(sum(sizes[:at]), size) for at, size in enumerate(sizes)]
    frame = frame_of_table(spark, pa.concat_tables(pieces), row_schema(PAYLOAD))
    assert [row.id for row in frame.collect()] == list(range(sum(sizes)))
    assert frame.schema == row_schema(PAYLOAD)
