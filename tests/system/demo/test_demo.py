"""The demo as a user runs it: the first time, again, with changed rows, and its removal."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import dagster as dg
import psutil
import pytest
from helpers.depth import FULL

pytestmark = pytest.mark.timeout(2400)


def demo(home: Path, folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    env = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("HEADRACE_", "STREAMLING_", "FLIGHTS_", "DAGSTER_"))
    }
    env |= {
        "HEADRACE_HOME": str(home),
        "HEADRACE__SPARK__MASTER": "local[2]",
        "HEADRACE__SPARK__DRIVER_MEMORY": "1g",
    }
    command = [sys.executable, "-m", "headrace", "demo", *args]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


def _is_of(process: psutil.Process, home: Path) -> bool:
    """Return whether a process has this home: other workers run demos at the same time."""
    try:
        return process.environ().get("HEADRACE_HOME") == str(home)
    except psutil.NoSuchProcess:
        return False


def check_again(home: Path, folder: Path) -> None:
    """The demo resumes, and finds and repairs a row that was changed without it."""
    again = demo(home, folder, "--tamper")
    assert again.returncode == 0, again.stdout + again.stderr
    assert "Nothing to do" in again.stdout
    assert "kill -9 -" not in again.stdout
    (row,) = re.findall(r"without Headrace: (.+)$", again.stdout, re.MULTILINE)
    assert f"Delta has, and Postgres has not: {row}\n" in again.stdout
    assert "FAIL row_count_matches of flights_pg" in again.stdout
    assert again.stdout.rindex("found and repaired") > again.stdout.rindex("FAIL")


@pytest.mark.sampled
def test_the_whole_story(fresh_home: Path, tmp_path: Path) -> None:
    first = demo(fresh_home, tmp_path)
    assert first.returncode == 0, first.stdout + first.stderr
    assert max(len(line) for line in first.stdout.splitlines() if str(fresh_home) not in line) <= 80
    assert len(re.findall(r"^kill -9 -\d+: ", first.stdout, re.MULTILINE)) == 1
    epochs = re.findall(r"^  (?:Postgres|Delta) +holds epoch (\d+), [\d,]+ rows$", first.stdout, re.MULTILINE)
    assert len(epochs) == 2
    assert abs(int(epochs[0]) - int(epochs[1])) <= 1
    assert len(re.findall(r"^  2013-\d\d is in both sinks", first.stdout, re.MULTILINE)) == 11
    assert len(re.findall(r"^(?:Postgres|Delta) +336,461 +0 +0 +0$", first.stdout, re.MULTILINE)) == 2
    assert len(re.findall(r"^  ok   ", first.stdout, re.MULTILINE)) == 6
    assert "every check passed" in first.stdout
    with dg.DagsterInstance.from_config(str(tmp_path / ".dagster")) as instance:
        statuses = [run.status.value for run in instance.get_runs()]  # the newest first
    assert statuses == ["SUCCESS", "FAILURE", "SUCCESS"], "the killed run is not shown as running"

    if FULL:  # daily: tests/integration/end_to_end/test_checks.py finds such a row, and repairs it
        check_again(fresh_home, tmp_path)
    assert not [
        process
        for process in psutil.process_iter(["cmdline"])
        if "headrace.demo.dagster_run" in (process.info["cmdline"] or []) and _is_of(process, fresh_home)
    ]

    clean = demo(fresh_home, tmp_path, "--clean")
    assert clean.returncode == 0, clean.stdout + clean.stderr
    assert not fresh_home.exists()
    fresh_home.mkdir()


def test_clean_keeps_a_home_with_other_pipelines(fresh_home: Path, tmp_path: Path) -> None:
    from headrace.pipeline.protocol.ledger.sqlite import open_sqlite

    ledger = open_sqlite(fresh_home / "ledger.db")
    ledger.release(ledger.acquire("mine", "main", {"host": "here"}, 15.0))
    ledger.close()
    result = demo(fresh_home, tmp_path, "--clean")
    assert result.returncode == 1
    assert "ledger of mine" in result.stderr
    assert (fresh_home / "ledger.db").exists()
