"""The command as a process: help, errors, exit codes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from helpers.cli_commands import Answer, run_commands
from helpers.forked_process import run_command

from headrace import cli
from headrace.commands import validate
from headrace.jobs.checks import preflight
from headrace.pipeline.errors import PipelineStateError
from headrace.pipeline.file.loader import PipelineFile

VERBS = (
    "init",
    "run",
    "validate",
    "explain",
    "test",
    "status",
    "tail",
    "audit",
    "stop",
    "pause",
    "resume",
    "restart",
    "replay",
    "rebuild",
    "rewind",
    "reset",
    "accept-target",
    "recover",
    "prune",
    "compact",
    "vacuum",
    "services",
    "plugin",
    "ui",
    "doctor",
    "demo",
)
GOOD = """
version: 1
name: tiny
sources:
  src:
    type: clickhouse
    table_name: here
sinks:
  out:
    type: blackhole
    from: src
"""
BAD = GOOD.replace("blackhole", "blackhol").replace("table_name", "tabel_name")


WRONG_USAGE = [
    ("fly",),
    ("run",),
    ("run", "x.yaml", "--until", "tomorrow"),
    ("replay", "x.yaml", "--sink", "s", "--from", "0"),
    ("audit", "--nope"),
    ("accept-target", "x.yaml"),
    ("recover",),
    ("validate",),
    ("validate", "x.yaml", "--schema"),
    ("validate", "--fix", "--schema"),
]


def clean_environment() -> dict[str, str]:
    return {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("HEADRACE", "STREAMLING", "COLUMNS", "NO_COLOR"))
    }


def headrace(*args: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return run_command(*args, env=clean_environment() | env, cwd=cwd)


def in_one_process(
    commands: list[tuple[str, ...]], folder: Path, **env: str
) -> dict[tuple[str, ...], Answer]:
    return run_commands(commands, cwd=folder, env=clean_environment() | env)


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(GOOD)
    return path


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, ...], Answer]:
    """The help of every verb, and what wrong usage ends with."""
    commands = [*((verb, "--help") for verb in VERBS), *WRONG_USAGE]
    return in_one_process(commands, tmp_path_factory.mktemp("commands"))


def test_help_names_every_verb_and_fits_eighty_columns(tmp_path: Path) -> None:
    result = headrace("--help", cwd=tmp_path)
    assert result.returncode == 0
    assert re.findall(r"^  ([a-z][a-z-]+)  ", result.stdout, re.MULTILINE) == list(VERBS)
    assert "..." not in result.stdout.split("Commands:")[1]
    assert max(len(line) for line in result.stdout.splitlines()) <= 80


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_a_verb_fits_eighty_columns(verb: str, answers: dict[tuple[str, ...], Answer]) -> None:
    result = answers[verb, "--help"]
    assert (result.code, result.errors) == (0, "")
    assert result.out.startswith(f"Usage: headrace {verb}")
    assert max(len(line) for line in result.out.splitlines()) <= 80


def test_help_imports_nothing_heavy() -> None:
    heavy = "{'pydantic', 'pyspark', 'dagster', 'pyarrow', 'rich', 'ruamel', 'sqlglot', 'pandas'}"
    code = f"import sys, headrace.cli; print(sorted({heavy} & set(sys.modules)))"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )


def test_version(tmp_path: Path) -> None:
    assert re.fullmatch(r"headrace \d+\.\d+\.\d+\n", headrace("--version", cwd=tmp_path).stdout)


@pytest.mark.parametrize("args", WRONG_USAGE)
def test_wrong_usage_is_exit_code_2(args: tuple[str, ...], answers: dict[tuple[str, ...], Answer]) -> None:
    result = answers[args]
    assert result.code == 2
    assert "Traceback" not in result.errors


@pytest.mark.parametrize(
    "args", [("--job-mode", "--until", "forever"), ("--partition", "2013-01-01", "--until", "caught-up")]
)
def test_options_that_contradict_each_other_are_wrong_usage(args: tuple[str, ...], good: Path) -> None:
    assert headrace("run", str(good), *args, cwd=good.parent).returncode == 2


def test_windows_are_checked_against_the_file(good: Path) -> None:
    result = headrace("run", str(good), "--partition", "2013-01-01", cwd=good.parent)
    assert result.returncode == 1
    assert "has no `partitions`" in result.stderr
    good.write_text(f"{GOOD}partitions: {{column: at, start: 2013-01, end: 2013-04}}\n")
    result = headrace("run", str(good), "--partition", "2013-05-01", cwd=good.parent)
    assert result.returncode == 1
    assert "`2013-05-01` is not a partition" in result.stderr
    assert "2013-01-01 to 2013-03-01" in result.stderr


def test_every_mistake_of_a_file_has_its_place(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text(BAD)
    result = headrace("validate", "bad.yaml", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (1, "")
    errors = [line for line in result.stderr.splitlines() if line.startswith("error[HR101]: ")]
    assert [line.split(" ")[1] for line in errors] == ["bad.yaml:7:5:", "bad.yaml:10:5:"]
    assert "did you mean `table_name`?" in result.stderr
    assert "\x1b" not in result.stderr


def test_only_tables_of_files_are_maintained(good: Path) -> None:
    of_all = [(verb, str(good), "--dry-run") for verb in ("compact", "vacuum")]
    of_one = [(*command, "--sink", "out") for command in of_all]
    for command, result in in_one_process([*of_all, *of_one], good.parent).items():
        assert result.code == 1
        assert f"{good}:{10 if '--sink' in command else 8}" in result.errors
        assert "blackhole" in result.errors
        assert "Only tables of these types have files to maintain: delta, iceberg." in result.errors


def test_validate_as_json(good: Path) -> None:
    bad = good.with_name("bad.yaml")
    bad.write_text(BAD)
    of_good, of_bad = ("validate", str(good), "--json", "--quick"), ("validate", str(bad), "--json")
    answers = in_one_process([of_good, of_bad], good.parent)
    assert answers[of_good].code == 0
    assert json.loads(answers[of_good].out) == {
        "success": True,
        "is_valid": True,
        "errors": [],
        "warnings": [],
        "problems": [],
        "unchecked": [],
    }
    result = answers[of_bad]
    assert (result.code, result.errors) == (1, "")
    answer = json.loads(result.out)
    assert (answer["success"], answer["is_valid"], len(answer["errors"])) == (True, False, 2)
    assert all(error.startswith(f"{bad}:") for error in answer["errors"])
    assert {problem["line"] for problem in answer["problems"]} == {7, 10}


def test_a_dry_run_says_what_it_could_not_reach_and_leaves_nothing_behind(good: Path) -> None:
    away = {"HEADRACE__CLICKHOUSE_SOURCE__URL": "http://127.0.0.1:1"}
    dry_run, as_json = ("run", str(good), "--dry-run"), ("validate", str(good), "--json")
    answers = in_one_process([dry_run, as_json], good.parent, **away)
    assert answers[dry_run].code == 0
    assert ": valid" in answers[dry_run].out
    assert "unchecked: node 'src': ClickHouse cannot be reached" in answers[dry_run].errors
    answer = json.loads(answers[as_json].out)
    assert [entry["node"] for entry in answer["unchecked"]] == ["src"]
    assert list(good.parent.iterdir()) == [good]


def test_an_older_spelling_is_fixed_in_place(good: Path) -> None:
    good.write_text(
        GOOD.replace("version: 1\n", "").replace("from: src", "from: src  # all\n    batch_size: 5")
    )
    result = headrace("validate", str(good), "--quick", "--fix", cwd=good.parent)
    assert (result.returncode, result.stderr.count("fixed: "), result.stderr.count("warning: ")) == (0, 2, 0)
    assert "version: 1\n" in good.read_text()
    assert "# all" in good.read_text()
    assert "batch_size" not in good.read_text()
    assert list(good.parent.iterdir()) == [good]
    assert "fixed" not in headrace("validate", str(good), "--quick", "--fix", cwd=good.parent).stderr


def test_a_schedule_that_never_fires_is_a_mistake(tmp_path: Path) -> None:
    never, fires = ("0 0 30 2 *", "61 * * * *"), "15 3 * * *"
    crons = {tmp_path / f"{at}.yaml": cron for at, cron in enumerate((*never, fires))}
    for path, cron in crons.items():
        path.write_text(f"{GOOD}schedule: {{cron: '{cron}'}}\n")
    answers = in_one_process(
        [("validate", str(path)) for path in crons],
        tmp_path,
        HEADRACE__CLICKHOUSE_SOURCE__URL="http://127.0.0.1:1",
    )
    for path, cron in crons.items():
        result = answers["validate", str(path)]
        assert result.code == (1 if cron in never else 0)
        message = f"{path}:12:12: cron `{cron}` is not a cron line that can ever fire"
        assert (message in result.errors) is (cron in never)


def test_several_files_are_checked_in_one_go(good: Path) -> None:
    bad = good.parent / "bad.yaml"
    bad.write_text(BAD)
    command = ("validate", str(good), str(bad), "--quick")
    answers = in_one_process([command, (*command, "--json")], good.parent)
    result = answers[command]
    assert result.code == 1
    assert f"{good}: valid (file only)" in result.out
    assert result.errors.count("error[HR101]: ") == 2
    documents = json.loads(answers[(*command, "--json")].out)
    assert [(answer["file"], answer["is_valid"]) for answer in documents] == [
        (str(good), True),
        (str(bad), False),
    ]


def test_a_group_with_wrong_files_names_each_and_starts_nothing(good: Path) -> None:
    for name in ("first", "second"):
        (good.parent / f"{name}.yaml").write_text(BAD.replace("tiny", name))
    done = headrace("run", ".", cwd=good.parent)
    assert done.returncode == 1
    for name in ("first", "second"):
        assert f"{name}.yaml:7:" in done.stderr
    assert "2 of 3 files are wrong. No pipeline was started." in done.stderr
    assert not (good.parent / ".headrace").exists()


def test_the_schema_of_a_file_is_printed_as_json(good: Path) -> None:
    result = headrace("validate", "--schema", cwd=good.parent)
    assert (result.returncode, result.stderr) == (0, "")
    assert json.loads(result.stdout)["title"] == "Headrace pipeline file"


def test_status_of_an_empty_ledger(good: Path) -> None:
    of_all, of_one, as_json = ("status",), ("status", str(good)), ("status", "--json")
    answers = in_one_process([of_all, of_one, as_json], good.parent)
    assert "Nothing has been started yet" in answers[of_all].out
    assert "tiny has not been started yet" in answers[of_one].out
    assert json.loads(answers[as_json].out) == []


def test_a_wrong_setting_is_an_error_and_not_a_traceback(good: Path) -> None:
    result = headrace("status", cwd=good.parent, HEADRACE__LEASE_SECONDS="soon")
    assert result.returncode == 1
    assert result.stderr.startswith("error[HR102]: settings are wrong:\n  lease_seconds")


def test_a_sink_that_is_not_there_is_named_with_those_that_are(good: Path) -> None:
    result = headrace("accept-target", str(good), "--sink", "in", cwd=good.parent)
    assert result.returncode == 1
    assert f"{good}:8:1: `in` is no sink of this pipeline" in result.stderr
    assert "Sinks: out." in result.stderr


def test_a_fault_over_one_file_does_not_hide_what_is_said_of_the_others(
    monkeypatch: pytest.MonkeyPatch, good: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = good.with_name("other.yaml")
    other.write_text(GOOD.replace("tiny", "other"))

    def checked(file: PipelineFile, *_: object) -> preflight.PreflightResult:
        if file.name == "other":
            raise ZeroDivisionError
        return preflight.PreflightResult()

    monkeypatch.setattr(preflight, "check_pipeline", checked)
    monkeypatch.setenv("HEADRACE_HOME", str(good.parent / "home"))
    with pytest.raises(typer.Exit):
        validate.validate([other, good], as_json=False, quick=False)
    output = capsys.readouterr()
    assert output.out.startswith(f"{good}: valid")
    assert "error[HR500]: ZeroDivisionError" in output.err
    assert list((good.parent / "home" / "logs").glob("error-*.log"))


def _main(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception) -> int:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("headrace.commands.inspect.status", fail)
    monkeypatch.setattr(sys, "argv", ["headrace", "status"])
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    with pytest.raises(SystemExit) as left:
        cli.main()
    return int(left.value.code or 0)


def test_an_error_of_ours_is_told_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        _main(monkeypatch, tmp_path, PipelineStateError("the lane is [odd]", hint="Look at it.", node="out"))
        == 1
    )
    assert (
        capsys.readouterr().err
        == "error[HR200]: node 'out': the lane is [odd]\n  Look at it.\nSee docs/reference/errors.md#hr200\n"
    )


def test_an_unexpected_error_is_one_line_and_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _main(monkeypatch, tmp_path, ZeroDivisionError("division by nothing\nat all")) == 1
    first, second = capsys.readouterr().err.splitlines()
    assert first == "error[HR500]: ZeroDivisionError: division by nothing"
    path = Path(second.split("written to ")[1].split(". ")[0])
    assert path.parent == tmp_path / "home" / "logs"
    assert "Traceback (most recent call last)" in path.read_text()
