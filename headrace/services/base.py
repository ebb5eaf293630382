"""Base class of the local servers: prepare, start, ping, signal and stop."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import psutil

from headrace.jobs.spark.cache import file_lock
from headrace.jobs.spark.ivy import Progress
from headrace.pipeline.errors import ServiceError
from headrace.services import process
from headrace.services.state import HOST, ServiceState, choose_port, is_port_free

log = logging.getLogger(__name__)

_START_SECONDS = 120.0  # a busy two-core machine starting three servers at once
_STOP_SECONDS = 20.0


class LocalService(ABC):
    """A server of one home. All its state is in `services.json`, so any process can create an object for it.

    A subclass creates the data (`prepare`), returns the command line (`command`) and sends a request
    (`ping`).
    """

    name: ClassVar[str]
    ports: ClassVar[tuple[str, ...]] = ("port",)
    stop_signal: ClassVar[int] = signal.SIGTERM

    def __init__(self, home: Path) -> None:
        self.home = home
        self.state = ServiceState(home)
        self.data = home / "data" / self.name
        self.log_file = home / "logs" / f"{self.name}.log"

    @abstractmethod
    def prepare(self, progress: Progress | None) -> None:
        """Create what the first start needs: passwords, data.

        An interrupted call must leave nothing that looks complete.
        """

    @abstractmethod
    def command(self) -> list[str]:
        """Return the command line with the current ports.

        One argument is a path in `self.data`: see `process.find_servers`.
        """

    @abstractmethod
    def ping(self) -> None:
        """Send a real request to the server. Raise the driver's error while it is unreachable."""

    def environment(self) -> dict[str, str]:
        """Return the environment of the server."""
        return dict(os.environ)

    def run_as(self) -> dict[str, Any]:
        """Return Popen's arguments for another user, {} for the current user."""
        return {}

    @property
    def entry(self) -> dict[str, Any]:
        """The entry of this service in services.json."""
        return self.state.entry(self.name)

    @property
    def host(self) -> str:
        """The loopback address."""
        return HOST

    @property
    def port(self) -> int:
        """The current or last port."""
        return self._read_entry("port")

    @property
    def pid(self) -> int | None:
        """The pid of the running server, None if it does not run."""
        running = self.find_process()
        return running.pid if running else None

    def find_process(self) -> psutil.Process | None:
        """Return the server's process if it is alive, even if it does not answer."""
        entry = self.entry
        return process.find_process(entry.get("pid"), entry.get("create_time"))

    def start(self, progress: Progress | None = None) -> None:
        """Start the server unless it runs, and wait until it answers.

        Keep ports, passwords and data of earlier starts.

        Raises:
            ServiceError: the server cannot be started. The message contains the end of its log.
        """
        with self._lock():
            if not self.find_process():
                self._stop_orphans()
                self.data.mkdir(parents=True, exist_ok=True)
                self.prepare(progress)
                self._launch(attempts=3)
            self._wait_until_ready()

    def stop(self) -> None:
        """Stop the server regularly, and kill it if that takes too long. Do nothing if it does not run."""
        with self._lock():
            if server := self.find_process():
                process.stop_process(server, self.stop_signal, _STOP_SECONDS)
            self._stop_orphans()
            if self.entry:
                self.state.update(self.name, pid=None, create_time=None)
        log.info("event=service_stopped service=%s", self.name)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal to every process of the server, for fault tests.

        After SIGKILL wait until all have ended.
        """
        if server := self.find_process():
            members = process.send_signal(server, number)
            if number == signal.SIGKILL:
                psutil.wait_procs(members, timeout=_STOP_SECONDS)

    def _read_entry(self, key: str) -> Any:
        entry = self.entry
        if key not in entry:
            msg = f"service '{self.name}' has never been started in {self.home}"
            raise ServiceError(msg, hint=f"headrace services up {self.name}")
        return entry[key]

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        """Keep other processes from starting or stopping this service."""
        with file_lock(self.home / "locks" / self.name):
            yield

    def _stop_orphans(self) -> None:
        for owner in process.find_servers(self.data):
            log.warning("event=unrecorded_service_ended service=%s pid=%d", self.name, owner.pid)
            process.stop_process(owner, self.stop_signal, _STOP_SECONDS)

    def _launch(self, attempts: int) -> None:
        """Choose ports, start, and store pid and ports at once.

        Retry if another program took a port meanwhile.
        """
        entry = self.entry
        others = {
            self.state.entry(name).get(key)
            for name in self.state.names()
            if name != self.name
            for key in ("port", "controller_port")
        }
        taken = {port for port in others if port}
        chosen: dict[str, int] = {}
        for key in self.ports:
            chosen[key] = choose_port(entry.get(key), taken | set(chosen.values()))
            if entry.get(key) not in {None, chosen[key]}:
                log.warning(
                    "event=service_port_in_use service=%s setting=%s port=%s new=%d",
                    self.name,
                    key,
                    entry[key],
                    chosen[key],
                )
        self.state.update(self.name, host=HOST, log=str(self.log_file), data=str(self.data), **chosen)
        server = process.spawn(
            self.command(), log_file=self.log_file, cwd=self.data, env=self.environment(), user=self.run_as()
        )
        self.state.update(self.name, pid=server.pid, create_time=server.create_time())
        log.info("event=service_started service=%s pid=%d port=%d", self.name, server.pid, chosen["port"])
        with contextlib.suppress(psutil.TimeoutExpired):
            server.wait(timeout=0.2)
            if attempts > 1 and not all(is_port_free(port) for port in chosen.values()):
                self._launch(attempts - 1)

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                self.ping()
            except Exception as error:
                if isinstance(error, ImportError):
                    msg = f"service '{self.name}' cannot be contacted: {error}"
                    raise ServiceError(msg, hint="pip install 'headrace[demo]'") from error
                if not self.find_process():
                    msg = (
                        f"service '{self.name}' stopped while starting. The end of its"
                        f" log:\n{self._log_end()}"
                    )
                    raise ServiceError(msg, hint=f"The whole log: {self.log_file}") from error
                if time.monotonic() > deadline:
                    msg = f"service '{self.name}' runs but does not answer on {HOST}:{self.port}: {error}"
                    raise ServiceError(msg, hint=f"Its log: {self.log_file}") from error
                time.sleep(0.05)
            else:
                return

    def _log_end(self) -> str:
        with contextlib.suppress(OSError):
            return "\n".join(self.log_file.read_text(errors="replace").splitlines()[-12:])
        return "(no log)"
