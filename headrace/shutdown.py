"""Shutdown: a signal or a request stops the work, and no child process outlives the command."""

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
"""An open epoch has 25 s to finish or to be abandoned.

Spark has two seconds to stop; the rest is for the exit.
"""


class GracefulShutdown:
    """Converts SIGTERM and SIGINT into an event. Use it as a context manager in the main thread.

    The work can set the event too. If the work has not ended `LIMIT_SECONDS` after that, all child processes
    are killed and the process exits with code 0. The next run finishes the epoch that was abandoned.
    """

    def __init__(self, on_signal: Callable[[str], None] | None = None) -> None:
        self.event = threading.Event()
        self._on_signal = on_signal
        self._watchdog: threading.Timer | None = None
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._handlers[number] = signal.signal(number, self._handle_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        end_children()
        if self._watchdog:
            self._watchdog.cancel()

    def _handle_signal(self, number: int, _frame: object) -> None:
        if self.event.is_set():
            return
        self.event.set()
        self._limit_time(signal.Signals(number).name)

    def _limit_time(self, cause: str) -> None:
        self._watchdog = threading.Timer(LIMIT_SECONDS, _force_exit)
        self._watchdog.daemon = True
        self._watchdog.start()
        if self._on_signal:
            self._on_signal(cause)

    def run(self, work: Callable[[], T]) -> T:
        """Run `work` in a thread, so that the main thread can receive signals.

        There Spark would take over SIGINT.
        """
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
            if self.event.is_set() and self._watchdog is None:
                self._limit_time("stop requested")
        if failure:
            raise failure[0]
        return result[0]


def _force_exit() -> None:
    log.error("event=stop_forced seconds=%.0f", LIMIT_SECONDS)
    kill_children()
    os._exit(0)


def end_children(grace: float = 2.0) -> None:
    """Wait for child processes that are ending. Terminate, and then kill, the others."""
    children = _children()
    if not children:
        return
    _, remaining = psutil.wait_procs(children, timeout=grace)
    for process in remaining:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    if remaining:
        psutil.wait_procs(remaining, timeout=grace)
        kill_children()


def kill_children() -> None:
    """Kill every descendant of this session in any process group, and wait until they have ended."""
    children = _children()
    for process in children:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(children, timeout=1.0)


def _children() -> list[psutil.Process]:
    """Return the descendants in this process's session: the JVM and its workers.

    Servers have other sessions.
    """
    descendants = []
    for process in psutil.Process().children(recursive=True):
        with suppress(ProcessLookupError):
            if os.getsid(process.pid) == os.getsid(0):
                descendants.append(process)
    return descendants
