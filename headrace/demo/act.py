"""The pipeline at work in a Dagster process, and the kill in the middle of December."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Self

from rich.status import Status

from headrace.demo.feed import TOPIC
from headrace.demo.flights import messages
from headrace.demo.held import delta_epoch, delta_rows, postgres_epoch, postgres_rows
from headrace.demo.setting import POSTGRES, Setting
from headrace.orchestration.instance import child_environment
from headrace.pipeline.errors import PipelineStateError
from headrace.pipeline.protocol.ledger import PipelineState

KILL_FROM, KILL_BY = 9_000, 13_000
"""How many messages beyond the fence the stream has committed when the kill comes: when one sink is ahead of the other, or at last."""
_LOOK_SECONDS = 0.1
_STOP_SECONDS = 45.0


def run_to_the_end(setting: Setting, stop: threading.Event) -> bool:
    """Carries everything into both sinks, with one kill -9 on the way if it has not been yet. False if it was stopped.

    Raises PipelineStateError when the Dagster process fails by itself.
    """
    setting.feed.start(setting.lane.consumed)
    if "killed_epoch" in setting.kept():
        setting.feed.hurry()
    try:
        while not stop.is_set():
            process = _started(setting)
            with _Watch(setting, process, stop) as watch:
                killed = watch.until_it_ends()
            if stop.is_set():
                break
            if not killed and process.returncode:
                raise _failed(setting)
            if not killed and setting.lane.consumed() >= len(messages()):
                setting.feed.finish()
                return True
    finally:
        setting.feed.stop()
    return False


def _started(setting: Setting) -> subprocess.Popen[bytes]:
    """Dagster in a session, and so in a process group, of its own, with the JVM that it starts."""
    path = _log(setting.home)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "headrace.demo.dagster_run", setting.file.path, *setting.months],
            env=child_environment(setting.home, Path(setting.file.path)),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _log(home: Path) -> Path:
    return home / "logs" / "demo.log"


def _failed(setting: Setting) -> PipelineStateError:
    path = _log(setting.home)
    said = re.findall(r"^headrace\.pipeline\.errors\.\w+: (.+)$", path.read_text(errors="replace"), re.MULTILINE)
    why = said[-1] if said else "it says why in its log"
    return PipelineStateError(f"the Dagster process failed: {why}", hint=f"Everything that it said is in {path}.")


class _Watch:
    """Watches one Dagster process through the ledger and says what happens."""

    def __init__(self, setting: Setting, process: subprocess.Popen[bytes], stop: threading.Event) -> None:
        self._setting = setting
        self._process = process
        self._stop = stop
        self._said_months = set(setting.lane.months())
        self._said_handoff = bool(setting.lane.fence()) and setting.lane.has_history()
        self._status: Status = setting.console.status("Dagster is starting")

    def __enter__(self) -> Self:
        self._status.start()
        self._setting.console.print(f"Dagster runs the pipeline, pid {self._process.pid}.")
        return self

    def __exit__(self, *_: object) -> None:
        self._status.stop()
        if self._process.poll() is None:
            self._end()

    def until_it_ends(self) -> bool:
        """True if it was killed by us."""
        may_kill = "killed_epoch" not in self._setting.kept()
        while self._process.poll() is None and not self._stop.is_set():
            state = self._setting.lane.state()
            if state:
                self._say(state)
                if may_kill and self._now(state):
                    self._kill(state)
                    return True
            self._stop.wait(_LOOK_SECONDS)
        return False

    def _say(self, state: PipelineState) -> None:
        lane, console = self._setting.lane, self._setting.console
        for month in lane.months():
            if month not in self._said_months:
                self._said_months.add(month)
                console.print(f"  {month[:7]} is in both sinks, epoch {lane.last_epoch_of(month)}")
        if lane.has_history() and not self._said_handoff:
            self._said_handoff = True
            console.print(f"History is complete. The stream of topic {TOPIC} begins at message {lane.fence():,}:")
            console.print("the table holds those before it.")
        doing = f"epoch {state.open_plan.number} is on its way" if state.open_plan else f"epoch {state.committed} is committed"
        done = f"{len(lane.months())} of 11 months" if not lane.has_history() else f"{lane.consumed():,} of {len(messages()):,} messages"
        self._status.update(f"{doing}, {done}")

    def _now(self, state: PipelineState) -> bool:
        """In the middle of December and of an epoch: best while one sink holds it and the other does not."""
        beyond = self._setting.lane.consumed() - self._setting.lane.fence()
        if not (self._setting.lane.has_history() and state.open_plan and beyond >= KILL_FROM):
            return False
        return beyond >= KILL_BY or self._epochs(state)[0] != self._epochs(state)[1]

    def _epochs(self, state: PipelineState) -> tuple[int | None, int | None]:
        setting = self._setting
        return postgres_epoch(setting.file, setting.settings, state.pipeline, POSTGRES), delta_epoch(setting.delta)

    def _kill(self, state: PipelineState) -> None:
        setting = self._setting
        self._status.stop()
        number = state.open_plan.number if state.open_plan else state.committed + 1
        setting.console.print(f"[bold red]kill -9 -{self._process.pid}[/]: Dagster, Spark's driver and JVM, in epoch {number}.")
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        setting.keep(killed_epoch=number)
        setting.feed.hurry()  # the rest of December arrives while Dagster starts again
        postgres, delta = self._epochs(state)
        ledger = setting.lane.state() or state
        setting.console.print(f"  Postgres holds epoch {postgres}, {postgres_rows(setting.services):,} rows")
        setting.console.print(f"  Delta    holds epoch {delta}, {delta_rows(setting.delta):,} rows")
        setting.console.print(f"  ledger: epoch {ledger.committed} committed, epoch {number} planned")
        setting.console.print("Once more, from where each of them stands:")

    def _end(self) -> None:
        """Asks the process to stop; it finishes or gives up its epoch. Kills it if it does not."""
        self._process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + _STOP_SECONDS
        while self._process.poll() is None and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
