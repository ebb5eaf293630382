"""Files that are read without Spark: the same splits, rows and positions as with it."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Mapping
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from helpers.unused_session import unused_session
from pyarrow import orc
from pyarrow import parquet as pq
from pyspark.sql import SparkSession

from headrace.connectors import splitting
from headrace.connectors.files.config import FileSourceConfig
from headrace.connectors.files.decoder import FileDecoder
from headrace.connectors.files.source import Files
from headrace.connectors.source_base import Snapshot
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import DataError
from headrace.pipeline.protocol.partitions import HistoryPartition, PartitionGap
from headrace.pipeline.sql.system_columns import OP, POS

SCHEMA = {"id": "int64", "day": "date32", "at": "timestamp", "name": "string", "v": "decimal(12,2)"}
TYPES = pa.schema(
    [
        ("id", pa.int64()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("name", pa.string()),
        ("v", pa.decimal128(12, 2)),
    ]
)
FIRST = date(2024, 1, 1)


def rows_of(first: int, end: int) -> pa.Table:
    days = [None if n % 17 == 0 else FIRST + timedelta(days=n % 40) for n in range(first, end)]
    columns = {
        "id": [n if n % 11 else None for n in range(first, end)],
        "day": days,
        "at": [datetime(2024, 1, 1) + timedelta(hours=n, microseconds=n % 3) for n in range(first, end)],
        "name": [f"n{n % 7}" for n in range(first, end)],
        "v": pa.array([f"{n}.{n % 100:02d}" for n in range(first, end)]).cast(pa.decimal128(12, 2)),
    }
    return pa.table(columns, TYPES)


def write_csv(rows: pa.Table, path: Path) -> None:
    lines = [
        ",".join("" if value is None else str(value) for value in row.values()) for row in rows.to_pylist()
    ]
    path.write_text("\n".join([",".join(rows.schema.names), *lines]).replace("+00:00", ""))


def write_json(rows: pa.Table, path: Path) -> None:
    """Every tenth line is empty."""
    lines = [json.dumps(row, default=str).replace("+00:00", "") for row in rows.to_pylist()]
    path.write_text("".join(f"{line}\n" if at % 10 else f"\n{line}\r\n" for at, line in enumerate(lines)))


WRITERS: Mapping[str, Callable[[pa.Table, Path], None]] = {
    "parquet": lambda rows, path: pq.write_table(rows, path, row_group_size=60),
    "orc": lambda rows, path: orc.write_table(rows, str(path)),
    "csv": write_csv,
    "json": write_json,
}
PARTITIONS = {
    "whole": None,
    "days": HistoryPartition("p", "day", "2024-01-05", "2024-01-20"),
    "hours": HistoryPartition("p", "at", "2024-01-03T05:00:00", "2024-01-04"),
    "integers": HistoryPartition("p", "id", "0000000000000000050", "0000000000000000300"),
    "value": HistoryPartition("p", "name", "n3", "n3"),
    "nothing": HistoryPartition("p", "day", "2025-01-05", "2025-01-20"),
}
GAPS = [
    PartitionGap("day", "2024-01-30", "", "2024-01-03"),
    PartitionGap("at", "2024-01-05T10:00:00"),
    PartitionGap("id", "100", "200"),
    PartitionGap("name", values=("n1", "n2", "other")),
]


def open_files(folder: Path, kind: str, **node: Any) -> Files:
    declared = {} if kind in ("parquet", "orc", "text") else {"schema": SCHEMA}
    options = {"path": str(folder), "format": kind, "mode": "bounded"} | declared | node
    return Files(FileSourceConfig.model_validate(options), Settings(), ordinal=4, name="src")


@pytest.fixture(autouse=True)
def small_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splitting, "SPLIT_ROWS", 100)


@pytest.fixture
def only_spark(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    return lambda: monkeypatch.setattr(FileDecoder, "arrow_rows", lambda *_: None)


def plan(files: Files, spark: SparkSession, window: HistoryPartition | None) -> tuple[Snapshot, list[Any]]:
    snapshot = files.create_snapshot(spark, "token")
    return snapshot, list(files.splits(spark, snapshot, window, None))


def as_rows(table: pa.Table) -> list[Any]:
    return sorted(map(repr, table.to_pylist()))


@pytest.mark.parametrize("kind", WRITERS)
def test_the_same_as_with_spark(
    spark: SparkSession, tmp_path: Path, kind: str, only_spark: Callable[[], None]
) -> None:
    for number in range(3):
        WRITERS[kind](rows_of(number * 150, number * 150 + 150), tmp_path / f"{number}.{kind}")
    files = open_files(tmp_path, kind)
    assert files.explain_direct_obstacle() == ""
    result: dict[str, Any] = {}
    for name, window in PARTITIONS.items():
        snapshot, splits = plan(files, unused_session(), window)
        table = files.read_table(snapshot, splits, files.schema(unused_session()).names)
        assert table is not None
        assert table.num_rows == sum(split["rows"] for split in splits)
        reader = pickle.loads(pickle.dumps(files.create_split_reader(snapshot, splits, None)))
        batches = [batch for split in splits for batch in reader.fetch(split)]
        payload = table.drop_columns([OP, POS])
        assert pa.Table.from_batches(batches, payload.schema).equals(payload)
        result[name] = [{**split, "plain": None} for split in splits], as_rows(table)
    snapshot = files.create_snapshot(unused_session(), "token")
    counted = [files.count_unpartitioned_rows(unused_session(), snapshot, gap, None) for gap in GAPS]
    assert all(one.outside for one in counted)

    only_spark()
    for name, window in PARTITIONS.items():
        snapshot, splits = plan(files, spark, window)
        expected = as_rows(files.read(spark, snapshot, splits).toArrow())
        assert ([{**split, "plain": None} for split in splits], expected) == result[name], name
        assert files.read_table(snapshot, splits, ()) is None
    assert [files.count_unpartitioned_rows(spark, snapshot, gap, None) for gap in GAPS] == counted


@pytest.mark.parametrize("kind", ["parquet", "csv"])
@pytest.mark.parametrize(
    ("folder_type", "values", "window"),
    [
        ("date32", ["2024-01-01", "2024-02-10"], HistoryPartition("p", "dt", "2024-02-01", "2024-03-01")),
        ("int64", ["9", "10"], HistoryPartition("p", "dt", "10", "20")),
        ("string", ["a b", "é"], HistoryPartition("p", "dt", "a b", "a b")),
    ],
    ids=["dates", "integers", "texts"],
)
def test_values_of_folders(
    spark: SparkSession,
    tmp_path: Path,
    kind: str,
    folder_type: str,
    values: list[str],
    window: HistoryPartition,
    only_spark: Callable[[], None],
) -> None:
    for at, value in enumerate([*values, "__HIVE_DEFAULT_PARTITION__"]):
        folder = tmp_path / f"dt={value}"
        folder.mkdir()
        WRITERS[kind](rows_of(at * 50, at * 50 + 50), folder / f"x.{kind}")
    declared = {} if kind == "parquet" and folder_type == "string" else {"schema": {"dt": folder_type}}
    if kind == "csv":
        declared = {"schema": SCHEMA | {"dt": folder_type}}
    files = open_files(tmp_path, kind, **declared)
    result = []
    for one in (None, window):
        snapshot, splits = plan(files, unused_session(), one)
        table = files.read_table(snapshot, splits, files.schema(unused_session()).names)
        assert table is not None
        result.append(as_rows(table))
    assert [len(rows) for rows in result] == [150, 50]
    only_spark()
    for one, expected in zip((None, window), result, strict=True):
        snapshot, splits = plan(files, spark, one)
        assert as_rows(files.read(spark, snapshot, splits).toArrow()) == expected


def test_lines_of_text(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("one\r\n\n é \nlast".encode())
    files = open_files(tmp_path, "text")
    snapshot, splits = plan(files, unused_session(), None)
    table = files.read_table(snapshot, splits, ["value"])
    assert table is not None
    assert table["value"].to_pylist() == ["one", "", " é ", "last"]
    assert as_rows(files.read(spark, snapshot, splits).toArrow()) == as_rows(table)

    (tmp_path / "a.txt").write_bytes(b"one\n\xff\n")
    files.close()
    snapshot, splits = plan(files, spark, None)
    assert files.create_split_reader(snapshot, splits, None) is None
    with pytest.raises(Exception, match="the line is not UTF-8"):
        files.read(spark, snapshot, splits).collect()


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [("csv", "id,day\n1,2024-01-01\n +2 ,2024-01-02\n", 2), ("json", '{"id": 1}\n {"id": 2}\n', 2)],
)
def test_text_of_an_unusual_form_is_read_by_spark(
    spark: SparkSession, tmp_path: Path, kind: str, text: str, value: int
) -> None:
    (tmp_path / f"a.{kind}").write_text(text)
    files = open_files(tmp_path, kind, schema={"id": "int64", "day": "date32"})
    snapshot, splits = plan(files, spark, None)
    assert files.read_table(snapshot, splits, ["id"]) is None
    assert files.create_split_reader(snapshot, splits, None) is None
    assert [row.id for row in files.read(spark, snapshot, splits).orderBy(POS).collect()] == [1, value]


def test_a_column_that_is_not_read_may_have_any_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,day\n1,broken\n")
    files = open_files(tmp_path, "csv", schema={"id": "int64", "day": "date32"}, columns=["id"])
    snapshot, splits = plan(files, unused_session(), None)
    table = files.read_table(snapshot, splits, ["id"])
    assert table is not None
    assert table["id"].to_pylist() == [1]


def test_a_file_of_another_format_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id\n1\n1,2\n")
    files = open_files(tmp_path, "csv", schema={"id": "int64"})
    with pytest.raises(DataError, match=r"a\.csv` cannot be read as csv"):
        plan(files, unused_session(), None)


@pytest.mark.parametrize("kind", ["float32", "binary"])
def test_types_that_only_spark_converts_are_named(tmp_path: Path, kind: str) -> None:
    (tmp_path / "a.csv").write_text("id,v\n1,2\n")
    files = open_files(tmp_path, "csv", schema={"id": "int64", "v": kind})
    assert files.explain_direct_obstacle() == "Spark converts the text of its columns: v"
