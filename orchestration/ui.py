"""The Dagster webserver and daemon as a child process, which ends with all its descendants."""

from __future__ import annotations

import logging
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.resources import files
from pathlib import Path

import psutil

from headrace.orchestration.instance import UI_VARIABLE, child_environment
from headrace.pipeline.errors import ServiceError

log = logging.getLogger(__name__)

RUN_STOP_SECONDS = 35.0
"""Seconds that runs have to finish their epoch. A run ends within 30 s of a signal."""
SERVICE_STOP_SECONDS = 15.0


def serve(home: Path, host: str = "127.0.0.1", port: int = 3000) -> None:
    """Serve Dagster until SIGINT or SIGTERM, or until it ends. `home` is Headrace's folder (HEADRACE_HOME).

    Active runs get the signal first and finish their epoch; then the services end. Raise ServiceError if the
    port is taken, and if Dagster does not stay up.
    """
    _check_port(host, port)
    command = [
        sys.executable,
        "-m",
        "dagster",
        "dev",
        "-w",
        str(files("headrace.orchestration") / "workspace.yaml"),
        "-h",
        host,
        "-p",
        str(port),
    ]
    with _stop_signal() as stop:
        # In a new session: signals of the terminal to this process group must not reach half of the services.
        environment = child_environment(home) | {UI_VARIABLE: "1"}
        child = subprocess.Popen(command, env=environment, start_new_session=True)
        log.info("event=ui_started url=http://%s:%d pid=%d", host, port, child.pid)
        try:
            while child.poll() is None and not stop.wait(0.2):
                pass
            exit_code = child.poll()
        finally:
            shut_down(child)
    if exit_code:
        msg = f"Dagster ended with exit code {exit_code}"
        raise ServiceError(msg, hint="The reason is printed above.")


def shut_down(child: subprocess.Popen[bytes]) -> None:
    """End runs, then services, then all remaining descendants of the child."""
    processes = _process_tree(child.pid)
    runs = [process for process in processes if _is_run(process)]
    for process in runs:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGINT)
    psutil.wait_procs(runs, timeout=RUN_STOP_SECONDS)
    if child.poll() is None:
        child.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            child.wait(timeout=SERVICE_STOP_SECONDS)
    remaining = [process for process in {*processes, *_process_tree(child.pid)} if process.is_running()]
    _, remaining = psutil.wait_procs(remaining, timeout=2.0)
    for process in remaining:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(remaining, timeout=5.0)
    child.poll()


def _process_tree(pid: int) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        parent = psutil.Process(pid)
        return [*parent.children(recursive=True), parent]
    return []


def _is_run(process: psutil.Process) -> bool:
    """Return whether a process is a run.

    A run is started by the code server through multiprocessing, and can have a JVM.
    """
    with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        return any("multiprocessing.spawn" in part or "execute_run" in part for part in process.cmdline())
    return False


def _check_port(host: str, port: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            msg = f"cannot listen on {host}:{port}: {error.strerror}"
            raise ServiceError(msg, hint="Choose another port with --port.") from None


@contextmanager
def _stop_signal() -> Iterator[threading.Event]:
    """Yield an event that SIGINT and SIGTERM set. Restore the former handlers afterwards."""
    stop = threading.Event()
    handlers = {
        number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield stop
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
