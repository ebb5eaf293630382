"""The log of a local table without Spark: what Delta wrote is read, and what is written Delta reads."""

from __future__ import annotations

import errno
import json
import os
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
import stamina
from helpers.depth import FULL
from helpers.lakehouse_tables import SCHEMA, plan
from pyspark.sql import SparkSession

from headrace.connectors.delta import table as delta_table
from headrace.connectors.delta.jvm_log import JvmTableLog
from headrace.connectors.delta.local_log import LocalTableLog
from headrace.connectors.delta.local_snapshot import LocalSnapshot
from headrace.connectors.delta.session import open_session
from headrace.connectors.delta.table import create, create_local
from headrace.connectors.lazy_session import LazySession
from headrace.pipeline.errors import TransientError
from headrace.pipeline.protocol.epochs import WriteCounts
from tests.spark.connectors.test_delta_sink import Table

ROUNDS = 40 if FULL else 10
FORGET = Mock(side_effect=AssertionError("a checkpoint is written"))
FLAT = (
    *(pa.int8(), pa.uint8(), pa.int32(), pa.uint16(), pa.int64(), pa.uint32(), pa.uint64(), pa.float32()),
    *(pa.float64(), pa.bool_(), pa.string(), pa.binary(), pa.date32(), pa.timestamp("us", "UTC")),
    *(pa.decimal128(18, 2), pa.dictionary(pa.int32(), pa.string())),
)
NESTED = (
    pa.struct([("a", pa.int32()), ("b", pa.list_(pa.decimal128(38, 0)))]),
    pa.map_(pa.string(), pa.struct([("x", pa.float64())])),
)


def open_log(table: Table) -> LocalTableLog:
    return LocalTableLog(Path(table.path), "lake", FORGET)


def describe(snapshot: Any) -> dict[str, Any]:
    """What a sink reads of a version."""
    return {
        "version": snapshot.version,
        "columns": snapshot.read_columns(),
        "properties": dict(snapshot.read_properties()),
        "transactions": dict(snapshot.read_transactions()),
        "files": {
            file.add["path"]: (file.live_rows, file.deletion_vector and file.deletion_vector["cardinality"])
            for file in snapshot.read_files()
        },
    }


@pytest.mark.sampled
def test_state_is_that_of_delta_after_each_change(spark: SparkSession, tmp_path: Path) -> None:
    """Random changes by Spark and by a sink. A log that is read on, and one that starts each time."""
    table = Table(spark, tmp_path / "t", ("id",))
    sink = table.joined()
    session = open_session(spark)
    continued, delta, chance = open_log(table), JvmTableLog(session, table.path), random.Random(7)
    epoch, added = 0, 0
    for _ in range(ROUNDS):
        change = chance.randrange(8)
        if change < 3:
            epoch += 1
            keys = chance.sample(range(30), 5)
            sink.write(plan(epoch), table.frame(*[(key, f"epoch {epoch}", "u") for key in keys]))
        elif change == 3:
            table.sql(f"DELETE FROM {{t}} WHERE id % 7 = {chance.randrange(7)}")
        elif change == 4:
            table.sql("OPTIMIZE {t}")
        elif change == 5:
            table.checkpoint()
        elif change == 6:
            table.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ('of.others' = '{chance.random()}')")
        else:
            added += 1
            table.sql(f"ALTER TABLE {{t}} ADD COLUMNS (added_{added} STRUCT<a: INT, b: ARRAY<STRING>>)")
        expected = describe(delta.snapshot())
        assert describe(continued.snapshot()) == expected
        assert describe(open_log(table).snapshot()) == expected
        assert continued.read_commit(table.version) == delta.read_commit(table.version)
    assert epoch > 1


def test_checkpoint_replaces_the_commits_before_it(spark: SparkSession, tmp_path: Path) -> None:
    table = Table(spark, tmp_path / "t", ("id",))
    sink = table.joined()
    sink.write(plan(1), table.frame((1, "a", "i"), (2, "b", "i")))
    sink.write(plan(2), table.frame((1, "", "d")))
    table.checkpoint()
    sink.write(plan(3), table.frame((3, "c", "i")))
    expected = describe(open_log(table).snapshot())
    for commit in sorted((tmp_path / "t/_delta_log").glob("*.json"))[:-2]:
        commit.unlink()
    assert describe(open_log(table).snapshot()) == expected
    assert open_log(table).read_commit(0) is None


@pytest.mark.parametrize("key", [(), ("id",)], ids=["append", "keyed"])
@pytest.mark.parametrize("extra", [[], [("naive", pa.timestamp("us"))]], ids=["plain", "naive"])
def test_new_table_is_the_one_that_delta_creates(
    spark: SparkSession, tmp_path: Path, key: tuple[str, ...], extra: list[Any]
) -> None:
    columns = [(f"c{number}", kind) for number, kind in enumerate((*FLAT, *NESTED))]
    schema = pa.schema([("id", pa.int64()), *columns, *extra])
    log = LocalTableLog(tmp_path / "here/ours", "lake", FORGET)
    create_local(log, schema, key)
    create("lake", open_session(spark), str(tmp_path / "theirs"), schema, key)
    ours, theirs = log.snapshot(), LocalTableLog(tmp_path / "theirs", "lake", FORGET).snapshot()
    assert ours.version.number == theirs.version.number == 0
    assert ours.read_columns() == theirs.read_columns()
    assert ours.read_properties() == theirs.read_properties()
    assert ours.metadata.keys() == theirs.metadata.keys()
    for name in ("readerFeatures", "writerFeatures"):
        assert sorted(ours.protocol.pop(name, ())) == sorted(theirs.protocol.pop(name, ()))
    assert ours.protocol == theirs.protocol
    read = spark.read.format("delta").load(str(tmp_path / "here/ours"))
    assert read.schema == spark.read.format("delta").load(str(tmp_path / "theirs")).schema


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema([("a b", pa.int64())]),
        pa.schema([("id", pa.struct([("a;b", pa.int64())]))]),
        pa.schema([("id", pa.int64()), ("ID", pa.int64())]),
        pa.schema([("id", pa.duration("us"))]),
    ],
    ids=str,
)
def test_columns_that_need_delta_are_left_to_it(tmp_path: Path, schema: pa.Schema) -> None:
    create_local(LocalTableLog(tmp_path / "t", "lake", FORGET), schema, ())
    assert not (tmp_path / "t").exists()


def test_folder_with_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t/notes.txt").write_text("mine")
    for path in (tmp_path / "t", tmp_path / "t/notes.txt"):
        create_local(LocalTableLog(path, "lake", FORGET), SCHEMA, ())
    assert [entry.name for entry in (tmp_path / "t").iterdir()] == ["notes.txt"]


def test_leftovers_of_a_process_that_died_while_it_created_the_table(tmp_path: Path) -> None:
    log = LocalTableLog(tmp_path / "t", "lake", FORGET)
    (tmp_path / "t/_delta_log").mkdir(parents=True)
    (tmp_path / "t/_delta_log/.00000000000000000000.json.1.tmp").write_text('{"commitInfo"')
    create_local(log, SCHEMA, ())
    assert log.snapshot().version.number == 0


def test_of_many_writers_each_commits_once_and_nobody_loses_a_commit(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = Table(spark, tmp_path / "t")
    create_local(open_log(table), SCHEMA, ())
    writers, steps = 6, 6

    def write(number: int) -> None:
        log = LocalTableLog(Path(table.path), "lake", Mock())
        for step in range(1, steps + 1):
            for attempt in stamina.retry_context(on=TransientError, attempts=20, wait_initial=0.01):
                with attempt:
                    log.set_properties({f"of.{number}": str(step)})
            since = log.snapshot().version
            while not log.commit(since, f"app-{number}", step, f"step {step}"):
                assert log.snapshot().read_transactions().get(f"app-{number}", 0) < step

    with ThreadPoolExecutor(writers) as pool:
        list(pool.map(write, range(writers)))
    session = open_session(spark)
    newest = JvmTableLog(session, table.path).snapshot()
    assert newest.version.number == 2 * writers * steps
    assert newest.read_transactions() == {f"app-{number}": steps for number in range(writers)}
    properties = newest.read_properties()
    assert {properties[f"of.{number}"] for number in range(writers)} == {str(steps)}
    assert not list((tmp_path / "t/_delta_log").glob(".*"))
    history = spark.sql(f"DESCRIBE HISTORY delta.`{table.path}`").collect()
    assert len(history) == newest.version.number + 1
    assert {row.operation for row in history} == {"CREATE TABLE", "SET TBLPROPERTIES", "WRITE"}


def test_history_has_the_counts_of_the_rows(spark: SparkSession, tmp_path: Path) -> None:
    table = Table(spark, tmp_path / "t", ("id",))
    sink = table.joined()
    sink.write(plan(1), table.frame((1, "a", "i"), (2, "b", "i"), (3, "c", "i")))
    sink.write(plan(2), table.frame((1, "a2", "u"), (2, "", "d"), (4, "d", "i")))
    newest = spark.sql(f"DESCRIBE HISTORY delta.`{table.path}` LIMIT 1").collect()[0]
    assert newest.operation == "MERGE"
    counts = {
        name: newest.operationMetrics[f"numTargetRows{name}"] for name in ("Inserted", "Updated", "Deleted")
    }
    assert counts == {"Inserted": "1", "Updated": "1", "Deleted": "1"}


def test_commit_in_another_spelling(tmp_path: Path) -> None:
    """The protocol asks for JSON, not for its spelling."""
    log = LocalTableLog(tmp_path / "t", "lake", FORGET)
    create_local(log, SCHEMA, ())
    actions = ({"txn": {"version": 5, "appId": "a"}}, {"commitInfo": {"userMetadata": "mine"}})
    lines = [json.dumps(action, separators=(" , ", " : ")).replace("{", "{ ") for action in actions]
    (tmp_path / f"t/_delta_log/{1:020d}.json").write_text("\n\n".join(lines))
    assert log.snapshot().read_transactions() == {"a": 5}
    assert log.read_commit(1) == {"userMetadata": "mine"}
    (tmp_path / f"t/_delta_log/{2:020d}.json").write_text('{"ofTheFuture":{}}')
    with pytest.raises(TransientError, match="ofTheFuture"):
        log.snapshot()


def needs_v2_checkpoints(table: Table) -> None:
    table.sql("ALTER TABLE {t} SET TBLPROPERTIES ('delta.checkpointPolicy' = 'v2')")
    table.checkpoint()
    Path(table.path, f"_delta_log/{0:020d}.json").unlink()


def has_a_clock(table: Table) -> None:
    table.sql("ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableInCommitTimestamps' = 'true')")


@pytest.mark.parametrize("change", [needs_v2_checkpoints, has_a_clock])
def test_log_in_another_format_is_left_to_delta(
    spark: SparkSession, tmp_path: Path, change: Callable[[Table], None]
) -> None:
    """The format changes while a sink is open, and then there is a new sink."""
    table = Table(spark, tmp_path / "t", ("id",))
    sink = table.joined()
    sink.write(plan(1), table.frame((1, "a", "i")))
    change(table)
    if change is has_a_clock:
        with pytest.raises(TransientError, match="needs Delta's own classes"):
            sink.write(plan(2), table.frame((1, "b", "u"), (2, "c", "i")))
    assert sink.write(plan(2), table.frame((1, "b", "u"), (2, "c", "i"))) == WriteCounts(2, 1, 1, 0)
    newer = table.prepared(generation=2)
    newer.write(plan(3), table.frame((2, "", "d")))
    assert table.rows() == [(1, "b")]
    assert newer.read_row_count()[1] == 1


def test_disk_without_hard_links(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", Mock(side_effect=OSError(errno.EPERM, "Operation not permitted")))
    table = Table(spark, tmp_path / "t", ("id",))
    sink = table.joined()
    sink.write(plan(1), table.frame((1, "a", "i")))
    other = open_log(table)
    before = other.snapshot()
    sink.write(plan(2), table.frame((1, "b", "u")))
    assert not other._put(before, [{}])
    assert table.rows() == [(1, "b")]
    assert not list((tmp_path / "t/_delta_log").glob("*.tmp"))


def test_full_disk_is_a_transient_error(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table(spark, tmp_path / "t")
    sink = table.joined()
    with monkeypatch.context() as patch:
        patch.setattr(os, "link", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
        with pytest.raises(TransientError, match="No space left on device"):
            sink.write(plan(1), table.frame((1, "a", "i")))
    assert sink.write(plan(1), table.frame((1, "a", "i"))) == WriteCounts(1, 1, 0, 0)
    assert table.rows() == [(1, "a")]


@pytest.mark.parametrize("damage", ["", '{"commitInfo": {}}\n{"add": {}}\n', '{"add"'])
def test_damaged_commit_is_not_read_as_a_table(spark: SparkSession, tmp_path: Path, damage: str) -> None:
    table = Table(spark, tmp_path / "t")
    log = open_log(table)
    create_local(log, SCHEMA, ())
    Path(table.path, f"_delta_log/{0:020d}.json").write_text(damage)
    with pytest.raises(TransientError, match="needs Delta's own classes"):
        log.snapshot()
    assert not log.is_supported


def test_checkpoint_starts_spark_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delta's own class writes it, at the interval of the table."""
    assert delta_table._CHECKPOINT_EVERY == "50"
    monkeypatch.setattr(delta_table, "_CHECKPOINT_EVERY", "12")
    table = Table(spark, tmp_path / "t")
    start = Mock(return_value=spark)
    table.spark = LazySession(start)  # type: ignore[assignment]
    sink = table.joined()
    before = table.version
    table.spark = spark
    for epoch in range(1, 30 - before):
        frame = table.frame((epoch, "a", "i"))
        sink.write(plan(epoch), frame)
    start.assert_called_once()
    result = sorted(one.name for one in Path(table.path, "_delta_log").glob("*.checkpoint.parquet"))
    assert result == [f"{version:020d}.checkpoint.parquet" for version in (12, 24)]
    assert isinstance(sink._open().log.snapshot(), LocalSnapshot)
    assert len(table.rows()) == 29 - before


def test_failed_checkpoint_loses_nothing(tmp_path: Path) -> None:
    fail = Mock(side_effect=RuntimeError("no Java"))
    log = LocalTableLog(tmp_path / "t", "lake", fail)
    create_local(log, SCHEMA, ())
    since = log.snapshot().version
    for step in range(1, 51):
        assert log.commit(since, "app", step, "")
    fail.assert_called_once()
    assert log.snapshot().read_transactions() == {"app": 50}
