"""Processes of the product that are forks of one process, which has imported what they need.

The imports of a command take most of a second of processor time, and the tests start hundreds. A fork has a
session, a folder, an environment and streams of its own, and ends by a real signal or exit, as a process of
`subprocess` does. Tests of the start itself use `subprocess`.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import multiprocessing
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TextIO

_IMPORTED = (
    "clickhouse_connect",
    "confluent_kafka",
    "headrace.connectors.clickhouse.source",
    "headrace.connectors.kafka.source",
    "headrace.connectors.postgres.sink",
    "headrace.jobs.run.runner",
    "headrace.pipeline.config.settings",
    "headrace.pipeline.file.loader",
    "psycopg",
    "rich.console",
    "rich.table",
    "typer",
)
"""Modules of most runs. None reads the environment while it is imported.

The threads of OpenBLAS and jemalloc, which some of them start, begin again in a fork.
"""
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(list(_IMPORTED))

COMMAND = "headrace.cli:main"
"""The command line."""


class ForkedProcess:
    """A running function, with the part of the interface of `subprocess.Popen` that tests use.

    `function` is "module:name". Its arguments are those of `sys.argv`. Standard error goes to `log` if there is
    one.
    """

    def __init__(
        self,
        function: str,
        arguments: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        log: Path | None = None,
    ) -> None:
        self.args = [function, *arguments]
        pipes = [_CONTEXT.Pipe(duplex=False) for _ in range(1 if log else 2)]
        self._output: dict[Connection, bytes] = {reader: b"" for reader, _ in pipes}
        streams = [writer for _, writer in pipes]
        self._process = _CONTEXT.Process(target=_become, args=(self.args, dict(env), cwd, streams, log))
        self._process.start()
        for writer in streams:
            writer.close()
        self.pid = self._process.pid or 0
        self._wait_for_session()

    def _wait_for_session(self) -> None:
        """Return once a signal to the group of the process reaches only this process."""
        with suppress(ProcessLookupError):  # it has ended
            while self.poll() is None and os.getsid(self.pid) != self.pid:
                time.sleep(0.001)

    @property
    def returncode(self) -> int | None:
        """The exit code, or the negative number of the signal. None while the process runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end. Raise subprocess.TimeoutExpired after `timeout` seconds."""
        self._process.join(timeout)
        code = self.returncode
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def communicate(self, timeout: float = 600) -> tuple[str, str]:
        """Read both streams to their ends and wait for the end of the process. A stream into a log is empty."""
        end = time.monotonic() + timeout
        pending = [reader for reader in self._output if not reader.closed]
        while pending:
            ready, _, _ = select.select(pending, [], [], max(0, end - time.monotonic()))
            if not ready:
                raise subprocess.TimeoutExpired(self.args, timeout)
            for reader in ready:
                if chunk := os.read(reader.fileno(), 65536):
                    self._output[reader] += chunk
                else:
                    reader.close()
                    pending.remove(reader)
        self.wait(max(0, end - time.monotonic()))
        out, errors = (text.decode() for text in [*self._output.values(), b""][:2])
        return out, errors

    def send_signal(self, number: int) -> None:
        """Send a signal to the process, if it has not ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the process."""
        if self.poll() is None:
            self._process.kill()


def start_fault_run(
    file: Path, point: str, nth: int, action: str, *, env: Mapping[str, str]
) -> ForkedProcess:
    """Start a run of a pipeline file with a fault of `fault_driver`. It logs to run.log in the file's folder."""
    arguments = [str(file), point, str(nth), action]
    log = file.parent / "run.log"
    return ForkedProcess("helpers.fault_driver:main", arguments, env=env, cwd=file.parent, log=log)


def run_command(
    *arguments: str, env: Mapping[str, str], cwd: Path, timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """Run a command of the command line to its end, and return what it printed."""
    return run_function(COMMAND, arguments, env=env, cwd=cwd, timeout=timeout)


def run_function(
    function: str, arguments: Sequence[str], *, env: Mapping[str, str], cwd: Path, timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """Run a function to its end, and return what it printed. Kill it after `timeout` seconds."""
    process = ForkedProcess(function, arguments, env=env, cwd=cwd)
    try:
        out, errors = process.communicate(timeout)
    finally:
        process.kill()
    return subprocess.CompletedProcess(process.args, process.wait(), out, errors)


def _become(
    command: Sequence[str],
    env: Mapping[str, str],
    cwd: Path,
    streams: Sequence[Connection],
    log: Path | None,
) -> None:
    """Run in the fork: take the place of a new process, then call the function."""
    os.setsid()
    gc.freeze()
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    os.chdir(cwd)
    _replace(0, os.open(os.devnull, os.O_RDONLY))
    for number, stream in enumerate(streams, start=1):
        _replace(number, os.dup(stream.fileno()))
        stream.close()
    if log:
        _replace(2, os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644))
    sys.stdout = sys.__stdout__ = _open(1)
    sys.stderr = sys.__stderr__ = _open(2)
    function, *sys.argv[1:] = command
    sys.path.insert(0, str(cwd))
    module, name = function.split(":")
    try:
        sys.exit(getattr(importlib.import_module(module), name)())
    finally:
        atexit._run_exitfuncs()


def _replace(number: int, descriptor: int) -> None:
    os.dup2(descriptor, number)
    os.close(descriptor)


def _open(number: int) -> TextIO:
    return open(number, "w", encoding="utf-8", buffering=1, closefd=False)
