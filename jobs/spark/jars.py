"""The jars of ivy.xml, resolved once per user by the Ivy that pyspark ships."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from headrace.jobs.spark.cache import locked, user_cache
from headrace.jobs.spark.java import find_java
from headrace.pipeline.errors import ServiceError

log = logging.getLogger(__name__)

Progress = Callable[[int, str], None]

_HERE = Path(__file__).parent
_MANIFEST = "manifest.json"
_GROUPS = ("spark", "broker")


@dataclass(frozen=True, slots=True)
class JarSet:
    """Absolute paths, sorted.

    `spark` goes to spark.jars; `broker` is the class path of the local Kafka broker.
    """

    spark: list[Path]
    broker: list[Path]


def ensure_jars(progress: Progress | None = None, *, java: str | None = None) -> JarSet:
    """Return the jars that ivy.xml names, from the user cache. Download them if they are not there.

    Two processes never download at the same time, and a process that dies leaves no folder that looks
    complete.

    Args:
        progress: called about three times a second while downloading, with the number of bytes and the
            current jar.
        java: the user's Java setting, see `find_java`.

    Raises:
        ServiceError: Java is missing, or a jar cannot be downloaded.
    """
    target = jar_folder()
    if jars := _load(target):
        return jars
    with locked(target.parent / "lock"):
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
    digest = hashlib.sha256((_HERE / "ivy.xml").read_bytes()).hexdigest()[:16]
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
    settings = os.environ.get("HEADRACE_IVY_SETTINGS") or str(_HERE / "ivysettings.xml")
    fresh = Path(tempfile.mkdtemp(prefix="resolving-", dir=target.parent))
    log.info("event=jars_resolving folder=%s", target)
    try:
        pattern = f"{fresh}/[conf]/[organisation]_[artifact]-[revision].[ext]"
        retrieve(_HERE / "ivy.xml", settings, _GROUPS, pattern, fresh / "ivy.log", progress, java)
        sizes = {
            group: {path.name: path.stat().st_size for path in (fresh / group).iterdir()} for group in _GROUPS
        }
        (fresh / _MANIFEST).write_text(json.dumps(sizes, indent=1))
        shutil.rmtree(target, ignore_errors=True)
        fresh.rename(target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def retrieve(
    ivy: Path,
    settings: str,
    groups: Sequence[str],
    pattern: str,
    transcript: Path,
    progress: Progress | None = None,
    java: str | None = None,
    types: Sequence[str] = ("jar", "bundle"),
) -> None:
    """Download the artifacts that an Ivy file names, to the places that `pattern` gives.

    `settings` is the path of Ivy's settings; `transcript` gets its output. Raise ServiceError if an artifact
    cannot be downloaded.
    """
    ivy_cache = user_cache() / "ivy"
    command = [str(find_java(java).path), "-cp", str(_ivy_jar()), "org.apache.ivy.Main"]
    command += ["-settings", settings, "-ivy", str(ivy), "-cache", str(ivy_cache)]
    command += ["-confs", *groups, "-types", *types, "-retrieve", pattern]
    _run(command, transcript, ivy_cache, progress)


def _run(command: list[str], transcript: Path, ivy_cache: Path, progress: Progress | None) -> None:
    before = _size(ivy_cache)
    come = 0  # never shown shrinking: Ivy moves files about
    with (
        transcript.open("w") as out,
        subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL) as process,
    ):
        try:
            while process.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=0.3)
                if progress:
                    come = max(come, _size(ivy_cache) - before)
                    progress(come, _current(transcript))
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        output = transcript.read_text(errors="replace")
        missing = sorted(set(re.findall(r":: (\S+#\S+): not found|\[FAILED\s*\] (\S+)", output)))
        names = ", ".join(sorted({first or second for first, second in missing})) or output.strip()[-600:]
        msg = f"cannot download the jars that Spark needs: {names}"
        hint = (
            "Is Maven Central reachable? Behind a mirror, point HEADRACE_IVY_SETTINGS at an"
            " ivysettings.xml of your own."
        )
        raise ServiceError(msg, hint=hint)


def _ivy_jar() -> Path:
    spec = find_spec("pyspark")
    found = (
        sorted(Path(spec.submodule_search_locations[0], "jars").glob("ivy-*.jar"))
        if spec and spec.submodule_search_locations
        else []
    )
    if not found:
        msg = "pyspark's jars/ivy-*.jar is not there"
        raise ServiceError(msg, hint="Install pyspark from PyPI; a pyspark without jars cannot be used.")
    return found[-1]


def _current(transcript: Path) -> str:
    names = re.findall(r"^downloading \S*/([^/\s]+)", transcript.read_text(errors="replace"), re.MULTILINE)
    return names[-1] if names else "resolving"


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # Ivy renames its partial files while we look
            total += path.stat().st_size if path.suffix in {".jar", ".part"} else 0
    return total
