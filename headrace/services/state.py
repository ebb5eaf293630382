"""`<home>/services.json`: address, password and process of each local server.

The file stays while servers are down, so that ports and passwords stay the same. It contains passwords and
has mode 0600. Every change is a read-modify-write under a lock and ends with a rename, so readers (for
example `headrace.pipeline.config.settings`) need no lock.
"""

from __future__ import annotations

import json
import os
import random
import socket
from pathlib import Path
from typing import Any

from headrace.jobs.spark.cache import file_lock
from headrace.pipeline.errors import ServiceError

VERSION = 1
HOST = "127.0.0.1"
SINK_DATABASE = "headrace"
"""The database of the local ClickHouse for tables of sinks that name none."""
# Below the range for outgoing connections of Linux and macOS, so a port stays free while its server is down.
_PORTS = range(20_000, 32_000)


def home_folder(home: Path | str | None = None) -> Path:
    """Return `home`, `$HEADRACE_HOME`, `$HEADRACE__HOME` or `.headrace` as an absolute path."""
    chosen = home or os.environ.get("HEADRACE_HOME") or os.environ.get("HEADRACE__HOME") or ".headrace"
    return Path(chosen).expanduser().resolve()


class ServiceState:
    """The services.json of a home. Every call reads the file, so that processes see each other's changes."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.path = home / "services.json"

    def entry(self, name: str) -> dict[str, Any]:
        """Return the entry of a service, {} if there is none."""
        return self._read().get(name, {})

    def names(self) -> list[str]:
        """Return the services that this home has had."""
        return sorted(self._read())

    def update(self, name: str, **values: Any) -> dict[str, Any]:
        """Set keys of one service (None removes a key) and return its new entry."""
        with file_lock(self.home / "locks" / "state"):
            services = self._read()
            entry = {
                key: value for key, value in (services.get(name, {}) | values).items() if value is not None
            }
            services[name] = entry
            fresh = self.path.with_name(f"services.json.{os.getpid()}")
            with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as handle:
                json.dump({"version": VERSION, "services": services}, handle, indent=2)
            fresh.replace(self.path)
        return entry

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            content = json.loads(self.path.read_text())
        except FileNotFoundError:
            return {}
        except ValueError as error:
            msg = f"{self.path} is not JSON: {error}"
            raise ServiceError(
                msg,
                hint="Run `headrace services down`, then remove the file; the servers get new ports and"
                " passwords.",
            ) from error
        if content.get("version") != VERSION:
            msg = (
                f"{self.path} has version {content.get('version')!r}; this Headrace writes and reads"
                f" version {VERSION}"
            )
            raise ServiceError(
                msg, hint="It was written by another release: use that one, or another HEADRACE_HOME."
            )
        return content["services"]


def is_port_free(port: int) -> bool:
    """Return whether a server can listen on this loopback port now."""
    with socket.socket() as probe:
        # As servers do: a connection in TIME_WAIT does not block a port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def choose_port(previous: int | None, taken: set[int]) -> int:
    """Return `previous` if it is free, else another free port that is not in `taken`."""
    if previous and is_port_free(previous):
        return previous
    for port in random.sample(_PORTS, len(_PORTS)):
        if port not in taken and is_port_free(port):
            return port
    msg = f"no free port between {_PORTS.start} and {_PORTS.stop} on {HOST}"
    raise ServiceError(msg, hint="Stop something that listens there.")
