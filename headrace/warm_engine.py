"""A warm engine: one idle process with imports done and Spark started, for the next `headrace run`.

`python -m headrace.warm_engine KINDS` detaches itself, starts Spark for pipelines with these node
types, and waits. It takes one command, becomes that command, and ends with it: no two runs share a process.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.handover import ACCEPTED, engine_socket, is_private, read_request, send_code

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.pipeline.config.settings import Settings


_MODULES = (
    "headrace.cli",
    "headrace.commands.run",
    "headrace.jobs.run.runner",
    "headrace.jobs.run.pipeline_run",
    "headrace.connectors.registry",
)


def main() -> None:
    """Detach, start Spark, and become the next command."""
    if os.fork():
        os._exit(0)
    os.setsid()
    path = engine_socket()
    path.parent.mkdir(mode=0o700, exist_ok=True)
    if not is_private(path.parent):
        sys.stderr.write(f"{path.parent} is not private to this user: no engine\n")
        return
    with path.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        path.unlink(missing_ok=True)
        from headrace.pipeline.config.settings import load_settings

        settings = load_settings()
        prepared = _prepare(settings, sys.argv[1:])
        connection = _wait_for_client(path, settings.spark.warm_engine_secs)
    if connection is not None:
        _become(connection)
    from headrace.jobs.spark.session import stop_session

    with suppress(Exception):
        stop_session(prepared)


def _prepare(settings: Settings, kinds: Iterable[str]) -> SparkSession:
    """Import what a run imports, start Spark, and compile what small epochs use."""
    import importlib

    import pyarrow as pa

    from headrace.connectors.local_relation import collect_local_rows
    from headrace.jobs.spark.session import prepare_session
    from headrace.pipeline.model.connectors import connectors, load_reference

    prepared = prepare_session(settings, kinds)
    for name in _MODULES:
        importlib.import_module(name)
    spark = prepared.session.result()
    for kind in kinds:
        entry = connectors().get(kind)
        for side in (entry.source, entry.sink) if entry else ():
            if side is not None:
                load_reference(side.implementation)
    rows = pa.table({"id": [1, 2], "name": ["a", "b"], "amount": [1.5, None]})
    for _ in range(5):
        session = spark.newSession()
        session.createDataFrame(rows).createOrReplaceTempView("rows")
        collect_local_rows(session.sql("SELECT id, upper(name) AS name, amount FROM rows WHERE id > 0"))
    return spark


def _wait_for_client(path: Path, seconds: float) -> socket.socket | None:
    """Return the connection of the first client, None after `seconds` without one."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen(1)
        listener.settimeout(seconds)
        try:
            return listener.accept()[0]
        except TimeoutError:
            return None
        finally:
            path.unlink(missing_ok=True)


def _become(connection: socket.socket) -> None:
    """Run the client's command with its streams, environment and signals, and send the exit code."""
    connection.settimeout(5.0)
    try:
        request = read_request(connection)
    except OSError:
        return
    if request is None:
        return
    message, streams = request
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdout = open(1, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115  it is the standard output
    sys.stderr = open(2, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(message["environment"])
    sys.argv = ["headrace", *message["arguments"]]
    connection.settimeout(None)
    threading.Thread(target=_follow_client, args=(connection,), daemon=True, name="headrace-client").start()
    connection.sendall(ACCEPTED)
    from headrace.cli import run_app

    code = 0
    try:
        run_app()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    sys.stdout.flush()
    sys.stderr.flush()
    send_code(connection, code)


def _follow_client(connection: socket.socket) -> None:
    """Raise the client's signals here. Die at once when the client is no longer there."""
    while True:
        try:
            numbers = connection.recv(16)
        except OSError:
            numbers = b""
        if not numbers:
            os.kill(os.getpid(), signal.SIGKILL)
        for number in numbers:
            os.kill(os.getpid(), number)


if __name__ == "__main__":
    main()
