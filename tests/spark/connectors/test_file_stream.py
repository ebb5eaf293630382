"""Files as a stream: every file is read once, complete, whatever comes, grows or disappears meanwhile."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.avro_files import write_avro
from pyspark.sql import SparkSession

from headrace.connectors import registry
from headrace.connectors.dead_letters import ERROR
from headrace.connectors.files import formats, known_files
from headrace.connectors.files.config import FileSourceConfig
from headrace.connectors.files.known_files import files_of, offset_of
from headrace.connectors.files.stream import FileStream
from headrace.connectors.row_errors import explain_failure
from headrace.connectors.stream_base import ReadLimits
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import DataError, HeadraceError, PipelineStateError, SchemaError, TargetError
from headrace.pipeline.protocol.epochs import Json
from headrace.pipeline.sql.system_columns import OP, POS

COLUMNS = {"id": "int64", "v": "string"}
ALL = ReadLimits(rows=1_000_000)


class Clock:
    """A clock of the files that the test sets. Files of `write` are an hour older than its first time."""

    def __init__(self) -> None:
        self.now = time.time()
        self.written = self.now - 3600

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def stream(folder: Path, clock: Clock, kind: str = "csv", **node: Any) -> FileStream:
    options = {"path": str(folder), "format": kind, "poll_interval": "0s"} | node
    if kind in ("csv", "json"):
        options = {"schema": COLUMNS} | options
    node_ = FileSourceConfig.model_validate(options)
    result = registry.unbounded_source("src", node_, Settings(), 4)
    assert isinstance(result, FileStream)
    return FileStream("src", node_, Settings(), 4, clock)


def write(path: Path, ids: Sequence[int], clock: Clock, age: float = 0.0) -> Path:
    """Write rows of csv or parquet. `age` are seconds before the previous file, or after it if negative."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        table = pa.table({"id": pa.array(ids, pa.int64()), "v": [f"v{number}" for number in ids]})
        pq.write_table(table, path, row_group_size=10)
    else:
        path.write_text("id,v\n" + "".join(f"{number},v{number}\n" for number in ids))
    clock.written += 1
    os.utime(path, (clock.written - age, clock.written - age))
    return path


def ids(source: FileStream, spark: SparkSession, start: Json, end: Json) -> list[int]:
    table = source.read_table(spark, start, end)
    rows = source.read(spark, start, end).collect()
    if table is not None:
        assert sorted(table["id"].to_pylist()) == sorted(row.id for row in rows)
        assert table.schema.names == [*source.schema().names, OP, POS]
    assert [row[POS] for row in rows if (row[POS].source, row[POS].part, row[POS].sub) != (4, 0, 0)] == []
    return [row.id for row in sorted(rows, key=lambda row: row[POS].off)]


def refused(ask: Any) -> HeadraceError:
    with pytest.raises(Exception) as caught:  # noqa: PT011  whatever Spark wraps it in
        ask()
    error = explain_failure(caught.value) or caught.value
    assert isinstance(error, HeadraceError), error
    assert error.node == "src"
    return error


# --- which files an epoch has


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_new_files_are_read_once_in_the_order_of_their_times(
    spark: SparkSession, tmp_path: Path, clock: Clock, kind: str
) -> None:
    write(tmp_path / f"b.{kind}", range(5), clock)
    write(tmp_path / f"a.{kind}", range(5, 8), clock)
    source = stream(tmp_path, clock, kind)
    first = source.next_end_offsets(source.initial_offsets(), ALL)
    assert ids(source, spark, source.initial_offsets(), first) == list(range(8))
    assert source.next_end_offsets(first, ALL) == first
    # An older time, a folder, and a second process.
    write(tmp_path / f"sub/c.{kind}", range(8, 10), clock, age=1000)
    again = stream(tmp_path, clock, kind)
    assert sum(again.lags(first).values()) > 0
    second = again.next_end_offsets(json.loads(json.dumps(first)), ALL)
    assert ids(again, spark, first, second) == [8, 9]
    assert ids(again, spark, again.initial_offsets(), second) == list(range(10))


def test_an_epoch_ends_with_a_row_group_or_a_file(spark: SparkSession, tmp_path: Path, clock: Clock) -> None:
    write(tmp_path / "a.parquet", range(35), clock)
    write(tmp_path / "b.parquet", range(35, 40), clock)
    source = stream(tmp_path, clock, "parquet")
    at, result = source.initial_offsets(), []
    while (end := source.next_end_offsets(at, ReadLimits(rows=12))) != at:
        result.append(ids(source, spark, at, end))
        assert source.lags(end) == {"0": 40 - offset_of(end)}
        at = end
    assert [len(part) for part in result] == [10, 10, 10, 10]
    assert [number for part in result for number in part] == list(range(40))
    # Any part of what was read can be read again, as an audit does.
    assert ids(source, spark, at | {"offsets": {"0": 7}}, at | {"offsets": {"0": 38}}) == list(range(7, 38))


def test_limits_of_bytes_take_a_file_at_least(tmp_path: Path, clock: Clock) -> None:
    for name in "abc":
        write(tmp_path / f"{name}.csv", range(100), clock)
    source = stream(tmp_path, clock)
    end = source.next_end_offsets(source.initial_offsets(), ReadLimits(rows=10_000, bytes=10))
    assert [Path(one.file.path).name for one in files_of(end)] == ["a.csv"]


@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"])
def test_rows_never_exceed_the_offsets_of_a_file(
    spark: SparkSession, tmp_path: Path, clock: Clock, ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "_CHUNK_BYTES", 7)
    path = write(tmp_path / "a.csv", [], clock)
    text = ends.join(["id,v", '1,"two', 'lines"', "2,x", "3,last"])
    path.write_bytes(text.encode())
    os.utime(path, (clock.written, clock.written))
    with path.open("rb") as file:
        assert formats.count_lines(file, str(path)) == 5
    monkeypatch.undo()
    source = stream(tmp_path, clock)
    end = source.next_end_offsets(source.initial_offsets(), ALL)
    assert ids(source, spark, source.initial_offsets(), end) == [1, 2, 3]


# --- files that are not complete


def test_a_file_is_left_alone_while_it_is_written(tmp_path: Path, clock: Clock) -> None:
    start = stream(tmp_path, clock).initial_offsets()
    path = write(tmp_path / "a.csv", range(3), clock)
    os.utime(path, (clock.now, clock.now))
    source = stream(tmp_path, clock)
    assert source.next_end_offsets(start, ALL) == start
    assert source.lags(start) == {"0": 0}
    clock.now += 3
    assert offset_of(source.next_end_offsets(start, ALL)) == 4


def test_a_file_from_a_clock_that_is_ahead_is_read_when_it_rests(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.csv", range(3), clock)
    os.utime(path, (clock.now + 9_000, clock.now + 9_000))
    source, begun = stream(tmp_path, clock), time.monotonic()
    start = source.initial_offsets()
    assert source.next_end_offsets(start, ALL) == start
    monkeypatch.setattr(time, "monotonic", lambda: begun + 60)
    assert offset_of(source.next_end_offsets(start, ALL)) == 4


@pytest.mark.parametrize("kind", ["parquet", "avro"])
def test_half_a_file_waits_and_a_broken_one_is_an_error(tmp_path: Path, clock: Clock, kind: str) -> None:
    path = tmp_path / f"b.{kind}"
    good = write(tmp_path / "a.parquet", range(3), clock)
    if kind == "avro":
        good.unlink()
        record = {"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}]}
        write_avro(tmp_path / "a.avro", record, [[{"id": 1}, {"id": 2}, {"id": 3}]])
        good = tmp_path / "a.avro"
        os.utime(good, (clock.written, clock.written))
    path.write_bytes(good.read_bytes()[:-5])
    os.utime(path, (clock.now - 10, clock.now - 10))
    source = stream(tmp_path, clock, kind)
    start = source.initial_offsets()
    end = source.next_end_offsets(start, ALL)
    assert offset_of(end) == 3
    clock.now += 120
    error = refused(lambda: source.next_end_offsets(end, ALL))
    assert isinstance(error, DataError)
    assert f"b.{kind}` cannot be read as {kind}" in error.message
    path.write_bytes(good.read_bytes())
    os.utime(path, (clock.written, clock.written))
    assert offset_of(source.next_end_offsets(end, ALL)) == 6


def test_hidden_files_are_not_read(tmp_path: Path, clock: Clock) -> None:
    for name in (".a.csv", "_b.csv", "_tmp/c.csv"):
        write(tmp_path / name, [1], clock)
    source = stream(tmp_path, clock)
    assert source.next_end_offsets(source.initial_offsets(), ALL) == source.initial_offsets()
    source.check()


# --- files that change or disappear after they were read


def test_a_file_that_grows_after_it_was_read_is_an_error(tmp_path: Path, clock: Clock) -> None:
    path = write(tmp_path / "a.csv", range(3), clock)
    source = stream(tmp_path, clock)
    end = source.next_end_offsets(source.initial_offsets(), ALL)
    write(path, range(4), clock)
    for one in (source, stream(tmp_path, clock)):
        error = refused(lambda one=one: one.next_end_offsets(end, ALL))
        assert isinstance(error, PipelineStateError)
        assert error.message == f"`{path}` changed after it was read"


def test_a_file_that_changes_before_its_epoch_is_read(
    spark: SparkSession, tmp_path: Path, clock: Clock
) -> None:
    path = write(tmp_path / "a.csv", range(3), clock)
    source = stream(tmp_path, clock)
    start = source.initial_offsets()
    end = source.next_end_offsets(start, ALL)
    write(path, range(4), clock)
    assert "changed after it was pinned" in refused(lambda: source.read(spark, start, end).collect()).message


def test_files_may_be_removed_once_they_are_read(
    spark: SparkSession, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = stream(tmp_path, clock)
    at = source.initial_offsets()
    for number in range(6):
        write(tmp_path / f"{number}.csv", [number], clock)
        at = source.next_end_offsets(at, ALL)
    assert source.readable_offsets(at) == at | {"offsets": {"0": 0}}
    for number in (0, 2):
        (tmp_path / f"{number}.csv").unlink()
    first = source.readable_offsets(at)
    assert offset_of(first) == files_of(at)[3].start
    assert ids(source, spark, first, at) == [3, 4, 5]
    # Many removed files leave the position, which keeps the others and goes on counting.
    monkeypatch.setattr(known_files, "_MOST_KNOWN", 3)
    monkeypatch.setattr(known_files, "_NEWEST", 2)
    write(tmp_path / "6.csv", [6], clock)
    later = source.next_end_offsets(at, ALL)
    assert ids(source, spark, at, later) == [6]
    names = [Path(one.file.path).stem for one in files_of(later)]
    assert names == ["1", "3", "4", "5", "6"]
    assert offset_of(source.readable_offsets(later)) == files_of(at)[3].start
    write(tmp_path / "7.csv", [7], clock)
    again = stream(tmp_path, clock)
    assert ids(again, spark, later, again.next_end_offsets(later, ALL)) == [7]


def test_a_file_that_was_removed_before_its_epoch_is_read(
    spark: SparkSession, tmp_path: Path, clock: Clock
) -> None:
    path = write(tmp_path / "a.csv", range(3), clock)
    source = stream(tmp_path, clock)
    start = source.initial_offsets()
    end = source.next_end_offsets(start, ALL)
    path.unlink()
    error = refused(lambda: source.read(spark, start, end))
    assert isinstance(error, PipelineStateError)
    assert "it is missing" in error.message


# --- columns


def test_declared_columns_need_no_file(spark: SparkSession, tmp_path: Path, clock: Clock) -> None:
    source = stream(tmp_path, clock, "parquet", schema={"id": "int64"}, path=f"{tmp_path}/*.parquet")
    assert source.schema() == pa.schema([("id", pa.int64())])
    source.check()
    write(tmp_path / "a.parquet", range(3), clock)
    end = source.next_end_offsets(source.initial_offsets(), ALL)
    assert ids(source, spark, source.initial_offsets(), end) == [0, 1, 2]
    pq.write_table(pa.table({"id": ["x"]}), tmp_path / "b.parquet")
    error = refused(lambda: source.next_end_offsets(end, ALL))
    assert isinstance(error, SchemaError)
    assert "b.parquet` holds `id` as string, not as int64" in error.message
    assert isinstance(refused(lambda: stream(tmp_path / "no", clock, "parquet").schema()), TargetError)


def test_columns_of_folders_and_a_filter(spark: SparkSession, tmp_path: Path, clock: Clock) -> None:
    schema = {**COLUMNS, "day": "date32"}
    source = stream(
        tmp_path, clock, schema=schema, path=f"{tmp_path}/day=*/*.csv", columns=["day", "id"], filter="id > 1"
    )
    write(tmp_path / "day=2025-01-31/a.csv", range(4), clock)
    write(tmp_path / "day=2025-02-01/a.csv", range(4, 6), clock)
    start = source.initial_offsets()
    rows = source.read(spark, start, source.next_end_offsets(start, ALL)).collect()
    assert sorted((str(row.day), row.id) for row in rows) == [
        ("2025-01-31", 2),
        ("2025-01-31", 3),
        ("2025-02-01", 4),
        ("2025-02-01", 5),
    ]
    assert source.schema().names == ["day", "id"]
    # A row of a key that fails the filter removes the earlier row of the key.
    source.marks = True
    marked = source.read(spark, start, source.next_end_offsets(start, ALL)).collect()
    assert {row.id: row[POS].sub < 0 for row in marked} == {
        0: True,
        1: True,
        2: False,
        3: False,
        4: False,
        5: False,
    }


def test_an_error_has_the_row_of_the_file(spark: SparkSession, tmp_path: Path, clock: Clock) -> None:
    write(tmp_path / "a.csv", range(4), clock)
    path = write(tmp_path / "b.csv", range(4), clock)
    path.write_text("id,v\n1,a\nx,b\n")
    os.utime(path, (clock.written, clock.written))
    source = stream(tmp_path, clock)
    start = source.initial_offsets()
    end = source.next_end_offsets(start, ALL)
    error = refused(lambda: source.read(spark, start, end).collect())
    assert error.message == f"file {path}, row 2: column `id` is int64, which cannot hold `x`"


def test_many_small_files_share_tasks(spark: SparkSession, tmp_path: Path, clock: Clock) -> None:
    for number in range(30):
        write(tmp_path / f"{number}.csv", [number], clock)
    source = stream(tmp_path, clock)
    start = source.initial_offsets()
    end = source.next_end_offsets(start, ALL)
    frame = source.read(spark, start, end)
    assert frame.rdd.getNumPartitions() == 1
    assert ids(source, spark, start, end) == list(range(30))
    assert len(end["files"]) < 2_000


def test_avro_blocks_are_counted_over_files(spark: SparkSession, tmp_path: Path, clock: Clock) -> None:
    record = {"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}]}
    for number, name in enumerate("ab"):
        rows = [{"id": number * 10 + at} for at in range(4)]
        write_avro(tmp_path / f"{name}.avro", record, [rows[:3], rows[3:]])
        os.utime(tmp_path / f"{name}.avro", (clock.written + number, clock.written + number))
    source = stream(tmp_path, clock, "avro")
    start = source.initial_offsets()
    end = source.next_end_offsets(start, ALL)
    assert ids(source, spark, start, end) == [0, 1, 2, 3, 10, 11, 12, 13]


# --- rejected rows


@pytest.mark.parametrize(
    ("kind", "text", "good", "bad"),
    [
        (
            "csv",
            'id,v\n1,a\nx,"b,""c"\n,d\n4,\n',
            [(1, "a"), (4, None)],
            {
                2: ("column `id` is int64, which cannot hold `x`", b'{"id":"x","v":"b,\\"c"}'),
                3: ("the key column `id` is NULL", b'{"id":null,"v":"d"}'),
            },
        ),
        (
            "json",
            '{"id": 1, "v": "a"}\n\n{"id": "x"}\n{"id": 4}\nno\n{"v": "b"}',
            [(1, "a"), (4, None)],
            {
                3: ("the line does not fit `schema`: column `id` is int64, found", b'{"id": "x"}'),
                5: ("the line does not fit `schema`: it is not valid JSON", b"no"),
                6: ("the key column `id` is NULL", b'{"v": "b"}'),
            },
        ),
    ],
)
def test_rejected_rows_have_file_row_and_original(
    spark: SparkSession, tmp_path: Path, clock: Clock, kind: str, text: str, good: Any, bad: Any
) -> None:
    write(tmp_path / f"a.{kind}", range(3), clock).unlink()
    for name in "ab":
        path = tmp_path / f"{name}.{kind}"
        path.write_text(text)
        os.utime(path, (clock.written + ord(name), clock.written + ord(name)))
    source = stream(tmp_path, clock, kind, on_error="dead_letter", primary_key="id")
    start = source.initial_offsets()
    end = source.next_end_offsets(start, ALL)
    rows = source.read_with_errors(spark, start, end).sort(POS).collect()
    assert [(row.id, row.v) for row in rows if row[ERROR] is None] == good * 2
    assert sorted((row.id, row.v) for row in source.read(spark, start, end).collect()) == sorted(good * 2)
    rejected = [row[ERROR] for row in rows if row[ERROR] is not None]
    assert [(Path(one["__file"]).name, one["__row"]) for one in rejected] == [
        (f"{name}.{kind}", number) for name in "ab" for number in bad
    ]
    for one in rejected:
        reason, original = bad[one["__row"]]
        assert one["reason"].startswith(reason)
        assert bytes(one["__value"]) == original


def test_lines_that_are_no_text_are_rejected_as_they_are(
    spark: SparkSession, tmp_path: Path, clock: Clock
) -> None:
    path = write(tmp_path / "a.txt", [], clock)
    path.write_bytes(b"good\n\xff\0bad\n")
    os.utime(path, (clock.written, clock.written))
    source = stream(tmp_path, clock, "text", on_error="dead_letter", filter="value <> 'x'")
    start = source.initial_offsets()
    end = source.next_end_offsets(start, ALL)
    good, bad = source.read_with_errors(spark, start, end).sort(POS).collect()
    assert (good.value, good[ERROR]) == ("good", None)
    assert (bad[ERROR]["reason"], bytes(bad[ERROR]["__value"])) == ("the line is not UTF-8", b"\xff\0bad")
