"""Pipelines of sources whose rows are stored once: crashes, and rows that change between two reads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pyarrow as pa
import pytest
from helpers.checkout import ROOT
from helpers.web_server import WebRequest, served
from pyspark.sql import SparkSession

from headrace.connectors import splitting
from headrace.connectors.memory.sink import MemorySink
from headrace.connectors.memory.tables import drop_table, read_table
from headrace.jobs.run.events import RunResult, Until
from headrace.jobs.run.runner import run
from headrace.pipeline.config.settings import Settings, load_settings
from headrace.pipeline.errors import DataError, UserError
from headrace.pipeline.file.loader import load_pipeline
from headrace.pipeline.protocol.ledger import StopAction, open_sqlite

ROWS = 900
HTTP = """\
version: 1
name: staged
sources:
  src:
    type: http
    url: {url}
    pagination: {{by: page}}
    schema: {{id: int64, total: uint256}}
    filter: id % 3 <> 0
sinks:
  out: {{type: memory, from: src}}
epoch: {{history_rows: 200}}
"""
PYTHON = """\
version: 1
name: staged
sources:
  src: {type: python, function: "killed_rows:make_rows", schema: {id: int64}}
sinks:
  out: {type: file, from: src, path: out, format: parquet}
"""
MODULE = """\
import os
import signal
from pathlib import Path

import pyarrow as pa


def make_rows():
    calls = Path("calls")
    calls.write_text(calls.read_text() + "x" if calls.exists() else "x")
    first = len(calls.read_text()) * 1000
    yield pa.table({"id": list(range(first, first + 50))})
    if first == 1000:
        os.kill(os.getpid(), signal.SIGKILL)
    yield pa.table({"id": list(range(first + 50, first + 100))})
"""


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(splitting, "SPLIT_ROWS", 100)
    drop_table("out")
    yield
    drop_table("out")


def snapshots(settings: Settings) -> list[str]:
    folder = settings.staging_folder / "snapshots"
    return sorted(os.listdir(folder)) if folder.exists() else []


def test_an_interrupted_run_goes_on_with_the_pages_that_it_stored(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = 0

    def answer(request: WebRequest) -> Any:
        first = 100 * (int(parse_qs(urlsplit(request.path).query)["page"][0]) - 1)
        return [
            {"id": key + added, "total": str(2**200 + key)} for key in range(first, min(first + 100, ROWS))
        ]

    write, written = MemorySink.write, []

    def fail_once(sink: MemorySink, plan: Any, frame: Any) -> Any:
        written.append(plan.number)
        if len(written) == 2:
            raise DataError("no power", node="out")
        return write(sink, plan, frame)

    state = {"sqlite": {"path": tmp_path / "ledger.db"}}
    settings = Settings.model_validate({"home": tmp_path / "home", "state_backend": state})
    file = tmp_path / "staged.yaml"
    with served(answer) as service:
        file.write_text(HTTP.format(url=service.url))
        service.faults += [None, 404]
        with pytest.raises(UserError, match="page 2: GET"):
            run(load_pipeline(file), settings, until=Until.HISTORY, spark=spark)
        assert snapshots(settings) == []
        monkeypatch.setattr(MemorySink, "write", fail_once)
        with pytest.raises(UserError, match="no power"):
            run(load_pipeline(file), settings, until=Until.HISTORY, spark=spark)
        stored, requests, added = snapshots(settings), len(service.requests), 10_000
        assert len(stored) == 1
        run(load_pipeline(file), settings, until=Until.HISTORY, spark=spark)
        assert len(service.requests) == requests
    rows = read_table("out").to_pylist()
    assert sorted(row["id"] for row in rows) == [key for key in range(ROWS) if key % 3]
    assert all(int(row["total"]) == 2**200 + row["id"] for row in rows)
    assert len(written) > 3
    assert snapshots(settings) == stored


def request_stop(ledger: Path) -> None:
    """As `headrace stop` does."""
    opened = open_sqlite(ledger)
    assert opened.request_stop("staged", StopAction.STOP, by="a test", reason="") is not None
    opened.close()


BLOCKED = """\
version: 1
name: staged
sources:
  src: {type: python, function: "blocked_rows:make_rows", schema: {id: int64, total: string}}
sinks:
  out: {type: memory, from: src}
"""


@pytest.mark.parametrize("kind", ["http", "python"])
def test_a_stop_does_not_wait_for_a_blocked_page(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The run ends while the fourth page of many does not come, and stores nothing of the others."""
    blocked, release, stop = threading.Event(), threading.Event(), threading.Event()

    def page(number: int) -> list[dict[str, Any]]:
        if number == 4 and not release.is_set():
            blocked.set()
            assert release.wait(600)
        first = 100 * (number - 1)
        return [{"id": key, "total": str(key)} for key in range(first, min(first + 100, ROWS))]

    def make_rows() -> Iterator[pa.Table]:
        for number in range(1, 1 + ROWS // 100):
            yield pa.Table.from_pylist(page(number))

    module: Any = ModuleType("blocked_rows")
    module.make_rows = make_rows
    monkeypatch.setitem(sys.modules, "blocked_rows", module)
    settings = Settings.model_validate(
        {
            "home": tmp_path / "home",
            "state_backend": {"sqlite": {"path": tmp_path / "ledger.db"}},
            "python_transforms": {"allow": ["blocked_rows"]},
        }
    )
    file = tmp_path / "staged.yaml"
    results: list[RunResult] = []

    def run_it() -> None:
        results.append(run(load_pipeline(file), settings, until=Until.HISTORY, spark=spark, stop=stop))

    def answer(request: WebRequest) -> Any:
        return page(int(parse_qs(urlsplit(request.path).query)["page"][0]))

    with served(answer) as service:
        http = HTTP.replace("    filter", "    timeout: 30m\n    filter").format(url=service.url)
        file.write_text(http if kind == "http" else BLOCKED)
        running = threading.Thread(target=run_it)
        running.start()
        assert blocked.wait(300)
        if kind == "http":
            request_stop(tmp_path / "ledger.db")
        else:
            stop.set()
        running.join(300)
        assert not running.is_alive(), "the run waits for the page"
        (stopped,) = results
        assert (stopped.stop_reason, stopped.epochs, stopped.history_complete) == (
            "stop" if kind == "http" else "signal",
            0,
            False,
        )
        assert stopped.pipeline
        assert snapshots(settings) == []
        release.set()
        stop.clear()
        run_it()
    assert results[-1].history_complete
    result = sorted(row["id"] for row in read_table("out").to_pylist())
    assert result == [key for key in range(ROWS) if kind == "python" or key % 3]


def test_a_process_that_dies_in_the_function_leaves_no_row_of_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "killed_rows.py").write_text(MODULE)
    (tmp_path / "staged.yaml").write_text(PYTHON)
    run_it = [sys.executable, "-m", "headrace", "run", "staged.yaml"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HEADRACE__PYTHON_TRANSFORMS__ALLOW", "killed_rows")
    settings = load_settings()
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{tmp_path}"}
    dead = subprocess.run(run_it, env=environment, capture_output=True, check=False)
    assert dead.returncode == -signal.SIGKILL, dead.stderr.decode()[-2000:]
    assert len(snapshots(settings)) == 1
    run(load_pipeline("staged.yaml"), settings, until=Until.HISTORY, spark=spark)
    assert len(snapshots(settings)) == 1, "the attempt of the dead process is removed"
    ids = spark.read.parquet(str(tmp_path / "out")).toArrow()["id"].to_pylist()
    assert sorted(ids) == list(range(2000, 2100))
    assert (tmp_path / "calls").read_text() == "xx"
