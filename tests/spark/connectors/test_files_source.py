"""Files as a bounded source: the same rows in each read, or an error with the file's name."""

from __future__ import annotations

import gzip
import os
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.depth import FULL, with_slow
from pyspark.sql import SparkSession

from headrace.connectors import registry, splitting
from headrace.connectors.files import listing
from headrace.connectors.files import schema as shape
from headrace.connectors.files.config import FileSourceConfig
from headrace.connectors.files.source import Files
from headrace.connectors.files.storage import LocalStorage, list_files
from headrace.connectors.row_errors import explain_failure
from headrace.connectors.source_base import Snapshot
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import (
    DataError,
    PipelineFileError,
    PipelineStateError,
    SchemaError,
    TargetError,
)
from headrace.pipeline.file.loader import from_compiled, parse_pipeline
from headrace.pipeline.model.hybrid import HybridSourceConfig
from headrace.pipeline.model.sources import OffsetTable
from headrace.pipeline.protocol.epochs import Json
from headrace.pipeline.protocol.partitions import HistoryPartition
from headrace.pipeline.protocol.table_offsets import HandoffFilter, PartitionOffsets, TableOffsets


def files(path: Path | str, kind: str = "parquet", **node: Any) -> Files:
    options = {"path": str(path), "format": kind, "mode": "bounded"} | node
    return Files(FileSourceConfig.model_validate(options), Settings(), ordinal=4, name="src")


def put(path: Path, rows: list[Json], schema: pa.Schema | None = None, group: int = 100) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema), path, row_group_size=group)
    return path


def numbered(first: int, end: int, **more: Any) -> list[Json]:
    return [{"id": number, **more} for number in range(first, end)]


def all_of(result: Files, spark: SparkSession, window: HistoryPartition | None = None) -> list[Any]:
    snapshot = result.create_snapshot(spark, "token")
    return result.read(spark, snapshot, result.splits(spark, snapshot, window, None)).collect()


def read_failure(ask: Any) -> Exception:
    """What a failed reading means to people."""
    with pytest.raises(Exception) as caught:  # noqa: PT011  whatever Spark wraps it in
        ask()
    return explain_failure(caught.value) or caught.value


# --- which files


def test_a_path_is_a_file_a_folder_or_a_pattern(tmp_path: Path) -> None:
    for name in (
        "b/part-10.csv",
        "b/part-9.csv",
        "a.csv",
        "b/c/x.csv",
        "_SUCCESS",
        ".hidden/x.csv",
        "b/_temporary/y.csv",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("id\n1\n")

    def names(path: str) -> list[str]:
        return [os.path.relpath(file.path, tmp_path) for file in list_files(LocalStorage(), path, "src")]

    assert names(f"{tmp_path}/b/part-9.csv") == ["b/part-9.csv"]
    assert names(f"file://{tmp_path}/b/part-*.csv") == ["b/part-9.csv", "b/part-10.csv"]
    assert names(f"{tmp_path}/*") == names(str(tmp_path))
    assert names(f"{tmp_path}/**/x.csv") == ["b/c/x.csv"]
    assert names(str(tmp_path)) == ["a.csv", "b/c/x.csv", "b/part-9.csv", "b/part-10.csv"]
    (tmp_path / "link").symlink_to(tmp_path / "b")
    (tmp_path / "b" / "round").symlink_to(tmp_path)
    assert sorted(os.path.basename(name) for name in names(str(tmp_path))) == [
        "a.csv",
        "part-10.csv",
        "part-9.csv",
        "x.csv",
    ]


@pytest.mark.parametrize("path", ["nope.csv", "dat/*.csv", "empty"])
def test_no_files_is_an_error_at_once(tmp_path: Path, path: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "nope.cvs").touch()
    with pytest.raises(TargetError, match="no files matching") as caught:
        list_files(LocalStorage(), f"{tmp_path}/{path}", "src")
    assert f"{tmp_path}/{path}" in caught.value.message
    if path == "nope.csv":
        assert "nope.cvs" in caught.value.hint


def test_the_list_survives_the_ledger(tmp_path: Path) -> None:
    put(tmp_path / "dt=2025-01-01" / "a b.parquet", numbered(0, 3))
    put(tmp_path / "dt=__HIVE_DEFAULT_PARTITION__" / "x.parquet", numbered(0, 3))
    result = [
        listing.File(file.path, file.size, file.changed, (3,))
        for file in list_files(LocalStorage(), str(tmp_path), "src")
    ]
    assert listing.unpack(listing.pack(result)) == result
    assert [file.partitions for file in result] == [{"dt": "2025-01-01"}, {"dt": None}]


def test_folders_that_differ_are_refused(tmp_path: Path) -> None:
    put(tmp_path / "dt=2025-01-01" / "a.parquet", numbered(0, 3))
    put(tmp_path / "b.parquet", numbered(0, 3))
    with pytest.raises(SchemaError, match=r"partition folders (none|dt)"):
        list_files(LocalStorage(), str(tmp_path), "src")


# --- the pin


@pytest.mark.parametrize("kind", with_slow({"json"}, ("parquet", "csv", "json")))
def test_a_file_that_changed_is_named_and_never_read(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    def write(name: str, first: int) -> Path:
        path = tmp_path / f"{name}.{kind}"
        if kind == "parquet":
            return put(path, numbered(first, first + 5))
        path.write_text("id\n" + "".join(f"{n}\n" for n in range(first, first + 5)))
        if kind == "json":
            path.write_text("".join(f'{{"id": {n}}}\n' for n in range(first, first + 5)))
        return path

    paths = [write(name, first) for name, first in (("a", 10), ("b", 20))]
    result = files(tmp_path, kind, **({} if kind == "parquet" else {"schema": {"id": "int64"}}))
    snapshot = result.create_snapshot(spark, "token")
    splits = result.splits(spark, snapshot, None, None)
    before = result.read(spark, snapshot, splits).collect()
    assert sorted(row.id for row in before) == [*range(10, 15), *range(20, 25)]
    assert result.read(spark, snapshot, splits).collect() == before
    lazy = result.read(spark, snapshot, splits)  # looked at before the change, read after it
    write("b", 30)
    for ask in (
        lazy.collect,
        lambda: result.read(spark, snapshot, splits),
        lambda: files(tmp_path, kind, **({} if kind == "parquet" else {"schema": {"id": "int64"}})).splits(
            spark, snapshot, None, None
        ),
    ):
        error = read_failure(ask)
        assert isinstance(error, PipelineStateError)
        assert f"`{paths[1]}` changed after it was pinned" in error.message
        assert error.node == "src"
        assert error.hint
    paths[1].unlink()
    error = read_failure(lazy.collect)
    assert isinstance(error, PipelineStateError)
    assert "it is missing" in error.message


def test_a_file_that_changes_while_it_is_read(tmp_path: Path) -> None:
    """Half of the rows went out already: the comparison behind the last row fails the task."""
    from headrace.connectors.files import reader

    path = tmp_path / "a.csv"
    path.write_text("id\n1\n2\n")
    file = list_files(LocalStorage(), str(path), "src")[0]
    scan = reader.FileScan("src", "csv", pa.schema([("id", pa.string())]))
    rows = scan.rows(reader.FileRange(0, file))
    assert next(rows)["id"].to_pylist() == ["1", "2"]
    path.write_text("id\n1\n3\n")
    os.utime(path, ns=(file.changed + 1, file.changed + 1))
    error = read_failure(lambda: list(rows))
    assert isinstance(error, PipelineStateError)
    assert "it was written to" in error.message


def test_splits_are_groups_of_row_groups(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(splitting, "SPLIT_ROWS", 100)
    put(tmp_path / "a.parquet", numbered(0, 250), group=50)
    put(tmp_path / "b.parquet", numbered(250, 320), group=30)
    result = files(tmp_path)
    snapshot = result.create_snapshot(spark, "token")
    splits = result.splits(spark, snapshot, None, None)
    assert [split["rows"] for split in splits] == [100, 100, 80, 40]
    assert [len(split["files"]) for split in splits] == [1, 1, 2, 1]
    each = [result.read(spark, snapshot, [split]).collect() for split in splits]
    assert [sorted(row.id for row in rows) for rows in each] == [
        list(range(100)), list(range(100, 200)), list(range(200, 280)), list(range(280, 320)),
    ]  # fmt: skip
    places = {row.id: tuple(row._gs_pos) for row in chain.from_iterable(each)}
    assert places[0] == (4, 0, 0, 0)
    assert places[249] == (4, 0, 249, 0)
    assert places[280] == (4, 1, 30, 0)
    assert len(set(places.values())) == 320


# --- columns


def test_folders_become_columns_and_windows_go_by_them(spark: SparkSession, tmp_path: Path) -> None:
    for day in (1, 2, 3):
        put(tmp_path / f"dt=2025-01-0{day}" / "region=e%2Fu" / "x.parquet", numbered(day * 10, day * 10 + 3))
    put(tmp_path / "dt=__HIVE_DEFAULT_PARTITION__" / "region=us" / "x.parquet", numbered(0, 1))
    result = files(tmp_path, schema={"dt": "date32"})
    assert result.schema(spark) == pa.schema(
        [("id", pa.int64()), ("dt", pa.date32()), ("region", pa.string())]
    )
    rows = sorted((row.id, row.dt, row.region) for row in all_of(result, spark))
    assert rows[0] == (0, None, "us")
    assert rows[1] == (10, date(2025, 1, 1), "e/u")
    assert len(rows) == 10
    snapshot = result.create_snapshot(spark, "token")
    splits = result.splits(spark, snapshot, HistoryPartition("w", "dt", "2025-01-02", "2025-01-03"), None)
    assert [(split["id"], split["rows"], len(split["files"])) for split in splits] == [("w/00000", 3, 1)]
    assert sorted(row.id for row in result.read(spark, snapshot, splits).collect()) == [20, 21, 22]
    assert sorted(
        row.region for row in all_of(files(tmp_path, columns="region", filter="region = 'us'"), spark)
    ) == ["us"]
    moving = files(tmp_path, schema={"dt": "date32"}, filter="dt < 'today'")
    assert "'today' is implicitly cast to " in str(read_failure(lambda: all_of(moving, spark)))
    bad = files(tmp_path, schema={"region": "int32"})
    error = read_failure(lambda: all_of(bad, spark))
    assert isinstance(error, DataError)
    assert "column `region` is int32, which cannot hold `e/u`" in error.message
    assert "dt=2025-01-01" in error.message
    (
        tmp_path / "dt=2025-01-01" / "region=e%2Fu" / "x.parquet"
    ).unlink()  # of another window: not even looked at
    fresh = files(tmp_path, schema={"dt": "date32"})
    assert (
        fresh.splits(spark, snapshot, HistoryPartition("w", "dt", "2025-01-02", "2025-01-03"), None) == splits
    )
    assert sorted(row.id for row in fresh.read(spark, snapshot, splits).collect()) == [20, 21, 22]
    error = read_failure(
        lambda: fresh.splits(spark, snapshot, HistoryPartition("w", "dt", "2025-01-01", "2025-01-02"), None)
    )
    assert isinstance(error, PipelineStateError)


def test_gaps_and_duplicates_of_offsets(spark: SparkSession, tmp_path: Path) -> None:
    offsets = [*range(10), *range(15, 20), 19, 3_000_000]
    others = [{"p": 0, "o": 11, "t": "b"}, {"p": None, "o": 7, "t": "a"}]
    put(tmp_path / "a.parquet", [{"p": 0, "o": offset, "t": "a"} for offset in offsets] + others)
    result = files(tmp_path / "a.parquet")
    table = OffsetTable(partition_column="p", offset_column="o", topic_column="t")
    for since, gaps in (
        (0, ((10, 15), (20, 3_000_000))),
        (12, ((12, 15), (20, 3_000_000))),
        (18, ((20, 3_000_000),)),
    ):
        measured = result.measure_offsets(spark, result.describe_snapshot(spark), table, "a", {"0": since})
        assert measured == TableOffsets({"0": PartitionOffsets(0, 3_000_001, gaps, duplicates=1)})


def test_the_cut_is_exact(spark: SparkSession, tmp_path: Path) -> None:
    rows = [{"id": n, "p": n % 3, "o": n // 3} for n in range(300)] + [
        {"id": 1000, "p": None, "o": None},
        {"id": 1001, "p": 1, "o": None},
    ]
    put(tmp_path / "a.parquet", rows)
    result = files(tmp_path / "a.parquet", columns="id, p, o")
    table = OffsetTable(partition_column="p", offset_column="o")
    measured = result.measure_offsets(spark, result.describe_snapshot(spark), table, "a", {}).partitions
    assert measured == {part: PartitionOffsets(0, 100) for part in ("0", "1", "2")}
    snapshot = result.create_snapshot(spark, "token")
    splits = result.splits(spark, snapshot, None, HandoffFilter("p", "o", {"0": 10, "1": 0}))
    kept = result.read(spark, snapshot, splits, ["id"]).collect()
    assert sorted(row.id for row in kept) == [*range(0, 30, 3), 1000, 1001]
    assert sum(split["rows"] for split in splits) == 12
    assert {tuple(row._gs_pos) for row in kept if row.id in (27, 1000, 1001)} == {
        (4, 0, 9, 0),
        (4, -(2**31), 300, 0),
        (4, -(2**31), 301, 0),
    }


def test_what_is_no_parquet_has_no_columns_and_is_named(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"id": 1}\n')
    with pytest.raises(DataError, match=r"rows\.jsonl` cannot be read as parquet") as caught:
        shape.shape_of(
            FileSourceConfig.model_validate({"path": str(tmp_path), "format": "parquet", "mode": "bounded"}),
            LocalStorage(),
            list_files(LocalStorage(), str(tmp_path), "src"),
            "src",
        )
    assert caught.value.node == "src"


def test_parquet_files_that_do_not_agree_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    put(
        tmp_path / "a.parquet",
        [{"id": 1, "v": "x", "w": 1.5}],
        pa.schema([("id", pa.int64()), ("v", pa.string()), ("w", pa.float64())]),
    )
    put(tmp_path / "b.parquet", [{"id": 2, "v": "y"}], pa.schema([("id", pa.int32()), ("v", pa.string())]))
    with pytest.raises(SchemaError, match=r"b\.parquet` lacks the column `w`"):
        files(tmp_path).create_snapshot(spark, "token")
    narrow = files(tmp_path, columns="id, v")
    assert sorted((row.id, row.v) for row in all_of(narrow, spark)) == [(1, "x"), (2, "y")]
    put(tmp_path / "c.parquet", [{"id": "3", "v": "y"}])
    with pytest.raises(SchemaError, match=r"c\.parquet` holds `id` as string, not as int64"):
        narrow.create_snapshot(spark, "token")
    (tmp_path / "c.parquet").write_text("no parquet")
    with pytest.raises(DataError, match=r"c\.parquet` cannot be read as parquet"):
        narrow.create_snapshot(spark, "token")
    for declared, message in (
        ({"id": "int32"}, "holds `id` as int64"),
        ({"nope": "string"}, "has no column `nope`"),
    ):
        with pytest.raises(SchemaError, match=message):
            files(tmp_path / "a.parquet", schema=declared).schema(spark)
    assert files(tmp_path / "a.parquet", schema={"id": "int64"}).schema(spark).names == ["id", "v", "w"]


def test_parquet_types_become_those_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    nanos = pa.array([1_700_000_000_123_456_789], pa.timestamp("ns"))
    table = pa.table(
        {
            "u8": pa.array([255], pa.uint8()), "u64": pa.array([2**64 - 1], pa.uint64()), "ns": nanos,
            "zoned": nanos.cast(pa.timestamp("ms"), safe=False).cast(pa.timestamp("ms", "Europe/Berlin")),
            "kind": pa.array(["a"]).dictionary_encode(), "large": pa.array(["x"], pa.large_string()),
            "list": pa.array([[1, 200]], pa.list_(pa.uint8())), "fixed": pa.array([b"ab"], pa.binary(2)),
        }
    )  # fmt: skip
    pq.write_table(table, tmp_path / "new.parquet")
    pq.write_table(table.select(["ns"]), tmp_path / "old.parquet", use_deprecated_int96_timestamps=True)
    [row] = all_of(files(tmp_path / "new.parquet"), spark)
    assert (row.u8, row.u64, row.kind, row.large, row.list, bytes(row.fixed)) == (
        255,
        Decimal(2**64 - 1),
        "a",
        "x",
        [1, 200],
        b"ab",
    )
    assert row.ns == datetime(2023, 11, 14, 22, 13, 20, 123456)
    [old] = all_of(files(tmp_path / "old.parquet"), spark)
    assert old.ns == row.ns


# --- text

VALUES: list[tuple[str, str, pa.DataType, Any]] = [
    ("int8", "-128", pa.int8(), -128),
    ("int64", " 9223372036854775807 ", pa.int64(), 2**63 - 1),
    ("uint8", "255", pa.int16(), 255),
    ("uint64", "18446744073709551615", pa.decimal128(20, 0), Decimal(2**64 - 1)),
    ("float64", "-1.5e3", pa.float64(), -1500.0),
    ("decimal(10,2)", "-12345678.90", pa.decimal128(10, 2), Decimal("-12345678.90")),
    ("boolean", "true", pa.bool_(), True),
    ("date32", "2024-02-29", pa.date32(), date(2024, 2, 29)),
    (
        "timestamp",
        "2024-03-31T03:30:00.123456+02:00",
        pa.timestamp("us", "UTC"),
        datetime(2024, 3, 31, 1, 30, 0, 123456, UTC),
    ),
    ("timestamp", "2024-03-31 01:30:00", pa.timestamp("us", "UTC"), datetime(2024, 3, 31, 1, 30, tzinfo=UTC)),
    ("string", '"a ""quoted"", text\nof two lines"', pa.string(), 'a "quoted", text\nof two lines'),
    ("string", '""', pa.string(), ""),
    ("binary", "00ff", pa.binary(), b"\x00\xff"),
]


def test_csv_values_arrive_exactly(spark: SparkSession, tmp_path: Path) -> None:
    names = [f"c{at}" for at in range(len(VALUES))]
    lines = [
        ",".join(["id", *names, "more"]),
        ",".join(["1", *(text for _, text, _, _ in VALUES), "x"]),
        "2" + "," * (len(VALUES) + 1),
    ]
    with gzip.open(tmp_path / "a.csv.gz", "wt") as file:
        file.write("\n".join(lines))
    schema = {"id": "int64"} | {name: kind for name, (kind, *_) in zip(names, VALUES, strict=True)}
    result = files(tmp_path, "csv", schema=schema)
    assert result.schema(spark).types == [pa.int64(), *(kind for _, _, kind, _ in VALUES)]
    snapshot = result.create_snapshot(spark, "token")
    splits = result.splits(spark, snapshot, None, None)
    table = result.read(spark, snapshot, splits).toArrow().sort_by("id").select(["id", *names])
    assert table.to_pylist() == [
        {"id": 1} | {n: value for n, (*_, value) in zip(names, VALUES, strict=True)},
        {"id": 2} | dict.fromkeys(names),
    ]
    assert [split["rows"] for split in splits] == [2]


def test_csv_without_a_header_by_another_delimiter(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1;NA;x\n2;;y\n")
    (tmp_path / "b.csv").write_text("")
    result = files(
        tmp_path,
        "csv",
        schema={"id": "int32", "v": "string", "w": "string"},
        header=False,
        delimiter=";",
        null_value="NA",
    )
    rows = sorted((row.id, row.v, row.w, tuple(row._gs_pos)) for row in all_of(result, spark))
    assert rows == [(1, None, "x", (4, 0, 0, 0)), (2, "", "y", (4, 0, 1, 0))]


BROKEN = [
    ("int64", "abc"), ("int64", "1.5"), ("int8", "128"), ("uint64", "1.5"), ("decimal(4,1)", "1.25"),
    ("boolean", "maybe"), ("date32", "2024-02-30"), ("timestamp", "12:30"), ("float64", "1,5"), ("binary", "xyz"),
]  # fmt: skip
if FULL:
    BROKEN += [("uint8", "-1"), ("decimal(4,1)", "12345"), ("date32", "2024")]


@pytest.mark.parametrize("kind", ["csv", "json"])
@pytest.mark.sampled
def test_a_value_that_does_not_fit_is_named(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    for at, (declared, value) in enumerate(
        BROKEN if kind == "csv" else BROKEN[: 3 if FULL else 1]
    ):  # the rules of json are tried with Kafka
        path = tmp_path / f"{at}.{kind}"
        path.write_text(
            f'id,v\n1,\n2,"{value}"\n' if kind == "csv" else f'{{"id": 1}}\n{{"id": 2, "v": "{value}"}}\n'
        )
        result = files(path, kind, schema={"id": "int64", "v": declared})
        snapshot = result.create_snapshot(spark, "token")
        pieces = [
            {"id": "0", "rows": 2, "files": [[0, str(path), 0, 1]], "scope": {"window": None, "cut": None}}
        ]
        error = read_failure(result.read(spark, snapshot, pieces).collect)
        assert isinstance(error, DataError), (declared, value, error)
        assert error.node == "src"
        message = str(error)
        assert f"file {path}, {'row' if kind == 'csv' else 'line'} 2" in message
        assert "`v`" in message
        assert value in message


def test_a_text_file_that_is_broken_is_named(spark: SparkSession, tmp_path: Path) -> None:
    for name, text, message in (
        ("short.csv", "id,v\n1,x\n2\n", "Expected 2 columns, got 1"),
        ("other.csv", "id,w\n1,x\n", "'v'"),
        ("latin.csv", b"id,v\n1,\xff\n", "UTF8"),
        ("cut.csv.gz", gzip.compress(b"id,v\n1,x\n" * 1000)[:40], "cannot be read as csv"),
    ):
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        error = read_failure(
            lambda name=name: all_of(
                files(tmp_path / name, "csv", schema={"id": "int64", "v": "string"}), spark
            )
        )
        assert isinstance(error, DataError), (name, error)
        assert name in str(error)
        assert message in str(error)
    (tmp_path / "list.json").write_text('[{"id": 1}]\n')
    error = read_failure(
        lambda: all_of(files(tmp_path / "list.json", "ndjson", schema={"id": "int64"}), spark)
    )
    assert isinstance(error, DataError)
    assert "list.json, line 1" in str(error)


def test_json_lines(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "dt=x").mkdir()
    (tmp_path / "dt=x" / "a.json").write_text(
        '{"id": 1, "doc": {"a": [1.50, "b"]}, "odd": 1}\n\n  \n{"id": 2, "price": 1.25}\r\n{"doc": null}'
    )
    result = files(
        tmp_path,
        "jsonl",
        schema={"id": "int64", "doc": "string", "price": "decimal(10,2)"},
        filter="id > 0 OR dt = 'x'",
    )
    rows = sorted((row._gs_pos.off, row.id, row.doc, row.price, row.dt) for row in all_of(result, spark))
    assert rows == [
        (0, 1, '{"a":[1.5,"b"]}', None, "x"),
        (3, 2, None, Decimal("1.25"), "x"),
        (4, None, None, None, "x"),
    ]


def test_names_that_cannot_be_had(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "a.parquet", [{"id": 1, "_gs_op": "d"}])
    with pytest.raises(SchemaError, match="`_gs_op` is a name that Headrace keeps"):
        files(tmp_path).schema(spark)
    (tmp_path / "a.parquet").unlink()
    put(tmp_path / "Id=5" / "a.parquet", numbered(0, 1))
    with pytest.raises(SchemaError, match="column `Id` is there twice"):
        files(tmp_path).schema(spark)
    with pytest.raises(SchemaError, match="files cannot carry interval"):
        files(tmp_path, "csv", schema={"v": "interval"}).schema(spark)


HYBRID = """
version: 1
name: k
sources:
  events:
    type: hybrid
    primary_key: id
    bounded_sources:
      - {source_type: file, path: /data/events, format: jsonl, schema: {id: int64}, filter: id > 0}
      - {source_type: file, path: file:///data/more, format: csv, schema: {id: int64, o: int64, p: int32}, delimiter: ";"}
    unbounded_source: {source_type: kafka, topic: t, schema: {id: int64}}
    offset_table: {partition_column: p, offset_column: o}
sinks:
  p: {type: postgres, from: events, table: t}
"""


def test_files_are_a_phase_of_a_hybrid_source() -> None:
    model = parse_pipeline(HYBRID, "f.yaml").model
    [node] = model.sources.values()
    assert isinstance(node, HybridSourceConfig)
    first, second = (phase.node() for phase in node.bounded_sources)
    assert isinstance(first, FileSourceConfig)
    assert isinstance(second, FileSourceConfig)
    assert (first.format, first.filter, first.schema_, first.mode) == (
        "json",
        "id > 0",
        {"id": "int64"},
        "bounded",
    )
    assert (second.delimiter, second.header) == (";", True)
    assert [entry["kind"] for entry in registry.describe("events", node, Settings())] == [
        "file",
        "file",
        "kafka",
    ]
    assert (
        parse_pipeline(HYBRID, "f.yaml").hash
        == from_compiled(parse_pipeline(HYBRID, "f.yaml").compiled()).hash
    )
    with pytest.raises(PipelineFileError, match=r"`offset_table.table_name` cannot be combined with files"):
        parse_pipeline(HYBRID.replace("{partition_column", "{table_name: x, partition_column"), "f.yaml")


def test_describe_opens_nothing() -> None:
    told_ = files("/data/events/*.csv", "csv", schema={"id": "int64"}).describe()
    assert told_ == {
        "kind": "file",
        "asset_key": ["file", "data", "events", "_.csv"],
        "location": "/data/events/*.csv",
    }


def test_a_handle_is_small_in_every_position() -> None:
    many = [
        listing.File(
            f"/data/events/dt=2025-01-01/part-{at:05d}.parquet", 1_000_000 + at, 10**18 + at, (1000,)
        )
        for at in range(1000)
    ]
    assert len(str(listing.pack(many))) < 30_000
    assert Snapshot(listing.pack(many), is_stable=True).handle["root"] == "/data/events/dt=2025-01-01"
