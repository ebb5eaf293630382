"""The local servers of one home together: up, down, status."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from headrace.jobs.spark.jars import Progress
from headrace.pipeline.errors import ServiceError
from headrace.services.base import LocalService
from headrace.services.clickhouse import ClickHouse
from headrace.services.kafka import Kafka
from headrace.services.postgres import Postgres
from headrace.services.state import HOST, home_folder

NAMES = ("postgres", "kafka", "clickhouse")


class Services:
    """Handles on the servers of one home, whether they run or not. Any process may make one."""

    def __init__(self, home: Path | str | None = None) -> None:
        self.home = home_folder(home)
        self.postgres = Postgres(self.home)
        self.kafka = Kafka(self.home)
        self.clickhouse = ClickHouse(self.home)

    def __getitem__(self, name: str) -> LocalService:
        if name not in NAMES:
            msg = f"there is no local service '{name}'; there are {', '.join(NAMES)}"
            raise ServiceError(msg)
        return getattr(self, name)


@dataclass(frozen=True, slots=True)
class Status:
    """What is known of one service. `state` is "up" (answers), "silent" (runs, does not answer), "down" or "never started"."""

    name: str
    state: str
    address: str
    pid: int | None
    log: Path


def up(names: Iterable[str] = NAMES, home: Path | str | None = None, progress: Progress | None = None) -> Services:
    """Start what does not run yet, all at once, and return when each has answered a real request. Safe to call twice, or in two processes.

    Args:
        names: which of postgres, kafka, clickhouse.
        home: see `home_folder`.
        progress: told about downloads of jars.

    Raises:
        ServiceError: the first that could not be started; the others stay up.
    """
    services = Services(home)
    wanted = [services[name] for name in names]
    services.home.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(max_workers=max(len(wanted), 1)) as pool:
        for future in [pool.submit(service.start, progress) for service in wanted]:
            future.result()
    return services


def down(home: Path | str | None = None, names: Iterable[str] = NAMES) -> None:
    """Stop the servers of a home. Ports, passwords and data stay for the next `up`."""
    services = Services(home)
    if not services.home.exists():
        return
    with ThreadPoolExecutor(max_workers=len(NAMES)) as pool:
        for future in [pool.submit(services[name].stop) for name in names]:
            future.result()


def status(home: Path | str | None = None) -> list[Status]:
    """Each service with whether it answers now."""
    services = Services(home)
    return [_status(services[name]) for name in NAMES]


def _status(service: LocalService) -> Status:
    port = service.entry.get("port")
    state = "down" if port else "never started"
    pid = service.pid
    if pid:
        try:
            service.answers()
            state = "up"
        except Exception:  # noqa: BLE001 - the drivers' own errors; the point is that it did not answer
            state = "silent"
    return Status(service.name, state, f"{HOST}:{port}" if port else "", pid, service.log_file)
