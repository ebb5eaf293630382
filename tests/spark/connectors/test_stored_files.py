"""Stored rows: Spark's own reader returns the rows and positions that Arrow returns."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from headrace.connectors import splitting
from headrace.connectors.files import reader
from headrace.connectors.files.config import FileSourceConfig
from headrace.connectors.files.source import Files
from headrace.connectors.staged.folder import store_rows
from headrace.connectors.staged.stored_files import StoredFiles
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.protocol.partitions import HistoryPartition
from headrace.pipeline.sql.system_columns import POS

VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "id": (pa.int64(), [-(2**63), 2**63 - 1]),
    "small": (pa.int8(), [-128, 127]),
    "flag": (pa.bool_(), [True, False]),
    "ratio": (pa.float32(), [float("-inf"), 0.5]),
    "amount": (pa.float64(), [-0.0, 1e300]),
    "price": (pa.decimal128(38, 2), [Decimal("-0.01"), Decimal("9" * 36)]),
    "text": (pa.string(), ["", "ä\0\U0010ffff"]),
    "bytes": (pa.binary(), [b"", b"\x00\xff"]),
    "day": (pa.date32(), [date(1, 1, 1), date(9999, 12, 31)]),
    "at": (pa.timestamp("us", "UTC"), [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)]),
    "local": (pa.timestamp("us"), [datetime(1582, 10, 10), datetime(1900, 1, 1, 0, 0, 0, 1)]),
    "`odd`.name": (pa.int32(), [1, 2]),
}
"""Columns with a type and two values. Each has NULL as well."""


def sample(rows: int) -> pa.Table:
    columns = {
        name: pa.array([[None, *values][at % 3] if name != "id" else at for at in range(rows)], kind)
        for name, (kind, values) in VALUES.items()
    }
    return pa.table(columns)


def read_all(
    spark: SparkSession, kind: type[Files], folder: Path, window: HistoryPartition | None
) -> list[Any]:
    node = FileSourceConfig.model_validate({"path": str(folder), "format": "parquet", "mode": "bounded"})
    source = kind(node, Settings(), 3, "src")
    snapshot = source.create_snapshot(spark, "")
    splits = source.splits(spark, snapshot, window, None)
    result = source.read(spark, snapshot, splits).orderBy(POS).toArrow().to_pylist()
    assert len(result) == sum(split["rows"] for split in splits)
    return result


@pytest.mark.parametrize("window", [None, HistoryPartition("0", "id", "15", "27")], ids=["all", "window"])
def test_spark_reads_what_arrow_reads(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: HistoryPartition | None
) -> None:
    monkeypatch.setattr(splitting, "SPLIT_ROWS", 10)
    rows = sample(35)
    folder = store_rows(tmp_path / "a {b}[1]*", "0ab_1_x", rows.schema, [rows], "src")
    by_arrow = read_all(spark, Files, folder, window)
    assert len(by_arrow) == (35 if window is None else 12)
    monkeypatch.setattr(reader, "read", Mock(side_effect=AssertionError("Arrow reads")))
    by_spark = read_all(spark, StoredFiles, folder, window)
    assert list(map(repr, by_spark)) == list(map(repr, by_arrow))


@pytest.mark.parametrize("kind", ["many groups", "nested"])
def test_other_files_are_read_by_arrow(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    rows = sample(30).select(["id", "text"])
    if kind == "nested":
        rows = rows.append_column("tags", pa.array([["a"]] * 30))
    pq.write_table(rows, tmp_path / "rows.parquet", row_group_size=10 if kind == "many groups" else 30)
    result = read_all(spark, StoredFiles, tmp_path, None)
    assert [(row["id"], row[POS]["off"]) for row in result] == [(at, at) for at in range(30)]
