"""Old metadata of an Iceberg table: its names stay taken for a day, and the table opens at any time."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from helpers.checkout import ROOT
from helpers.lakehouse_tables import SCHEMA, plan
from pyspark.sql import SparkSession

from headrace.connectors.iceberg import metadata_files
from headrace.connectors.iceberg.metadata_files import HINT, OLDEST, MetadataFiles
from headrace.pipeline.errors import FencedError
from tests.spark.connectors.test_iceberg_sink import Table

KEPT = 4
DAY = 24 * 60 * 60


class Folder:
    """The metadata files on the disk, without Headrace's view of them."""

    def __init__(self, table: Table) -> None:
        self.path = Path(table.warehouse, "n", "flights", "metadata")

    def versions(self, *, empty: bool) -> list[int]:
        """The versions with content, or the placeholders."""
        result = {int(path.name[1:].split(".")[0]): path for path in self.path.glob("v*.metadata.json")}
        return sorted(number for number, path in result.items() if (path.stat().st_size == 0) is empty)

    def age(self) -> None:
        """Make the placeholders older than a day."""
        for number in self.versions(empty=True):
            past = time.time() - DAY - 60
            os.utime(self.file(number), (past, past))

    def file(self, number: int) -> Path:
        return self.path / f"v{number}.metadata.json"

    def number(self, name: str) -> int:
        return int((self.path / name).read_text())

    def set_hint(self, number: int | None) -> None:
        (self.path / f".{HINT}.crc").unlink(missing_ok=True)
        (self.path / HINT).unlink()
        if number is not None:
            (self.path / HINT).write_text(str(number))


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    monkeypatch.setattr(metadata_files, "VERSIONS_KEPT", KEPT)
    monkeypatch.setattr(metadata_files, "PRUNE_EVERY", 1)
    return Table(spark, tmp_path / "lake", ())


def write(table: Table, writer: Any, *epochs: int) -> None:
    for epoch in epochs:
        writer.write(plan(epoch), table.frame((epoch, "a", "i")))


def expected(last: int) -> list[tuple[int, str]]:
    return [(epoch, "a") for epoch in range(1, last + 1)]


def test_old_versions_expire_and_the_table_opens_whatever_the_hint_is(table: Table) -> None:
    writer, folder = table.joined(), Folder(table)
    write(table, writer, 1, 2, 3, 4)
    full, empty = folder.versions(empty=False), folder.versions(empty=True)
    assert KEPT <= len(full) <= KEPT + 3
    assert empty == list(range(1, full[0]))
    assert full == list(range(full[0], full[-1] + 1))
    folder.age()
    write(table, writer, 5)
    left = folder.versions(empty=True)
    assert left[0] == empty[-1] + 1
    assert len(folder.versions(empty=False)) <= KEPT + 3
    assert folder.number(OLDEST) == left[0]
    assert table.rows() == expected(5)
    again = table.prepared(generation=2)
    assert again.record().epoch == 5
    for last, hint in enumerate(("missing", "old", "deleted"), 5):
        first = folder.versions(empty=True)[0]
        folder.set_hint({"missing": None, "old": first, "deleted": first - 1}[hint])
        record = table.sink().record()
        assert record is not None
        assert record.epoch == last
        assert table.rows() == expected(last)
        write(table, again, last + 1)
        assert table.rows() == expected(last + 1)


# test_a_late_commit_does_not_bring_an_old_table_back is the daily sample of `placeholder`, and
# test_a_zombie_wakes_up_before_its_commit the one of a check that refuses.
@pytest.mark.parametrize(
    ("checked", "expire"),
    [
        pytest.param(True, False, marks=pytest.mark.slow),
        (True, True),
        pytest.param(False, True, marks=pytest.mark.slow),
    ],
    ids=["placeholder", "expired", "check"],
)
def test_a_commit_pauses_for_longer_than_old_metadata_is_kept(
    table: Table, monkeypatch: pytest.MonkeyPatch, checked: bool, expire: bool
) -> None:
    """The pause is before Iceberg's rename, after or before the last check.

    After the check, the placeholder refuses the commit. If that expired, the read-back finds the newer versions.
    """
    old, new, folder = table.joined(), table.sink(), Folder(table)
    write(table, old, 1)
    real, seen = MetadataFiles.is_newest, []

    def take_over(version: int) -> None:
        new.prepare(SCHEMA, 2)
        write(table, new, 2, 3, 4)
        if expire:
            folder.age()
            write(table, new, 5)
        assert folder.file(version + 1).exists() is not expire

    def is_newest(files: MetadataFiles, version: int) -> bool:
        answer = checked and real(files, version)
        seen.append(version)
        if len(seen) == 2:  # the first commit of an epoch begins its branch
            take_over(version)
        return answer if checked else real(files, version)

    monkeypatch.setattr(MetadataFiles, "is_newest", is_newest)
    with pytest.raises(FencedError):
        old.write(plan(2), table.frame((2, "old", "i")))
    last = 5 if expire else 4
    late = seen[1] + 1
    assert (folder.file(late).exists() and folder.file(late).stat().st_size > 0) is (checked and expire)
    assert folder.number(HINT) == folder.versions(empty=False)[-1]
    assert table.rows() == expected(last)
    write(table, new, last + 1)
    assert table.rows() == expected(last + 1)
    assert late not in folder.versions(empty=False)


def test_a_failure_to_prune_fails_no_epoch(
    table: Table, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    writer = table.joined()

    def refuse(files: MetadataFiles, name: str) -> None:
        raise OSError(f"no right to replace {name}")

    monkeypatch.setattr(MetadataFiles, "_empty", refuse)
    with caplog.at_level(logging.WARNING, "headrace.connectors.iceberg.metadata_files"):
        write(table, writer, 1, 2)
    assert "error=no right to replace v1.metadata.json" in caplog.text
    assert table.rows() == expected(2)


def test_a_file_newer_than_the_listed_ones_keeps_its_content(table: Table) -> None:
    """It belongs to a table that was created again while a process pauses."""
    writer, folder = table.joined(), Folder(table)
    later = time.time() + 3600
    os.utime(folder.file(1), (later, later))
    write(table, writer, 1, 2)
    assert 1 in folder.versions(empty=False)
    assert 2 in folder.versions(empty=True)


def test_a_table_of_another_owner_keeps_its_metadata(table: Table) -> None:
    table.sql(
        "CREATE TABLE {t} (id bigint, name string) USING iceberg TBLPROPERTIES ('format-version' = '2')"
    )
    write(table, table.joined(), 1, 2, 3)
    assert Folder(table).versions(empty=True) == []


_VICTIM = """
import sys, threading
sys.path.append("tests")
from pathlib import Path
from headrace.connectors.iceberg import metadata_files
from headrace.connectors.iceberg.metadata_files import MetadataFiles
from headrace.jobs.spark.session import start_session
from helpers.spark_settings import SHORT_LIVED_SPARK
from headrace.pipeline.config.settings import Settings
from tests.spark.connectors.test_iceberg_metadata_files import Folder, KEPT, Table, write
home, step = Path(sys.argv[1]), sys.argv[2]
spark = start_session(Settings(home=home, spark=SHORT_LIVED_SPARK), ("iceberg",))
metadata_files.VERSIONS_KEPT, metadata_files.PRUNE_EVERY = KEPT, 1
table = Table(spark, home / "lake", ())
writer = table.joined()
if step == "_delete":
    write(table, writer, 1, 2, 3)
    Folder(table).age()
real, calls = getattr(MetadataFiles, step), []
def stop(files, name):
    calls.append(name)
    if len(calls) == 3:
        (home / "reached").touch()
        threading.Event().wait()
    real(files, name)
setattr(MetadataFiles, step, stop)
write(table, writer, *((4,) if step == "_delete" else (1, 2, 3)))
"""


# Daily tests: the states that a killed writer leaves, above, and test_kill_between_data_and_commit.
@pytest.mark.slow
@pytest.mark.parametrize("step", ["_empty", "_delete"])
def test_kill_in_the_middle_of_pruning(table: Table, tmp_path: Path, step: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _VICTIM, str(tmp_path), step], cwd=ROOT, start_new_session=True
    ) as victim:
        try:
            deadline = time.monotonic() + 240
            while not (tmp_path / "reached").exists():
                assert victim.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)
        finally:
            os.killpg(victim.pid, signal.SIGKILL)
    folder = Folder(table)
    if step == "_delete":
        assert folder.number(OLDEST) > folder.versions(empty=True)[0]
    record = table.sink().record()
    assert record is not None
    assert table.rows() == expected(record.epoch)
    if step == "_delete":  # a writer of an older version was about to set the hint
        folder.set_hint(folder.versions(empty=True)[0])
    again = table.prepared(generation=2)
    write(table, again, record.epoch + 1)
    assert table.rows() == expected(record.epoch + 1)
    full, empty = folder.versions(empty=False), folder.versions(empty=True)
    assert len(full) <= KEPT + 3
    assert empty == list(range(empty[0], full[0]))
    assert folder.number(OLDEST) == empty[0]
