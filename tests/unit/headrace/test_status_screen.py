"""`headrace status --watch`, over a real ledger and a fake clock."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console

from headrace.commands.watch import PipelineStatusLine, StatusWatcher, build_table, format_age, format_lines
from headrace.connectors.ledger.factory import open_ledger
from headrace.pipeline.config.sections import SqliteBackend, StateBackend
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.protocol.epochs import EpochPlan, Json, Phase, WriteCounts
from headrace.pipeline.protocol.ledger import Lease, Ledger


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    result = open_ledger(
        Settings(home=tmp_path, state_backend=StateBackend(sqlite=SqliteBackend(path=tmp_path / "ledger.db")))
    )
    yield result
    result.close()


class Lane:
    """A lane that does as it is told."""

    def __init__(self, ledger: Ledger, name: str) -> None:
        self.ledger, self.number = ledger, 0
        self.lease: Lease = ledger.acquire(
            name, "main", {"host": "box", "pid": 7, "launched_by": "cli"}, 60.0
        )
        ledger.begin(self.lease, lambda: {"src": {}})
        ledger.set_sink(self.lease, "out", "joined", 0)

    def plan(self) -> None:
        self.number += 1
        self.ledger.plan(
            self.lease,
            EpochPlan(self.number, Phase.LIVE, {"src": {}}, {"src": {}}, "hash", datetime.now(UTC)),
            {"a": 1},
        )

    def commit(self, rows: int) -> None:
        self.plan()
        self.ledger.commit(self.lease, self.number, {"out": WriteCounts(rows)})

    def says(self, **progress: object) -> None:
        self.ledger.heartbeat(self.lease, 60.0, Json(progress))


def test_rows_per_second_are_those_of_the_last_seconds(ledger: Ledger) -> None:
    now = [100.0]
    lane, watcher = Lane(ledger, "shop"), StatusWatcher(ledger, None, lambda: now[0])
    lane.commit(1_000_000)
    (first,) = watcher.read_status()
    assert (first.epoch, first.rate) == (1, None)
    now[0] += 2
    lane.commit(300)
    lane.commit(100)
    lane.says(phase="catching_up", backlog=12_345)
    (view,) = watcher.read_status()
    assert (view.phase, view.epoch, view.rate, view.backlog, view.owner, view.error) == (
        "live",
        3,
        200.0,
        12_345,
        "cli 7@box",
        "",
    )
    assert view.age is not None
    now[0] += 20
    assert watcher.read_status()[0].rate == 0.0


def test_requests_for_a_refresh_are_shown_until_they_are_executed(ledger: Ledger) -> None:
    lane, watcher = Lane(ledger, "shop"), StatusWatcher(ledger, None)
    lane.commit(5)
    first = ledger.request_refresh("shop", ["2024-01-01"], by="ann@a")
    ledger.request_refresh("shop", ["2024-02-01", "2024-03-01"], by="bob@b")
    ledger.begin_refresh(lane.lease, first.number, 2)
    (view,) = watcher.read_status()
    running, waiting = view.refreshes
    assert running.startswith("refresh of 2024-01-01 by ann@a, ")
    assert running.endswith(": begun with epoch 2")
    assert waiting.startswith("refresh of 2024-02-01, 2024-03-01 by bob@b, ")
    assert waiting.endswith(": queued")
    assert f", {running}, {waiting}" in format_lines([view])[0]
    console = Console(width=120, file=io.StringIO(), record=True)
    console.print(build_table([view]))
    assert f"shop: {waiting}" in console.export_text()
    for request in ledger.pending_refreshes("shop"):
        ledger.end_refresh(lane.lease, request.number, 3)
    assert watcher.read_status()[0].refreshes == ()


def test_what_went_wrong_last_and_who_stopped(ledger: Ledger) -> None:
    lane, watcher = Lane(ledger, "shop"), StatusWatcher(ledger, None)
    assert watcher.read_status()[0].phase == "starting"
    lane.plan()
    lane.ledger.record_failure(lane.lease, 1, "out", "TargetError: no such table")
    (view,) = watcher.read_status()
    assert (view.phase, view.epoch, view.error) == ("live", 0, "out: TargetError: no such table")
    ledger.release(lane.lease)
    (view,) = watcher.read_status()
    assert (view.phase, view.owner, view.rate, view.backlog) == ("stopped", "-", None, None)
    assert StatusWatcher(ledger, "other").read_status() == []


WIDE = [
    PipelineStatusLine(
        "flights",
        "catching up",
        12_345,
        1_234_567.4,
        98_765_432,
        3.2,
        "dagster 123456@a-host-with-a-long-name.internal",
    ),
    PipelineStatusLine("a_pipeline_with_a_very_long_name", "stopped", 7, None, None, None, "-"),
    PipelineStatusLine(
        "orders",
        "live",
        99,
        0.0,
        0,
        90_000.0,
        "cli 77@box",
        "blocked at epoch 100, node 'pg', after 3 equal failures: " + "x" * 200,
    ),
    PipelineStatusLine(
        "shop",
        "live",
        5,
        0.0,
        50,
        70.0,
        "cli 78@box",
        waiting="scored: POST http://service/score: tried 9 times in 60 s, and again; " + "x" * 99,
    ),
]


def test_the_screen_fits_eighty_columns() -> None:
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(build_table(WIDE))
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= 80
    for word in (
        "flights",
        "catching up",
        "12345",
        "1.23 M",
        "98.8 M",
        "3 s",
        "dagster 123456@",
        "stopped",
        "orders: blocked at epoch 100",
        "shop: waiting for scored: POST http://service/score: tried 9 times in 60 s",
    ):
        assert word in text
    assert len(text.splitlines()) == 7


def test_lines_for_where_there_is_no_terminal() -> None:
    lines = format_lines(WIDE)
    assert (
        "flights: catching up, epoch 12345, 1,234,567 rows/s, backlog 98,765,432, last commit 3 s ago,"
        " dagster 123456@"
    ) in lines[0]
    assert lines[1].endswith(" a_pipeline_with_a_very_long_name: stopped, epoch 7, -")
    assert "error: blocked at epoch 100" in lines[2]
    assert ", cli 78@box, waiting for scored: POST" in lines[3]


def test_a_pipeline_that_was_never_started_is_not_an_empty_ledger(ledger: Ledger) -> None:
    assert StatusWatcher(ledger, None).empty_message == "Nothing has been started yet: the ledger is empty"
    Lane(ledger, "shop").commit(5)
    watcher = StatusWatcher(ledger, "orders")
    assert watcher.read_status() == []
    assert format_lines([], watcher.empty_message)[0].endswith(" orders has not been started yet")
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(build_table([], watcher.empty_message))
    assert console.export_text().strip() == "orders has not been started yet."


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0.4, "0 s"), (59, "59 s"), (61, "1 min"), (7200, "2 h"), (200_000, "2 d")],
)
def test_ages(seconds: float | None, text: str) -> None:
    assert format_age(seconds) == text


def test_ctrl_c_ends_it_cleanly(ledger: Ledger, tmp_path: Path) -> None:
    Lane(ledger, "shop").commit(5)
    env = {
        key: value for key, value in os.environ.items() if not key.startswith(("HEADRACE__", "STREAMLING"))
    } | {"HEADRACE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "headrace", "status", "--watch", "--interval", "0.2"]
    process = subprocess.Popen(
        command,
        env=env,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell starts background jobs, and so these tests, with the signal ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509  one call of the system
    )
    assert process.stdout
    lines = [process.stdout.readline() for _ in range(2)]
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=300)
    assert all("shop: live, epoch 1" in line for line in lines)
    assert (process.returncode, errors) == (0, "")
