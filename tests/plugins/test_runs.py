"""Plugins of every kind in pipelines that run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headrace.jobs.events import Until
from headrace.jobs.run import run
from headrace.pipeline.file import load_pipeline
from headrace.pipeline.settings import Settings, SparkSettings, SqliteBackend, StateBackend, load_settings

pytestmark = pytest.mark.spark

PIPELINE = """\
version: 1
name: words
sources:
  numbers:
    type: acme.numbers
    primary_key: id
    options: {upto: 3, step: 4}
    upto: "@UPTO@"
transforms:
  doubled:
    type: acme.twice
    from: numbers
    primary_key: id, copy
  loud:
    type: sql
    sql: SELECT id, copy, acme_shout(word, copy) AS word FROM doubled
sinks:
  kept:
    type: acme.folder
    from: loud
    path: out
  told:
    type: acme.lines
    from: loud
    delivery: at_least_once
    path: lines.jsonl
epoch: {history_rows: 8}
"""


def settings(folder: Path) -> Settings:
    return load_settings(
        home=folder / "home",
        state_backend=StateBackend(sqlite=SqliteBackend(path=folder / "ledger.db")),
        spark=SparkSettings(master="local[2]"),
    )


def test_a_pipeline_of_plugins_alone(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE__PLUGIN__PREPROCESSOR_IDS", "acme.heading, acme.days")
    monkeypatch.setenv("HEADRACE__PLUGIN__PREPROCESSOR_OPTIONS", '{"acme.days": {"upto": 11}}')
    monkeypatch.setenv("HEADRACE__PLUGIN__SIDE_OUTPUT_IDS", '["acme.count"]')
    monkeypatch.setenv("HEADRACE__PLUGIN__SIDE_OUTPUT_OPTIONS__PATH", "seen")
    monkeypatch.setenv("HEADRACE__PLUGIN__ACME_FOLDER__TOKEN", "open sesame")
    Path("words.yaml").write_text(PIPELINE)
    Path("out").mkdir()
    file = load_pipeline("words.yaml")
    assert file.place("sinks", "kept").line == 18
    assert "sesame" not in json.dumps(file.compiled())
    result = run(file, settings(tmp_path), until=Until.CAUGHT_UP, spark=spark)
    left = [number for number in range(1, 12) if number % 5]
    expected = [{"id": number, "copy": copy, "word": f"W{number}" + "!" * copy} for number in left for copy in (0, 1)]
    held = json.loads(Path("out/target.json").read_text())
    assert sorted(held["rows"], key=lambda row: (row["id"], row["copy"])) == expected
    (note,) = held["notes"].values()
    assert note["record"]["epoch"] == result.last_epoch == 2
    told = [json.loads(line) for line in Path("lines.jsonl").read_text().splitlines()]
    assert [(row["id"], row["copy"]) for row in told] == [(row["id"], row["copy"]) for row in expected]
    assert {row["_gs_op"] for row in told} == {"i"}
    assert {path.name: path.read_text() for path in Path("seen/numbers").iterdir()} == {"1": "8", "2": "3"}
    again = run(file, settings(tmp_path), until=Until.CAUGHT_UP, spark=spark)
    assert again.epochs == 0
