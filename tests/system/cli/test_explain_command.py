"""`headrace explain` as a process: only the document on standard output, in every format."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from helpers.cli_commands import Answer, run_commands
from helpers.forked_process import run_command

FILE = """
version: 1
name: tiny
sources:
  src: {type: kafka, topic: some.topic, primary_key: id, schema: {id: int64, ":smile:[b]": string}}
sinks:
  out: {type: blackhole, from: src}
  table: {type: postgres, from: src, table: here}
"""


DOCUMENTS = [
    ("text", "pipeline tiny", "  columns    the 2 of src"),
    ("mermaid", "flowchart LR", '  n0 -->|"key id"| n2'),
    ("json", "{", "}"),
]
WRONG_USAGE = [
    ("--format", "pdf"),
    ("--offline", "--splits"),
    ("--format", "mermaid", "--lineage"),
    ("--format", "dot"),
    ("--format", "mermaid", "--splits"),
    ("--format", "mermaid", "--spark-plan"),
]


def environment(cwd: Path) -> dict[str, str]:
    """An environment without Java, and without servers."""
    clean = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("HEADRACE", "STREAMLING", "COLUMNS", "NO_COLOR"))
    }
    return clean | {
        "JAVA_HOME": str(cwd / "none"),
        "HEADRACE__CLICKHOUSE_SOURCE__URL": "http://127.0.0.1:1",
    }


def explain(*args: str, cwd: Path, text: str = FILE) -> subprocess.CompletedProcess[str]:
    (cwd / "tiny.yaml").write_text(text)
    return run_command("explain", "tiny.yaml", *args, env=environment(cwd), cwd=cwd)


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, ...], Answer]:
    """A document in every format, and what wrong usage ends with."""
    folder = tmp_path_factory.mktemp("commands")
    (folder / "tiny.yaml").write_text(FILE)
    options = [(), *(("--format", form) for form, *_ in DOCUMENTS), *WRONG_USAGE]
    commands = [("explain", "tiny.yaml", *one) for one in options]
    return run_commands(commands, cwd=folder, env=environment(folder))


@pytest.mark.parametrize(("form", "first", "last"), DOCUMENTS)
def test_a_document_is_alone_on_standard_output(
    form: str, first: str, last: str, answers: dict[tuple[str, ...], Answer]
) -> None:
    result = answers["explain", "tiny.yaml", "--format", form]
    assert (result.code, result.errors) == (0, "")
    lines = result.out.splitlines()
    assert lines[0].startswith(first)
    assert lines[-1] == last


def test_text_is_the_default_and_fits_eighty_columns(tmp_path: Path) -> None:
    result = explain("--lineage", "--splits", "--spark-plan", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "sinks\n  out    blackhole, reads src\n" in result.stdout
    assert "    id          src.id" in result.stdout
    assert "no source has a history" in result.stdout
    assert "Spark has nothing to plan" in result.stdout
    assert max(len(line) for line in result.stdout.splitlines()) <= 80


def test_names_come_out_as_they_are_written(answers: dict[tuple[str, ...], Answer]) -> None:
    result = json.loads(answers["explain", "tiny.yaml", "--format", "json"].out)
    assert [column["name"] for column in result["nodes"][0]["schema"]] == ["id", ":smile:[b]"]
    assert ":smile:[b] STRING" in answers["explain", "tiny.yaml"].out


@pytest.mark.parametrize("args", [("--offline",), ()])
def test_without_servers_and_java_the_rest_is_still_told(args: tuple[str, ...], tmp_path: Path) -> None:
    text = FILE.replace(
        '{type: kafka, topic: some.topic, primary_key: id, schema: {id: int64, ":smile:[b]": string}}',
        "{type: clickhouse, table_name: t}",
    )
    result = explain(*args, cwd=tmp_path, text=text)
    assert (result.returncode, result.stderr) == (0, "")
    assert "unchecked  columns of clickhouse default.t:" in result.stdout
    assert ("--offline" in result.stdout) is bool(args)
    assert "exactly once" in result.stdout


@pytest.mark.parametrize("args", WRONG_USAGE)
def test_wrong_usage_is_exit_code_2(args: tuple[str, ...], answers: dict[tuple[str, ...], Answer]) -> None:
    result = answers["explain", "tiny.yaml", *args]
    assert (result.code, result.out) == (2, "")
    assert "Traceback" not in result.errors


def test_a_broken_file_is_told_on_standard_error_alone(tmp_path: Path) -> None:
    result = explain("--format", "json", cwd=tmp_path, text=FILE.replace("from: src", "from: nowhere"))
    assert (result.returncode, result.stdout) == (1, "")
    assert "tiny.yaml:7:" in result.stderr
