"""Avro, ORC and text files as a source: every row with its value, or an error with file and row."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc
import pytest
from helpers.avro_files import write_avro
from pyspark.sql import SparkSession

from headrace.connectors import splitting
from headrace.connectors.files import avro_file, formats
from headrace.connectors.files.config import FileSourceConfig
from headrace.connectors.files.source import Files
from headrace.connectors.row_errors import explain_failure
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import DataError, SchemaError
from headrace.pipeline.sql.system_columns import OP, POS

RECORD = {
    "type": "record",
    "name": "r",
    "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"]}],
}


def source(path: Path, kind: str, **node: Any) -> Files:
    options = {"path": str(path), "format": kind, "mode": "bounded"} | node
    return Files(FileSourceConfig.model_validate(options), Settings(), ordinal=4, name="src")


def read_rows(result: Files, spark: SparkSession, *columns: str) -> list[Any]:
    snapshot = result.create_snapshot(spark, "token")
    splits = result.splits(spark, snapshot, None, None)
    rows = result.read(spark, snapshot, splits, columns or None).collect()
    assert len(rows) == sum(split["rows"] for split in splits)
    return sorted(rows, key=lambda row: row[POS])


def failure(result: Files, spark: SparkSession) -> str:
    with pytest.raises(Exception) as caught:  # noqa: PT011  whatever Spark wraps it in
        read_rows(result, spark)
    error = explain_failure(caught.value) or caught.value
    assert isinstance(error, DataError), error
    assert error.node == "src"
    return error.message


def numbered(first: int, end: int) -> Iterator[dict[str, Any]]:
    return ({"id": number, "name": f"n{number}" if number % 3 else None} for number in range(first, end))


# --- avro


@pytest.mark.parametrize("codec", ["null", "deflate", "snappy", "zstandard", "bzip2", "xz"])
def test_avro_files_of_every_codec(spark: SparkSession, tmp_path: Path, codec: str) -> None:
    write_avro(tmp_path / "a.avro", RECORD, [list(numbered(0, 10)), list(numbered(10, 13))], codec)
    write_avro(tmp_path / "b.avro", RECORD, [list(numbered(13, 20))], codec)
    rows = read_rows(source(tmp_path, "avro"), spark)
    assert [(row.id, row.name) for row in rows] == [(r["id"], r["name"]) for r in numbered(0, 20)]
    assert {row[OP] for row in rows} == {"i"}
    assert [(row[POS].part, row[POS].off) for row in rows] == [(0, n) for n in range(13)] + [
        (1, n) for n in range(7)
    ]


def test_avro_files_that_spark_wrote(spark: SparkSession, tmp_path: Path) -> None:
    written = spark.sql(
        "SELECT id, cast(id AS int) small, cast(id / 3 AS decimal(10, 4)) price, date'2025-01-31' day,"
        " timestamp'2025-01-31 12:00:00Z' moment, named_struct('x', array(id, null)) nested,"
        " map('k', concat('v', id)) tags, cast(concat('b', id) AS binary) bytes, id % 2 = 0 even,"
        " cast(id AS double) / 7 ratio FROM range(0, 100, 1, 3)"
    )
    written.write.format("avro").save(str(tmp_path / "t"))
    result = source(tmp_path / "t", "avro")
    assert result.schema(spark).field("price").type == pa.decimal128(10, 4)
    assert result.schema(spark).field("moment").type == pa.timestamp("us", tz="UTC")
    rows = {row.id: row for row in read_rows(result, spark)}
    expected = {row.id: row for row in written.collect()}
    assert rows.keys() == expected.keys()
    for number, row in rows.items():
        assert {name: row[name] for name in written.columns} == expected[number].asDict()


def test_only_the_columns_of_a_query_are_decoded(spark: SparkSession, tmp_path: Path) -> None:
    write_avro(tmp_path / "a.avro", RECORD, [list(numbered(0, 5))])
    assert [row.name for row in read_rows(source(tmp_path, "avro"), spark, "name")] == [
        None,
        "n1",
        "n2",
        None,
        "n4",
    ]
    filtered = source(tmp_path, "avro", filter="id > 2", columns=["name"])
    assert [row.name for row in read_rows(filtered, spark)] == [None, "n4"]


def test_files_of_several_avro_schemas(spark: SparkSession, tmp_path: Path) -> None:
    """A later file has one column more, in another order, and a smaller type."""
    write_avro(tmp_path / "a.avro", RECORD, [list(numbered(0, 3))])
    fields = [
        {"name": "more", "type": "string"},
        {"name": "name", "type": ["null", "string"]},
        {"name": "id", "type": "int"},
    ]
    later = RECORD | {"fields": fields}
    write_avro(tmp_path / "b.avro", later, [[{"more": "x", "name": "b", "id": 3}]])
    rows = read_rows(source(tmp_path, "avro"), spark)
    assert [(row.id, row.name) for row in rows] == [(0, None), (1, "n1"), (2, "n2"), (3, "b")]
    fields[2] = {"name": "id", "type": "string"}
    write_avro(tmp_path / "c.avro", RECORD | {"fields": fields}, [[{"more": "x", "name": "b", "id": "4"}]])
    with pytest.raises(SchemaError, match=r"c\.avro` holds `id` as string, not as int64"):
        source(tmp_path, "avro").create_snapshot(spark, "token")


def test_avro_groups_are_splits(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "_BLOCKS", 2)
    monkeypatch.setattr(splitting, "SPLIT_ROWS", 4)
    write_avro(tmp_path / "a.avro", RECORD, [list(numbered(n, n + 2)) for n in range(0, 12, 2)])
    result = source(tmp_path, "avro")
    snapshot = result.create_snapshot(spark, "token")
    splits = result.splits(spark, snapshot, None, None)
    assert [split["rows"] for split in splits] == [4, 4, 4]
    # Python workers have the module's own number of blocks, so the rows of a group are read in this process.
    scan = result._decoder.scan(result._unpack_handle(snapshot.handle)[1], ["id"])
    (piece,) = result._tasks(result._unpack_handle(snapshot.handle)[0], splits[1:2])[0]
    (batch,) = scan.rows(piece)
    assert batch["_headrace_off"].to_pylist() == [4, 6]
    assert batch["_headrace_group"].to_pylist() == [1, 1]


def test_a_broken_avro_file_is_named(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "a.avro"
    write_avro(path, RECORD, [list(numbered(0, 10)), list(numbered(10, 20))])
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    assert "a.avro` cannot be read as avro: it ends in the middle of a block" in failure(
        source(tmp_path, "avro"), spark
    )
    path.write_bytes(b"{}\n")
    assert "it does not begin like an Avro container file" in failure(source(tmp_path, "avro"), spark)
    path.write_bytes(whole[:-1] + b"?")
    assert "block 1 does not end with the marker of the file" in failure(source(tmp_path, "avro"), spark)
    write_avro(path, RECORD, [[{"id": 1, "name": "a"}], [{"id": 2, "name": b"\xff"}]])
    message = failure(source(tmp_path, "avro"), spark)
    assert message == f"file {path}, row 2: the block that begins here has a text that is not UTF-8"


def test_a_block_of_another_length_is_never_a_row(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "a.avro"
    write_avro(path, RECORD, [list(numbered(0, 2))], counts=[1])
    assert failure(source(tmp_path, "avro"), spark) == (
        f"file {path}, row 1: the block that begins here does not fit the schema of its file"
    )


def test_what_avro_columns_cannot_have_is_named(tmp_path: Path) -> None:
    union = RECORD | {"fields": [{"name": "u", "type": ["string", "long"]}]}
    write_avro(tmp_path / "a.avro", union, [])
    with pytest.raises(DataError, match="field `u` is a union of string, long"):
        source(tmp_path, "avro").schema(None)  # pyright: ignore[reportArgumentType]  starts no Spark


def test_the_header_of_an_avro_file(tmp_path: Path) -> None:
    write_avro(tmp_path / "a.avro", RECORD, [list(numbered(0, 3)), []], "deflate")
    with (tmp_path / "a.avro").open("rb") as file:
        header = avro_file.read_header(file)
    assert (json.loads(header.schema), header.codec) == (RECORD, "deflate")
    with (tmp_path / "a.avro").open("rb") as file:
        assert avro_file.count_rows(file) == [3, 0]


# --- orc


def test_orc_files(spark: SparkSession, tmp_path: Path) -> None:
    moment = datetime(2025, 1, 31, 12, 0, 0, 123456, tzinfo=UTC)
    table = pa.table(
        {
            "id": pa.array(range(5_000)),
            "price": pa.array([Decimal("12.50")] * 5_000, pa.decimal128(10, 2)),
            "day": pa.array([date(1, 1, 1)] * 5_000),
            "moment": pa.array([moment] * 5_000, pa.timestamp("us", tz="UTC")),
            "tags": pa.array([["a", None]] * 5_000),
            "name": pa.array([None, "ü"] * 2_500),
        }
    )
    pyarrow.orc.write_table(table, tmp_path / "a.orc", stripe_size=20_000, compression="zstd")
    result = source(tmp_path, "orc")
    assert result.schema(spark).field("moment").type == pa.timestamp("us", tz="UTC")
    rows = read_rows(result, spark)
    assert [row.id for row in rows] == list(range(5_000))
    assert [row[POS].off for row in rows] == list(range(5_000))
    first = rows[1].asDict()
    assert (first["price"], first["day"], first["tags"]) == (Decimal("12.50"), date(1, 1, 1), ["a", None])
    assert {row.moment.astimezone(UTC) for row in rows} == {moment}
    assert [row.name for row in rows[:2]] == [None, "ü"]
    (tmp_path / "b.orc").write_bytes(b"ORC")
    assert "b.orc` cannot be read as orc" in failure(result, spark)


# --- text


def test_lines_of_text_files(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes('first\r\n\n  a,"b\x01\tü\nlast'.encode())
    (tmp_path / "b.log").write_bytes(b"")
    (tmp_path / "c.log").write_bytes(b"\n")
    rows = read_rows(source(tmp_path, "text"), spark)
    assert [row.value for row in rows] == ["first", "", '  a,"b\x01\tü', "last", ""]
    assert [(row[POS].part, row[POS].off) for row in rows] == [(0, 0), (0, 1), (0, 2), (0, 3), (2, 0)]
    (tmp_path / "d.log").write_bytes(b"good\n\xff\n")
    assert failure(source(tmp_path, "text"), spark).endswith("d.log, line 2: the line is not UTF-8")


def test_long_lines_cross_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "_CHUNK_BYTES", 5)
    text = b"a\nbcdefghijklmnop\n\nq\r\nr"
    lines = [line for part in formats.read_lines(pa.BufferReader(text)) for line in part.to_pylist()]
    assert lines == [b"a", b"bcdefghijklmnop", b"", b"q", b"r"]
