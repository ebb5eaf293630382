"""Processes that outlive the one that started them, and how to find, signal and end them without touching anybody else's."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil

log = logging.getLogger(__name__)

_LOG_LIMIT = 20_000_000
_children: list[subprocess.Popen[Any]] = []  # ours while we live: polled, so that the dead leave no zombie behind


def spawn(command: list[str], *, log_file: Path, cwd: Path, env: dict[str, str], user: dict[str, Any]) -> psutil.Process:
    """Start a server in a session of its own, its output appended to `log_file`.

    `user` is what `subprocess.Popen` takes to become another user, {} to stay.
    """
    log_file.parent.mkdir(parents=True, exist_ok=True)
    if log_file.exists() and log_file.stat().st_size > _LOG_LIMIT:
        log_file.replace(log_file.with_suffix(".old.log"))
    with log_file.open("ab") as out:
        child = subprocess.Popen(
            command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True, **user
        )
    _children.append(child)
    return psutil.Process(child.pid)


def alive(pid: int | None, create_time: float | None) -> psutil.Process | None:
    """The process that has this pid and was started then, unless it is gone, or a zombie, or its pid belongs to another by now."""
    _reap()
    if not pid or create_time is None:
        return None
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        # Two seconds: the clock that start times are counted from may be adjusted.
        if abs(process.create_time() - create_time) < 2 and process.status() != psutil.STATUS_ZOMBIE:
            return process
    return None


def owners(folder: Path) -> list[psutil.Process]:
    """Servers on this data folder, known by their command line: what a starter that was killed before it took notes left behind.

    Only leaders of a session, as `spawn` makes them: a `tail` or an editor on a file in there is somebody's own.
    """
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            words = [part for argument in process.cmdline() for part in argument.split("=")]
            if os.getsid(process.pid) == process.pid != os.getpid() and any(
                Path(word).is_relative_to(folder) for word in words if word[:1] == "/"
            ):
                found.append(process)
    return found


def send(process: psutil.Process, number: int) -> list[psutil.Process]:
    """Send a signal to a server and everything under it; returns them.

    Postgres' backends are sessions of their own, so a signal to the group alone would miss them.
    """
    members = [process, *_descendants(process)]
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if os.getpgid(process.pid) == process.pid:
            os.killpg(process.pid, number)
    for member in members:
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            member.send_signal(number)
    return members


def end(process: psutil.Process, number: int, patience: float) -> None:
    """Ask a server to stop with `number`; whatever is left after `patience` seconds is killed. Returns when all are gone."""
    members = [process, *_descendants(process)]
    with contextlib.suppress(psutil.Error):
        process.send_signal(number)
    _, left = psutil.wait_procs(members, timeout=patience)
    for member in left:
        log.warning("pid=%d signal=%d answer=none killing=yes", member.pid, number)
        send(member, signal.SIGKILL)
    psutil.wait_procs(left, timeout=patience)
    _reap()


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        return process.children(recursive=True)
    return []


def _reap() -> None:
    _children[:] = [child for child in _children if child.poll() is None]
