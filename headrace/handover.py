"""The client of a warm engine: hand a command over to a process that waits with Spark started.

Only the standard library is imported: the command pays for this module before it knows of an engine.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import stat
import struct
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_VOLATILE = ("PWD", "OLDPWD", "SHLVL", "_", "TERM", "COLUMNS", "LINES", "WINDOWID", "SSH_", "PYTEST_CURRENT_")
"""Variables, or their prefixes, that differ between two commands in one folder and change no run."""
FIRST_ENVIRONMENT = dict(os.environ)
"""The environment of this process at its start. Starting Spark adds variables."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_ACCEPT_SECONDS = 5.0
ACCEPTED = b"+"


def engine_socket() -> Path:
    """Return the socket of the engine for this user, installation, folder and environment.

    Another Python, version, source file, folder or variable has another socket: an engine never runs former
    code, and tasks never see variables of another command.
    """
    package = Path(__file__).parent
    newest = max(path.stat().st_mtime_ns for path in _source_files(package))
    environment = sorted(item for item in os.environ.items() if not item[0].startswith(_VOLATILE))
    parts = [sys.executable, str(package), newest, str(Path.cwd()), environment]
    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:20]
    return socket_folder() / f"{digest}.sock"


def socket_folder() -> Path:
    """Return the folder of this user's sockets. Without it there is no engine, and no hash is needed."""
    return Path(tempfile.gettempdir()) / f"headrace-{os.getuid()}"


def _source_files(package: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(package, followlinks=True):
        folders[:] = [name for name in folders if name != "__pycache__"]
        yield from (Path(folder, name) for name in names if name.endswith(".py"))


def is_private(folder: Path) -> bool:
    """Return whether only this user can reach what is in the folder."""
    try:
        result = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(result.st_mode) and result.st_uid == os.getuid() and not result.st_mode & 0o077


def hand_over(arguments: list[str]) -> int | None:
    """Run a command in the waiting engine. Return its exit code, or None if no engine took it.

    The engine gets the standard streams and the environment of this process, and its signals. If this process
    dies, the engine dies at once, as if it had been killed itself.
    """
    if not is_private(socket_folder()) or not (path := engine_socket()).exists():
        return None
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.settimeout(_ACCEPT_SECONDS)
            connection.connect(str(path))
            body = json.dumps({"arguments": arguments, "environment": dict(os.environ)}).encode()
            socket.send_fds(connection, [struct.pack("!I", len(body))], [0, 1, 2])
            connection.sendall(body)
            if connection.recv(1) != ACCEPTED:
                return None
        except OSError:
            return None
        connection.settimeout(None)
        with _forwarded_signals(connection):
            answer = receive_exactly(connection, 4)
    if answer is None:
        sys.stderr.write("error: the process that ran the command ended without a result\n")
        return 1
    (code,) = struct.unpack("!i", answer)
    return code


@contextmanager
def _forwarded_signals(connection: socket.socket) -> Iterator[None]:
    def forward(number: int, _frame: object) -> None:
        try:
            connection.send(bytes([number]))
        except OSError:
            return

    former = {number: signal.signal(number, forward) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def receive_exactly(connection: socket.socket, size: int) -> bytes | None:
    """Return so many bytes, or None if the other side closed the connection before."""
    received = b""
    while len(received) < size:
        try:
            chunk = connection.recv(size - len(received))
        except OSError:
            return None
        if not chunk:
            return None
        received += chunk
    return received


def read_request(connection: socket.socket) -> tuple[Mapping[str, Any], list[int]] | None:
    """Return a request and the file descriptors of the standard streams. None for a broken one."""
    header, descriptors, _, _ = socket.recv_fds(connection, 4, 3)
    if len(header) != 4 or len(descriptors) != 3:
        return None
    body = receive_exactly(connection, struct.unpack("!I", header)[0])
    return (json.loads(body), descriptors) if body is not None else None


def send_code(connection: socket.socket, code: int) -> None:
    """Send the exit code of the command."""
    connection.sendall(struct.pack("!i", code))
