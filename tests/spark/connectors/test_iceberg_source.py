"""Iceberg as a bounded source, on the real engine.

A snapshot's rows, each once, whatever happens to the table.
"""

from __future__ import annotations

import uuid
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError

from headrace.connectors import splitting
from headrace.connectors.iceberg.catalog import WarehouseTable
from headrace.connectors.iceberg.config import IcebergSourceConfig
from headrace.connectors.iceberg.source import IcebergTable
from headrace.connectors.source_base import Snapshot
from headrace.pipeline.config.sections import IcebergSettings
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import PipelineStateError, SchemaError, SettingsError, TargetError
from headrace.pipeline.model.sources import OffsetTable
from headrace.pipeline.protocol.partitions import HistoryPartition, PartitionGap, UnpartitionedRows
from headrace.pipeline.protocol.table_offsets import HandoffFilter

MERGE_ON_READ = "TBLPROPERTIES ('format-version' = '2', 'write.delete.mode' = 'merge-on-read')"


class Warehouse:
    """A hadoop warehouse that tests write through a catalog of its own."""

    def __init__(self, spark: Any, folder: Path) -> None:
        self.spark = spark.newSession()
        self.folder = folder
        for suffix, value in {
            "": "org.apache.iceberg.spark.SparkCatalog",
            ".type": "hadoop",
            ".warehouse": str(folder),
            ".cache-enabled": "false",
        }.items():
            self.spark.conf.set(f"spark.sql.catalog.w{suffix}", value)

    def table(self, columns: str = "id bigint, d date, v string", tail: str = "") -> str:
        name = f"n.t_{uuid.uuid4().hex[:8]}"
        self.spark.sql(f"CREATE TABLE w.{name} ({columns}) USING iceberg {tail}")
        return name

    def add(self, name: str, first: int, count: int, value: str = "old") -> None:
        rows = (
            f"SELECT id, date_add(date'2013-01-01', cast(id % 90 AS int)), '{value}' FROM range({first},"
            f" {first + count}, 1, 2)"
        )
        self.spark.sql(f"INSERT INTO w.{name} {rows}")

    def source(self, name: str, **node: Any) -> IcebergTable:
        return IcebergTable(
            IcebergSourceConfig(table_name=name, **node),
            Settings(iceberg=IcebergSettings(warehouse=str(self.folder))),
            ordinal=4,
        )


@pytest.fixture(scope="module")
def warehouse(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    return Warehouse(spark, tmp_path_factory.mktemp("warehouse"))


@pytest.fixture
def small_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splitting, "SPLIT_ROWS", 100)


def ids(table: IcebergTable, spark: Any, snapshot: Snapshot, splits: Any) -> list[list[int]]:
    """The ids of each split."""
    return [
        sorted(row.id for row in table.read(spark, snapshot, [split], ["id"]).collect()) for split in splits
    ]


def flat(parts: list[list[int]]) -> list[int]:
    return list(chain.from_iterable(parts))


@pytest.mark.usefixtures("small_splits")
def test_splits_hold_the_snapshot_once(warehouse: Warehouse) -> None:
    """Deletes by position and rewritten files included.

    Later changes of the table excluded, whichever they are.
    """
    spark = warehouse.spark
    name = warehouse.table(tail=f"PARTITIONED BY (months(d)) {MERGE_ON_READ}")
    for first in (0, 300, 600):
        warehouse.add(name, first, 300)
    spark.sql(f"DELETE FROM w.{name} WHERE id % 7 = 0")
    table = warehouse.source(name)
    snapshot = table.create_snapshot(spark, "token")
    splits = table.splits(spark, snapshot, None, None)
    before = ids(table, spark, snapshot, splits)
    assert len(splits) > 3
    assert [len(rows) for rows in before] == [split["rows"] for split in splits]
    assert sorted(flat(before)) == [number for number in range(900) if number % 7]
    for change in (
        f"INSERT INTO w.{name} VALUES (5000, date'2013-01-01', 'new')",
        f"DELETE FROM w.{name} WHERE id % 2 = 0",
        f"ALTER TABLE w.{name} ADD COLUMN extra int",
        f"ALTER TABLE w.{name} DROP COLUMN v",
    ):
        spark.sql(change)
        fresh = warehouse.source(name)
        assert fresh.splits(spark, snapshot, None, None) == splits
        rows = fresh.read(spark, snapshot, splits, ["id"]).collect()
        assert sorted(row.id for row in rows) == sorted(flat(before))
    assert ids(warehouse.source(name), spark, snapshot, splits) == before
    assert {row.v for row in table.read(spark, snapshot, splits).collect()} == {"old"}
    table.close()


@pytest.mark.usefixtures("small_splits")
def test_only_the_files_of_a_split_are_opened(warehouse: Warehouse) -> None:
    """A backfill of n epochs must not read the table n times."""
    spark = warehouse.spark
    name = warehouse.table()
    for first in (0, 200, 400):
        warehouse.add(name, first, 200)
    table = warehouse.source(name)
    snapshot = table.create_snapshot(spark, "token")
    splits = table.splits(spark, snapshot, None, None)
    for place, split in enumerate(splits):
        if place not in (1, 2):
            for _, location in split["files"]:
                Path(location).unlink()
    assert len(flat(ids(table, spark, snapshot, splits[1:3]))) == splits[1]["rows"] + splits[2]["rows"]
    with pytest.raises(Py4JJavaError, match="NotFoundException"):
        ids(table, spark, snapshot, splits[:1])


def test_windows_and_filter(warehouse: Warehouse) -> None:
    spark = warehouse.spark
    name = warehouse.table("id bigint, d timestamp, v string")
    spark.sql(
        f"INSERT INTO w.{name} SELECT id, timestamp'2013-01-01 00:00:00' + make_interval(0, 0, 0, 0,"
        " cast(id AS int)), 'x' FROM range(2000)"
    )
    spark.sql(f"INSERT INTO w.{name} VALUES (9999, NULL, 'x')")
    table = warehouse.source(name, filter="id % 2 = 0 -- even")
    snapshot = table.create_snapshot(spark, "token")
    result = []
    for start, end in (("2013-01-01", "2013-02-01"), ("2013-02-01", "2013-03-01")):
        splits = table.splits(spark, snapshot, HistoryPartition(start, "d", start, end), None)
        assert all(split["id"].startswith(start) for split in splits)
        result.append(sorted(flat(ids(table, spark, snapshot, splits))))
        assert sum(split["rows"] for split in splits) == len(result[-1])
    assert result == [list(range(0, 744, 2)), list(range(744, 744 + 672, 2))]
    assert table.splits(spark, snapshot, HistoryPartition("w", "d", "2020-01-01", "2020-02-01"), None) == []
    with pytest.raises(SchemaError, match="the filter `nope = 1` is wrong"):
        warehouse.source(name, filter="nope = 1").create_snapshot(spark, "token")


def test_partitions_by_values_and_integers(warehouse: Warehouse) -> None:
    spark = warehouse.spark
    name = warehouse.table("id bigint, region string")
    spark.sql(f"INSERT INTO w.{name} SELECT id, IF(id % 3 = 0, 'eu', 'us') FROM range(90)")
    spark.sql(f"INSERT INTO w.{name} VALUES (100, 'asia'), (101, NULL)")
    table = warehouse.source(name)
    snapshot = table.create_snapshot(spark, "token")

    def read(column: str, start: str, end: str) -> list[int]:
        splits = table.splits(spark, snapshot, HistoryPartition("k", column, start, end), None)
        return sorted(flat(ids(table, spark, snapshot, splits)))

    assert read("region", "eu", "eu") == list(range(0, 90, 3))
    assert read("region", "us", "us") == [key for key in range(90) if key % 3]
    assert read("id", "9", "10") == [9], "numbers have no order of text"
    assert read("id", "90", "200") == [100, 101]
    others = PartitionGap("region", values=("eu", "us"))
    assert table.count_unpartitioned_rows(spark, snapshot, others, None) == UnpartitionedRows(1, 1, "asia")
    beyond = PartitionGap("id", start="90", before="10")
    assert table.count_unpartitioned_rows(spark, snapshot, beyond, None) == UnpartitionedRows(0, 12, "101")


def test_the_cut_is_exact(warehouse: Warehouse) -> None:
    spark = warehouse.spark
    name = warehouse.table("id bigint, p int, o bigint, topic string")
    spark.sql(f"INSERT INTO w.{name} SELECT id, id % 3, id div 3, 'a' FROM range(300)")
    spark.sql(
        f"INSERT INTO w.{name} VALUES (1000, NULL, NULL, 'a'), (1001, 1, NULL, 'a'), (1002, NULL, 5, 'b'),"
        " (1003, 9, 77, 'b')"
    )
    table = warehouse.source(name)
    assert table.read_end_offsets(
        OffsetTable(partition_column="p", offset_column="o", topic_column="topic"), "a"
    ) == {
        "0": 100,
        "1": 100,
        "2": 100,
    }
    assert table.read_end_offsets(OffsetTable(partition_column="p", offset_column="o"), "a") == {
        "0": 100,
        "1": 100,
        "2": 100,
        "9": 78,
    }
    snapshot = table.create_snapshot(spark, "token")
    splits = table.splits(spark, snapshot, None, HandoffFilter("p", "o", {"0": 10, "1": 0, "12": 3}))
    rows = table.read(spark, snapshot, splits, ["id"]).collect()
    assert sorted(row.id for row in rows) == [*range(0, 30, 3), 1000, 1001, 1002]
    assert sum(split["rows"] for split in splits) == len(rows)
    places = {row.id: tuple(row._gs_pos) for row in rows}
    assert places[27] == (4, 0, 9, 0)
    assert len(set(places.values())) == len(rows), "rows without an offset share a place"
    assert all(places[number][1] < 0 for number in (1000, 1001, 1002)), (
        "rows without an offset do not stand before the others"
    )


@pytest.mark.usefixtures("small_splits")
def test_positions_follow_the_order_of_additions(warehouse: Warehouse) -> None:
    """Of one key the row that was added later is the last.

    Positions are unique and the same at every reading.
    """
    spark = warehouse.spark
    name = warehouse.table()
    for round_ in range(3):
        warehouse.add(name, 0, 120, f"round {round_}")
    table = warehouse.source(name)
    snapshot = table.create_snapshot(spark, "token")
    splits = table.splits(spark, snapshot, None, None)
    rows = table.read(spark, snapshot, splits).collect()
    assert len({row._gs_pos for row in rows}) == 360
    assert {row._gs_op for row in rows} == {"i"}
    last: dict[int, Any] = {}
    for row in sorted(rows, key=lambda row: row._gs_pos):
        last[row.id] = row.v
    assert set(last.values()) == {"round 2"}
    again = {
        (row.id, row.v): row._gs_pos
        for split in splits[::-1]
        for row in table.read(spark, snapshot, [split]).collect()
    }
    assert again == {(row.id, row.v): row._gs_pos for row in rows}


def test_many_readings_do_not_pile_up(warehouse: Warehouse) -> None:
    spark = warehouse.spark
    name = warehouse.table()
    warehouse.add(name, 0, 10)
    table = warehouse.source(name)
    snapshot = table.create_snapshot(spark, "token")
    splits = table.splits(spark, snapshot, None, None)
    cache = spark._jvm.org.apache.iceberg.spark.SparkTableCache.get()
    before = cache.size()
    frames = [table.read(spark, snapshot, splits) for _ in range(20)]
    assert cache.size() - before <= 16
    assert frames[-1].count() == 10
    table.close()
    assert cache.size() == before


def test_types(warehouse: Warehouse) -> None:
    spark = warehouse.spark
    name = warehouse.table(
        "a int, b float, c decimal(38, 10), d timestamp, e timestamp_ntz, f binary, g array<struct<x:"
        " bigint>>, h map<string, date>, i boolean"
    )
    spark.sql(
        f"INSERT INTO w.{name} SELECT 1, float('nan'), 1.5, timestamp'2020-01-01 12:00:00+02:00',"
        " timestamp_ntz'2020-01-01 12:00:00', X'00FF', "
        "array(named_struct('x', 1L)), map('k', date'2020-02-02'), true"
    )
    table = warehouse.source(name)
    assert table.schema(spark).types == [
        pa.int32(), pa.float32(), pa.decimal128(38, 10), pa.timestamp("us", "UTC"), pa.timestamp("us"),
        pa.binary(), pa.list_(pa.struct([("x", pa.int64())])), pa.map_(pa.string(), pa.date32()), pa.bool_(),
    ]  # fmt: skip
    snapshot = table.create_snapshot(spark, "token")
    [row] = (
        table.read(spark, snapshot, table.splits(spark, snapshot, None, None))
        .toArrow()
        .drop_columns(["_gs_op", "_gs_pos"])
        .to_pylist()
    )
    assert str(row.pop("b")) == "nan"
    assert row == {
        "a": 1, "c": Decimal("1.5"), "d": datetime(2020, 1, 1, 10, tzinfo=UTC), "e": datetime(2020, 1, 1, 12),
        "f": b"\0\xff", "g": [{"x": 1}], "h": [("k", date(2020, 2, 2))], "i": True,
    }  # fmt: skip
    assert warehouse.source(name, columns="i, a").schema(spark).names == ["i", "a"]
    with pytest.raises(SchemaError, match="has no column nope"):
        warehouse.source(name, columns="nope").schema(spark)


def test_an_empty_table(warehouse: Warehouse) -> None:
    table = warehouse.source(warehouse.table())
    snapshot = table.create_snapshot(warehouse.spark, "token")
    assert snapshot.handle["snapshot_id"] is None
    assert table.splits(warehouse.spark, snapshot, None, None) == []
    assert table.read(warehouse.spark, snapshot, []).columns == ["id", "d", "v", "_gs_op", "_gs_pos"]
    assert table.read(warehouse.spark, snapshot, []).count() == 0


def test_an_older_snapshot_and_an_expired_one(warehouse: Warehouse) -> None:
    spark = warehouse.spark
    name = warehouse.table()
    warehouse.add(name, 0, 10)
    first = warehouse.source(name).create_snapshot(spark, "token").handle["snapshot_id"]
    warehouse.add(name, 10, 10)
    table = warehouse.source(name, snapshot_id=first)
    snapshot = table.create_snapshot(spark, "token")
    splits = table.splits(spark, snapshot, None, None)
    assert flat(ids(table, spark, snapshot, splits)) == list(range(10))
    WarehouseTable(str(warehouse.folder), name, "t").load(spark).expireSnapshots().expireSnapshotId(
        first
    ).commit()
    for ask in (
        lambda: table.read(spark, snapshot, splits),
        lambda: warehouse.source(name).splits(spark, snapshot, None, None),
        lambda: table.create_snapshot(spark, "t"),
    ):
        with pytest.raises(PipelineStateError, match=f"no longer has snapshot {first}"):
            ask()


def test_what_is_missing_is_named(warehouse: Warehouse) -> None:
    spark = warehouse.spark
    name = warehouse.table()
    with pytest.raises(TargetError, match="does not exist") as caught:
        warehouse.source(f"{name}x").schema(spark)
    assert f"Did you mean {name}" in str(caught.value)
    with pytest.raises(TargetError, match="does not exist"):
        warehouse.source("nowhere.t").create_snapshot(spark, "token")
    with pytest.raises(SettingsError, match="no warehouse"):
        IcebergTable(IcebergSourceConfig(table_name="n.t"), Settings()).schema(spark)
    assert warehouse.source("n.t").describe()["asset_key"] == ["iceberg", "n", "t"]
