"""The owner of a lease: its description, and the end of a JVM that outlived its driver."""

from __future__ import annotations

import logging
import os
import socket
import time
from datetime import UTC, datetime
from typing import Any

import psutil

from headrace.pipeline.protocol.epochs import Json

log = logging.getLogger(__name__)

KILL_SECONDS = 10.0


def describe_owner(run: str, launched_by: str, **more: Any) -> Json:
    """Return this process as the owner of a lease: host, pid, start time, run id and what launched it."""
    me = psutil.Process()
    return {
        "host": socket.gethostname(),
        "pid": me.pid,
        "create_time": me.create_time(),
        "run_id": run,
        "launched_by": launched_by,
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
    } | more


def describe_launcher(launched_by: str, file: str) -> Json:
    """Return the keys that every owner of a lease has: host, pid, what launched it, and its pipeline file."""
    return {"host": socket.gethostname(), "pid": os.getpid(), "launched_by": launched_by, "file": file}


def describe_process(pid: int) -> Json:
    """Return `{"pid", "create_time"}` of a process. They identify it even after its pid is used again."""
    return {"pid": pid, "create_time": psutil.Process(pid).create_time()}


def format_owner(holder: Json) -> str:
    """Return the owner as one clause for messages."""
    parts = (
        ("host", "host"),
        ("pid", "pid"),
        ("run", "run_id"),
        ("launched by", "launched_by"),
        ("since", "since"),
    )
    return (
        ", ".join(f"{word} {holder[key]}" for word, key in parts if holder.get(key) not in (None, ""))
        or "an unnamed process"
    )


def end_jvm(holder: Json) -> bool:
    """Kill the JVM of a dead owner and wait for its end.

    A JVM outlives its driver by seconds and could still commit. Return True if no JVM of that owner can be
    alive: it is dead, or the owner never named one. Return False on another host, where this process may not
    kill it. Also return False if the owner was an earlier run of this process, because its JVM may be the
    current one.
    """
    if holder.get("host") != socket.gethostname() or holder.get("pid") == os.getpid():
        return False
    jvm = holder.get("jvm")
    if jvm is None:
        return True
    try:
        process = psutil.Process(jvm["pid"])
        # The kernel counts in hundredths of a second. psutil adds a boot time that drifts.
        if abs(process.create_time() - jvm["create_time"]) > 1.0:
            return True
        log.warning("event=orphaned_jvm_killed pid=%s", process.pid)
        process.kill()
        return _wait_for_end(process)
    except psutil.NoSuchProcess:
        return True
    except psutil.AccessDenied as error:
        log.warning("event=orphaned_jvm_not_permitted pid=%s error=%s", jvm["pid"], error)
        return False


def _wait_for_end(process: psutil.Process) -> bool:
    """Wait until the process has ended.

    A zombie counts as ended, because in a container it may never be reaped.
    """
    deadline = time.monotonic() + KILL_SECONDS
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > deadline:
            log.warning("event=orphaned_jvm_still_alive pid=%s", process.pid)
            return False
        time.sleep(0.02)
    return True
