"""Delta tables that Headrace reads without Spark: the same versions, files, columns and rows as Spark's."""

from __future__ import annotations

import pickle
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from helpers.unused_session import unused_session

from headrace.connectors import splitting
from headrace.connectors.delta.config import DeltaSourceConfig
from headrace.connectors.delta.source import DeltaTable
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import PipelineStateError
from headrace.pipeline.protocol.partitions import HistoryPartition, PartitionGap
from headrace.pipeline.sql.system_columns import OP, POS

VECTORS = "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
WIDENED = "TBLPROPERTIES ('delta.enableTypeWidening' = 'true')"
TYPES = (
    "id bigint, t tinyint, s smallint, i int, f float, v double, m decimal(38, 10), b boolean, x binary, d date,"
    " at timestamp, local timestamp_ntz, v2 string"
)
VALUES = """
    (1, -128Y, -32768S, -2147483648, float('-inf'), double('nan'), 9999999999999999999999999999.9999999999, true,
     X'00FF', date'0001-01-01', timestamp'0001-01-01 00:00:00.000001', timestamp_ntz'9999-12-31 23:59:59.999999', ''),
    (2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
    (3, 127Y, 32767S, 2147483647, float('1e-45'), -0.0D, -0.0000000001, false, X'', date'9999-12-31',
     timestamp'9999-12-31 23:59:59.999999', timestamp_ntz'1582-10-10 00:00:00', '\U0001f600 é')
"""
INSERT = "INSERT INTO {t} SELECT id, CAST(id % 3 AS INT) AS p, CONCAT('v', id) AS v FROM range({first}, {end}, 1, 2)"


def insert(first: int, end: int) -> str:
    return INSERT.replace("{first}", str(first)).replace("{end}", str(end))


TABLES: dict[str, tuple[str, list[str]]] = {
    "plain": ("id bigint, p int, v string", [insert(0, 500), insert(500, 700)]),
    "empty": ("id bigint, p int, v string", []),
    "types": (TYPES, [f"INSERT INTO {{t}} VALUES {VALUES}"]),
    "vectors": (
        f"id bigint, p int, v string|{VECTORS}",
        [insert(0, 500), "DELETE FROM {t} WHERE id % 7 = 0", insert(500, 900), "DELETE FROM {t} WHERE id IN (3, 501, 899)"],
    ),
    "all removed": (f"id bigint, p int, v string|{VECTORS}", [insert(0, 50), insert(50, 60), "DELETE FROM {t} WHERE id > 9 AND id < 50"]),
    "int partitions": ("id bigint, p int, v string|PARTITIONED BY (p)", [insert(0, 500), "INSERT INTO {t} VALUES (900, NULL, 'x')"]),
    "text partitions": (
        "id bigint, p string, v date|PARTITIONED BY (p, v)",
        ["INSERT INTO {t} VALUES (1, 'a=b/c%20 d', date'2020-01-01'), (2, '', NULL), (3, NULL, date'0001-01-01'), (4, 'é', NULL)"],
    ),
    "added column": (
        "id bigint, p int, v string",
        [insert(0, 300), "ALTER TABLE {t} ADD COLUMN (later double)", "INSERT INTO {t} VALUES (900, 1, 'x', 2.5)"],
    ),
    "widened column": (
        f"id bigint, p int, v string|{WIDENED}",
        [insert(0, 300), "ALTER TABLE {t} ALTER COLUMN p TYPE bigint", "INSERT INTO {t} VALUES (900, 5000000000, 'x')"],
    ),
    "checkpoint": (
        "id bigint, p int, v string|TBLPROPERTIES ('delta.checkpointInterval' = '2')",
        [insert(0, 100), insert(100, 200), insert(200, 300), insert(300, 400), "OPTIMIZE {t}"],
    ),
    "odd names": (
        "id bigint, `a.b` int, `Ünï` string",
        ["INSERT INTO {t} VALUES (1, 2, 'x'), (2, NULL, NULL)"],
    ),
}  # fmt: skip
ONLY_SPARK: dict[str, tuple[str, list[str]]] = {
    "mapped columns": (
        "id bigint, v string|TBLPROPERTIES ('delta.columnMapping.mode' = 'name')",
        ["INSERT INTO {t} VALUES (1, 'x')", "ALTER TABLE {t} RENAME COLUMN id TO key", "ALTER TABLE {t} RENAME COLUMN key TO id"],
    ),
    "decimal partitions": ("id decimal(10, 2), v string|PARTITIONED BY (id)", ["INSERT INTO {t} VALUES (1.5, 'x')"]),
}  # fmt: skip


@pytest.fixture(autouse=True)
def small_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splitting, "SPLIT_ROWS", 200)


def create_table(spark: Any, folder: Path, name: str) -> str:
    path = str(folder / f"t {uuid.uuid4().hex[:8]}%20[x]")
    definition, statements = (TABLES | ONLY_SPARK)[name]
    columns, _, tail = definition.partition("|")
    spark.sql(f"CREATE TABLE delta.`{path}` ({columns}) USING delta {tail}")
    for statement in statements:
        spark.sql(statement.replace("{t}", f"delta.`{path}`"))
    return path


def open_tables(path: str, **node: Any) -> tuple[DeltaTable, DeltaTable]:
    """The table as Headrace reads it, and by Delta's own classes."""
    own = {"spark": {"conf": {"spark.databricks.delta.properties.defaults.checkpointInterval": "10"}}}
    config = DeltaSourceConfig(path=path, **node)
    with_spark = DeltaTable(config, Settings.model_validate(own), ordinal=4, name="src")
    return DeltaTable(config, Settings(), ordinal=4, name="src"), with_spark


@pytest.mark.parametrize("name", TABLES)
def test_the_same_as_spark(spark: Any, tmp_path: Path, name: str) -> None:
    session = spark.newSession()
    path = create_table(session, tmp_path, name)
    table, with_spark = open_tables(path)
    assert table.schema(unused_session()) == with_spark.schema(session)
    snapshot = table.create_snapshot(unused_session(), "token")
    assert snapshot == with_spark.create_snapshot(session, "token")
    splits = table.splits(unused_session(), snapshot, None, None)
    assert splits == with_spark.splits(session, snapshot, None, None)
    names = table.schema(unused_session()).names
    rows = table.read_table(snapshot, splits, names)
    assert rows is not None
    expected = with_spark.read(session, snapshot, splits, names).toArrow()
    assert rows.schema.names == expected.schema.names
    assert sort(rows) == sort(expected)
    if splits:
        reader = table.create_split_reader(snapshot, splits, None)
        assert reader is not None
        batches = [batch for split in splits for batch in pickle.loads(pickle.dumps(reader)).fetch(split)]
        assert all(batch.schema == table.schema(unused_session()) for batch in batches)
        assert sort(pa.Table.from_batches(batches)) == sort(expected.drop_columns([OP, POS]))


WINDOWS: dict[str, tuple[str, str, str]] = {
    "plain": ("id", "100", "550"),
    "vectors": ("id", "490", "505"),
    "int partitions": ("p", "1", "2"),
    "text partitions": ("p", "a=b/c%20 d", "a=b/c%20 d"),
    "types": ("at", "0001-01-01T00:00:00", "2000-01-01"),
    "widened column": ("p", "2", "6000000000"),
    "added column": ("v", "v1", "v2"),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_partitions_are_the_same_as_with_spark(spark: Any, tmp_path: Path, name: str) -> None:
    session = spark.newSession()
    table, with_spark = open_tables(create_table(session, tmp_path, name))
    column, start, end = WINDOWS[name]
    window = HistoryPartition("p", column, start, end)
    snapshot = table.create_snapshot(unused_session(), "token")
    splits = table.splits(unused_session(), snapshot, window, None)
    assert splits
    assert splits == with_spark.splits(session, snapshot, window, None)
    for names in (table.schema(unused_session()).names, ["v"]):
        rows = table.read_table(snapshot, splits, names)
        assert rows is not None
        assert rows.num_rows == sum(split["rows"] for split in splits)
        assert sort(rows) == sort(with_spark.read(session, snapshot, splits, names).toArrow())
    gap = PartitionGap(column, values=(start,)) if start == end else PartitionGap(column, end, "", start)
    counted = table.count_unpartitioned_rows(unused_session(), snapshot, gap, None)
    assert counted == with_spark.count_unpartitioned_rows(session, snapshot, gap, None)


def sort(rows: pa.Table) -> list[str]:
    return sorted(map(repr, rows.to_pylist()))


def test_a_version_that_the_table_has_left(spark: Any, tmp_path: Path) -> None:
    """Its log has a checkpoint before it and one after it."""
    session = spark.newSession()
    path = create_table(session, tmp_path, "checkpoint")
    for version in (1, 3, 5):
        table, with_spark = open_tables(path, version=version)
        snapshot = table.create_snapshot(unused_session(), "token")
        assert snapshot == with_spark.create_snapshot(session, "token")
        splits = table.splits(unused_session(), snapshot, None, None)
        assert splits == with_spark.splits(session, snapshot, None, None)
        assert sum(split["rows"] for split in splits) == min(version, 4) * 100


@pytest.mark.parametrize("name", ONLY_SPARK)
def test_tables_that_only_spark_reads(spark: Any, tmp_path: Path, name: str) -> None:
    session = spark.newSession()
    path = create_table(session, tmp_path, name)
    table, with_spark = open_tables(path)
    snapshot = table.create_snapshot(session, "token")
    splits = table.splits(session, snapshot, None, None)
    assert splits == with_spark.splits(session, snapshot, None, None)
    assert table.create_split_reader(snapshot, splits, None) is None
    assert table.read_table(snapshot, splits, ["id", "v"]) is None
    assert sum(split["rows"] for split in splits) == table.read(session, snapshot, splits).count()


def test_a_file_that_was_removed(spark: Any, tmp_path: Path) -> None:
    path = create_table(spark.newSession(), tmp_path, "plain")
    table, _ = open_tables(path)
    snapshot = table.create_snapshot(unused_session(), "token")
    splits = table.splits(unused_session(), snapshot, None, None)
    reader = table.create_split_reader(snapshot, splits, None)
    assert reader is not None
    for file in Path(path).glob("*.parquet"):
        file.unlink()
    with pytest.raises(
        PipelineStateError, match=r"part-.* or its deletion vector does not exist any more"
    ) as caught:
        list(reader.fetch(splits[0]))
    assert "VACUUM" in caught.value.hint
