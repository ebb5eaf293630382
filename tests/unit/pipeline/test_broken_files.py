"""Every known mistake in a pipeline file or a setting, with its complete message.

The tables are beside this, by theme. A case changes the file below (`put`: old text and new) or brings a file
of its own (`file`), and may set variables (`env`); a case of settings has `env` and `config`, the text of
config.yaml.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from headrace.pipeline.config.settings import load_settings
from headrace.pipeline.errors import PipelineFileError, SettingsError, UserError
from headrace.pipeline.file.loader import load_pipeline, parse_pipeline

GOOD = """\
version: 1
name: base
sources:
  orders:
    type: hybrid
    primary_key: id
    bounded_sources:
      - source_type: clickhouse
        table_name: shop.orders
    unbounded_source:
      source_type: kafka
      topic: orders
      schema:
        id: int64
        at: timestamp
    offset_table:
      partition_column: p
transforms:
  priced:
    type: sql
    sql: SELECT id, at FROM orders
sinks:
  pg:
    type: postgres
    from: priced
    table: orders
partitions:
  column: at
  start: 2024-01
  end: 2024-06
epoch:
  interval: 1s
"""
TABLES = Path(__file__).parent / "broken"


def table(*names: str) -> list[Any]:
    """The cases of some themes as parameters."""
    yaml = YAML(typ="safe")
    return [
        pytest.param(case, id=f"{name}: {case['case']}")
        for name in names
        for case in yaml.load(TABLES / f"{name}.yaml")
    ]


def text_of(case: dict[str, Any]) -> str:
    text = case.get("file", GOOD)
    for old, new in case.get("put", {}).items():
        assert text.count(old) == 1, f"`{old}` stands {text.count(old)} times in the file"
        text = text.replace(old, new)
    return text


def test_the_file_that_is_changed_is_good():
    assert parse_pipeline(GOOD).name == "base"


FILES = table("yaml", "types", "keys", "values", "graph", "sql", "telemetry", "sources")
SETTINGS = table("settings")


@pytest.mark.parametrize("case", FILES)
def test_a_broken_file(case, monkeypatch):
    for name, value in case.get("env", {}).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(PipelineFileError) as caught:
        parse_pipeline(text_of(case), "f.yaml")
    assert str(caught.value) == case["says"].rstrip("\n")
    assert "hunter2" not in str(caught.value)
    assert all(problem.place and problem.place.line for problem in caught.value.problems)


@pytest.mark.parametrize("case", SETTINGS)
def test_a_wrong_setting(case, monkeypatch, tmp_path):
    for name in list(os.environ):
        if name.upper().startswith(("HEADRACE", "STREAMLING")):
            monkeypatch.delenv(name)
    for name, value in case.get("env", {}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    if "config" in case:
        Path("config.yaml").write_text(case["config"])
    if "services" in case:
        Path(".headrace").mkdir()
        Path(".headrace/services.json").write_text(case["services"])
    with pytest.raises(SettingsError) as caught:
        load_settings()
    assert str(caught.value) == case["says"].rstrip("\n")
    assert "secret" not in str(caught.value).replace("http_secret_", "")


def test_there_are_many():
    assert len(FILES) >= 120
    assert len(SETTINGS) >= 15


def test_a_file_that_is_not_there_or_no_text(tmp_path):
    (tmp_path / "latin.yaml").write_bytes("name: größe".encode("latin-1"))
    for name, message in (
        ("none.yaml", "No such file"),
        ("", "Is a directory"),
        ("latin.yaml", r"it is not UTF-8 text \(byte 9\)\n  Save it as UTF-8"),
    ):
        with pytest.raises(UserError, match=f"cannot be read: {message}"):
            load_pipeline(tmp_path / name)
