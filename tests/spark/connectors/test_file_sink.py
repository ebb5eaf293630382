"""The file sink: folders, formats, layouts, and what happens around its renames."""

from __future__ import annotations

import gzip
import json
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from helpers.file_sink import FileSinkMaker, file_sink_maker, read_changes
from helpers.sink_makers import KEYED, frame, plan, position
from pyspark.sql import SparkSession

from headrace.connectors.files.sink import FileFolderSink
from headrace.connectors.files.sink_folder import SinkFolder
from headrace.connectors.files.writer import RowFiles
from headrace.pipeline.errors import (
    DataError,
    FencedError,
    HeadraceError,
    SchemaError,
    TargetError,
    TransientError,
    UserError,
)
from headrace.pipeline.protocol.epochs import CommitRecord

DAYS = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("place", pa.string()), ("size", pa.int32())])


def people(*pairs: tuple[int, str | None]) -> list[dict[str, object]]:
    return [{"id": key, "name": name} for key, name in pairs]


def days(*rows: tuple[int, str | None, str | None]) -> list[dict[str, object]]:
    return [
        {"id": key, "day": day and date.fromisoformat(day), "place": place, "size": key * 10}
        for key, day, place in rows
    ]


def commits(path: str) -> list[str]:
    return sorted(one.name for one in Path(path).iterdir() if not one.name.startswith("."))


def parts(path: str) -> list[str]:
    """The files below the commits, without their random and running parts."""
    root = Path(path)
    result = (file.relative_to(root) for file in root.glob("headrace_commit=*/**/part-*"))
    return sorted(str(one) for one in result)


@pytest.mark.parametrize(
    ("distributed", "format_"),
    [
        pytest.param(
            distributed,
            format_,
            id=f"{'tasks' if distributed else 'driver'}-{format_}",
            marks=() if format_ == ("json" if distributed else "parquet") else pytest.mark.slow,
        )
        for distributed in (False, True)
        for format_ in ("parquet", "csv", "json")
    ],
)
def test_partitions_are_folders_that_hive_readers_understand(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_: str, distributed: bool
) -> None:
    if distributed:
        monkeypatch.setattr("headrace.connectors.files.sink.collect_small_rows", lambda *_: None)
    maker = file_sink_maker(spark, tmp_path, format_, partition_by=["day", "place"])
    sink = maker.joined(DAYS, ())
    rows = days(
        (1, "2025-01-31", "a/b=c %"), (2, None, "x y"), (3, "2025-01-31", None), (4, "2025-01-31", "a/b=c %")
    )
    sink.write(plan(1), frame(spark, DAYS, rows, "iiii", ()))
    folders = {str(Path(one).parent) for one in parts(maker.path)}
    assert folders == {
        "headrace_commit=0000000001/day=2025-01-31/place=a%2Fb%3Dc %25",
        "headrace_commit=0000000001/day=__HIVE_DEFAULT_PARTITION__/place=x y",
        "headrace_commit=0000000001/day=2025-01-31/place=__HIVE_DEFAULT_PARTITION__",
    }
    result = read_changes(spark, maker.path, format_, DAYS, keyed=False)
    got = sorted((row["id"], row["day"], row["place"], row["size"]) for row in result)
    assert got == sorted((row["id"], row["day"], row["place"], row["size"]) for row in rows)
    if format_ == "parquet":
        table = ds.dataset(maker.path, format="parquet", partitioning="hive").to_table()
        assert sorted(table["id"].to_pylist()) == [1, 2, 3, 4]
        assert spark.read.parquet(maker.path).where("place = 'a/b=c %'").count() == 2
    sink.close()


@pytest.mark.parametrize(
    ("distributed", "value", "says"),
    [
        (False, "", "is an empty string"),
        (False, "__HIVE_DEFAULT_PARTITION__", "which such folders have instead of null"),
        (False, "x" * 300, "too long for the name of a folder"),
        (True, "", "is an empty string"),
        pytest.param(
            *(True, "__HIVE_DEFAULT_PARTITION__", "which such folders have instead of null"),
            marks=pytest.mark.slow,
        ),
        pytest.param(True, "x" * 300, "too long for the name of a folder", marks=pytest.mark.slow),
    ],
)
def test_values_that_no_folder_can_have_are_named(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    value: str,
    says: str,
    distributed: bool,
) -> None:
    if distributed:
        monkeypatch.setattr("headrace.connectors.files.sink.collect_small_rows", lambda *_: None)
    maker = file_sink_maker(spark, tmp_path, partition_by=["place"])
    sink = maker.joined(DAYS, ())
    with pytest.raises(DataError, match=f"column `place` of partition_by .*{says}") as caught:
        sink.write(plan(1), frame(spark, DAYS, days((1, None, value)), "i", ()))
    assert caught.value.node == maker.key.sink
    assert commits(maker.path) == []
    sink.close()


def test_text_files_have_the_chosen_form(spark: SparkSession, tmp_path: Path) -> None:
    maker = file_sink_maker(spark, tmp_path, "csv", compression="gzip", header=False, delimiter="\t")
    sink = maker.joined(KEYED, ())
    sink.write(plan(1), frame(spark, KEYED, people((1, 'a"\tb'), (2, None), (3, "")), "iii", ()))
    (file,) = Path(maker.path).rglob("*.csv.gz")
    lines = gzip.decompress(file.read_bytes()).decode().splitlines()
    assert sorted(lines) == ['1\t"a""\tb"', "2\t", '3\t""']
    assert (file.parent / "_headrace_commit").exists()
    sink.close()


def test_json_lines_keep_nulls_and_operations(spark: SparkSession, tmp_path: Path) -> None:
    maker = file_sink_maker(spark, tmp_path, "json")
    sink = maker.joined(KEYED)
    sink.write(plan(1), frame(spark, KEYED, people((1, "é"), (2, None), (1, None)), "iid"))
    (file,) = Path(maker.path).rglob("*.jsonl")
    result = sorted((json.loads(line) for line in file.read_text().splitlines()), key=lambda row: row["id"])
    assert result == [
        {"id": 1, "name": None, "headrace_op": "d"},
        {"id": 2, "name": None, "headrace_op": "i"},
    ]
    sink.close()


@pytest.mark.parametrize("lost", ["publish", "_rename_commit"])
def test_an_epoch_whose_answer_is_lost_is_not_written_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    maker = file_sink_maker(spark, tmp_path)
    sink = maker.joined(KEYED, ())
    original: Callable[..., Any] = getattr(SinkFolder, lost)

    def lose(*arguments: Any) -> Any:
        original(*arguments)
        raise OSError(5, "Input/output error")

    rows = frame(spark, KEYED, people((1, "a"), (2, "b")), "ii", ())
    with monkeypatch.context() as patch:
        patch.setattr(SinkFolder, lost, lose)
        with pytest.raises(TransientError, match="Input/output error"):
            sink.write(plan(1), rows)
    assert sink.write(plan(1), rows).rows == 2
    assert sorted(maker.rows(["id"])) == [(1,), (2,)]
    sink.write(plan(2), frame(spark, KEYED, people((3, "c")), "i", ()))
    assert sorted(maker.rows(["id"])) == [(1,), (2,), (3,)]
    sink.close()


@pytest.mark.parametrize("when", ["_write_files", "publish", "_rename_commit"])
def test_a_run_that_is_passed_within_its_write_changes_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    maker = file_sink_maker(spark, tmp_path)
    zombie, successor = maker.joined(KEYED, ()), maker.open(KEYED, ())
    owner: Any = FileFolderSink if when == "_write_files" else SinkFolder
    original: Callable[..., Any] = getattr(owner, when)

    def overtaken(*arguments: Any) -> Any:
        monkeypatch.setattr(owner, when, original)
        successor.prepare(KEYED, 2)
        return original(*arguments)

    monkeypatch.setattr(owner, when, overtaken)
    with pytest.raises(FencedError):
        zombie.write(plan(1), frame(spark, KEYED, people((1, "zombie")), "i", ()))
    assert commits(maker.path) == []
    successor.write(plan(1), frame(spark, KEYED, people((1, "a")), "i", ()))
    with pytest.raises(FencedError):
        zombie.write(plan(2), frame(spark, KEYED, people((2, "zombie")), "i", ()))
    assert maker.rows(["id", "name"]) == [(1, "a")]
    for name in os.listdir(Path(maker.path) / ".headrace"):
        home = Path(maker.path) / ".headrace" / name
        assert not home.is_dir() or os.listdir(home) == ["generation-2"]
    zombie.close()
    successor.close()


def test_files_of_a_task_that_ran_twice_stay_out(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker = file_sink_maker(spark, tmp_path)
    sink = maker.joined(KEYED, ())
    original = RowFiles.write_local

    def twice(self: RowFiles, rows: pa.Table, folder: Path) -> Any:
        original(self, rows, folder)
        (folder / "half.parquet").write_bytes(b"PAR1")
        return original(self, rows, folder)

    monkeypatch.setattr(RowFiles, "write_local", twice)
    assert sink.write(plan(1), frame(spark, KEYED, people((1, "a")), "i", ())).rows == 1
    assert maker.rows(["id", "name"]) == [(1, "a")]
    sink.close()


def test_an_epoch_without_rows_makes_no_folder(spark: SparkSession, tmp_path: Path) -> None:
    maker = file_sink_maker(spark, tmp_path)
    sink = maker.joined(KEYED)
    for number in (1, 2, 3):
        sink.write(
            plan(number), frame(spark, KEYED, people((1, "a")) if number == 2 else [], "i"[: number == 2])
        )
    assert commits(maker.path) == ["headrace_commit=0000000001"]
    record = sink.record()
    assert record is not None
    assert (record.epoch, record.totals.rows) == (3, 1)
    sink.close()


def test_a_replay_appends_changes_that_win(spark: SparkSession, tmp_path: Path) -> None:
    maker = file_sink_maker(spark, tmp_path)
    sink = maker.joined(KEYED)
    for number, name in ((1, "a"), (2, "b")):
        sink.write(plan(number), frame(spark, KEYED, people((1, name)), "u"))
    sink.register(CommitRecord.for_registration(maker.key, 1, 0, position(0), "feedfacecafebeef", None))
    record = sink.record()
    assert record is not None
    assert (record.epoch, record.baseline) == (0, 2)
    for number, name in ((1, "a"), (2, "c")):
        sink.write(plan(number), frame(spark, KEYED, people((1, name)), "u"))
    assert maker.rows(["id", "name"]) == [(1, "c")]
    assert len(commits(maker.path)) == 4
    record, count = sink.read_row_count() or (None, 0)
    assert record is not None
    assert (record.baseline or 0) + (record.totals.inserted or 0) == count == 4
    sink.close()


def test_truncation_is_completed_by_the_next_run(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker = file_sink_maker(spark, tmp_path)
    sink = maker.joined(KEYED, ())
    for number in (1, 2):
        sink.write(plan(number), frame(spark, KEYED, people((number, "a")), "i", ()))
    with monkeypatch.context() as patch:

        def die(*_: object) -> None:
            raise KeyboardInterrupt

        patch.setattr(SinkFolder, "discard_attempts", die)
        with pytest.raises(KeyboardInterrupt):
            sink.truncate()
    assert (sink.read_row_count() or (None, -1))[1] == 0
    successor = maker.open(KEYED, ())
    successor.prepare(KEYED, 2)
    assert commits(maker.path) == []
    record = successor.record()
    assert record is not None
    assert record.epoch == 2
    successor.write(plan(3), frame(spark, KEYED, people((3, "c")), "i", ()))
    assert commits(maker.path) == ["headrace_commit=0000000003"]
    assert maker.rows(["id"]) == [(3,)]
    successor.close()


def test_sinks_that_share_a_folder_take_different_numbers(spark: SparkSession, tmp_path: Path) -> None:
    first = file_sink_maker(spark, tmp_path, share=True)
    second = replace(first, key=replace(first.key, pipeline="0" * 32, name="second"))
    sinks = [first.joined(KEYED, ()), second.joined(KEYED, ())]
    rows = {number: frame(spark, KEYED, people((number, "a")), "i", ()) for number in range(1, 9)}
    failures: list[Exception] = []

    def write(sink: Any) -> None:
        try:
            for number in range(1, 9):
                sink.write(plan(number), rows[number])
        except HeadraceError as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(sink,)) for sink in sinks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(commits(first.path)) == 16
    assert sorted(first.rows(["id"])) == sorted([(number,) for number in range(1, 9)] * 2)
    assert [sink.record() and sink.record().epoch for sink in sinks] == [8, 8]  # type: ignore[union-attr]


def changed(maker: FileSinkMaker, **node: Any) -> FileSinkMaker:
    """The same folder, with other keys of the node."""
    before = maker.node
    return replace(maker, node=lambda columns: before(columns).model_copy(update=node))


REFUSED: dict[str, tuple[dict[str, Any], pa.Schema, tuple[str, ...], type[HeadraceError], str]] = {
    "format": (
        {"format": "csv"},
        KEYED,
        ("id",),
        TargetError,
        "are parquet files, and the sink writes csv files",
    ),
    "partitions": (
        {"partition_by": ("name",)},
        KEYED,
        ("id",),
        TargetError,
        "are without partitions, and the sink writes partitioned by name",
    ),
    "key": ({}, KEYED, (), TargetError, "are changes of keys, and the sink writes rows without a key"),
    "type": (
        {},
        pa.schema([("id", pa.int32()), ("name", pa.string())]),
        ("id",),
        SchemaError,
        "column `id` is int64 in the files .* and int32 in the rows",
    ),
    "reserved": (
        {},
        pa.schema([("id", pa.int64()), ("headrace_op", pa.string())]),
        ("id",),
        SchemaError,
        "column `headrace_op` has a name that the files of this sink use",
    ),
    "interval": (
        {},
        pa.schema([("id", pa.int64()), ("t", pa.duration("us"))]),
        ("id",),
        SchemaError,
        r"column `t`: files cannot carry duration",
    ),
    "missing": (
        {"partition_by": ("day",)},
        KEYED,
        ("id",),
        UserError,
        "`day`, which is not among the columns id",
    ),
    "float": (
        {"partition_by": ("f",)},
        pa.schema([("id", pa.int64()), ("f", pa.float64())]),
        ("id",),
        UserError,
        "names `f`, which is double",
    ),
    "all": ({"partition_by": ("id", "name")}, KEYED, ("id",), UserError, "names all columns"),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused_before_a_row(
    spark: SparkSession,
    tmp_path: Path,
    case: tuple[dict[str, Any], pa.Schema, tuple[str, ...], type[HeadraceError], str],
) -> None:
    node, schema, key, kind, says = case
    maker = file_sink_maker(spark, tmp_path)
    maker.joined(KEYED).close()
    for check in ("prepare", "validate"):
        sink = changed(maker, **node).open(schema, key)
        with pytest.raises(kind, match=says) as caught:
            sink.prepare(schema, 2) if check == "prepare" else sink.validate_target()
        assert caught.value.node == maker.key.sink
    maker.open(KEYED).validate_target()


def test_columns_are_added_but_not_to_csv(spark: SparkSession, tmp_path: Path) -> None:
    wider = pa.schema([*KEYED, ("more", pa.int64())])
    maker = file_sink_maker(spark, tmp_path)
    maker.joined(KEYED, ()).close()
    sink = maker.open(wider, ())
    sink.prepare(wider, 2)
    sink.write(plan(1), frame(spark, wider, [{"id": 1, "name": "a", "more": 2}], "i", ()))
    assert maker.rows(["id", "name", "more"]) == [(1, "a", 2)]
    csv = file_sink_maker(spark, tmp_path, "csv", path=str(tmp_path / "csv"))
    csv.joined(KEYED, ()).close()
    with pytest.raises(SchemaError, match="have the columns id, name, and the rows have id, name, more"):
        csv.open(wider, ()).prepare(wider, 2)


def test_folders_of_others_are_left_alone(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.csv").write_text("1\n")
    sink = file_sink_maker(spark, tmp_path).open(KEYED)
    with pytest.raises(TargetError, match=r"has files of other programs: mine\.csv"):
        sink.validate_target()
    with pytest.raises(TargetError, match="cannot be used as a folder: Not a directory"):
        file_sink_maker(spark, tmp_path, path=str(tmp_path / "out" / "mine.csv")).open(
            KEYED
        ).validate_target()
    assert os.listdir(tmp_path / "out") == ["mine.csv"]


def test_a_folder_that_is_removed_loses_the_record(spark: SparkSession, tmp_path: Path) -> None:
    maker = file_sink_maker(spark, tmp_path)
    sink = maker.joined(KEYED, ())
    sink.write(plan(1), frame(spark, KEYED, people((1, "a")), "i", ()))
    Path(maker.path).rename(tmp_path / "gone")
    with pytest.raises(HeadraceError, match="was replaced after it was prepared"):
        sink.write(plan(2), frame(spark, KEYED, people((2, "b")), "i", ()))
    again = maker.open(KEYED, ())
    again.prepare(KEYED, 2)
    assert again.record() is None
