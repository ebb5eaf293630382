"""Runs a command of Headrace and kills the process at one of its durable writes.

The arguments of `main` are NTH WHEN COMMAND... NTH counts the commits of the ledger and of Postgres targets in
this process, WHEN is `before` or `after`. The last line of output is `killed` or `finished`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from headrace import cli
from headrace.pipeline.protocol.ledger.sqlite import SqliteStore


class CommitCounter:
    """Counts commits, and kills the process before or after one of them."""

    def __init__(self, nth: int, when: str) -> None:
        self._nth, self._when = nth, when
        self._commits = 0
        self._lock = threading.Lock()

    @contextmanager
    def commit(self) -> Iterator[None]:
        with self._lock:
            self._commits += 1
            is_due = self._commits == self._nth
        if is_due and self._when == "before":
            self._kill()
        yield
        if is_due:
            self._kill()

    @staticmethod
    def _kill() -> None:
        print("killed", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


def install(counter: CommitCounter) -> None:
    """Count the commits of the ledger and of psycopg's connections."""
    write, commit = SqliteStore.write, psycopg.Connection.commit

    @contextmanager
    def counted_write(self: Any) -> Iterator[Any]:
        # The inner block ends before the commit, so the counter's context is entered first.
        stack = write(self)
        tx = stack.__enter__()
        try:
            yield tx
        except BaseException as error:
            if not stack.__exit__(type(error), error, error.__traceback__):
                raise
            return
        with counter.commit():
            stack.__exit__(None, None, None)

    def counted_commit(self: Any) -> None:
        with counter.commit():
            commit(self)

    SqliteStore.write = counted_write
    psycopg.Connection.commit = counted_commit


def main() -> None:
    """Run the command of `sys.argv`."""
    nth, when, *command = sys.argv[1:]
    install(CommitCounter(int(nth), when))
    sys.argv = ["headrace", *command]
    try:
        cli.main()
    except SystemExit as ended:
        if ended.code:
            raise
    print("finished", flush=True)
