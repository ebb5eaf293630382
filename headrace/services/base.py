"""What the local servers have in common: prepared, started, asked, signalled, stopped."""

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

from headrace.jobs.spark.cache import locked
from headrace.jobs.spark.jars import Progress
from headrace.pipeline.errors import ServiceError
from headrace.services import process
from headrace.services.state import HOST, State, choose_port, port_free

log = logging.getLogger(__name__)

_START_SECONDS = 120.0  # a busy two-core machine starting three servers at once
_STOP_SECONDS = 20.0


class LocalService(ABC):
    """One server of one home. Knows nothing that is not in `services.json`, so any process may hold one of these.

    A subclass says how its data is made (`prepare`), what is run (`command`) and how it is asked (`answers`).
    """

    name: ClassVar[str]
    ports: ClassVar[tuple[str, ...]] = ("port",)
    stop_signal: ClassVar[int] = signal.SIGTERM

    def __init__(self, home: Path) -> None:
        self.home = home
        self.state = State(home)
        self.data = home / "data" / self.name
        self.log_file = home / "logs" / f"{self.name}.log"

    @abstractmethod
    def prepare(self, progress: Progress | None) -> None:
        """Make what the first start needs: passwords, data. Must leave nothing that looks complete if it dies halfway."""

    @abstractmethod
    def command(self) -> list[str]:
        """The command line, with today's ports. One argument is a path in `self.data`: see `process.owners`."""

    @abstractmethod
    def answers(self) -> None:
        """Put a real request to the server; raises whatever its driver raises while it is not there."""

    def environment(self) -> dict[str, str]:
        """The environment of the server."""
        return dict(os.environ)

    def run_as(self) -> dict[str, Any]:
        """Popen's arguments to become another user; {} to stay."""
        return {}

    @property
    def entry(self) -> dict[str, Any]:
        """What services.json holds about this service."""
        return self.state.entry(self.name)

    @property
    def host(self) -> str:
        """Always the loopback address."""
        return HOST

    @property
    def port(self) -> int:
        """Where it listens, or last did."""
        return self._kept("port")

    @property
    def pid(self) -> int | None:
        """The pid of the running server, None if it does not run."""
        running = self.running()
        return running.pid if running else None

    def running(self) -> psutil.Process | None:
        """The server's process if it is alive, whether or not it answers."""
        entry = self.entry
        return process.alive(entry.get("pid"), entry.get("create_time"))

    def start(self, progress: Progress | None = None) -> None:
        """Start the server unless it runs, and wait until it answers. Keeps ports, passwords and data of the time before.

        Raises:
            ServiceError: it cannot be started; holds the end of its log.
        """
        with self._alone():
            if not self.running():
                self._end_owners()
                self.data.mkdir(parents=True, exist_ok=True)
                self.prepare(progress)
                self._launch(attempts=3)
            self._wait()

    def stop(self) -> None:
        """Stop the server in its own orderly way, with force if that takes too long. Fine if it does not run."""
        with self._alone():
            if found := self.running():
                process.end(found, self.stop_signal, _STOP_SECONDS)
            self._end_owners()
            if self.entry:
                self.state.update(self.name, pid=None, create_time=None)
        log.info("service=%s stopped=yes", self.name)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal to every process of the server, for fault tests; after SIGKILL, returns when all of them are gone."""
        if found := self.running():
            members = process.send(found, number)
            if number == signal.SIGKILL:
                psutil.wait_procs(members, timeout=_STOP_SECONDS)

    def _kept(self, key: str) -> Any:
        entry = self.entry
        if key not in entry:
            msg = f"service '{self.name}' has never been started in {self.home}"
            raise ServiceError(msg, hint=f"headrace services up {self.name}")
        return entry[key]

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Nobody else starts or stops this service meanwhile."""
        with locked(self.home / "locks" / self.name):
            yield

    def _end_owners(self) -> None:
        for owner in process.owners(self.data):
            log.warning("service=%s pid=%d recorded=no ending=yes", self.name, owner.pid)
            process.end(owner, self.stop_signal, _STOP_SECONDS)

    def _launch(self, attempts: int) -> None:
        """Choose ports, start, and take notes at once. A port that somebody took in between costs one attempt."""
        kept = self.entry
        others = {
            self.state.entry(name).get(key) for name in self.state.names() if name != self.name for key in ("port", "controller_port")
        }
        taken = {port for port in others if port}
        chosen: dict[str, int] = {}
        for key in self.ports:
            chosen[key] = choose_port(kept.get(key), taken | set(chosen.values()))
            if kept.get(key) not in {None, chosen[key]}:
                log.warning("service=%s %s=%s taken=yes new=%d", self.name, key, kept[key], chosen[key])
        self.state.update(self.name, host=HOST, log=str(self.log_file), data=str(self.data), **chosen)
        started = process.spawn(self.command(), log_file=self.log_file, cwd=self.data, env=self.environment(), user=self.run_as())
        self.state.update(self.name, pid=started.pid, create_time=started.create_time())
        log.info("service=%s pid=%d port=%d", self.name, started.pid, chosen["port"])
        with contextlib.suppress(psutil.TimeoutExpired):
            started.wait(timeout=0.2)
            if attempts > 1 and not all(port_free(port) for port in chosen.values()):
                self._launch(attempts - 1)

    def _wait(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                self.answers()
            except Exception as error:
                if isinstance(error, ImportError):
                    msg = f"service '{self.name}' cannot be asked: {error}"
                    raise ServiceError(msg, hint="pip install 'headrace[demo]'") from error
                if not self.running():
                    msg = f"service '{self.name}' stopped while starting. The end of its log:\n{self._log_end()}"
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
