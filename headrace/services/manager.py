"""All local servers of one home: up, down, status."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from headrace.jobs.spark.ivy import Progress
from headrace.pipeline.errors import ServiceError
from headrace.services.base import LocalService
from headrace.services.clickhouse import ClickHouse
from headrace.services.kafka import Kafka
from headrace.services.postgres import Postgres
from headrace.services.state import HOST, home_folder

NAMES = ("postgres", "kafka", "clickhouse")


class Services:
    """The servers of one home, running or not. Any process can create one."""

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
class ServiceStatus:
    """The status of a service.

    `state` is "up" (answers), "silent" (runs, does not answer), "down" or "never started".
    """

    name: str
    state: str
    address: str
    pid: int | None
    log: Path


def up(
    names: Iterable[str] = NAMES, home: Path | str | None = None, progress: Progress | None = None
) -> Services:
    """Start the servers that do not run, in parallel, and return when each has answered a request.

    Several calls and several processes do not conflict.

    Args:
        names: any of postgres, kafka, clickhouse.
        home: see `home_folder`.
        progress: called during downloads of jars.

    Raises:
        ServiceError: the first server that could not be started. The others stay up.
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


def status(home: Path | str | None = None) -> list[ServiceStatus]:
    """Return the status of each service."""
    services = Services(home)
    return [_service_status(services[name]) for name in NAMES]


def _service_status(service: LocalService) -> ServiceStatus:
    port = service.entry.get("port")
    state = "down" if port else "never started"
    pid = service.pid
    if pid:
        try:
            service.ping()
            state = "up"
        except Exception:  # noqa: BLE001 - any driver error means that it did not answer
            state = "silent"
    return ServiceStatus(service.name, state, f"{HOST}:{port}" if port else "", pid, service.log_file)
