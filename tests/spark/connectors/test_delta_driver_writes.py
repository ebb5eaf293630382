"""Small epochs of local Delta tables, written from the driver: the same result as by Spark, whatever dies."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from helpers.depth import FULL
from helpers.lakehouse_tables import plan
from pyspark.sql import SparkSession

from headrace.connectors import frame, lakehouse_rows
from headrace.connectors.delta.local_log import LocalTableLog
from headrace.connectors.delta.spark_writer import SparkWriter, merge
from headrace.connectors.frame import EpochFrame
from headrace.pipeline.errors import DataError, FencedError, SinkStateError
from headrace.pipeline.protocol.epochs import WriteCounts
from headrace.pipeline.sql.system_columns import OP, POS, POS_TYPE
from tests.spark.connectors.test_delta_sink import Table, kill_at_gate

WIDE = pa.schema(
    [
        ("id", pa.int64()),
        ("place", pa.string()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("amount", pa.decimal128(12, 2)),
        ("ratio", pa.float64()),
        ("tags", pa.list_(pa.string())),
    ]
)
_DDL = (
    "id bigint, place string, day date, at timestamp, amount decimal(12,2), ratio double, tags array<string>,"
    f" {OP} string, {POS} {POS_TYPE}"
)
_PLACES = ("ä" * 40, "b", "\U0010ffff")
EPOCHS = 3 if FULL else 2


class WideTable(Table):
    """A table of many types, with a version column or without one."""

    version_column: str | None = None

    def node(self) -> Any:
        return super().node().model_copy(update={"version_column": self.version_column})

    def changes(self, epoch: int, *, large: bool) -> EpochFrame:
        """Return random changes, the same for each epoch number; `large` ones are written by Spark."""
        some = random.Random(epoch)
        rows = []
        for number in range(40):
            at = datetime(2024, 1, 1, tzinfo=UTC) + timedelta(microseconds=some.randrange(10**6))
            op = some.choice("iuud")
            rows.append(
                (
                    some.randrange(12),
                    some.choice(_PLACES),
                    at.date() if some.random() < 0.8 else None,
                    at if op != "d" or some.random() < 0.5 else None,
                    Decimal(some.randrange(10**6)) / 100,
                    some.choice([0.5, None]),
                    some.choice([[], ["x", None], None]),
                    op,
                    (0, 0, number, 0),
                )
            )
        frame = self.spark.createDataFrame(rows, _DDL)
        return EpochFrame(frame, WIDE, self.key, None if large else len(rows), self.spark)

    def content(self) -> list[Any]:
        rows = self.spark.read.format("delta").load(self.path).collect()
        return sorted(map(tuple, rows), key=repr)


@pytest.fixture
def spark_merges(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list with an entry for each MERGE by Spark."""
    calls: list[int] = []

    def count(*args: Any, **options: Any) -> None:
        calls.append(1)
        merge(*args, **options)

    monkeypatch.setattr("headrace.connectors.delta.spark_writer.merge", count)
    return calls


@pytest.fixture
def no_spark_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse rows that Spark would write."""
    for way in ("append", "merge"):
        monkeypatch.setattr(SparkWriter, way, Mock(side_effect=AssertionError("Spark writes")))


# test_merge_applies_the_last_row_of_each_key has daily cases without a version.
@pytest.mark.parametrize("version", [pytest.param(None, marks=pytest.mark.slow), "at"])
@pytest.mark.sampled
def test_rows_and_counts_are_those_of_spark(
    spark: SparkSession, tmp_path: Path, spark_merges: list[int], version: str | None
) -> None:
    """Random epochs: one table by Spark only, the other by Spark and by the driver in turn."""
    tables = [WideTable(spark, tmp_path / name, ("place", "id"), WIDE) for name in ("spark", "both")]
    routes = [lambda _: True, lambda epoch: epoch % 2 == 1]
    for one in tables:
        one.version_column = version
    sinks = [one.joined() for one in tables]
    for epoch in range(1, EPOCHS + 1):
        counts = [
            sink.write(plan(epoch), one.changes(epoch, large=is_large(epoch)))
            for one, sink, is_large in zip(tables, sinks, routes, strict=True)
        ]
        assert counts[0] == counts[1]
        contents = [one.content() for one in tables]
        assert contents[0] == contents[1]
        assert {sink.read_row_count()[1] for sink in sinks} == {len(contents[0])}
    assert len(spark_merges) == EPOCHS + (EPOCHS + 1) // 2


@pytest.mark.usefixtures("no_spark_writes")
@pytest.mark.parametrize("key", [(), ("id",)], ids=["append", "keyed"])
def test_large_epochs_are_collected_up_to_a_limit_of_rows_and_bytes(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: tuple[str, ...]
) -> None:
    monkeypatch.setattr(lakehouse_rows, "DRIVER_ROWS", 1)
    for name, most in (("LARGE_ROWS", 3), ("LARGE_BYTES", 1_000)):
        monkeypatch.setattr(frame, name, most)
    one = Table(spark, tmp_path, key)
    sink = one.joined()
    rows = one.frame((1, "a", "i"), (2, "b", "i"), (3, "c", "i"))
    assert sink.write(plan(1), replace(rows, estimate=3, size=1_000)) == WriteCounts(3, 3, 0, 0)
    for estimate, size in ((4, 1_000), (3, 1_001), (3, None)):
        with pytest.raises(AssertionError, match="Spark writes"):
            sink.write(plan(2), replace(rows, estimate=estimate, size=size))
    assert one.rows() == [(1, "a"), (2, "b"), (3, "c")]


def test_large_epochs_whose_keys_cannot_be_compared_go_to_spark_from_then_on(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark_merges: list[int]
) -> None:
    for module in ("lakehouse_rows", "delta.epoch_writer"):
        monkeypatch.setattr(f"headrace.connectors.{module}.DRIVER_ROWS", 1)
    one = Table(spark, tmp_path, ("id",))
    sink = one.joined()
    rows = replace(one.frame((1, "a", "i"), (2, "b", "i"), (2, "c", "u")), estimate=3, size=1_000)
    assert sink.write(plan(1), rows) == WriteCounts(2, 2, 0, 0)
    assert not spark_merges
    monkeypatch.setattr("headrace.connectors.delta.arrow_writer.are_readable", lambda *_: False)
    collected = Mock(side_effect=frame.collect_arrow)
    monkeypatch.setattr(frame, "collect_arrow", collected)
    for epoch in (2, 3):
        change = replace(one.frame((1, f"new {epoch}", "u"), (2, "c", "u")), estimate=3, size=1_000)
        assert sink.write(plan(epoch), change) == WriteCounts(2, 0, 2, 0)
    assert (len(spark_merges), collected.call_count) == (2, 1)
    assert one.rows() == [(1, "new 3"), (2, "c")]


@pytest.mark.parametrize("key", [(), ("id",)], ids=["append", "keyed"])
def test_rows_that_are_larger_than_their_sources_go_to_spark(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture, key: tuple[str, ...]
) -> None:
    caplog.set_level("INFO")
    one = Table(spark, tmp_path, key)
    sink = one.joined()
    rows = one.frame(*((number, "x" * 20_000 + str(number), "i") for number in range(100)))
    java: Any = spark.sparkContext._jsc
    conf, option = java.sc().conf(), "spark.driver.maxResultSize"
    before = conf.get(option)
    conf.set(option, "300k")
    try:
        wide = replace(rows, node_rows=rows.node_rows.repartition(2), estimate=100, size=1_000)
        assert sink.write(plan(1), wide) == WriteCounts(100, 100, 0, 0)
    finally:
        conf.set(option, before)
    assert "rows_too_large_for_driver" in caplog.text
    assert len(one.rows()) == 100


@pytest.mark.usefixtures("no_spark_writes")
@pytest.mark.parametrize("key", [(), ("id",)], ids=["append", "keyed"])
def test_rows_of_the_driver_are_written_there_whatever_their_number(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: tuple[str, ...]
) -> None:
    monkeypatch.setattr("headrace.connectors.lakehouse_rows.DRIVER_ROWS", 1)
    one = Table(spark, tmp_path, key)
    sink = one.joined()
    rows = one.frame((1, "a", "i"), (2, "b", "i"), (3, "c", "i"))
    assert sink.write(plan(1), replace(rows, table=rows.rows.toArrow())) == WriteCounts(3, 3, 0, 0)
    with pytest.raises(AssertionError, match="Spark writes"):
        sink.write(plan(2), replace(rows, estimate=None))
    assert one.rows() == [(1, "a"), (2, "b"), (3, "c")]


def test_a_delete_among_rows_of_the_driver_is_refused_without_a_key(
    spark: SparkSession, tmp_path: Path
) -> None:
    one = Table(spark, tmp_path, ())
    sink = one.joined()
    rows = one.frame((1, "a", "i"), (1, "a", "d"))
    with pytest.raises(DataError, match="a delete reached a sink without primary_key"):
        sink.write(plan(1), replace(rows, table=rows.rows.toArrow()))
    assert not one.rows()


def test_update_keeps_columns_that_only_the_table_has(spark: SparkSession, tmp_path: Path) -> None:
    """A small epoch, then a large one."""
    t = Table(spark, tmp_path / "t", ("id",))
    sink = t.joined()
    sink.write(plan(1), t.frame((1, "a", "i"), (2, "b", "i")))
    t.sql("ALTER TABLE {t} ADD COLUMNS (note string)")
    t.sql("UPDATE {t} SET note = 'mine'")
    sink.write(plan(2), t.frame((1, "x", "u"), (3, "c", "i")))
    assert t.rows() == [(1, "x", "mine"), (2, "b", "mine"), (3, "c", None)]
    sink.write(plan(3), t.frame((1, "y", "u"), (2, "z", "u"), (4, "d", "i"), large=True))
    assert t.rows() == [(1, "y", "mine"), (2, "z", "mine"), (3, "c", None), (4, "d", None)]


def test_files_from_before_a_version_column_have_no_version(spark: SparkSession, tmp_path: Path) -> None:
    t = Table(spark, tmp_path / "t", ("id",))
    t.joined().write(plan(1), t.frame((1, "a", "i"), (2, "b", "i")))
    t.sql("ALTER TABLE {t} ADD COLUMNS (version bigint)")
    newer = WideTable(
        spark,
        tmp_path / "t",
        ("id",),
        pa.schema([("id", pa.int64()), ("name", pa.string()), ("version", pa.int64())]),
    )
    newer.version_column = "version"
    rows = spark.createDataFrame(
        [(1, "x", 5, "u", (0, 0, 0, 0)), (3, "c", 1, "i", (0, 0, 1, 0))],
        f"id bigint, name string, version bigint, {OP} string, {POS} {POS_TYPE}",
    )
    newer.prepared(generation=2).write(plan(2), EpochFrame(rows, newer.schema, newer.key, 2, spark))
    assert newer.rows() == [(1, "x", 5), (2, "b", None), (3, "c", 1)]


def test_files_of_a_checkpoint_are_changed(
    spark: SparkSession, tmp_path: Path, no_spark_writes: None
) -> None:
    """A checkpoint has typed copies of the statistics, which the log of a later commit must not have."""
    schema = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("amount", pa.decimal128(12, 2))])
    ddl = f"id bigint, day date, amount decimal(12,2), {OP} string, {POS} {POS_TYPE}"
    t = Table(spark, tmp_path / "t", ("id",), schema)

    def frame(*rows: tuple[int, date, Decimal, str]) -> EpochFrame:
        values = [(*row, (0, 0, at, 0)) for at, row in enumerate(rows)]
        return EpochFrame(spark.createDataFrame(values, ddl), schema, ("id",), len(rows), spark)

    before, after = (date(2024, 1, 1), Decimal("1.50")), (date(2024, 2, 1), Decimal("2.50"))
    t.joined().write(plan(1), frame((1, *before, "i"), (2, *before, "i")))
    t.checkpoint()
    t.prepared(generation=2).write(plan(2), frame((1, *after, "u")))
    assert t.rows() == [(1, *after), (2, *before)]
    commit = Path(t.path) / f"_delta_log/{t.version:020d}.json"
    fields = {field for line in commit.open() for action in json.loads(line).values() for field in action}
    assert "deletionVector" in fields
    assert not [field for field in fields if field.endswith("_parsed")]


def test_statistics_of_decimals_keep_their_digits(spark: SparkSession, tmp_path: Path) -> None:
    """Every reader skips files by them, so a lost digit loses rows."""
    schema = pa.schema([("id", pa.int64()), ("amount", pa.decimal128(38, 18))])
    t = Table(spark, tmp_path / "t", ("id",), schema)
    sink = t.joined()
    amounts = [Decimal("1234.123456789012345678"), Decimal("12345678901234568.900000000000000001")]

    def write(epoch: int, *rows: tuple[int, Decimal, str], large: bool) -> None:
        values = [(*row, (0, 0, at, 0)) for at, row in enumerate(rows)]
        frame = spark.createDataFrame(
            values, f"id bigint, amount decimal(38,18), {OP} string, {POS} {POS_TYPE}"
        )
        sink.write(plan(epoch), EpochFrame(frame, schema, ("id",), None if large else len(rows), spark))

    write(1, (1, amounts[0], "i"), (2, amounts[1], "i"), (3, Decimal(5000), "i"), large=True)
    write(2, (3, Decimal(0), "d"), large=False)
    for amount in amounts:
        result = spark.sql(f"SELECT id FROM delta.`{t.path}` WHERE amount = {amount}BD").collect()
        assert len(result) == 1, amount


def test_history_of_the_table_tells_the_operation(spark: SparkSession, tmp_path: Path) -> None:
    table = Table(spark, tmp_path / "t", ("id",))
    sink = table.joined()
    sink.write(plan(1), table.frame((1, "a", "i"), (2, "b", "i")))
    sink.write(plan(2), table.frame((1, "x", "u"), (2, "b", "d"), (3, "c", "i")))
    newest = spark.sql(f"DESCRIBE HISTORY delta.`{table.path}`").first()
    assert newest is not None
    assert newest.operation == "MERGE"
    metrics = newest.operationMetrics
    names = ("numSourceRows", "numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted")
    assert [metrics[name] for name in names] == ["3", "1", "1", "1"]


# The driver refuses every such property in the same way: one is daily. test_row_that_a_constraint_refuses is the
# daily sample of a constraint, test_types_come_back_as_they_went_in the one of mapped columns.
@pytest.mark.parametrize(
    ("change", "check"),
    [
        pytest.param("ALTER TABLE {t} ADD CONSTRAINT small CHECK (id < 100)", "", marks=pytest.mark.slow),
        ("ALTER TABLE {t} SET TBLPROPERTIES (delta.enableDeletionVectors = false)", ""),
        pytest.param(
            "ALTER TABLE {t} SET TBLPROPERTIES (delta.enableRowTracking = true)", "", marks=pytest.mark.slow
        ),
        pytest.param(
            "ALTER TABLE {t} SET TBLPROPERTIES (delta.columnMapping.mode = 'name')",
            "SELECT count(*) = 2 FROM {t}",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "ALTER TABLE {t} SET TBLPROPERTIES (delta.enableChangeDataFeed = true)",
            "SELECT count(*) = 6 FROM table_changes_by_path('{p}', {v})",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_table_with_more_than_columns_is_written_by_spark(
    spark: SparkSession, tmp_path: Path, spark_merges: list[int], change: str, check: str
) -> None:
    table = Table(spark, tmp_path / "t", ("id",))
    sink = table.joined()
    table.sql(change)
    changed = table.version
    sink.write(plan(1), table.frame((1, "a", "i"), (2, "b", "i")))
    assert sink.write(plan(2), table.frame((1, "x", "u"), (3, "c", "i"), (2, "b", "d"))) == WriteCounts(
        3, 1, 1, 1
    )
    assert table.rows() == [(1, "x"), (3, "c")]
    assert len(spark_merges) == 2
    if check:
        row = spark.sql(check.format(t=f"delta.`{table.path}`", p=table.path, v=changed)).first()
        assert row is not None
        assert row[0]


def test_files_and_vectors_of_others_are_read(
    spark: SparkSession, tmp_path: Path, spark_merges: list[int]
) -> None:
    """Spark compacts, deletes, and cleans up the log between epochs."""
    table = Table(spark, tmp_path / "t", ("id",))
    sink = table.joined()
    sink.write(plan(1), table.frame(*[(at, "a", "i") for at in range(20)]))
    table.sql("DELETE FROM {t} WHERE id % 5 = 0")
    assert sink.write(plan(2), table.frame((0, "again", "u"), (1, "b", "u"), (2, "", "d"))) == WriteCounts(
        3, 1, 1, 1
    )
    table.sql("OPTIMIZE {t}")
    assert sink.write(plan(3), table.frame((1, "c", "u"), (3, "", "d"))) == WriteCounts(2, 0, 1, 1)
    table.checkpoint()
    fresh = table.prepared(generation=2)
    log = Path(table.path, "_delta_log")
    for version in range(3):
        (log / f"{version:020d}.json").unlink()
    fresh.write(plan(4), table.frame((1, "d", "u"), (4, "", "d"), (50, "new", "i")))
    others = [(at, "a") for at in range(6, 20) if at % 5]
    assert table.rows() == [(0, "again"), (1, "d"), *others, (50, "new")]
    assert fresh.read_row_count()[1] == len(table.rows())
    assert not spark_merges


@pytest.mark.sampled
@pytest.mark.parametrize(
    "harm",
    [
        pytest.param("DELETE FROM {t} WHERE id = 2", marks=pytest.mark.slow),
        "UPDATE {t} SET name = 'theirs' WHERE id = 1",
    ],
)
def test_commit_that_changes_what_the_epoch_read_is_a_conflict(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    """Another writer commits after the epoch read the table: before the check of its version, or after it."""
    for place in ("_put", "commit_files") if FULL else ("_put",):
        table = Table(spark, tmp_path / place, ("id",))
        sink = table.joined()
        sink.write(plan(1), table.frame((1, "a", "i"), (2, "b", "i"), (3, "c", "i")))
        harms, real = iter([harm]), getattr(LocalTableLog, place)

        def first_harm(*args: Any, harms: Any = harms, real: Any = real, table: Table = table) -> Any:
            for statement in harms:
                table.sql(statement)
            return real(*args)

        with monkeypatch.context() as patch:
            patch.setattr(LocalTableLog, place, first_harm)
            changes = table.frame((1, "mine", "u"), (4, "d", "i"))
            sink.write(plan(2), changes)
        rest = [] if "DELETE" in harm else [(2, "b")]
        assert table.rows() == [(1, "mine"), *rest, (3, "c"), (4, "d")]


@pytest.mark.parametrize(
    ("key", "place"),
    [
        ((), "_put"),
        pytest.param(("id",), "commit_files", marks=pytest.mark.slow),
        pytest.param(("id",), "_put", marks=pytest.mark.slow),
        pytest.param((), "commit_files", marks=pytest.mark.slow),
    ],
)
def test_generation_that_prepares_before_the_commit_fences_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: tuple[str, ...], place: str
) -> None:
    """A newcomer prepares before or after the older one's transaction begins."""
    table = Table(spark, tmp_path / "t", key)
    old, real = table.joined(), getattr(LocalTableLog, place)
    newcomers: list[Any] = []

    def first_prepare(*args: Any) -> Any:
        if not newcomers:
            newcomers.append(None)
            newcomers[0] = table.prepared(generation=2)
        return real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(LocalTableLog, place, first_prepare)
        with pytest.raises(FencedError):
            old.write(plan(1), table.frame((1, "old", "i")))
    assert table.rows() == []
    newcomers[0].write(plan(1), table.frame((1, "new", "i")))
    assert table.rows() == [(1, "new")]


@pytest.mark.parametrize("key", [pytest.param((), marks=pytest.mark.slow), ("id",)])
def test_table_that_is_replaced_before_the_commit_takes_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: tuple[str, ...]
) -> None:
    table = Table(spark, tmp_path / "t", key)
    sink, real = table.joined(), LocalTableLog.commit_files
    replacements = iter([1])
    jvm: Any = spark._jvm

    def replace_first(*args: Any) -> Any:
        for _ in replacements:
            shutil.rmtree(table.path)
            jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
            Table(spark, Path(table.path), key).prepared(generation=1)
        return real(*args)

    monkeypatch.setattr(LocalTableLog, "commit_files", replace_first)
    with pytest.raises(SinkStateError):
        sink.write(plan(1), table.frame((1, "a", "i")))
    assert table.rows() == []


_VICTIM = """
import sys, threading, time
sys.path.append("tests")
from pathlib import Path
from headrace.connectors.delta.local_log import LocalTableLog
from headrace.jobs.spark.session import start_session
from helpers.spark_settings import SHORT_LIVED_SPARK
from headrace.pipeline.config.settings import Settings
from tests.spark.connectors.test_delta_sink import Table, plan
home = Path(sys.argv[1])
spark = start_session(Settings(home=home, spark=SHORT_LIVED_SPARK), ("delta",))
tables = [Table(spark, home / name, ("id",) if name == sys.argv[2] else ()) for name in ("early", "late")]
sinks = [table.joined() for table in tables]
for table, sink in zip(tables, sinks):
    sink.write(plan(1), table.frame((1, "a", "i"), (2, "b", "i")))
commit, both = LocalTableLog.commit_files, threading.Barrier(2, (home / "reached").touch)
def hang(*args):
    done = commit(*args) if threading.current_thread().name == "late" else None
    both.wait()
    time.sleep(600)
LocalTableLog.commit_files = hang
changes = [table.frame((1, "a2", "u"), (3, "c", "i")) for table in tables]
for name, sink, frame in zip(("early", "late"), sinks, changes):
    threading.Thread(target=sink.write, args=(plan(2), frame), name=name).start()
"""


@pytest.mark.parametrize("keyed", ["early", pytest.param("late", marks=pytest.mark.slow)])
def test_kill_before_or_after_the_commit(spark: SparkSession, tmp_path: Path, keyed: str) -> None:
    """The process dies with all files written, at once in two tables.

    In `early` it dies before the commit; in `late` after it, so that the answer is lost. `keyed` has a key.
    """
    kill_at_gate(_VICTIM, tmp_path, keyed)
    for when in ("early", "late"):
        table = Table(spark, tmp_path / when, ("id",) if when == keyed else ())
        sink = table.prepared(generation=2)
        assert sink.record().epoch == (1 if when == "early" else 2)
        expected = [(1, "a2")] if table.key else [(1, "a"), (1, "a2")]
        expected += [(2, "b"), (3, "c")]
        assert table.rows() == ([(1, "a"), (2, "b")] if when == "early" else expected)
        sink.write(plan(2), table.frame((1, "a2", "u"), (3, "c", "i")))
        assert table.rows() == expected
        assert sink.read_row_count() == (sink.record(), len(expected))
