"""Runs the pipeline in a Dagster process, and kills it in the middle of December."""

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

from headrace.demo.environment import POSTGRES, DemoEnvironment
from headrace.demo.flights import messages
from headrace.demo.producer import TOPIC
from headrace.demo.targets import count_delta_rows, count_postgres_rows, delta_epoch, postgres_epoch
from headrace.jobs.run.events import Until
from headrace.orchestration.instance import child_environment
from headrace.pipeline.errors import PipelineStateError
from headrace.pipeline.protocol.ledger import PipelineState

KILL_FROM, KILL_BY = 9_000, 13_000
"""Committed stream messages at the kill: the first if one sink is ahead, the second in any case."""
_POLL_SECONDS = 0.1
_STOP_SECONDS = 45.0


def run_until_complete(environment: DemoEnvironment, stop: threading.Event) -> bool:
    """Load everything into both sinks, with one kill -9 on the way unless it was done.

    Return False if stopped.

    Raise PipelineStateError if the Dagster process fails by itself.
    """
    environment.producer.start(environment.progress.count_consumed)
    try:
        while not stop.is_set():
            may_kill = "killed_epoch" not in environment.load_state()
            if not may_kill:
                environment.producer.stop_pacing()
                environment.producer.finish()  # all of December is there, so the run catches up once
            process = _start_dagster(environment, Until.FOREVER if may_kill else Until.CAUGHT_UP)
            with _RunWatcher(environment, process, stop, may_kill=may_kill) as watcher:
                killed = watcher.wait()
            if stop.is_set() or killed:
                continue
            if process.returncode:
                raise _process_error(environment)
            if not may_kill:
                return True
    finally:
        environment.producer.stop()
    return False


def _start_dagster(environment: DemoEnvironment, until: Until) -> subprocess.Popen[bytes]:
    """Start Dagster in a new session, and so in a new process group, with the JVM that it starts."""
    path = _log_path(environment.home)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as output:
        return subprocess.Popen(
            [
                sys.executable,
                "-m",
                "headrace.demo.dagster_run",
                environment.file.path,
                *environment.history_range,
                until,
            ],
            env=child_environment(environment.home, Path(environment.file.path)),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _log_path(home: Path) -> Path:
    return home / "logs" / "demo.log"


def _process_error(environment: DemoEnvironment) -> PipelineStateError:
    path = _log_path(environment.home)
    messages = re.findall(
        r"^headrace\.pipeline\.errors\.\w+: (.+)$", path.read_text(errors="replace"), re.MULTILINE
    )
    reason = messages[-1] if messages else "the reason is in its log"
    return PipelineStateError(f"the Dagster process failed: {reason}", hint=f"Its output is in {path}.")


class _RunWatcher:
    """Watches a Dagster process through the ledger, and prints its progress."""

    def __init__(
        self,
        environment: DemoEnvironment,
        process: subprocess.Popen[bytes],
        stop: threading.Event,
        *,
        may_kill: bool,
    ) -> None:
        self._environment = environment
        self._process = process
        self._stop = stop
        self._may_kill = may_kill
        self._printed_months = set(environment.progress.completed_months())
        self._printed_handoff = (
            bool(environment.progress.handoff_offset()) and environment.progress.is_history_complete()
        )
        self._status: Status = environment.console.status("Dagster is starting")

    def __enter__(self) -> Self:
        self._status.start()
        self._environment.console.print(f"Dagster runs the pipeline, pid {self._process.pid}.")
        return self

    def __exit__(self, *_: object) -> None:
        self._status.stop()
        if self._process.poll() is None:
            self._stop_process()

    def wait(self) -> bool:
        """Wait until the process ends. Return True if this object killed it."""
        while self._process.poll() is None and not self._stop.is_set():
            state = self._environment.progress.state()
            if state:
                self._print_progress(state)
                if self._may_kill and self._is_kill_due(state):
                    self._kill(state)
                    return True
            self._stop.wait(_POLL_SECONDS)
        return False

    def _print_progress(self, state: PipelineState) -> None:
        progress, console = self._environment.progress, self._environment.console
        for month in progress.completed_months():
            if month not in self._printed_months:
                self._printed_months.add(month)
                console.print(f"  {month[:7]} is in both sinks, epoch {progress.last_epoch_of(month)}")
        if progress.is_history_complete() and not self._printed_handoff:
            self._printed_handoff = True
            console.print(
                f"History is complete. The stream of topic {TOPIC} begins at message"
                f" {progress.handoff_offset():,}:"
            )
            console.print("the table holds those before it.")
        activity = (
            f"epoch {state.open_plan.number} is on its way"
            if state.open_plan
            else f"epoch {state.committed} is committed"
        )
        share = (
            f"{len(progress.completed_months())} of 11 months"
            if not progress.is_history_complete()
            else f"{progress.count_consumed():,} of {len(messages()):,} messages"
        )
        self._status.update(f"{activity}, {share}")

    def _is_kill_due(self, state: PipelineState) -> bool:
        """Return whether an epoch of December is open, at best while only one sink has it.

        The stream runs without an end until the kill, so one that consumed all of December is killed as well.
        """
        consumed = self._environment.progress.count_consumed()
        if consumed >= len(messages()):
            return True
        beyond = consumed - self._environment.progress.handoff_offset()
        if not (self._environment.progress.is_history_complete() and state.open_plan and beyond >= KILL_FROM):
            return False
        return beyond >= KILL_BY or self._sink_epochs(state)[0] != self._sink_epochs(state)[1]

    def _sink_epochs(self, state: PipelineState) -> tuple[int | None, int | None]:
        environment = self._environment
        return postgres_epoch(environment.file, environment.settings, state.pipeline, POSTGRES), delta_epoch(
            environment.delta_path
        )

    def _kill(self, state: PipelineState) -> None:
        environment = self._environment
        self._status.stop()
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        ledger = environment.progress.state() or state  # an epoch can end before the signal arrives
        number = ledger.open_plan.number if ledger.open_plan else ledger.committed + 1
        environment.save_state(killed_epoch=number)
        environment.console.print(
            f"[bold red]kill -9 -{self._process.pid}[/]: Dagster, Spark's driver and JVM, in epoch {number}."
        )
        postgres, delta = self._sink_epochs(state)
        environment.console.print(
            f"  Postgres holds epoch {postgres}, {count_postgres_rows(environment.services):,} rows"
        )
        environment.console.print(
            f"  Delta    holds epoch {delta}, {count_delta_rows(environment.delta_path):,} rows"
        )
        planned = f"epoch {number} planned" if ledger.open_plan else "none planned"
        environment.console.print(f"  ledger: epoch {ledger.committed} committed, {planned}")
        environment.console.print("Start again, from the state of each target:")

    def _stop_process(self) -> None:
        """Stop the process, which finishes or abandons its epoch. Kill it if it does not end."""
        self._process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + _STOP_SECONDS
        while self._process.poll() is None and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
