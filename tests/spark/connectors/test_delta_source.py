"""Delta as a bounded source, on the real engine: the rows of a version, each once, whatever happens to the table."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from helpers.depth import FULL

from headrace.connectors import splitting
from headrace.connectors.delta.config import DeltaSourceConfig
from headrace.connectors.delta.source import DeltaTable
from headrace.connectors.row_errors import explain_failure
from headrace.connectors.source_base import Snapshot
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import PipelineStateError, SchemaError, TargetError
from headrace.pipeline.model.sources import OffsetTable
from headrace.pipeline.protocol.epochs import Json
from headrace.pipeline.protocol.partitions import HistoryPartition, PartitionGap
from headrace.pipeline.protocol.table_offsets import HandoffFilter

VECTORS = "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
MAPPED = "TBLPROPERTIES ('delta.columnMapping.mode' = 'name', 'delta.enableDeletionVectors' = 'true')"


class Lake:
    """A folder of Delta tables that tests write as another program does."""

    def __init__(self, spark: Any, folder: Path) -> None:
        self.spark = spark.newSession()
        self.folder = folder

    def table(self, columns: str = "id bigint, d date, v string", tail: str = "") -> str:
        path = str(self.folder / f"t {uuid.uuid4().hex[:8]}")
        self.spark.sql(f"CREATE TABLE delta.`{path}` ({columns}) USING delta {tail}")
        return path

    def sql(self, path: str, statement: str) -> None:
        self.spark.sql(statement.format(t=f"delta.`{path}`"))

    def add(self, path: str, first: int, count: int, value: str = "old") -> None:
        rows = (
            f"SELECT id, date_add(date'2013-01-01', cast(id % 3 AS int)), '{value}'"
            f" FROM range({first}, {first + count}, 1, 2)"
        )
        self.sql(path, f"INSERT INTO {{t}} {rows}")

    def source(self, path: str, **node: Any) -> DeltaTable:
        return DeltaTable(DeltaSourceConfig(path=path, **node), Settings(), ordinal=4, name="src")


@pytest.fixture(scope="module")
def lake(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return Lake(spark, tmp_path_factory.mktemp("lake"))


@pytest.fixture
def small_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splitting, "SPLIT_ROWS", 100)


def ids(table: DeltaTable, spark: Any, snapshot: Snapshot, splits: Sequence[Json]) -> list[list[int]]:
    """The ids of each split."""
    return [
        sorted(row.id for row in table.read(spark, snapshot, [split], ["id"]).collect()) for split in splits
    ]


def flat(parts: list[list[int]]) -> list[int]:
    return list(chain.from_iterable(parts))


@pytest.mark.usefixtures("small_splits")
@pytest.mark.parametrize("tail", [VECTORS, f"PARTITIONED BY (d) {MAPPED}", ""])
def test_splits_have_the_version_once(lake: Lake, tail: str) -> None:
    """Removed and rewritten rows included, later changes of the table excluded."""
    spark, path = lake.spark, lake.table(tail=tail)
    for first in (0, 300, 600):
        lake.add(path, first, 300)
    lake.sql(path, "DELETE FROM {t} WHERE id % 7 = 0")
    table = lake.source(path)
    snapshot = table.create_snapshot(spark, "token")
    splits = table.splits(spark, snapshot, None, None)
    before = ids(table, spark, snapshot, splits)
    assert len(splits) > 3 or not tail, "without deletion vectors a DELETE writes the files again"
    assert [len(rows) for rows in before] == [split["rows"] for split in splits]
    assert sorted(flat(before)) == [number for number in range(900) if number % 7]
    for change in (
        "INSERT INTO {t} VALUES (5000, date'2013-01-01', 'new')",
        "DELETE FROM {t} WHERE id % 2 = 0",
        "OPTIMIZE {t}",
        "ALTER TABLE {t} ADD COLUMN extra int",
    ):
        lake.sql(path, change)
        if not FULL and (tail != VECTORS or "OPTIMIZE" not in change):
            continue
        fresh = lake.source(path)
        assert fresh.splits(spark, snapshot, None, None) == splits
        rows = fresh.read(spark, snapshot, splits, ["id"]).collect()
        assert sorted(row.id for row in rows) == sorted(flat(before))
    assert ids(lake.source(path), spark, snapshot, splits) == before
    assert {row.v for row in table.read(spark, snapshot, splits).collect()} == {"old"}
    table.close()


@pytest.mark.usefixtures("small_splits")
def test_only_the_files_of_a_split_are_opened(lake: Lake) -> None:
    """A removed file is an error that says what to do."""
    spark, path = lake.spark, lake.table()
    for first in (0, 200, 400):
        lake.add(path, first, 200)
    table = lake.source(path)
    snapshot = table.create_snapshot(spark, "token")
    splits = table.splits(spark, snapshot, None, None)
    for place, split in enumerate(splits):
        if place not in (1, 2):
            for _, location in split["files"]:
                (Path(path) / location.rpartition("/")[2]).unlink()
    assert len(flat(ids(table, spark, snapshot, splits[1:3]))) == splits[1]["rows"] + splits[2]["rows"]
    with pytest.raises(Exception, match="FILE_NOT_EXIST") as caught:
        ids(table, spark, snapshot, splits[:1])
    explained = explain_failure(caught.value)
    assert isinstance(explained, PipelineStateError)
    assert splits[0]["files"][0][1].rpartition("/")[2] in explained.message


def test_windows_and_filter(lake: Lake) -> None:
    spark, path = lake.spark, lake.table("id bigint, d timestamp, v string")
    lake.sql(
        path,
        "INSERT INTO {t} SELECT id, timestamp'2013-01-01 00:00:00' + make_interval(0, 0, 0, 0,"
        " cast(id AS int)), 'x' FROM range(2000)",
    )
    lake.sql(path, "INSERT INTO {t} VALUES (9999, NULL, 'x')")
    table = lake.source(path, filter="id % 2 = 0 -- even")
    snapshot = table.create_snapshot(spark, "token")
    result = []
    for start, end in (("2013-01-01", "2013-02-01"), ("2013-02-01", "2013-03-01")):
        splits = table.splits(spark, snapshot, HistoryPartition(start, "d", start, end), None)
        result.append(sorted(flat(ids(table, spark, snapshot, splits))))
        assert sum(split["rows"] for split in splits) == len(result[-1])
    assert result == [list(range(0, 744, 2)), list(range(744, 744 + 672, 2))]
    gap = PartitionGap("d", start="2013-03-01", before="2013-01-01")
    assert table.count_unpartitioned_rows(spark, snapshot, gap, None).outside == 1000 - 744 // 2 - 672 // 2
    assert table.has_nulls(spark, snapshot, "d")
    with pytest.raises(SchemaError, match="the filter `nope = 1` is wrong"):
        lake.source(path, filter="nope = 1").create_snapshot(spark, "token")


def test_the_cut_is_exact(lake: Lake) -> None:
    spark, path = lake.spark, lake.table("id bigint, p int, o bigint")
    lake.sql(path, "INSERT INTO {t} SELECT id, id % 3, id div 3 FROM range(300)")
    lake.sql(path, "INSERT INTO {t} VALUES (1000, NULL, NULL), (1001, 1, NULL)")
    table, offsets = lake.source(path), OffsetTable(partition_column="p", offset_column="o")
    assert table.read_end_offsets(offsets, "a") == {"0": 100, "1": 100, "2": 100}
    snapshot = table.create_snapshot(spark, "token")
    splits = table.splits(spark, snapshot, None, HandoffFilter("p", "o", {"0": 10, "1": 0}))
    rows = table.read(spark, snapshot, splits, ["id"]).collect()
    assert sorted(row.id for row in rows) == [*range(0, 30, 3), 1000, 1001]
    places = {row.id: tuple(row._gs_pos) for row in rows}
    assert places[27] == (4, 0, 9, 0)
    assert all(places[number][1] < 0 for number in (1000, 1001)), "rows without an offset come first"


@pytest.mark.usefixtures("small_splits")
def test_positions_follow_the_order_of_additions(lake: Lake) -> None:
    """Of one key the row that was added later is the last. Positions are the same at every reading."""
    spark, path = lake.spark, lake.table()
    for number in range(3):
        lake.add(path, 0, 120, f"round {number}")
    table = lake.source(path)
    snapshot = table.create_snapshot(spark, "token")
    splits = table.splits(spark, snapshot, None, None)
    rows = table.read(spark, snapshot, splits).collect()
    assert len({row._gs_pos for row in rows}) == 360
    last: dict[int, Any] = {}
    for row in sorted(rows, key=lambda row: row._gs_pos):
        last[row.id] = row.v
    assert set(last.values()) == {"round 2"}
    again = {
        (row.id, row.v): row._gs_pos
        for split in splits[::-1]
        for row in lake.source(path).read(spark, snapshot, [split]).collect()
    }
    assert again == {(row.id, row.v): row._gs_pos for row in rows}


def test_files_of_a_shallow_clone_are_read_where_they_are(lake: Lake) -> None:
    spark, path = lake.spark, lake.table(tail=VECTORS)
    lake.add(path, 0, 50)
    clone = f"{path} clone"
    lake.sql(path, f"CREATE TABLE delta.`{clone}` SHALLOW CLONE {{t}}")
    lake.sql(clone, "DELETE FROM {t} WHERE id < 10")
    lake.sql(clone, "INSERT INTO {t} VALUES (99, NULL, 'x')")
    table = lake.source(clone)
    snapshot = table.create_snapshot(spark, "token")
    splits = table.splits(spark, snapshot, None, None)
    assert sorted(flat(ids(table, spark, snapshot, splits))) == [*range(10, 50), 99]
    assert sum(split["rows"] for split in splits) == 41


def test_an_older_version_and_a_table_that_was_created_again(lake: Lake) -> None:
    spark, path = lake.spark, lake.table()
    lake.add(path, 0, 10)
    lake.add(path, 10, 10)
    table = lake.source(path, version=1)
    snapshot = table.create_snapshot(spark, "token")
    splits = table.splits(spark, snapshot, None, None)
    assert sorted(flat(ids(table, spark, snapshot, splits))) == list(range(10))
    with pytest.raises(PipelineStateError, match="no longer has version 9"):
        lake.source(path, version=9).create_snapshot(spark, "token")
    shutil.rmtree(path)
    lake.sql(path, "CREATE TABLE {t} (id bigint, d date, v string) USING delta")
    lake.add(path, 0, 10)
    for ask in (
        lambda: table.read(spark, snapshot, splits),
        lambda: lake.source(path).splits(spark, snapshot, None, None),
    ):
        with pytest.raises(PipelineStateError, match="was created again since version 1"):
            ask()


def test_an_empty_table_and_none(lake: Lake) -> None:
    path = lake.table()
    table = lake.source(path)
    snapshot = table.create_snapshot(lake.spark, "token")
    assert table.splits(lake.spark, snapshot, None, None) == []
    assert table.read(lake.spark, snapshot, []).columns == ["id", "d", "v", "_gs_op", "_gs_pos"]
    with pytest.raises(TargetError, match="there is no Delta table at") as caught:
        lake.source(f"{path}x").schema(lake.spark)
    assert f"Did you mean {path}" in str(caught.value)
    assert not Path(f"{path}x").exists(), "a source creates nothing"
    with pytest.raises(TargetError, match="there is no Delta table at"):
        lake.source("/nowhere/at/all").create_snapshot(lake.spark, "token")
    assert lake.source("/lake/market/orders").describe()["asset_key"] == ["delta", "orders"]
