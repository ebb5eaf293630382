"""Spark uses the class-data archive of `make setup`, and works without it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

from headrace.jobs.spark import cds_archive
from headrace.jobs.spark.cds_archive import archive_options, ensure_archive
from headrace.jobs.spark.java import Java, find_java
from headrace.jobs.spark.session import jvm_process

OTHER = Java(Path("/opt/other/bin/java"), "17.0.1", "setting")


@pytest.mark.skipif(not psutil.LINUX, reason="what a process has mapped is told on Linux only")
def test_spark_maps_the_archive(spark: SparkSession) -> None:
    made = ensure_archive()
    process = jvm_process(spark)
    assert made is not None
    assert process is not None
    assert str(made) in {mapped.path for mapped in psutil.Process(process["pid"]).memory_maps()}
    assert str(made) in archive_options(find_java())


def test_another_java_has_another_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    assert archive_options(OTHER) == ""
    assert cds_archive._path(OTHER) != cds_archive._path(find_java())


def test_a_training_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    monkeypatch.setattr(cds_archive.sys, "executable", "/bin/false")
    assert ensure_archive(OTHER) is None
    assert "event=cds_archive_failed" in caplog.text
    assert [path.name for path in (tmp_path / "archives").iterdir()] == ["lock"]


def test_an_installation_of_the_same_jars_has_another_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java compares modification times too: it ignored the archive for as long as the folder had the same name."""
    jar = tmp_path / "jars/a.jar"
    jar.parent.mkdir()
    jar.write_bytes(b"a")
    monkeypatch.setattr(cds_archive, "_class_path", lambda: [jar.parent])
    before = cds_archive._path(OTHER)
    assert cds_archive._path(OTHER) == before
    os.utime(jar, (1, 1))
    assert cds_archive._path(OTHER) != before


def test_archives_of_environments_that_changed_are_removed(tmp_path: Path) -> None:
    jar = tmp_path / "jars/a.jar"
    jar.parent.mkdir()
    jar.touch()
    archives = tmp_path / "archives"
    archives.mkdir()
    current = cds_archive._hash_jars([jar.parent])
    for name, folder, digest in (
        ("removed", tmp_path / "nowhere", current),
        ("reinstalled", jar.parent, "of other jars"),
        ("current", jar.parent, current),
    ):
        (archives / f"{name}.json").write_text(json.dumps({"class_path": [str(folder)], "hash": digest}))
        (archives / f"{name}.jsa").touch()
    (archives / "training-killed").mkdir()
    (archives / "training-killed/current.jsa").touch()
    cds_archive._remove_orphans(archives)
    assert {path.name for path in archives.iterdir()} == {"current.json", "current.jsa"}
