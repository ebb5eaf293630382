"""A Delta table as a sink: one commit per epoch, whatever dies or resumes."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from helpers.checkout import ROOT
from helpers.depth import FULL
from helpers.lakehouse_tables import KEY, SCHEMA, LakeTable, plan, position
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type

from headrace.connectors.delta.config import DeltaSinkConfig
from headrace.connectors.delta.errors import explain
from headrace.connectors.delta.sink import DeltaTableSink
from headrace.connectors.delta.table import create
from headrace.connectors.frame import EpochFrame
from headrace.connectors.lakehouse_rows import DRIVER_ROWS, build_merge_source, collect_last_rows
from headrace.connectors.sink_base import SinkContext
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import (
    DataError,
    FencedError,
    GuaranteeError,
    SchemaError,
    SinkStateError,
    TargetError,
    TransientError,
)
from headrace.pipeline.protocol.epochs import CommitRecord, WriteCounts
from headrace.pipeline.sql.system_columns import OP, POS, POS_TYPE


class Table(LakeTable):
    """One Delta table and the sinks that write it."""

    kind = DeltaTableSink
    templates: ClassVar[Path | None] = None
    """A folder with one registered table per key and schema, which tests copy instead of registering a table each."""

    def __init__(
        self, spark: SparkSession, path: Path, key: tuple[str, ...] = (), schema: pa.Schema = SCHEMA
    ) -> None:
        super().__init__(spark, key, schema)
        self.path = str(path)

    def joined(self, generation: int = 1, epoch: int = 0) -> Any:
        """Return a sink of a registered table, copied from a template if the table does not exist yet."""
        if self.templates is None or (generation, epoch) != (1, 0) or Path(self.path).exists():
            return super().joined(generation, epoch)
        template = (
            self.templates / hashlib.sha256(repr((self.key, self.schema.to_string())).encode()).hexdigest()
        )
        if not template.exists():
            LakeTable.joined(Table(self.spark, template, self.key, self.schema))
        shutil.copytree(template, self.path)
        return self.prepared()

    def node(self) -> DeltaSinkConfig:
        return DeltaSinkConfig.model_validate({"from": "x", "path": self.path, "primary_key": list(self.key)})

    def rows(self) -> list[tuple[Any, ...]]:
        return sorted(tuple(row) for row in self.spark.read.format("delta").load(self.path).collect())

    def sql(self, text: str) -> None:
        self.spark.sql(text.format(t=f"delta.`{self.path}`"))

    def checkpoint(self) -> Any:
        jvm: Any = self.spark._jvm
        log = jvm.org.apache.spark.sql.delta.DeltaLog
        log.forTable(self.spark._jsparkSession, self.path).checkpoint()
        return log

    @property
    def version(self) -> int:
        return len(list(Path(self.path, "_delta_log").glob("*.json"))) - 1


@pytest.fixture(scope="module", autouse=True)
def _table_templates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    Table.templates = tmp_path_factory.mktemp("delta-templates")
    yield
    Table.templates = None


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> Callable[..., Table]:
    return lambda *key, **more: Table(spark, tmp_path / "flights", key, **more)


def test_path_can_have_the_scheme_of_files(spark: SparkSession, tmp_path: Path) -> None:
    class FileTable(Table):
        templates = None

        def node(self) -> DeltaSinkConfig:
            return super().node().model_copy(update={"path": (tmp_path / "a b").as_uri()})

    table = FileTable(spark, tmp_path / "a b", ("id",))
    table.joined().write(plan(1), table.frame((1, "a", "i")))
    assert table.rows() == [(1, "a")]


DECIMAL_KEYS = [Decimal("0.10"), Decimal("1.99"), Decimal("-2.90"), Decimal("-0.01")]
"""Their floats are not equal to them."""
LINE_ENDS = ["\u2028a", "b\x85", "c\u2029d", "e"]
"""Unicode's ends of lines, which JSON does not escape."""


@pytest.mark.parametrize(
    ("kind", "keys"),
    [(pa.decimal128(18, 2), DECIMAL_KEYS), (pa.string(), LINE_ENDS)],
    ids=["decimal", "text"],
)
def test_keys_that_spark_wrote_are_changed_by_the_driver(
    spark: SparkSession, tmp_path: Path, kind: pa.DataType, keys: list[Any]
) -> None:
    """Each file has one key, so each key is a bound in the statistics of a file."""
    schema = pa.schema([("id", kind), ("name", pa.string())])
    table = Table(spark, tmp_path / "t", ("id",), schema)
    sink = table.joined()
    columns = f"id {from_arrow_type(kind).simpleString()}, name string"
    for key in keys:
        former = spark.createDataFrame([(key, "former")], columns).coalesce(1)
        former.write.format("delta").mode("append").save(table.path)
    assert len(list(Path(table.path).glob("*.parquet"))) == len(keys)

    def write(epoch: int, key: Any, name: str, op: str) -> None:
        data = [(key, name, op, (0, 0, epoch, 0))]
        frame = spark.createDataFrame(data, f"{columns}, {OP} string, {POS} {POS_TYPE}")
        sink.write(plan(epoch), EpochFrame(frame, schema, ("id",), 1, spark))

    for epoch, key in enumerate(keys[1:], 1):
        write(epoch, key, "new", "u")
    write(len(keys), keys[0], "", "d")
    assert table.rows() == sorted((key, "new") for key in keys[1:])


def test_append(table: Any) -> None:
    t = table()
    sink = t.joined()
    counts = sink.write(plan(1), t.frame((1, "a", "i"), (1, "a", "u")))
    assert counts == WriteCounts(2, 2, 0, 0)
    assert sink.write(plan(2), t.frame((2, "b", "i"))) == WriteCounts(1, 1, 0, 0)
    assert t.rows() == [(1, "a"), (1, "a"), (2, "b")]
    record = t.sink().record()
    assert record == sink.record()
    assert (record.epoch, record.generation, record.end, record.counts) == (
        2,
        1,
        position(2),
        WriteCounts(1, 1, 0, 0),
    )
    assert (record.totals, record.baseline) == (WriteCounts(3, 3, 0, 0), 0)
    assert record.plan_from(position(1)) == replace(plan(2), planned_at=record.planned_at)


def test_a_relative_path_means_the_working_directory(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    relative, there = Table(spark, Path(".lake/of/flights")), Table(spark, tmp_path / ".lake/of/flights")
    relative.joined().write(plan(1), relative.frame((1, "a", "i")))
    assert there.rows() == [(1, "a")]
    assert relative.sink().describe()["location"] == str(tmp_path / ".lake/of/flights")


@pytest.mark.parametrize("large", [False, True])
def test_merge_applies_the_last_row_of_each_key(table: Any, large: bool) -> None:
    t = table("id")
    sink = t.joined()
    first = t.frame((1, "a", "i"), (2, "b", "i"), (2, "b2", "u"), (3, "c", "i"), (9, "z", "d"), large=large)
    assert sink.write(plan(1), first) == WriteCounts(4, 3, 0, 0)
    assert t.rows() == [(1, "a"), (2, "b2"), (3, "c")]
    second = t.frame(
        (1, "x", "d"), (1, "back", "i"), (2, "b3", "u"), (2, None, "d"), (4, "d", "u"), large=large
    )
    assert sink.write(plan(2), second) == WriteCounts(3, 1, 1, 1)
    assert t.rows() == [(1, "back"), (3, "c"), (4, "d")]
    assert sink.record().totals == WriteCounts(7, 4, 1, 1)
    assert sink.read_row_count() == (sink.record(), 3)


@pytest.mark.sampled
def test_rows_at_the_edges_of_a_files_timestamps_are_found(table: Any, spark: SparkSession) -> None:
    """A merge skips files by the smallest and largest key.

    Delta keeps those of a file to the millisecond only.
    """
    schema = pa.schema([("at", pa.timestamp("us", "UTC")), ("name", pa.string())])
    t = table("at", schema=schema)
    sink = t.joined()
    edges = (0, 1, 999_998, 999_999) if FULL else (1, 999_999)
    moments = [datetime(2013, 12, 31, 23, 59, 59, micro, UTC) for micro in edges]
    for number, name in enumerate(("first", "second"), 1):
        for at, moment in enumerate(moments):  # an epoch a moment: both ends of its bounds are this one
            epoch = (number - 1) * len(moments) + at + 1
            data = [(moment, name, "u", (0, 0, at, 0))]
            rows = spark.createDataFrame(data, f"at timestamp, name string, {OP} string, {POS} {POS_TYPE}")
            assert sink.write(plan(epoch), EpochFrame(rows, schema, ("at",), 1, spark)).inserted == (
                number == 1
            )
    assert [row[1] for row in t.rows()] == ["second"] * len(moments)


@pytest.mark.parametrize("key", [(), ("id",)])
def test_epoch_without_rows_leaves_its_record(table: Any, key: tuple[str, ...]) -> None:
    t = table(*key)
    sink = t.joined()
    assert sink.write(plan(1), t.frame()) == WriteCounts()
    assert t.sink().record().epoch == 1
    if key:
        assert sink.write(plan(2), t.frame((5, "x", "d"))) == WriteCounts(1, 0, 0, 0)
        assert t.sink().record().epoch == 2


@pytest.mark.parametrize("large", [False, True])
def test_key_must_not_be_null(table: Any, large: bool) -> None:
    t = table("id")
    sink = t.joined()
    with pytest.raises(DataError, match="key column `id` is null"):
        sink.write(plan(1), t.frame((1, "a", "i"), (None, "b", "i"), large=large))
    assert t.rows() == []
    assert t.sink().record().epoch == 0


def test_delete_without_a_key_is_refused(table: Any) -> None:
    t = table()
    sink = t.joined()
    with pytest.raises(DataError, match="a delete reached a sink without primary_key"):
        sink.write(plan(1), t.frame((1, "a", "i"), (1, "a", "d")))
    assert t.rows() == []
    assert t.sink().record().epoch == 0


@pytest.mark.parametrize("key", [pytest.param((), marks=pytest.mark.slow), ("id",)])
def test_same_plan_written_twice_lands_once(table: Any, key: tuple[str, ...]) -> None:
    t = table(*key)
    sink = t.joined()
    frame = t.frame((1, "a", "i"), (2, "b", "i"))
    counts = sink.write(plan(1), frame)
    version = t.version
    assert sink.write(plan(1), frame) == counts
    again = t.prepared(generation=2)
    assert again.write(plan(1), frame) == counts
    assert again.record() == sink.record()
    assert t.rows() == [(1, "a"), (2, "b")]
    assert t.version == version + 1  # the fence of generation 2


def test_only_the_next_epoch_is_taken(table: Any) -> None:
    t = table()
    sink = t.joined()
    with pytest.raises(SinkStateError, match="holds epoch 0, epoch 2 can only follow 1"):
        sink.write(plan(2), t.frame((1, "a", "i")))
    sink.write(plan(1), t.frame((1, "a", "i")))
    other = replace(plan(1), end=position(77))
    with pytest.raises(SinkStateError, match="holds epoch 1 from other positions, epoch 1 can only follow 0"):
        sink.write(other, t.frame((1, "a", "i")))
    assert t.rows() == [(1, "a")]


def test_write_before_joining_is_refused(table: Any) -> None:
    t = table()
    with pytest.raises(SinkStateError, match="holds no record of this sink"):
        t.prepared().write(plan(1), t.frame((1, "a", "i")))


@pytest.mark.parametrize("key", [pytest.param((), marks=pytest.mark.slow), ("id",)])
def test_older_generation_is_fenced(table: Any, key: tuple[str, ...]) -> None:
    t = table(*key)
    old = t.joined(generation=1)
    new = t.prepared(generation=2)
    with pytest.raises(FencedError, match="generation 2 has taken"):
        old.write(plan(1), t.frame((1, "old", "i")))
    with pytest.raises(FencedError, match="generation 2 has taken"):
        t.prepared(generation=1)
    new.write(plan(1), t.frame((1, "new", "i")))
    assert t.rows() == [(1, "new")]


class Gate:
    """Rows that stop half-way through their task until somebody opens the gate."""

    def __init__(self, folder: Path) -> None:
        self.reached, self.opened = folder / "reached", folder / "opened"

    def through(self, frame: EpochFrame) -> EpochFrame:
        from pyspark.sql import functions as F  # noqa: N812

        reached, opened = str(self.reached), str(self.opened)

        @F.udf("string")
        def wait(name):
            Path(reached).touch()
            while not Path(opened).exists():
                time.sleep(0.05)
            return name

        return replace(frame, node_rows=frame.rows.withColumn("name", wait("name")))

    def await_reached(self, victim: subprocess.Popen[bytes] | None = None) -> None:
        deadline = time.monotonic() + 240
        while not self.reached.exists():
            assert victim is None or victim.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)


def kill_at_gate(script: str, folder: Path, *arguments: str) -> None:
    """Run a Python script with the folder as its first argument, and kill it at the gate of the folder."""
    with subprocess.Popen(
        [sys.executable, "-c", script, str(folder), *arguments], cwd=ROOT, start_new_session=True
    ) as victim:
        try:
            Gate(folder).await_reached(victim)
        finally:
            os.killpg(victim.pid, signal.SIGKILL)


@pytest.mark.parametrize("key", [pytest.param((), marks=pytest.mark.slow), ("id",)])
def test_write_under_way_is_fenced_by_a_newcomer(table: Any, tmp_path: Path, key: tuple[str, ...]) -> None:
    """The old process is inside its Delta transaction when the new one prepares.

    The commit itself must be refused.
    """
    t = table(*key)
    old = t.joined(generation=1)
    gate = Gate(tmp_path)
    frame = gate.through(t.frame((1, "old", "i"), large=True))
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(old.write, plan(1), frame)
        gate.await_reached()
        new = t.prepared(generation=2)
        gate.opened.touch()
        assert isinstance(writing.exception(120), FencedError)
    assert new.record().epoch == 0
    new.write(plan(1), t.frame((1, "new", "i")))
    assert t.rows() == [(1, "new")]


@pytest.mark.parametrize(
    ("late", "large"), [(False, False), pytest.param(True, False, marks=pytest.mark.slow), (True, True)]
)
def test_step_that_somebody_else_took_is_noticed(
    table: Any, monkeypatch: pytest.MonkeyPatch, late: bool, large: bool
) -> None:
    """Delta skips our write without a word then, also where the step is taken only after we looked (`late`)."""
    t = table()
    sink = t.joined()
    state = sink._read_own_state()
    options = {"txnAppId": KEY.text, "txnVersion": (1 << 32) + 9}
    t.spark.createDataFrame([], "id bigint, name string").write.format("delta").mode("append").options(
        **options
    ).save(t.path)
    if late:
        states, read = iter([state]), sink._read_own_state
        monkeypatch.setattr(sink, "_read_own_state", lambda: next(states, None) or read())
    with pytest.raises(SinkStateError, match="remembers step 4294967305 of this sink"):
        sink.write(plan(1), t.frame((1, "a", "i"), large=large))
    assert t.rows() == []


@pytest.mark.parametrize("key", [pytest.param((), marks=pytest.mark.slow), ("id",)])
@pytest.mark.parametrize("large", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("column", "bad", "reason"),
    [
        ("name string", (11, "a secret", "i"), "it violates CHECK constraint `small` (id < 10)"),
        ("name string NOT NULL", (1, None, "i"), "column `name` is null"),
    ],
)
def test_row_that_a_constraint_refuses(
    table: Any, key: tuple[str, ...], large: bool, column: str, bad: tuple[Any, ...], reason: str
) -> None:
    t = table(*key)
    t.sql(f"CREATE TABLE {{t}} (id bigint, {column}) USING delta")
    t.sql("ALTER TABLE {t} ADD CONSTRAINT small CHECK (id < 10)")
    sink = t.joined()
    with pytest.raises(DataError) as caught:
        sink.write(plan(1), t.frame((2, "good", "i"), bad, large=large))
    assert caught.value.node == "lake"
    assert caught.value.message == f"the Delta table `{t.path}` refuses a row: {reason}"
    assert t.sink().record().epoch == 0
    assert t.rows() == []


_VICTIM = """
import sys
sys.path.append("tests")
from pathlib import Path
from headrace.jobs.spark.session import start_session
from helpers.spark_settings import SHORT_LIVED_SPARK
from headrace.pipeline.config.settings import Settings
from tests.spark.connectors.test_delta_sink import Gate, Table, plan
home = Path(sys.argv[1])
spark = start_session(Settings(home=home, spark=SHORT_LIVED_SPARK), ("delta",))
table = Table(spark, home / "flights", tuple(sys.argv[2:]))
sink = table.joined()
sink.write(plan(1), table.frame((1, "a", "i"), (2, "b", "i")))
sink.write(plan(2), Gate(home).through(table.frame((1, "half", "u"), (3, "half", "i"), large=True)))
"""


# Daily samples: test_kill_before_or_after_the_commit, and test_write_under_way_is_fenced_by_a_newcomer for
# an epoch that Spark is writing.
@pytest.mark.slow
@pytest.mark.parametrize("key", [(), ("id",)])
def test_kill_in_the_middle_of_a_write(spark: SparkSession, tmp_path: Path, key: tuple[str, ...]) -> None:
    kill_at_gate(_VICTIM, tmp_path, *key)
    t = Table(spark, tmp_path / "flights", key)
    sink = t.prepared(generation=2)
    record = sink.record()
    assert record is not None
    assert record.epoch == 1
    assert t.rows() == [(1, "a"), (2, "b")]
    sink.write(plan(2), t.frame((1, "a2", "u"), (3, "c", "i")))
    assert t.rows() == ([(1, "a2"), (2, "b"), (3, "c")] if key else [(1, "a"), (1, "a2"), (2, "b"), (3, "c")])
    assert sink.read_row_count() == (sink.record(), len(t.rows()))


def test_record_is_found_behind_the_commits_of_others(table: Any) -> None:
    t = table("id")
    sink = t.joined()
    sink.write(plan(1), t.frame((1, "a", "i"), (2, "b", "i")))
    t.sql("INSERT INTO {t} VALUES (100, 'foreign'), (101, 'foreign'), (102, 'foreign')")
    t.checkpoint()
    t.sql("OPTIMIZE {t}")
    assert t.sink().record() == sink.record()
    assert t.prepared(generation=2).record().epoch == 1
    assert t.prepared(generation=3).write(plan(2), t.frame((1, "x", "u"))) == WriteCounts(1, 0, 1, 0)
    assert t.sink().read_row_count()[1] == 5


def test_record_that_log_cleanup_took_is_not_a_new_sink(table: Any) -> None:
    t = table()
    t.joined().write(plan(1), t.frame((1, "a", "i")))
    t.sql("INSERT INTO {t} VALUES (2, 'foreign')")
    log = t.checkpoint()
    for old in sorted(Path(t.path, "_delta_log").glob("*.json"))[:-1]:
        old.unlink()
    log.clearCache()
    sink = t.prepared(generation=2)
    for reader in (t.sink(), sink):
        with pytest.raises(SinkStateError, match="its log no longer has the record"):
            reader.record()
    with pytest.raises(SinkStateError, match="its log no longer has the record"):
        sink.write(plan(2), t.frame((1, "b", "i")))


@pytest.mark.parametrize("often", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_restored_table_has_the_record_of_its_rows(table: Any, often: bool) -> None:
    """`often` also restores a version before the one that counts, and in the end one without a record."""
    t = table("id")
    sink = t.joined()
    sink.write(plan(1), t.frame((1, "a", "i")))
    before = t.version
    sink.write(plan(2), t.frame((2, "b", "i")))
    sink.write(plan(3), t.frame((3, "c", "i")))
    if often:
        t.sql(f"RESTORE TABLE {{t}} TO VERSION AS OF {before}")
    t.sql(f"RESTORE TABLE {{t}} TO VERSION AS OF {before + 1}")
    with pytest.raises(SinkStateError, match="holds epoch 2, epoch 4 can only follow 3"):
        sink.write(plan(4), t.frame((4, "d", "i")))
    newer = t.prepared(generation=2)
    assert newer.record().epoch == t.sink().record().epoch == 2
    newer.write(plan(3), t.frame((3, "c", "i")))
    assert t.rows() == [(1, "a"), (2, "b"), (3, "c")]
    if often:
        t.sql("RESTORE TABLE {t} TO VERSION AS OF 0")
        assert t.prepared(generation=3).record() is None


def test_table_made_anew_holds_nothing(table: Any, tmp_path: Path) -> None:
    t = table()
    sink = t.joined()
    sink.write(plan(1), t.frame((1, "a", "i")))
    shutil.rmtree(t.path)
    assert sink.read_row_count() == (None, 0)
    assert t.prepared(generation=2).record() is None
    t.sql("INSERT INTO {t} VALUES (1, 'theirs'), (2, 'theirs')")
    assert sink.read_row_count() == (None, 2)
    with pytest.raises(FencedError):
        sink.write(plan(2), t.frame((2, "b", "i")))
    shutil.rmtree(t.path)
    t.sql("CREATE TABLE {t} (id bigint, name string) USING delta")
    with pytest.raises(SinkStateError, match="was replaced after it was prepared"):
        sink.write(plan(2), t.frame((2, "b", "i")))


def test_lane_taken_back_to_an_earlier_epoch(table: Any) -> None:
    t = table("id")
    sink = t.joined()
    for number in (1, 2, 3):
        sink.write(plan(number), t.frame((number, "first", "i")))
    back = t.prepared(generation=2)
    joined = back.register(CommitRecord.for_registration(KEY, 2, 1, position(1), "hash", None))
    assert (joined.epoch, joined.baseline) == (1, 3)
    assert back.write(plan(2), t.frame((2, "again", "u"))) == WriteCounts(1, 0, 1, 0)
    assert back.write(plan(3), t.frame((3, "again", "u"))) == WriteCounts(1, 0, 1, 0)
    assert t.rows() == [(1, "first"), (2, "again"), (3, "again")]
    with pytest.raises(FencedError):
        sink.write(plan(4), t.frame((4, "zombie", "i")))


def test_join_counts_what_is_there(table: Any) -> None:
    t = table("id")
    t.prepared()
    t.sql("INSERT INTO {t} VALUES (1, 'theirs'), (2, 'theirs')")
    sink = t.joined()
    assert sink.record().baseline == 2
    sink.write(plan(1), t.frame((2, "ours", "u"), (3, "ours", "i")))
    record, rows = sink.read_row_count()
    assert rows == record.baseline + record.totals.inserted - record.totals.deleted == 3


def test_two_sinks_of_one_table_do_not_mix(table: Any) -> None:
    t = table()
    t.shared_by = ("lake", "lake2")
    other = replace(KEY, sink="lake2")
    sink, second = t.joined(), t.prepared(identity=other)
    second.register(CommitRecord.for_registration(other, 1, 0, position(0), "hash", None))
    sink.write(plan(1), t.frame((1, "a", "i")))
    assert second.record().epoch == 0
    second.write(plan(1), t.frame((2, "b", "i")))
    assert (sink.record().key, second.record().key) == (KEY, other)
    assert t.rows() == [(1, "a"), (2, "b")]


def test_record_of_another_pipeline_with_the_same_name_is_found(table: Any) -> None:
    t = table()
    t.joined().write(plan(1), t.frame((1, "a", "i")))
    anew = t.prepared(identity=replace(KEY, pipeline="uuid-2"))
    assert anew.record() is None
    assert anew.find_conflicting_record().key == KEY
    assert t.sink(replace(KEY, pipeline="uuid-2", name="others")).find_conflicting_record() is None
    assert t.sink(replace(KEY, pipeline="uuid-2", sink="elsewhere")).find_conflicting_record() is None


TYPES = {
    "flag": (pa.bool_(), True),
    "tiny": (pa.int8(), -128),
    "small": (pa.int16(), -(2**15)),
    "whole": (pa.int32(), 2**31 - 1),
    "real": (pa.float32(), 0.5),
    "double": (pa.float64(), 0.1),
    "exact": (pa.decimal128(38, 9), Decimal("-12345678901234567890123456789.123456789")),
    "day": (pa.date32(), date(1, 1, 1)),
    "instant": (pa.timestamp("us", tz="UTC"), datetime(2024, 2, 29, 23, 59, 59, 999999, tzinfo=UTC)),
    "local": (pa.timestamp("us"), datetime(2024, 3, 31, 2, 30, 0, 1)),
    "raw": (pa.binary(), b"\x00\xff"),
    "many": (pa.list_(pa.int64()), [1, None, 3]),
    "pair": (pa.struct([("x", pa.int32()), ("y", pa.list_(pa.string()))]), {"x": 1, "y": ["a", None]}),
    "lookup": (pa.map_(pa.string(), pa.decimal128(10, 2)), [("k", Decimal("1.50"))]),
    "odd `name`.x": (pa.string(), "é\u0000"),
}


# The daily two have both routes, and tables with and without a key.
@pytest.mark.parametrize(
    ("key", "large"),
    [
        ((), True),
        (("id",), False),
        pytest.param((), False, marks=pytest.mark.slow),
        pytest.param(("id",), True, marks=pytest.mark.slow),
    ],
)
def test_types_come_back_as_they_went_in(table: Any, key: tuple[str, ...], large: bool) -> None:
    schema = pa.schema([("id", pa.int64()), *((name, kind) for name, (kind, _) in TYPES.items())])
    t = table(*key, schema=schema)
    values = [
        {"id": 1} | {name: value for name, (_, value) in TYPES.items()},
        {"id": 2} | dict.fromkeys(TYPES),
    ]
    data = pa.Table.from_pylist(values, schema=schema)
    rows = t.spark.createDataFrame(data, from_arrow_schema(schema, prefer_timestamp_ntz=True))
    pos = f"named_struct('source', 0, 'part', 0, 'off', id, 'sub', 0L) {POS}"
    frame = EpochFrame(rows.selectExpr("*", f"'i' {OP}", pos), schema, key, None if large else 2, t.spark)
    sink = t.joined()
    sink.write(plan(1), frame)
    result = t.spark.read.format("delta").load(t.path).toArrow().sort_by("id")
    assert result.to_pylist() == data.to_pylist()
    assert result.schema.equals(schema)
    t.prepared(generation=2)  # the table that Headrace made fits


def test_existing_table_is_used_as_it_is(table: Any) -> None:
    t = table("ID")
    t.sql("CREATE TABLE {t} (name string, ID decimal(38,0), more int) USING delta")
    t.schema = pa.schema([("ID", pa.decimal128(20, 0)), ("name", pa.string())])
    sink = t.joined()
    frame = t.frame((1, "a", "i"))
    sink.write(
        plan(1),
        replace(frame, node_rows=frame.rows.selectExpr("cast(id as decimal(20,0)) ID", "name", OP, POS)),
    )
    assert t.rows() == [("a", Decimal(1), None)]


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
def test_table_that_cannot_take_the_rows_is_refused(table: Any, columns: str, message: str) -> None:
    t = table()
    t.sql(f"CREATE TABLE {{t}} ({columns}) USING delta")
    with pytest.raises(SchemaError) as caught:
        t.prepared()
    assert message in caught.value.message


def test_place_that_is_no_delta_table_is_refused(table: Any) -> None:
    t = table()
    Path(t.path).mkdir()
    Path(t.path, "notes.parquet").write_text("not a table")
    with pytest.raises(TargetError, match="cannot make a Delta table at"):
        t.prepared()


def test_s3_without_put_if_absent_is_refused(table: Any) -> None:
    t = table()
    t.path = "s3a://bucket/flights"
    with pytest.raises(GuaranteeError, match="needs a log store that puts a file only if it is absent"):
        t.prepared()


@pytest.mark.sampled
def test_large_epochs_leave_the_driver_path(table: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = DRIVER_ROWS if FULL else 50
    monkeypatch.setattr("headrace.connectors.lakehouse_rows.DRIVER_ROWS", limit)
    t = table("id")
    sink = t.joined()
    n = limit + 1
    rows = t.spark.range(n).selectExpr(
        "id", "'x' name", f"'i' {OP}", f"named_struct('source', 0, 'part', 0, 'off', id, 'sub', 0L) {POS}"
    )
    assert sink.write(plan(1), EpochFrame(rows, SCHEMA, ("id",), n, t.spark)) == WriteCounts(n, n, 0, 0)


@pytest.mark.parametrize(
    ("count", "likely", "local"), [(2, 1, True), (3, 1, False), (2, 5, False), (2, None, False)]
)
def test_what_is_likely_small_is_looked_at(
    table: Any, monkeypatch: pytest.MonkeyPatch, count: int, likely: int, *, local: bool
) -> None:
    monkeypatch.setattr("headrace.connectors.lakehouse_rows.DRIVER_ROWS", 2)
    t = table("id")
    frame = replace(t.frame(*[(at, "x", "i") for at in range(count)], large=True), likely=likely)
    source = build_merge_source("lake", frame, t.spark, None, collect_last_rows("lake", frame))
    assert (source.local, sorted(row.id for row in source.rows.collect())) == (local, list(range(count)))


@pytest.mark.parametrize(
    ("path", "location", "scope"),
    [
        ("/data/lake/flights/", "/data/lake/flights", ["data", "lake"]),
        (".lake/flights", str(Path.cwd() / ".lake/flights"), [*Path.cwd().parts[1:], ".lake"]),
        ("s3a://bucket/flights", "s3a://bucket/flights", ["s3a", "bucket"]),
    ],
)
def test_describe_opens_nothing(path: str, location: str, scope: list[str]) -> None:
    node = DeltaSinkConfig.model_validate({"from": "x", "path": path})
    result = DeltaTableSink(SinkContext(KEY, node, Settings(), pa.schema([]))).describe()
    assert result == {
        "kind": "delta",
        "asset_key": ["delta", "flights"],
        "scope": scope,
        "table_name": "flights",
        "location": location,
    }


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("[DELTA_CONCURRENT_APPEND] ConcurrentAppendException: files were added", TransientError),
        ("[DELTA_METADATA_CHANGED] the table was altered", TransientError),
        ("[DELTA_VIOLATE_CONSTRAINT_WITH_VALUES] CHECK constraint small", DataError),
        (
            '[DELTA_EXCEED_CHAR_VARCHAR_LIMIT] Value "abcd" exceeds … Failed check: (length(v) <= 3).',
            DataError,
        ),
        ("at java.util.concurrent.ConcurrentHashMap.computeIfAbsent", ValueError),
    ],
)
def test_failed_commit_is_explained(text: str, kind: type[Exception]) -> None:
    assert type(explain(ValueError(text), "/data/flights", "lake")) is kind


def test_full_disk_is_explained() -> None:
    result = explain(OSError(28, "No space left on device"), "/data/flights", "lake")
    assert isinstance(result, TransientError)
    assert "`/data/flights` cannot be read or written: No space left on device" in str(result)


@pytest.mark.sampled
def test_days_of_any_calendar_are_found_again(table: Any) -> None:
    """PySpark makes literals by way of java.sql, whose calendar has no 10 October 1582.

    Rows were doubled, and an early year failed.
    """
    schema = pa.schema([("day", pa.date32()), ("v", pa.int64())])
    t = table("day", schema=schema)
    sink = t.joined()
    gap = date(1582, 10, 10)
    days = [date(1, 1, 1), gap, *([date(999, 1, 1), date(9999, 12, 31)] if FULL else [])]

    def frame(days: list[date], v: int, op: str) -> EpochFrame:
        result = t.frame(*[((day - date(1970, 1, 1)).days, str(v), op) for day in days])
        return replace(
            result,
            node_rows=result.rows.selectExpr(
                "date_from_unix_date(int(id)) AS day", "bigint(name) AS v", OP, POS
            ),
        )

    for epoch, some in enumerate([*[[day] for day in days], days], 1):
        sink.write(plan(epoch), frame(some, epoch, "i"))
    last = len(days) + 1
    assert t.rows() == [(day, last) for day in sorted(days)]
    sink.write(plan(last + 1), frame([gap], last + 1, "d"))
    assert [row[0] for row in t.rows()] == sorted(set(days) - {gap})


def test_sinks_that_make_a_table_at_one_moment(spark: SparkSession, tmp_path: Path) -> None:
    """Once, the second one failed with an exception of Delta's own."""
    path = str(tmp_path / "raced")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: create("lake", spark, path, SCHEMA, ("id",)), range(4)))
    assert spark.read.format("delta").load(path).count() == 0
