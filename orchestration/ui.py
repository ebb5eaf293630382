"""Dagster's pages and daemon as one child of this process, which leaves nothing behind."""

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

from headrace.orchestration.instance import child_environment
from headrace.pipeline.errors import ServiceError

log = logging.getLogger(__name__)

RUNS_WITHIN = 35.0
"""Seconds that runs get to finish their epoch: a lane ends within 30 of a signal."""
SERVICES_WITHIN = 15.0


def serve(home: Path, host: str = "127.0.0.1", port: int = 3000) -> None:
    """Serves Dagster until SIGINT or SIGTERM, or until it ends by itself. `home` is Headrace's own folder (HEADRACE_HOME).

    Runs that are under way get the signal first and finish the epoch in flight; then the services end. Raises ServiceError
    where the port is taken, and where Dagster does not stay up.
    """
    _refuse_taken(host, port)
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
        # A session of its own: what the terminal sends to this process's group must not reach half of the services.
        child = subprocess.Popen(command, env=child_environment(home), start_new_session=True)
        log.info("ui url=http://%s:%d pid=%d", host, port, child.pid)
        try:
            while child.poll() is None and not stop.wait(0.2):
                pass
            ended = child.poll()
        finally:
            shut_down(child)
    if ended:
        msg = f"Dagster ended with exit code {ended}"
        raise ServiceError(msg, hint="Its reason stands above.")


def shut_down(child: subprocess.Popen[bytes]) -> None:
    """Ends runs, then services, then whatever is left of the child's descendants."""
    family = _family(child.pid)
    runs = [process for process in family if _is_run(process)]
    for process in runs:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGINT)
    psutil.wait_procs(runs, timeout=RUNS_WITHIN)
    if child.poll() is None:
        child.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            child.wait(timeout=SERVICES_WITHIN)
    left = [process for process in {*family, *_family(child.pid)} if process.is_running()]
    _, left = psutil.wait_procs(left, timeout=2.0)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=5.0)
    child.poll()


def _family(pid: int) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        parent = psutil.Process(pid)
        return [*parent.children(recursive=True), parent]
    return []


def _is_run(process: psutil.Process) -> bool:
    """A run is a process that the code server made by multiprocessing, and that has a JVM or could have one."""
    with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        return any("multiprocessing.spawn" in part or "execute_run" in part for part in process.cmdline())
    return False


def _refuse_taken(host: str, port: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            msg = f"cannot listen on {host}:{port}: {error.strerror}"
            raise ServiceError(msg, hint="Choose another one with --port.") from None


@contextmanager
def _stop_signal() -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set, instead of what they did before."""
    stop = threading.Event()
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
