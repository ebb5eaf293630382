"""Plugins of every kind in pipelines that run."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
from helpers.plugin_files import settings
from pyspark.sql import SparkSession

from headrace.jobs.checks.preflight import check_pipeline
from headrace.jobs.explain.build import explain
from headrace.jobs.explain.text import text as as_text
from headrace.jobs.run.events import Until
from headrace.jobs.run.runner import run
from headrace.jobs.testing.runner import PipelineTestRunner
from headrace.pipeline.errors import PluginError
from headrace.pipeline.file.loader import load_pipeline
from headrace.pipeline.testcases.loader import load_cases

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


def test_a_pipeline_of_plugins_alone(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    expected = [
        {"id": number, "copy": copy, "word": f"W{number}" + "!" * copy} for number in left for copy in (0, 1)
    ]
    target = json.loads(Path("out/target.json").read_text())
    assert sorted(target["rows"], key=lambda row: (row["id"], row["copy"])) == expected
    claims = target["notes"].pop("headrace-claim/rows")["claims"]
    (note,) = target["notes"].values()
    assert note["record"]["epoch"] == result.last_epoch == 2
    assert [(claim["key"]["name"], claim["key"]["sink"]) for claim in claims] == [("words", "kept")]
    lines = [json.loads(line) for line in Path("lines.jsonl").read_text().splitlines()]
    assert [(row["id"], row["copy"]) for row in lines] == [(row["id"], row["copy"]) for row in expected]
    assert {row["_gs_op"] for row in lines} == {"i"}
    assert {path.name: path.read_text() for path in Path("seen/numbers").iterdir()} == {"1": "8", "2": "3"}
    again = run(file, settings(tmp_path), until=Until.CAUGHT_UP, spark=spark)
    assert again.epochs == 0


STREAM = """\
version: 1
name: ticking
sources:
  ticks: {type: acme.ticks, path: ticks, primary_key: n}
sinks:
  kept:
    type: acme.folder
    from: ticks
    path: out
    token: open sesame
epoch: {stream_rows: 4, interval: 0s}
"""


def test_a_stream_of_a_plugin_goes_on_where_it_was(spark: SparkSession, tmp_path: Path) -> None:
    Path("ticking.yaml").write_text(STREAM)
    Path("out").mkdir()
    Path("ticks").write_text("10")

    def numbers() -> list[int]:
        return [row["n"] for row in json.loads(Path("out/target.json").read_text())["rows"]]

    first = run(load_pipeline("ticking.yaml"), settings(tmp_path), until=Until.CAUGHT_UP, spark=spark)
    assert (first.caught_up, first.epochs, numbers()) == (True, 3, list(range(10)))
    Path("ticks").write_text("13")
    second = run(load_pipeline("ticking.yaml"), settings(tmp_path), until=Until.CAUGHT_UP, spark=spark)
    assert (second.first_epoch, numbers()) == (4, list(range(13)))


def test_an_open_epoch_is_finished_with_secrets_of_the_changed_file(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("ticking.yaml").write_text(STREAM)
    Path("out").mkdir()
    Path("ticks").write_text("3")
    folder = importlib.import_module("acme_plugins").Folder
    whole = folder.compare_and_swap

    def dies_after(self: Any, expected: Any, note: Any, rows: Any) -> bool:
        whole(self, expected, note, rows)
        if rows is not None:
            msg = "died behind the atomic act"
            raise RuntimeError(msg)
        return True

    with monkeypatch.context() as patch:
        patch.setattr(folder, "compare_and_swap", dies_after)
        with pytest.raises(PluginError, match="died behind the atomic act"):
            run(load_pipeline("ticking.yaml"), settings(tmp_path), until=Until.CAUGHT_UP, spark=spark)
    Path("ticking.yaml").write_text(
        STREAM.replace("from: ticks", "from: same").replace(
            "sinks:", "transforms:\n  same: {type: sql, sql: select n from ticks}\nsinks:"
        )
    )
    Path("ticks").write_text("5")
    run(load_pipeline("ticking.yaml"), settings(tmp_path), until=Until.CAUGHT_UP, spark=spark)
    target = json.loads(Path("out/target.json").read_text())
    assert [row["n"] for row in target["rows"]] == list(range(5))
    assert "sesame" not in (tmp_path / "ledger.db").read_bytes().decode("latin-1")


def test_validate_and_explain_know_plugins(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE__PLUGIN__ACME_FOLDER__TOKEN", "open sesame")
    Path("out").mkdir()
    Path("words.yaml").write_text(PIPELINE.replace("@UPTO@", "11"))
    file = load_pipeline("words.yaml")
    pipeline = check_pipeline(file, settings(tmp_path), lambda: spark)
    assert (pipeline.errors, pipeline.unchecked) == ([], {})
    assert {name: schema.names for name, schema in pipeline.schemas.items()} == {
        "numbers": ["id", "word"],
        "doubled": ["id", "word", "copy"],
        "loud": ["id", "copy", "word"],
        "kept": ["id", "copy", "word"],
        "told": ["id", "copy", "word"],
    }
    story = explain(file, settings(tmp_path), splits=True, spark=spark)
    sinks = {node.name: node for node in story.nodes if node.kind == "sink"}
    assert sinks["kept"].target
    assert sinks["told"].target
    assert sinks["kept"].target.guarantee.delivery == "exactly_once"
    assert sinks["told"].target.guarantee.delivery == "at_least_once"
    (numbers,) = [node for node in story.nodes if node.name == "numbers"]
    assert (numbers.parts[0].type, numbers.parts[0].has_snapshot) == ("acme.numbers", True)
    assert as_text(story)


def test_a_test_of_a_pipeline_runs_its_plugins(spark: SparkSession, tmp_path: Path) -> None:
    text = PIPELINE.replace('"@UPTO@"', "11").replace(
        "    path: out\n", "    path: out\n    token: open sesame\n"
    ) + (
        "tests:\n  loudness:\n    given: {numbers: {rows: [{id: 3, word: so}], schema: {id: int64, word:"
        " string}}}\n"
        "    expect: {kept: {rows: [{id: 3, copy: 0, word: SO}, {id: 3, copy: 1, word: SO!}]}}\n"
    )
    Path("words.yaml").write_text(text)
    (case,) = load_cases(Path("words.yaml"))
    bench = PipelineTestRunner(settings(tmp_path))
    outcome = bench.run(case)
    assert outcome.passed, (outcome.differences, outcome.error)


def test_dagster_has_assets_of_plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.orchestration.pipelines import read_pipeline

    monkeypatch.setenv("HEADRACE__PLUGIN__ACME_FOLDER__TOKEN", "open sesame")
    Path("words.yaml").write_text(PIPELINE.replace("@UPTO@", "11"))
    pipeline = read_pipeline(Path("words.yaml"))
    assert (pipeline.has_history, pipeline.has_stream, pipeline.verifiable_sinks) == (True, False, {"kept"})
    assert {name: sink.storage_kind for name, sink in pipeline.sinks.items()} == {
        "kept": "acme.folder",
        "told": "acme.lines",
    }
