"""An Iceberg table as a sink.

Rows and record in one commit, whatever dies, comes back or writes beside it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from helpers.checkout import ROOT
from helpers.lakehouse_tables import KEY, SCHEMA, LakeTable, plan, position
from pyspark.sql import SparkSession

from headrace.connectors.iceberg.catalog import WarehouseTable as Catalog
from headrace.connectors.iceberg.config import IcebergSinkConfig
from headrace.connectors.iceberg.metadata import IcebergMetadata
from headrace.connectors.iceberg.sink import IcebergTableSink
from headrace.connectors.sink_base import SinkContext
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import (
    DataError,
    FencedError,
    GuaranteeError,
    SchemaError,
    SettingsError,
    SinkStateError,
    TargetError,
    TransientError,
)
from headrace.pipeline.protocol.epochs import CommitRecord, WriteCounts
from headrace.pipeline.sql.system_columns import OP, POS


class Table(LakeTable):
    """One Iceberg table and the sinks that write it."""

    kind = IcebergTableSink

    def __init__(
        self, spark: SparkSession, warehouse: Path, key: tuple[str, ...] = ("id",), schema: pa.Schema = SCHEMA
    ) -> None:
        super().__init__(spark, key, schema)
        self.warehouse = str(warehouse)
        self.catalog = Catalog(self.warehouse, "n.flights", "test")

    def node(self) -> IcebergSinkConfig:
        options = {
            "from": "x",
            "table_name": "n.flights",
            "warehouse": self.warehouse,
            "primary_key": list(self.key),
        }
        return IcebergSinkConfig.model_validate(options)

    def rows(self) -> list[tuple[Any, ...]]:
        return sorted(tuple(row) for row in self.catalog.frame(self.spark, None).collect())

    def sql(self, text: str) -> None:
        self.spark.sql(text.format(t=self.catalog.path(self.spark)))

    @property
    def java(self) -> Any:
        return self.catalog.load(self.spark)

    @property
    def branches(self) -> list[str]:
        return sorted(str(name) for name in self.java.refs().keySet())


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> Callable[..., Table]:
    return lambda *key, **more: Table(spark, tmp_path / "lake", key, **more)


@pytest.mark.parametrize("large", [False, True])
def test_merge_applies_the_last_row_of_each_key(table: Any, large: bool) -> None:
    t = table("id")
    sink = t.joined()
    first = t.frame((1, "a", "i"), (2, "b", "i"), (2, "b2", "u"), (3, "c", "i"), (9, "z", "d"), large=large)
    assert replace(sink.write(plan(1), first), rows=3) == WriteCounts(3, 3, 0, 0)
    assert t.rows() == [(1, "a"), (2, "b2"), (3, "c")]
    second = t.frame(
        (1, "x", "d"), (1, "back", "i"), (2, "b3", "u"), (2, None, "d"), (4, "d", "u"), large=large
    )
    assert sink.write(plan(2), second) == WriteCounts(3, 1, 1, 1)
    assert t.rows() == [(1, "back"), (3, "c"), (4, "d")]
    assert sink.read_row_count() == (sink.record(), 3)
    assert t.branches == ["main"]


@pytest.mark.parametrize("key", [pytest.param((), marks=pytest.mark.slow), ("id",)])
def test_epochs_with_and_without_rows_leave_their_record(table: Any, key: tuple[str, ...]) -> None:
    t = table(*key)
    sink = t.joined()
    assert sink.write(plan(1), t.frame()) == WriteCounts()
    assert sink.write(plan(2), t.frame((1, "a", "i"))) == WriteCounts(1, 1, 0, 0)
    if key:
        assert sink.write(plan(3), t.frame((5, "x", "d"))).deleted == 0
    record = t.sink().record()
    assert record is not None
    assert (record.epoch, record.totals.inserted) == (2 + len(key), 1)
    assert t.branches == ["main"]


@pytest.mark.parametrize("key", [pytest.param((), marks=pytest.mark.slow), ("id",)])
def test_same_plan_written_twice_lands_once(table: Any, key: tuple[str, ...]) -> None:
    t = table(*key)
    sink = t.joined()
    frame = t.frame((1, "a", "i"), (2, "b", "i"))
    counts = sink.write(plan(1), frame)
    newest = t.java.currentSnapshot().snapshotId()
    assert sink.write(plan(1), frame) == counts
    assert t.prepared(generation=2).write(plan(1), frame) == counts
    assert t.java.currentSnapshot().snapshotId() == newest
    assert t.rows() == [(1, "a"), (2, "b")]


def test_only_the_next_epoch_is_taken(table: Any) -> None:
    t = table()
    with pytest.raises(SinkStateError, match="holds no record of this sink"):
        t.prepared().write(plan(1), t.frame((1, "a", "i")))
    sink = t.joined()
    with pytest.raises(SinkStateError, match="holds epoch 0, epoch 2 can only follow 1"):
        sink.write(plan(2), t.frame((1, "a", "i")))
    sink.write(plan(1), t.frame((1, "a", "i")))
    with pytest.raises(SinkStateError, match="holds epoch 1 from other positions"):
        sink.write(replace(plan(1), end=position(77)), t.frame((1, "a", "i")))
    assert t.rows() == [(1, "a")]


@pytest.mark.parametrize("key", [(), ("id",)])
def test_a_failed_epoch_leaves_nothing(table: Any, key: tuple[str, ...]) -> None:
    t = table(*key)
    sink = t.joined()
    bad = (
        t.frame((1, "a", "i"), (None, "b", "i"), large=True) if key else t.frame((1, "a", "i"), (1, "a", "d"))
    )
    with pytest.raises(DataError, match="key"):
        sink.write(plan(1), bad)
    assert t.rows() == []
    assert t.branches == ["main"]
    record = sink.record()
    assert record is not None
    assert record.epoch == 0


class Gate:
    """A write that stops right before the act that would make its rows the table's, until somebody opens the gate."""

    def __init__(self, folder: Path) -> None:
        self.reached, self.opened = folder / "reached", folder / "opened"

    def before(self, acts: Callable[..., bool]) -> Callable[..., bool]:
        def swap(metadata: IcebergMetadata, **values: Any) -> bool:
            if values.get("main") is not None and not self.opened.exists():
                self.reached.touch()
                while not self.opened.exists():
                    time.sleep(0.05)
            return acts(metadata, **values)

        return swap

    def await_reached(self, victim: subprocess.Popen[bytes] | None = None) -> None:
        deadline = time.monotonic() + 240
        while not self.reached.exists():
            assert victim is None or victim.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gate:
    made = Gate(tmp_path)
    monkeypatch.setattr(
        IcebergMetadata, "commit_if_unchanged", made.before(IcebergMetadata.commit_if_unchanged)
    )
    return made


@pytest.mark.parametrize("key", [pytest.param((), marks=pytest.mark.slow), ("id",)])
def test_a_zombie_wakes_up_before_its_commit(table: Any, gate: Gate, key: tuple[str, ...]) -> None:
    """It has looked at everything and holds its rows ready when the newcomer fences.

    The commit itself must be refused.
    """
    t = table(*key)
    old = t.joined(generation=1)
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(old.write, plan(1), t.frame((1, "old", "i")))
        gate.await_reached()
        new = t.prepared(generation=2)
        gate.opened.touch()
        error = writing.exception(120)
    assert isinstance(error, FencedError), error
    assert "generation 2 has taken" in error.message
    with pytest.raises(FencedError):
        t.prepared(generation=1)
    assert t.rows() == []
    new.write(plan(1), t.frame((1, "new", "i")))
    assert t.rows() == [(1, "new")]
    assert t.branches == ["main"]


def test_a_zombie_wakes_up_after_its_epoch_was_written(table: Any, gate: Gate) -> None:
    t = table()
    old = t.joined(generation=1)
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(old.write, plan(1), t.frame((1, "a", "i")))
        gate.await_reached()
        gate.opened.touch()  # for the newcomer; the zombie is still inside its own wait for a moment
        t.prepared(generation=2)
        new = t.sink()
        new.prepare(SCHEMA, 3)
        new.write(plan(1), t.frame((1, "a", "i")))
        error = writing.exception(120)
    # Either it was first, and then the newcomer found the epoch there, or it was refused.
    assert error is None or isinstance(error, FencedError)
    assert t.rows() == [(1, "a")]


def test_two_processes_write_one_epoch(table: Any) -> None:
    """The same generation twice, which no ledger gives: still only one of them can."""
    t = table()
    sinks = [t.joined(), t.sink()]
    sinks[1].prepare(SCHEMA, 1)
    with ThreadPoolExecutor(2) as pool:
        done = [pool.submit(sink.write, plan(1), t.frame((1, "a", "i"), (2, "b", "i"))) for sink in sinks]
        assert {future.result(240) for future in done} == {WriteCounts(2, 2, 0, 0)}
    assert t.rows() == [(1, "a"), (2, "b")]
    assert t.branches == ["main"]


@pytest.mark.parametrize("key", [pytest.param((), marks=pytest.mark.slow), ("id",)])
def test_somebody_appends_between_check_and_commit(table: Any, gate: Gate, key: tuple[str, ...]) -> None:
    """The rows were merged into a table that is no more; they are written anew, onto what is there now."""
    t = table(*key)
    sink = t.joined()
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(sink.write, plan(1), t.frame((1, "ours", "u"), (2, "ours", "i")))
        gate.await_reached()
        t.sql("INSERT INTO {t} VALUES (1, 'theirs')")
        gate.opened.touch()
        counts = writing.result(120)
    assert counts == (WriteCounts(2, 1, 1, 0) if key else WriteCounts(2, 2, 0, 0))
    assert t.rows() == ([(1, "ours"), (2, "ours")] if key else [(1, "ours"), (1, "theirs"), (2, "ours")])
    assert t.branches == ["main"]


def test_a_change_without_rows_between_check_and_commit(table: Any, gate: Gate) -> None:
    t = table()
    sink = t.joined()
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(sink.write, plan(1), t.frame((1, "a", "i")))
        gate.await_reached()
        t.sql("ALTER TABLE {t} SET TBLPROPERTIES ('theirs' = 'kept')")
        gate.opened.touch()
        assert writing.result(120) == WriteCounts(1, 1, 0, 0)
    assert t.rows() == [(1, "a")]
    assert t.java.properties().get("theirs") == "kept"


def test_a_late_commit_does_not_bring_an_old_table_back(table: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer pauses right before its commit until Iceberg would have deleted the version that it makes."""
    t = table("id")
    t.sql(
        "CREATE TABLE {t} (id bigint, name string) USING iceberg TBLPROPERTIES ('format-version' = '2',"
        " 'write.metadata.delete-after-commit.enabled' = 'true', 'write.metadata.previous-versions-max' = '3')"
    )
    old, new = t.joined(), t.sink()
    old.write(plan(1), t.frame((1, "a", "i")))
    real, paused = IcebergMetadata.commit_if_unchanged, []

    def pause(metadata: IcebergMetadata, **values: Any) -> bool:
        if values.get("main") is not None and not paused:
            paused.append(metadata)
            new.prepare(SCHEMA, 2)
            for epoch in (2, 3, 4):
                new.write(plan(epoch), t.frame((epoch, "new", "i")))
        return real(metadata, **values)

    monkeypatch.setattr(IcebergMetadata, "commit_if_unchanged", pause)
    with pytest.raises(FencedError):
        old.write(plan(2), t.frame((2, "old", "i")))
    assert t.rows() == [(1, "a"), (2, "new"), (3, "new"), (4, "new")]
    new.write(plan(5), t.frame((5, "new", "i")))
    assert t.java.properties().get("write.metadata.delete-after-commit.enabled") == "false"


_VICTIM = """
import sys
sys.path.append("tests")
from pathlib import Path
from headrace.connectors.iceberg.metadata import IcebergMetadata
from headrace.jobs.spark.session import start_session
from helpers.spark_settings import SHORT_LIVED_SPARK
from headrace.pipeline.config.settings import Settings
from tests.spark.connectors.test_iceberg_sink import Gate, Table, plan
home = Path(sys.argv[1])
spark = start_session(Settings(home=home, spark=SHORT_LIVED_SPARK), ("iceberg",))
table = Table(spark, home / "lake", ("id",))
sink = table.joined()
sink.write(plan(1), table.frame((1, "a", "i"), (2, "b", "i")))
IcebergMetadata.commit_if_unchanged = Gate(home).before(IcebergMetadata.commit_if_unchanged)
sink.write(plan(2), table.frame((1, "half", "u"), (3, "half", "i")))
"""


def test_kill_between_data_and_commit(spark: SparkSession, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _VICTIM, str(tmp_path)], cwd=ROOT, start_new_session=True
    ) as victim:
        try:
            Gate(tmp_path).await_reached(victim)
        finally:
            os.killpg(victim.pid, signal.SIGKILL)
    t = Table(spark, tmp_path / "lake", ("id",))
    assert len(t.branches) == 2
    assert t.rows() == [(1, "a"), (2, "b")]
    sink = t.prepared(generation=2)
    assert t.branches == ["main"]
    record = sink.record()
    assert record is not None
    assert record.epoch == 1
    assert sink.write(plan(2), t.frame((1, "a2", "u"), (3, "c", "i"))) == WriteCounts(2, 1, 1, 0)
    assert t.rows() == [(1, "a2"), (2, "b"), (3, "c")]
    assert sink.read_row_count() == (sink.record(), 3)


def test_the_record_outlives_expired_snapshots_and_commits_of_others(table: Any) -> None:
    t = table("id")
    sink = t.joined()
    sink.write(plan(1), t.frame((1, "a", "i"), (2, "b", "i")))
    before = sink.record()
    t.sql("INSERT INTO {t} VALUES (100, 'foreign'), (101, 'foreign'), (102, 'foreign')")
    t.sql("DELETE FROM {t} WHERE id = 102")
    assert t.sink().record() == before
    t.java.expireSnapshots().expireOlderThan(int(time.time() * 1000) + 1000).retainLast(1).commit()
    assert t.sink().record() == before
    assert t.prepared(generation=2).write(plan(2), t.frame((1, "x", "u"))) == WriteCounts(1, 0, 1, 0)
    assert t.rows() == [(1, "x"), (2, "b"), (100, "foreign"), (101, "foreign")]


# test_iceberg_vacuum_keeps_the_proof_of_a_rollback is the daily sample without a later commit.
@pytest.mark.parametrize("later", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_table_that_was_rolled_back_holds_no_record(table: Any, later: bool) -> None:
    """Its properties stay as they were: without a second look the rows would be missing for good."""
    t = table()
    sink = t.joined()
    sink.write(plan(1), t.frame((1, "a", "i")))
    kept = t.java.currentSnapshot().snapshotId()
    sink.write(plan(2), t.frame((2, "b", "i")))
    t.java.manageSnapshots().rollbackTo(kept).commit()
    if later:
        t.sql("INSERT INTO {t} VALUES (3, 'foreign')")
    again = t.prepared(generation=2)
    assert again.record() is None
    with pytest.raises(SinkStateError, match="holds no record"):
        again.write(plan(3), t.frame((4, "d", "i")))
    assert again.read_row_count() == (None, 1 + later)
    again.register(CommitRecord.for_registration(KEY, 2, 1, position(1), "hash", None))
    again.write(plan(2), t.frame((2, "b", "i")))
    assert (2, "b") in t.rows()


def test_a_table_from_a_backup_answers_with_its_older_record(table: Any, tmp_path: Path) -> None:
    t = table()
    sink = t.joined()
    sink.write(plan(1), t.frame((1, "a", "i")))
    shutil.copytree(t.warehouse, tmp_path / "backup")
    sink.write(plan(2), t.frame((2, "b", "i")))
    shutil.rmtree(t.warehouse)
    shutil.copytree(tmp_path / "backup", t.warehouse)
    with pytest.raises(SinkStateError, match="holds epoch 1, epoch 3 can only follow 2"):
        sink.write(plan(3), t.frame((3, "c", "i")))
    record = t.prepared(generation=2).record()
    assert record is not None
    assert (record.epoch, t.rows()) == (1, [(1, "a")])


def test_a_table_made_anew_holds_nothing(table: Any) -> None:
    t = table()
    sink = t.joined()
    sink.write(plan(1), t.frame((1, "a", "i")))
    shutil.rmtree(t.warehouse)
    assert sink.record() is None
    assert sink.read_row_count() == (None, 0)
    t.sql("CREATE TABLE {t} (id bigint, name string) USING iceberg")
    with pytest.raises(SinkStateError, match="was replaced after it was prepared"):
        sink.write(plan(2), t.frame((2, "b", "i")))
    assert t.prepared(generation=2).record() is None


def test_lane_taken_back_and_baseline(table: Any) -> None:
    t = table("id")
    t.prepared()
    t.sql("INSERT INTO {t} VALUES (1, 'theirs'), (7, 'theirs')")
    sink = t.joined()
    for number in (1, 2, 3):
        sink.write(plan(number), t.frame((number, "first", "i")))
    record, rows = sink.read_row_count()
    assert rows == record.baseline + record.totals.inserted - record.totals.deleted == 4
    back = t.prepared(generation=2)
    joined = back.register(CommitRecord.for_registration(KEY, 2, 1, position(1), "hash", None))
    assert (joined.epoch, joined.baseline) == (1, 4)
    assert back.write(plan(2), t.frame((2, "again", "u"))) == WriteCounts(1, 0, 1, 0)
    with pytest.raises(FencedError):
        sink.write(plan(4), t.frame((4, "zombie", "i")))


def test_sinks_of_one_table_do_not_mix(table: Any) -> None:
    t = table()
    t.shared_by = ("lake", "lake2")
    other = replace(KEY, sink="lake2")
    sink, second = t.joined(), t.prepared(identity=other)
    second.register(CommitRecord.for_registration(other, 1, 0, position(0), "hash", None))
    sink.write(plan(1), t.frame((1, "a", "i")))
    assert second.record().epoch == 0
    second.write(plan(1), t.frame((2, "b", "i")))
    assert (sink.record().key, second.record().key) == (KEY, other)
    anew = t.prepared(identity=replace(KEY, pipeline="uuid-2"))
    assert anew.find_conflicting_record().key == KEY
    assert t.sink(replace(KEY, pipeline="uuid-2", name="others")).find_conflicting_record() is None


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("id bigint", "column `name` (string) is missing"),
        ("id int, name string", "column `id` is int, the rows have bigint"),
        (
            "id bigint, name string, must int NOT NULL",
            "column `must` is NOT NULL and no row has a value for it",
        ),
    ],
)
def test_a_table_that_cannot_take_the_rows_is_refused(table: Any, columns: str, message: str) -> None:
    t = table()
    t.sql(f"CREATE TABLE {{t}} ({columns}) USING iceberg")
    with pytest.raises(SchemaError) as caught:
        t.prepared()
    assert message in caught.value.message


@pytest.mark.parametrize("key", [pytest.param((), marks=pytest.mark.slow), ("id",)])
def test_an_existing_table_is_used_as_it_is(table: Any, key: tuple[str, ...]) -> None:
    """Partitioned, with a column more, one wider and one spelled otherwise.

    Copy-on-write, as its owner wants it.
    """
    t = table(*key)
    t.sql(
        "CREATE TABLE {t} (more int, NAME string, id decimal(38,0)) USING iceberg PARTITIONED BY (bucket(2,"
        " NAME))"
        " TBLPROPERTIES ('write.merge.mode' = 'copy-on-write', 'format-version' = '2')"
    )
    t.schema = pa.schema([("id", pa.decimal128(20, 0)), ("name", pa.string())])
    sink = t.joined()

    def write(number: int, *rows: tuple[Any, ...]) -> WriteCounts:
        frame = t.frame(*rows)
        return sink.write(
            plan(number),
            replace(frame, node_rows=frame.rows.selectExpr("cast(id as decimal(20,0)) id", "name", OP, POS)),
        )

    write(1, (1, "a", "i"), (2, "b", "i"), (3, "c", "i"))
    if key:
        assert write(2, (1, "z", "u"), (2, None, "d"), (4, "d", "i")) == WriteCounts(3, 1, 1, 1)
        assert {(row.id, row.NAME, row.more) for row in t.catalog.frame(t.spark, None).collect()} == {
            (1, "z", None),
            (3, "c", None),
            (4, "d", None),
        }
    else:
        assert sink.read_row_count()[1] == 3


def test_places_and_formats_that_cannot_do_it(
    table: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    t = table()
    t.sql("CREATE TABLE {t} (id bigint, name string) USING iceberg TBLPROPERTIES ('format-version' = '1')")
    with pytest.raises(TargetError, match="format version 1"):
        t.prepared()
    t.warehouse = "s3a://bucket/lake"
    with pytest.raises(GuaranteeError, match="no atomic rename"):
        t.prepared()
    context = t.sink()._context
    nowhere = IcebergTableSink(replace(context, node=context.node.model_copy(update={"warehouse": None})))
    with pytest.raises(SettingsError, match="no warehouse"):
        nowhere.prepare(SCHEMA, 1)


def test_a_commit_that_was_lost_is_told(table: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a file system whose rename replaces, another process may overwrite our version of the metadata at the same moment."""
    t = table()
    sink = t.joined()
    real = IcebergMetadata.commit_if_unchanged

    def lose_commit(metadata: IcebergMetadata, **values: Any) -> bool:
        return True if values.get("main") is not None else real(metadata, **values)

    monkeypatch.setattr(IcebergMetadata, "commit_if_unchanged", lose_commit)
    with pytest.raises(TransientError, match="was lost to another one"):
        sink.write(plan(1), t.frame((1, "a", "i")))
    monkeypatch.setattr(IcebergMetadata, "commit_if_unchanged", real)
    assert sink.write(plan(1), t.frame((1, "a", "i"))) == WriteCounts(1, 1, 0, 0)
    assert t.rows() == [(1, "a")]


@pytest.mark.parametrize("again", ["same-run", "next-run"])
def test_an_epoch_whose_answer_is_lost_is_not_written_again(
    table: Any, monkeypatch: pytest.MonkeyPatch, again: str
) -> None:
    t = table()
    sink = t.joined()
    real = IcebergMetadata.commit_if_unchanged

    def lose_answer(metadata: IcebergMetadata, **values: Any) -> bool:
        done = real(metadata, **values)
        if values.get("main") is not None:
            msg = "the answer was lost"
            raise TransientError(msg)
        return done

    with monkeypatch.context() as patch:
        patch.setattr(IcebergMetadata, "commit_if_unchanged", lose_answer)
        with pytest.raises(TransientError, match="the answer was lost"):
            sink.write(plan(1), t.frame((1, "a", "i")))
    if again == "next-run":
        sink = t.prepared(generation=2)
    assert sink.write(plan(1), t.frame((1, "a", "i"))) == WriteCounts(1, 1, 0, 0)
    assert t.rows() == [(1, "a")]
    assert t.branches == ["main"]


def test_describe_opens_nothing() -> None:
    node = IcebergSinkConfig.model_validate(
        {"from": "x", "table_name": "shop.orders", "warehouse": "/nowhere"}
    )
    result = IcebergTableSink(SinkContext(KEY, node, Settings(), pa.schema([]))).describe()
    assert result == {
        "kind": "iceberg",
        "asset_key": ["iceberg", "shop", "orders"],
        "scope": ["nowhere"],
        "table_name": "shop.orders",
        "location": "/nowhere",
    }
