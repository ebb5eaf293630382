"""Stopping: a signal asks the work to end, and nothing of ours outlives the command."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self, TypeVar

import psutil

log = logging.getLogger(__name__)

T = TypeVar("T")

LIMIT_SECONDS = 28.0
"""An epoch in flight has 25 s to finish or be given up; two more for Spark to stop; the last two are for the way out."""


class Stopper:
    """Turns SIGTERM and SIGINT into an event. Use as a context, in the main thread.

    If the work has not ended `LIMIT_SECONDS` after the first signal, all child processes are killed and the process ends
    with exit code 0: an epoch that was given up is finished by the next run.
    """

    def __init__(self, on_signal: Callable[[str], None] | None = None) -> None:
        self.event = threading.Event()
        self._on_signal = on_signal
        self._watchdog: threading.Timer | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._asked)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        end_children()
        if self._watchdog:
            self._watchdog.cancel()

    def _asked(self, number: int, _frame: object) -> None:
        if self.event.is_set():
            return
        self.event.set()
        self._watchdog = threading.Timer(LIMIT_SECONDS, _last_resort)
        self._watchdog.daemon = True
        self._watchdog.start()
        if self._on_signal:
            self._on_signal(signal.Signals(number).name)

    def call(self, work: Callable[[], T]) -> T:
        """Runs `work` in a thread of its own, so that the main thread is free to hear signals (Spark takes SIGINT for itself there)."""
        result: list[T] = []
        failure: list[BaseException] = []

        def body() -> None:
            try:
                result.append(work())
            except BaseException as error:  # noqa: BLE001  it is raised again in the main thread
                failure.append(error)

        thread = threading.Thread(target=body, name="headrace-work", daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(timeout=0.2)
        if failure:
            raise failure[0]
        return result[0]


def _last_resort() -> None:
    log.error("stop=forced seconds=%.0f children=killed", LIMIT_SECONDS)
    kill_children()
    os._exit(0)


def end_children(grace: float = 2.0) -> None:
    """Waits for child processes that are ending, then terminates and at last kills what is left."""
    children = _children()
    if not children:
        return
    _, left = psutil.wait_procs(children, timeout=grace)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    if left:
        psutil.wait_procs(left, timeout=grace)
        kill_children()


def kill_children() -> None:
    """Kills every descendant of this session, whatever process group it is in, and sees them gone."""
    children = _children()
    for process in children:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(children, timeout=1.0)


def _children() -> list[psutil.Process]:
    """Descendants in the session of this process: the JVM and its workers. Servers have sessions of their own, and stay."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(ProcessLookupError):
            if os.getsid(process.pid) == os.getsid(0):
                found.append(process)
    return found
