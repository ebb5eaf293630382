"""The jars of jars.lock, downloaded once per user."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.jobs.spark.cache import file_lock, user_cache
from headrace.jobs.spark.ivy import IvyDownload, Progress, retrieve
from headrace.jobs.spark.jar_lock import (
    LockedJar,
    check_jars,
    divide_jars,
    format_ivy_file,
    read_lock,
    write_lock,
)
from headrace.pipeline.errors import ServiceError

log = logging.getLogger(__name__)

_HERE = Path(__file__).parent
_IVY = _HERE / "ivy.xml"
LOCK = _HERE / "jars.lock"
_MANIFEST = "manifest.json"
_GROUPS = ("spark", "broker")
_PATTERN = "[conf]/[organisation]_[artifact]-[revision].[ext]"
_PARTS = 6


@dataclass(frozen=True, slots=True)
class JarSet:
    """Absolute paths, sorted.

    `spark` goes to spark.jars; `broker` is the class path of the local Kafka broker.
    """

    spark: list[Path]
    broker: list[Path]


def ensure_jars(progress: Progress | None = None, *, java: str | None = None) -> JarSet:
    """Return the jars of jars.lock, from the user cache. Download them if they are not there.

    Two processes never download at the same time, and a process that dies leaves no folder that looks
    complete.

    Args:
        progress: see `Progress`.
        java: the user's Java setting, see `find_java`.

    Raises:
        ServiceError: Java is missing, or a jar cannot be downloaded or is not the locked one.
    """
    target = jar_folder()
    if jars := _load(target):
        return jars
    with file_lock(target.parent / "lock"):
        if jars := _load(target):
            return jars
        _resolve(target, progress, java)
    jars = _load(target)
    if jars is None:
        msg = f"the jars in {target} vanished right after they were resolved"
        raise ServiceError(
            msg, hint="Is something else cleaning the cache? Set HEADRACE_CACHE to a folder that stays."
        )
    return jars


def cached_jars() -> JarSet | None:
    """Return the jars if they are in the cache, else None. Never uses the network."""
    return _load(jar_folder())


def jar_folder() -> Path:
    """Where the jars of this ivy.xml are, or will be."""
    digest = hashlib.sha256(_IVY.read_bytes()).hexdigest()[:16]
    return user_cache() / "jars" / digest


def _load(folder: Path) -> JarSet | None:
    """Return the jars of a complete folder.

    None if it is missing, or if a file has another length than expected.
    """
    try:
        manifest: dict[str, dict[str, int]] = json.loads((folder / _MANIFEST).read_text())
        groups = {group: [folder / group / name for name in sorted(manifest[group])] for group in _GROUPS}
        if all(
            path.stat().st_size == manifest[group][path.name] for group in _GROUPS for path in groups[group]
        ):
            return JarSet(**groups)
    except (OSError, ValueError, KeyError):
        log.debug("event=jars_incomplete folder=%s", folder)
    return None


def _resolve(target: Path, progress: Progress | None, java: str | None) -> None:
    """Download the jars of jars.lock in parts, at the same time: Ivy asks for one file after the other."""
    jars = read_lock(LOCK)
    fresh = Path(tempfile.mkdtemp(prefix="resolving-", dir=target.parent))
    log.info("event=jars_resolving folder=%s", target)
    try:
        downloads = [
            _create_download(part, fresh, number) for number, part in enumerate(divide_jars(jars, _PARTS))
        ]
        retrieve(downloads, _find_settings(), progress, java)
        check_jars(jars, fresh)
        sizes = {
            group: {path.name: path.stat().st_size for path in (fresh / group).iterdir()} for group in _GROUPS
        }
        (fresh / _MANIFEST).write_text(json.dumps(sizes, indent=1))
        shutil.rmtree(target, ignore_errors=True)
        fresh.rename(target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    for download in downloads:  # the target has copies
        shutil.rmtree(download.cache, ignore_errors=True)


def _create_download(jars: Sequence[LockedJar], folder: Path, number: int) -> IvyDownload:
    """Write an Ivy file of the jars, and return its download into the folder."""
    ivy = folder / f"ivy-{number}.xml"
    ivy.write_text(format_ivy_file(jars))
    groups = sorted({jar.group for jar in jars})
    cache = user_cache() / "ivy" / str(number)
    return IvyDownload(ivy, groups, f"{folder}/{_PATTERN}", ivy.with_suffix(".log"), cache)


def lock_jars() -> None:
    """Resolve ivy.xml, and write jars.lock. Raise ServiceError if a jar cannot be downloaded."""
    with tempfile.TemporaryDirectory(prefix="headrace-") as name:
        folder = Path(name)
        pattern = f"{folder}/jars/[conf]/[organisation]/[artifact]/[revision]/[artifact]-[revision].[ext]"
        download = IvyDownload(_IVY, _GROUPS, pattern, folder / "ivy.log", folder / "cache")
        retrieve([download], _find_settings())
        write_lock(LOCK, _IVY, folder / "jars")


def _find_settings() -> str:
    return os.environ.get("HEADRACE_IVY_SETTINGS") or str(_HERE / "ivysettings.xml")
