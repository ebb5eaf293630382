"""The class-data archive that `make setup` makes is the one that Spark uses, and nothing depends on it."""

from __future__ import annotations

import json
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


def test_a_training_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    monkeypatch.setattr(cds_archive.sys, "executable", "/bin/false")
    assert ensure_archive(OTHER) is None
    assert "Spark will start more slowly" in caplog.text
    assert [path.name for path in (tmp_path / "archives").iterdir()] == ["lock"]


def test_archives_of_environments_that_are_gone_are_removed(tmp_path: Path) -> None:
    for name, pyspark in (("gone", tmp_path / "nowhere"), ("there", tmp_path)):
        (tmp_path / f"{name}.json").write_text(json.dumps({"pyspark": str(pyspark)}))
        (tmp_path / f"{name}.jsa").touch()
    cds_archive._remove_orphans(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"there.json", "there.jsa"}
