"""Rows of the driver arrive in Spark through a parquet file as they arrive by a local relation."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from headrace.connectors import parquet_frame
from headrace.connectors.local_relation import frame_of_table
from headrace.connectors.parquet_frame import frame_through_file
from headrace.connectors.spark_types import POS_ARROW, spark_schema, wide_columns
from headrace.pipeline.types.arrow import parse_type
from headrace.pipeline.types.int256 import storage_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "tiny": (pa.int8(), [-128, 127]),
    "big": (pa.int64(), [-(2**63), 2**63 - 1]),
    "real": (pa.float32(), [-0.0, math.inf]),
    "double": (pa.float64(), [-0.0, math.nan]),
    "flag": (pa.bool_(), [True, False]),
    "a name, with `marks`.": (pa.string(), ["", "naïve 🙂 \x00"]),
    "bytes": (pa.binary(), [b"", b"\x00\xff"]),
    "day": (pa.date32(), [date(1, 1, 1), date(9999, 12, 31)]),
    "moment": (
        pa.timestamp("us", tz="UTC"),
        [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)],
    ),
    "local": (pa.timestamp("us"), [datetime(1582, 10, 10, 1), datetime(9999, 12, 31, 23, 59, 59, 999_999)]),
    "money": (pa.decimal128(20, 4), [Decimal("1234567890123456.7891"), Decimal("-0.0001")]),
    "most": (pa.decimal128(38, 0), [Decimal("9" * 38), Decimal("-" + "9" * 38)]),
    "nested": (POS_ARROW, [{"source": 1, "part": 2, "off": 3, "sub": -4}, None]),
}


def create_table(rows: int) -> pa.Table:
    columns = {name: pa.array([*values, None] * rows, kind) for name, (kind, values) in VALUES.items()}
    return pa.table({**columns, "number": pa.array(range(3 * rows), pa.int64())})


@pytest.fixture
def through_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_frame, "_LEAST_ROWS", 1)


@pytest.mark.usefixtures("through_files")
def test_rows_are_those_of_a_local_relation(spark: SparkSession, tmp_path: Path) -> None:
    table = create_table(2)
    columns = spark_schema(table.schema)
    frame = frame_through_file(spark, table, columns, tmp_path)
    assert (tmp_path / "rows.parquet").exists()
    assert frame.schema == frame_of_table(spark, table, columns).schema
    expected = frame_of_table(spark, table, columns).toArrow()
    result = frame.toArrow()
    assert result.schema == expected.schema
    assert str(result.to_pylist()) == str(expected.to_pylist())


def test_many_rows_keep_their_order(spark: SparkSession, tmp_path: Path) -> None:
    table = create_table(100_000)
    frame = frame_through_file(spark, table, spark_schema(table.schema), tmp_path)
    assert (tmp_path / "rows.parquet").exists()
    assert frame.select("number").toArrow()["number"].combine_chunks() == table["number"].combine_chunks()


@pytest.mark.usefixtures("through_files")
def test_big_integers_keep_their_type(spark: SparkSession, tmp_path: Path) -> None:
    schema = pa.schema([("wei", parse_type("uint256"))])
    table = pa.table({"wei": ["1" * 70]}, schema=storage_schema(schema))
    frame = frame_through_file(spark, table, spark_schema(schema), tmp_path)
    assert wide_columns([frame]) == {"wei": parse_type("uint256")}
    assert [tuple(row) for row in frame.collect()] == [("1" * 70,)]


@pytest.mark.usefixtures("through_files")
def test_other_types_stay_in_the_driver(spark: SparkSession, tmp_path: Path) -> None:
    table = pa.table({"list": pa.array([[1, None], []], pa.list_(pa.int64()))})
    frame = frame_through_file(spark, table, spark_schema(table.schema), tmp_path)
    assert not (tmp_path / "rows.parquet").exists()
    assert frame.toArrow().to_pylist() == table.to_pylist()
