"""Compaction and vacuum of Delta and Iceberg tables, next to the sinks that write them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.checkout import ROOT
from helpers.lakehouse_tables import plan
from pyspark.sql import SparkSession

from headrace.connectors.table_maintenance import FileTotal, TableMaintenance
from headrace.pipeline.errors import SinkStateError, TransientError, UserError
from tests.spark.connectors import test_delta_sink, test_iceberg_sink

KINDS = ("delta", "iceberg")
EPOCHS = 3


class Lake:
    """A table of one kind, and its files."""

    def __init__(self, kind: str, spark: SparkSession, folder: Path, key: tuple[str, ...]) -> None:
        self.kind, self.spark = kind, spark
        self.folder = folder / "lake" if kind == "delta" else folder / "lake" / "n" / "flights"
        self.data = self.folder if kind == "delta" else self.folder / "data"
        self.table: Any = (
            test_delta_sink.Table(spark, self.folder, key)
            if kind == "delta"
            else test_iceberg_sink.Table(spark, folder / "lake", key)
        )

    def maintenance(self) -> TableMaintenance:
        return self.table.sink().open_maintenance()

    def fill(self, sink: Any, first: int = 1, last: int = EPOCHS) -> None:
        """Write epochs. With a key, each changes the row of key 0."""
        for number in range(first, last + 1):
            rows = [(number, f"n{number}", "i")] + [(0, f"n{number}", "u")] * bool(self.table.key)
            sink.write(plan(number), self.table.frame(*rows))

    def expected(self, last: int) -> list[tuple[Any, ...]]:
        """The rows after the epochs up to `last`."""
        changed = [(0, f"n{last}")] if self.table.key else []
        return changed + [(number, f"n{number}") for number in range(1, last + 1)]

    def check(self, last: int) -> None:
        """The rows and the record are those of epoch `last`, and the next epoch can follow."""
        assert self.table.rows() == self.expected(last)
        assert self.table.sink().record().epoch == last
        newcomer = self.table.prepared(generation=9)
        assert newcomer.record().epoch == last
        self.fill(newcomer, last + 1, last + 1)
        assert self.table.rows() == self.expected(last + 1)

    def parquet_files(self) -> set[str]:
        return {path.name for path in self.data.glob("*.parquet")}


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Callable[..., Lake]:
    return lambda kind, *key: Lake(kind, spark, tmp_path, key)


def compact_as_planned(made: Lake) -> None:
    """Compact the files of all epochs into one, as the plan says, and find nothing else to do."""
    maintenance = made.maintenance()
    planned = maintenance.plan_compaction()
    assert made.table.rows() == made.expected(EPOCHS)
    assert planned.after is None
    assert (planned.rewritten.files, planned.written) == (EPOCHS, 1)
    done = maintenance.compact()
    assert (done.before, done.rewritten, done.written) == (planned.before, planned.rewritten, 1)
    assert done.after is not None
    assert done.after.files == 1
    assert maintenance.compact().rewritten == FileTotal()
    assert maintenance.plan_compaction().rewritten == FileTotal()
    assert made.table.rows() == made.expected(EPOCHS)


# test_files_and_vectors_of_others_are_read is the daily sample of compactions between epochs of Delta.
@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("iceberg", ("id",)),
        pytest.param("delta", (), marks=pytest.mark.slow),
        pytest.param("delta", ("id",), marks=pytest.mark.slow),
        pytest.param("iceberg", (), marks=pytest.mark.slow),
    ],
)
def test_compaction_loses_to_a_running_sink_or_keeps_its_rows(
    lake: Any, kind: str, key: tuple[str, ...]
) -> None:
    """The sink commits epochs from before the compaction begins until after it has ended."""
    made = lake(kind, *key)
    sink = made.table.joined()
    made.fill(sink)
    last, begun, done = EPOCHS, threading.Event(), threading.Event()
    failures: list[Exception] = []

    def write() -> None:
        nonlocal last
        try:
            while not done.is_set():
                made.fill(sink, last + 1, last + 1)
                last += 1
                begun.set()
        except Exception as error:  # noqa: BLE001  the test fails with it
            failures.append(error)
            begun.set()

    writer = threading.Thread(target=write)
    writer.start()
    assert begun.wait(600)
    lost: TransientError | None = None
    try:
        made.maintenance().compact()
    except TransientError as error:
        lost = error
    finally:
        done.set()
        writer.join(600)
    assert lost is None or (key and "was not compacted in 3 attempts" in str(lost)), (
        "only changes of rows conflict"
    )
    # A commit of the compaction can end an attempt at an epoch; the run repeats the epoch.
    assert all(isinstance(failure, TransientError) for failure in failures)
    assert last > EPOCHS
    if failures:
        made.fill(sink, last + 1, last + 1)
        last += 1
    made.check(last)


_VICTIM = """
import sys
sys.path.append("tests")
from pathlib import Path
from headrace.jobs.spark.session import start_session
from helpers.spark_settings import SHORT_LIVED_SPARK
from headrace.pipeline.config.settings import Settings
from tests.spark.connectors.test_table_maintenance import Lake
home, kind = Path(sys.argv[1]), sys.argv[2]
spark = start_session(Settings(home=home, spark=SHORT_LIVED_SPARK), (kind,))
lake = Lake(kind, spark, home, ("id",))
lake.fill(lake.table.joined())
maintenance = lake.maintenance()
(home / "reached").touch()
maintenance.compact()
"""


# A compaction is one commit: test_kill_before_or_after_the_commit and test_kill_between_data_and_commit are the daily
# samples of kills next to commits of Delta and Iceberg.
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_compaction_that_is_killed_changes_no_row_and_can_run_again(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    """It is killed when its new file exists: before its commit, or in it."""
    result = Lake(kind, spark, tmp_path, ("id",))
    reached = tmp_path / "reached"
    with subprocess.Popen(
        [sys.executable, "-c", _VICTIM, str(tmp_path), kind], cwd=ROOT, start_new_session=True
    ) as victim:
        try:
            deadline = time.monotonic() + 900
            written: set[str] | None = None
            while written is None or result.parquet_files() <= written:
                assert victim.poll() is None
                assert time.monotonic() < deadline
                written = result.parquet_files() if written is None and reached.exists() else written
                time.sleep(0.005)
        finally:
            os.killpg(victim.pid, signal.SIGKILL)
    assert result.table.rows() == result.expected(EPOCHS)
    done = result.maintenance().compact()
    assert done.after is not None
    assert done.after.files == 1
    result.check(EPOCHS)


def leave_old_file(folder: Path, name: str) -> Path:
    """Create a file as an attempt leaves it that was killed long ago."""
    path = folder / name
    path.write_bytes(b"rows")
    os.utime(path, (0, 0))
    return path


def test_delta_compaction_and_vacuum_do_what_their_plans_say_and_the_sink_knows_its_epoch(lake: Any) -> None:
    made = lake("delta", "id")
    made.fill(made.table.joined())
    orphan = leave_old_file(made.data, "part-of-a-killed-attempt.parquet")
    with pytest.raises(UserError, match=r"--older-than 1 is too short .* for 168 hours"):
        made.maintenance().plan_vacuum(1)
    kept = made.maintenance().vacuum(None)
    assert (kept.hours, kept.removed) == (168, FileTotal(1, 4))
    assert not orphan.exists()
    compact_as_planned(made)
    made.table.sql(
        "ALTER TABLE {t} SET TBLPROPERTIES ('delta.deletedFileRetentionDuration' = 'interval 0 hours')"
    )
    version, before = made.table.version, made.parquet_files()
    planned = made.maintenance().plan_vacuum(0)
    assert made.parquet_files() == before
    done = made.maintenance().vacuum(0)
    assert done == planned
    assert planned.removed.files >= EPOCHS
    rows = made.spark.read.format("delta").load(str(made.folder)).select("_metadata.file_name")
    assert made.parquet_files() == {row["file_name"] for row in rows.collect()}
    assert made.table.version == version, "a vacuum makes no commit, which could clean up the log"
    made.check(EPOCHS)


def test_delta_compaction_is_refused_if_its_commit_could_clean_up_a_record(
    lake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = lake("delta")
    sink = made.table.joined()
    made.fill(sink)
    version, later = made.table.version, time.time() + 30 * 24 * 3600
    with monkeypatch.context() as patch:
        patch.setattr("headrace.connectors.delta.maintenance.time", SimpleNamespace(time=lambda: later))
        with pytest.raises(SinkStateError, match=r"sink `lake` of pipeline `flights` .* 30 days old"):
            made.maintenance().compact()
    assert made.table.version == version
    assert made.maintenance().compact().rewritten.files == EPOCHS
    made.check(EPOCHS)


def test_iceberg_compaction_and_vacuum_do_what_their_plans_say_and_the_sink_knows_its_epoch(
    lake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = lake("iceberg", "id")
    made.fill(made.table.joined())
    compact_as_planned(made)
    orphans = [
        leave_old_file(made.data, "part-of-a-killed-attempt.parquet"),
        leave_old_file(made.folder / "metadata", "of-a-killed-attempt-m0.avro"),
    ]
    kept = [
        made.data / "young.parquet",
        leave_old_file(made.folder / "metadata", "v0.metadata.json"),
        made.folder / "metadata" / "headrace-oldest-version.text",
    ]
    kept[0].write_bytes(b"rows of an epoch")
    kept[2].write_text("1")
    for path in [*kept[1:], *(made.folder / "metadata").glob("v*.metadata.json")]:
        os.utime(path, (0, 0))
    with pytest.raises(UserError, match="--older-than 23 is too short"):
        made.maintenance().plan_vacuum(23)
    monkeypatch.setattr(
        "headrace.connectors.iceberg.maintenance.expiry_time", lambda _: int(time.time() * 1000) + 1
    )
    versions = sorted((made.folder / "metadata").glob("v*.metadata.json"))
    planned = made.maintenance().plan_vacuum(None)
    assert made.table.rows() == made.expected(EPOCHS)
    assert all(path.exists() for path in orphans)
    assert planned.hours == 120
    # The data files of the epochs and their delete files, and the two orphans.
    assert planned.removed.files >= 2 * EPOCHS + 1
    assert planned.expired >= EPOCHS
    done = made.maintenance().vacuum(24)
    assert (done.removed, done.expired) == (planned.removed, planned.expired)
    assert not any(path.exists() for path in orphans)
    assert all(path.exists() for path in [*kept, *versions])
    assert len(made.parquet_files() - {"young.parquet"}) == 1
    made.check(EPOCHS)


def test_iceberg_vacuum_keeps_the_proof_of_a_rollback(lake: Any) -> None:
    made = lake("iceberg")
    sink = made.table.joined()
    made.fill(sink, 1, 1)
    earlier = made.table.java.currentSnapshot().snapshotId()
    made.fill(sink, 2, 2)
    made.table.java.manageSnapshots().rollbackTo(earlier).commit()
    with pytest.raises(SinkStateError, match="was rolled back to a snapshot without the newest rows"):
        made.maintenance().vacuum(None)
