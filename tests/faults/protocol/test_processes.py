"""Leases between real processes.

Races, kill -9, and a run that is stopped and goes on after another has taken over.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from helpers.checkout import ROOT

from headrace.pipeline.protocol.ledger import open_sqlite

PROGRAM = ROOT / "tests/helpers/lease_owner_process.py"


class Run:
    """A run in a process of its own, heard through its output."""

    def __init__(self, folder: Path, ttl: float = 30.0, *, jvm: bool = False) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(folder), str(ttl), "jvm" if jvm else ""],
            stdout=subprocess.PIPE,
            text=True,
        )

    def hear(self, *words: str) -> dict:
        """The next line that has one of these words."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if any(word in (message := json.loads(line)) for word in words):
                return message
        pytest.fail(f"the run ended (exit code {self.process.wait()}) without a word of {words}")

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator:
    runs: list[Run] = []

    def starting(**how) -> Run:
        runs.append(Run(tmp_path, **how))
        return runs[-1]

    yield starting
    for run in runs:
        run.end()


def test_of_many_that_race_for_a_lane_one_gets_it(start):
    messages = [run.hear("opened", "error") for run in [start() for _ in range(4)]]
    assert sum("opened" in words for words in messages) == 1
    assert [words["error"] for words in messages if "error" in words] == ["LeaseHeldError"] * 3


def test_a_killed_run_is_followed_at_once(start, tmp_path):
    first = start(ttl=3600.0)
    generation = first.hear("opened")["opened"]
    first.hear("committed")
    first.signal(signal.SIGKILL)
    first.process.wait()
    second = start(ttl=3600.0)
    assert second.hear("opened", "error").get("opened", 0) > generation
    second.hear("committed")
    gapless(tmp_path, after=["release", "death"])


def test_the_jvm_of_a_killed_run_is_ended_before_anything_else(start):
    first = start(ttl=3600.0, jvm=True)
    jvm = psutil.Process(first.hear("jvm")["jvm"])
    generation = first.hear("opened")["opened"]
    first.signal(signal.SIGKILL)
    first.process.wait()
    assert jvm.is_running()
    assert jvm.status() != psutil.STATUS_ZOMBIE
    assert start().hear("opened", "error").get("opened", 0) > generation
    assert not jvm.is_running() or jvm.status() == psutil.STATUS_ZOMBIE


def test_a_stopped_run_is_followed_when_its_lease_expires_and_fenced_when_it_goes_on(start, tmp_path):
    first = start(ttl=2.0)
    generation = first.hear("opened")["opened"]
    first.hear("committed")
    first.signal(signal.SIGSTOP)
    assert start().hear("opened", "error")["error"] == "LeaseHeldError", (
        "it may only be paused: its lock is still held"
    )
    deadline = time.monotonic() + 60
    while "error" in (message := (second := start()).hear("opened", "error")):
        assert message["error"] == "LeaseHeldError"
        assert time.monotonic() < deadline, "the lease of the stopped run never expired"
    assert message["opened"] > generation
    second.hear("committed")
    first.signal(signal.SIGCONT)
    assert first.hear("error")["error"] == "FencedError"
    second.hear("committed")
    gapless(tmp_path, after=["release", "expiry"])


def test_a_run_that_is_terminated_while_it_holds_the_lane_leaves_no_lock(start, tmp_path):
    first = start()
    generation = first.hear("opened")["opened"]
    first.hear("committed")
    os.kill(first.process.pid, signal.SIGTERM)
    first.process.wait()
    second = start()
    assert second.hear("opened", "error").get("opened", 0) > generation
    assert len(list((tmp_path / "ledger.db.locks").iterdir())) == 1


def gapless(folder: Path, after: list[str]) -> None:
    """The epochs follow on each other, and the lane changed hands in these ways."""
    ledger = open_sqlite(folder / "ledger.db")
    rows = [row for row in ledger.epochs("orders") if row.committed_at]
    assert [row.plan.number for row in rows] == list(range(1, len(rows) + 1))
    assert all(one.plan.end == other.plan.start for one, other in itertools.pairwise(rows))
    assert [event["data"]["after"] for event in ledger.events("orders") if event["kind"] == "opened"] == after
    ledger.close()
