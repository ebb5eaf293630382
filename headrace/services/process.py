"""Start processes that outlive their starter, and find, signal and stop exactly these."""

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
_children: list[subprocess.Popen[Any]] = []  # polled, so that ended children do not stay zombies


def spawn(
    command: list[str], *, log_file: Path, cwd: Path, env: dict[str, str], user: dict[str, Any]
) -> psutil.Process:
    """Start a server in a new session. Append its output to `log_file`.

    `user` are the arguments of `subprocess.Popen` for another user, {} for the current one.
    """
    log_file.parent.mkdir(parents=True, exist_ok=True)
    if log_file.exists() and log_file.stat().st_size > _LOG_LIMIT:
        log_file.replace(log_file.with_suffix(".old.log"))
    with log_file.open("ab") as out:
        child = subprocess.Popen(
            command,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            **user,
        )
    _children.append(child)
    return psutil.Process(child.pid)


def find_process(pid: int | None, create_time: float | None) -> psutil.Process | None:
    """Return the process with this pid and start time.

    None if it ended, is a zombie, or the pid was reused.
    """
    _reap()
    if not pid or create_time is None:
        return None
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        # Two seconds, because the clock for start times can be adjusted.
        if abs(process.create_time() - create_time) < 2 and process.status() != psutil.STATUS_ZOMBIE:
            return process
    return None


def find_servers(folder: Path) -> list[psutil.Process]:
    """Return the servers with this data folder in their command line.

    A starter that dies before it stores the pid leaves such servers. Only session leaders count, as `spawn`
    creates them: a `tail` or an editor on a file in the folder belongs to a user.
    """
    servers = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            words = [part for argument in process.cmdline() for part in argument.split("=")]
            if os.getsid(process.pid) == process.pid != os.getpid() and any(
                Path(word).is_relative_to(folder) for word in words if word[:1] == "/"
            ):
                servers.append(process)
    return servers


def send_signal(process: psutil.Process, number: int) -> list[psutil.Process]:
    """Send a signal to a server and its descendants. Return all of them.

    Backends of Postgres have their own sessions, so a signal to the group alone would miss them.
    """
    members = [process, *_descendants(process)]
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if os.getpgid(process.pid) == process.pid:
            os.killpg(process.pid, number)
    for member in members:
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            member.send_signal(number)
    return members


def stop_process(process: psutil.Process, number: int, patience: float) -> None:
    """Send `number` to a server. Kill what remains after `patience` seconds. Return when all have ended."""
    members = [process, *_descendants(process)]
    with contextlib.suppress(psutil.Error):
        process.send_signal(number)
    _, remaining = psutil.wait_procs(members, timeout=patience)
    for member in remaining:
        log.warning("event=process_killed pid=%d ignored_signal=%d", member.pid, number)
        send_signal(member, signal.SIGKILL)
    psutil.wait_procs(remaining, timeout=patience)
    _reap()


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        return process.children(recursive=True)
    return []


def _reap() -> None:
    _children[:] = [child for child in _children if child.poll() is None]
