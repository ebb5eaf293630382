"""Direct loads into local Delta tables: tasks write files, one commit shows them, whatever dies."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from helpers.depth import with_slow
from helpers.lakehouse_tables import SCHEMA, plan
from helpers.split_rows import GivenSplits
from pyspark.sql import SparkSession

from headrace.connectors.delta.local_log import LocalTableLog
from headrace.pipeline.errors import DataError, FencedError
from headrace.pipeline.protocol.epochs import WriteCounts
from tests.spark.connectors.test_delta_sink import Table, kill_at_gate

TYPES = pa.schema(
    [
        ("id", pa.int64()),
        ("small", pa.uint16()),
        ("flag", pa.bool_()),
        ("day", pa.date32()),
        ("at", pa.timestamp("ms", "UTC")),
        ("local", pa.timestamp("us")),
        ("amount", pa.decimal128(12, 2)),
        ("ratio", pa.float32()),
        ("bytes", pa.binary()),
        ("text", pa.string()),
    ]
)
VALUES = [
    [
        *(1, 65_535, True, date(1, 1, 1), datetime(2024, 5, 1, 1, 2, 3, 4_000, UTC)),
        *(datetime(9999, 12, 31, 23, 59, 59, 999_999), Decimal("-0.01"), 0.5, b"\x00\xff", "ä\U0010ffff"),
    ],
    [2, *[None] * 9],
]


def splits(schema: pa.Schema = SCHEMA, **rows: Any) -> GivenSplits:
    return GivenSplits(schema, rows, [])


def data_files(table: Table) -> set[str]:
    return {path.name for path in Path(table.path).glob("*.parquet")}


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> Callable[..., Table]:
    return lambda *key, **more: Table(spark, tmp_path / "flights", key, **more)


@pytest.mark.parametrize("key", [(), ("id",)], ids=["append", "keyed"])
def test_splits_are_one_commit_and_their_epoch_is_not_loaded_twice(table: Any, key: tuple[str, ...]) -> None:
    t = table(*key)
    sink = t.joined()
    before, rows = t.version, splits(a=[(1, "a"), (2, "b")], b=[], c=[(3, "c")])
    assert sink.write_direct(plan(1), rows, t.spark) == WriteCounts(3, 3, 0, 0)
    assert t.version == before + 1
    assert t.rows() == [(1, "a"), (2, "b"), (3, "c")]
    assert sink.read_row_count() == (sink.record(), 3)
    assert sorted(rows.reads) == ["a", "b", "c"]
    again = t.prepared(generation=2)
    assert again.write_direct(plan(1), rows, t.spark) == WriteCounts(3, 3, 0, 0)
    assert sorted(rows.reads) == ["a", "b", "c"]
    assert len(data_files(t)) == 2


def test_spark_reads_every_type_as_it_was(table: Any) -> None:
    t = table(schema=TYPES)
    assert t.joined().write_direct(plan(1), splits(TYPES, a=VALUES), t.spark) == WriteCounts(2, 2, 0, 0)
    read = t.spark.read.format("delta").load(t.path)
    texts = [f"cast({name} as string)" for name in ("day", "at", "local", "amount")]
    result = read.selectExpr("id", "small", "flag", *texts, "ratio", "hex(bytes)", "text").orderBy("id")
    days = "0001-01-01", "2024-05-01 01:02:03.004", "9999-12-31 23:59:59.999999"
    assert [tuple(row) for row in result.collect()] == [
        (1, 65_535, True, *days, "-0.01", 0.5, "00FF", "ä\U0010ffff"),
        (2, *[None] * 9),
    ]
    assert [row.id for row in read.where("text = 'ä\U0010ffff' and amount < 0").collect()] == [1]


def test_the_last_row_of_a_key_in_a_split_stays(table: Any) -> None:
    t = table("id")
    rows = splits(a=[(1, "old"), (2, "b"), (1, "new")])
    assert t.joined().write_direct(plan(1), rows, t.spark) == WriteCounts(2, 2, 0, 0)
    assert t.rows() == [(1, "new"), (2, "b")]


def test_other_keys_are_added_and_keys_that_are_there_are_left_to_the_merge(table: Any) -> None:
    t = table("id")
    sink = t.joined()
    sink.write_direct(plan(1), splits(a=[(1, "a"), (5, "e")]), t.spark)
    # The statistics of one file leave out these keys, those of another do not.
    assert sink.write_direct(plan(2), splits(a=[(6, "f"), (9, "i")]), t.spark) == WriteCounts(2, 2, 0, 0)
    assert sink.write_direct(plan(3), splits(a=[(3, "c"), (7, "g")]), t.spark) == WriteCounts(2, 2, 0, 0)
    files, version = data_files(t), t.version
    rows = splits(a=[(20, "t")], b=[(8, "h"), (5, "x")])
    assert sink.write_direct(plan(4), rows, t.spark) is None
    assert (data_files(t), t.version, sink.record().epoch) == (files, version, 3)
    rows.reads.clear()
    assert sink.write_direct(plan(4), rows, t.spark) is None
    assert not rows.reads
    sink.write(plan(4), t.frame((20, "t", "i"), (8, "h", "i"), (5, "x", "i")))
    pairs = ["1a", "3c", "5x", "6f", "7g", "8h", "9i", "20t"]
    assert t.rows() == [(int(pair[:-1]), pair[-1]) for pair in pairs]


@pytest.mark.parametrize(
    ("rows", "added"),
    [
        ({"a": [(1, "a"), (5, "e")], "b": [(2, "b"), (9, "i")], "c": [(3, "c")]}, True),
        ({"a": [(1, "a"), (5, "e")], "b": [(6, "f"), (9, "i")]}, True),
        ({"a": [(1, "a"), (5, "e")], "b": [(2, "b"), (5, "x")]}, False),
        ({"a": [(1, "a"), (1, "b")], "b": [], "c": [(9, "i"), (9, "j")]}, True),
    ],
    ids=["other keys in between", "other ranges", "shared", "twice in a split"],
)
def test_splits_that_may_share_keys_are_added_if_they_do_not(
    table: Any, rows: dict[str, list[tuple[int, str]]], added: bool
) -> None:
    t = table("id")
    sink = t.joined()
    counts = sink.write_direct(plan(1), splits(**rows), t.spark, keys_spread=True)
    last = dict(row for split in rows.values() for row in split)
    assert counts == (WriteCounts(len(last), len(last), 0, 0) if added else None)
    assert dict(t.rows()) == (last if added else {})
    assert len(data_files(t)) == (sum(map(bool, rows.values())) if added else 0)


def test_a_key_that_was_removed_is_added_again(spark: SparkSession, tmp_path: Path) -> None:
    t = Table(spark, tmp_path / "id=7" / "flights", ("id",))
    sink = t.joined()
    sink.write_direct(plan(1), splits(a=[(1, "a"), (2, "b"), (5, "e")]), t.spark)
    sink.write(plan(2), t.frame((2, "b", "d")))
    assert sink.write_direct(plan(3), splits(a=[(2, "new"), (4, "d")]), t.spark) == WriteCounts(2, 2, 0, 0)
    assert t.rows() == [(1, "a"), (2, "new"), (4, "d"), (5, "e")]


def test_compound_keys_are_compared_as_a_whole(table: Any) -> None:
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("v", pa.int64())])
    t = table("id", "name", schema=schema)
    sink = t.joined()
    sink.write_direct(plan(1), splits(schema, a=[(1, "a", 1), (2, "b", 2)]), t.spark)
    crossed = splits(schema, a=[(1, "b", 3), (2, "a", 4)])
    assert sink.write_direct(plan(2), crossed, t.spark) == WriteCounts(2, 2, 0, 0)
    assert sink.write_direct(plan(3), splits(schema, a=[(2, "a", 5)]), t.spark) is None


def test_keys_of_too_many_rows_are_not_compared(table: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.connectors.delta.arrow_writer.LOOKUP_ROWS", 1)
    monkeypatch.setattr("headrace.connectors.delta.arrow_writer._LOOKUPS_PER_ROW", 1)
    t = table("id")
    sink = t.joined()
    sink.write_direct(plan(1), splits(a=[(1, "a"), (5, "e")]), t.spark)
    assert sink.write_direct(plan(2), splits(a=[(2, "b")]), t.spark) is None


@pytest.mark.parametrize(
    ("key", "more"),
    [
        ((), {"schema": pa.schema([("id", pa.int64()), ("tags", pa.list_(pa.string()))])}),
        (("name",), {"schema": pa.schema([("id", pa.int64()), ("name", pa.float64())])}),
    ],
    ids=["nested column", "float key"],
)
def test_what_arrow_writes_otherwise_is_left_to_spark(table: Any, key: Any, more: Any) -> None:
    t = table(*key, **more)
    rows = splits(more["schema"], a=[(1, None)])
    assert t.joined().write_direct(plan(1), rows, t.spark) is None
    assert not rows.reads


def test_a_cluster_is_left_to_spark(table: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.connectors.delta.epoch_writer.count_task_threads", lambda _: 0)
    t = table()
    assert t.joined().write_direct(plan(1), splits(a=[(1, "a")]), t.spark) is None


@pytest.mark.parametrize(
    ("key", "bad", "message"),
    [((), None, "the row cannot be read"), (("id",), (None, "x"), "key column `id` is null")],
    ids=["source", "null key"],
)
def test_a_failure_leaves_no_file(table: Any, key: Any, bad: Any, message: str) -> None:
    t = table(*key)
    sink, rows = t.joined(), {"a": [(1, "a")], "b": [bad]}
    with pytest.raises(DataError, match=message):
        sink.write_direct(plan(1), splits(**rows), t.spark)
    assert not data_files(t)
    assert sink.record().epoch == 0


def test_another_writer_between_the_check_and_the_commit_is_a_conflict(
    table: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It adds a key of the epoch. The next attempt finds it and leaves the rows to the merge."""
    t = table("id")
    sink, real, others = t.joined(), LocalTableLog.commit_files, iter([1])

    def be_overtaken(*arguments: Any) -> Any:
        for _ in others:
            t.sql("INSERT INTO {t} VALUES (1, 'foreign')")
        return real(*arguments)

    monkeypatch.setattr(LocalTableLog, "commit_files", be_overtaken)
    assert sink.write_direct(plan(1), splits(a=[(1, "a")]), t.spark) is None
    assert t.rows() == [(1, "foreign")]


def test_an_older_generation_commits_nothing(table: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    t = table()
    old, real = t.joined(), LocalTableLog.commit_files
    newcomers: list[Any] = []

    def be_fenced(*arguments: Any) -> Any:
        if not newcomers:
            newcomers.append(None)
            newcomers[0] = t.prepared(generation=2)
        return real(*arguments)

    monkeypatch.setattr(LocalTableLog, "commit_files", be_fenced)
    with pytest.raises(FencedError):
        old.write_direct(plan(1), splits(a=[(1, "old")]), t.spark)
    assert newcomers[0].write_direct(plan(1), splits(a=[(1, "new")]), t.spark) == WriteCounts(1, 1, 0, 0)
    assert t.rows() == [(1, "new")]


_VICTIM = """
import sys, time
sys.path.append("tests")
from pathlib import Path
from headrace.connectors.delta.local_log import LocalTableLog
from headrace.jobs.spark.session import start_session
from helpers.spark_settings import SHORT_LIVED_SPARK
from headrace.pipeline.config.settings import Settings
from tests.spark.connectors.test_delta_direct import Table, plan, splits
home = Path(sys.argv[1])
spark = start_session(Settings(home=home, spark=SHORT_LIVED_SPARK), ("delta",))
sink = Table(spark, home / "flights", ("id",)).joined()
sink.write_direct(plan(1), splits(a=[(1, "a")]), spark)
commit = LocalTableLog.commit_files
def hang(*args):
    if sys.argv[2] == "late":
        commit(*args)
    (home / "reached").touch()
    time.sleep(600)
LocalTableLog.commit_files = hang
sink.write_direct(plan(2), splits(a=[(2, "b")], b=[(3, "c")]), spark)
"""


@pytest.mark.parametrize("when", with_slow({"late"}, ("early", "late")))
def test_kill_before_or_after_the_commit(spark: SparkSession, tmp_path: Path, when: str) -> None:
    """All files are written. In `late` the commit is done and its answer is lost."""
    kill_at_gate(_VICTIM, tmp_path, when)
    t = Table(spark, tmp_path / "flights", ("id",))
    sink = t.prepared(generation=2)
    assert sink.record().epoch == (1 if when == "early" else 2)
    assert t.rows() == ([(1, "a")] if when == "early" else [(1, "a"), (2, "b"), (3, "c")])
    again = splits(a=[(2, "b")], b=[(3, "c")])
    assert sink.write_direct(plan(2), again, spark) == WriteCounts(2, 2, 0, 0)
    assert bool(again.reads) is (when == "early")
    assert t.rows() == [(1, "a"), (2, "b"), (3, "c")]
    assert sink.read_row_count() == (sink.record(), 3)
