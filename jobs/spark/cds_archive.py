"""A class-data archive: the JVM maps the classes of a training run, and starts in about half the time.

Java ignores an archive of another Java or other jars, so a stale one only costs time. See "Class Data
Sharing" in the reference of the java command.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from headrace.jobs.spark.cache import locked, user_cache
from headrace.jobs.spark.jars import jar_folder
from headrace.jobs.spark.java import Java, find_java

log = logging.getLogger(__name__)

_TIMEOUT = 240.0


def archive_options(java: Java) -> str:
    """Return the JVM options that use the archive of this installation. Empty if there is none."""
    path = _path(java)
    # Java warns about archives on standard output, which belongs to the command line.
    return f"-XX:SharedArchiveFile={path} -Xlog:disable -Xlog:all=warning:stderr" if path.is_file() else ""


def ensure_archive(java: Java | None = None) -> Path | None:
    """Create the archive if it is missing, which takes about 20 seconds.

    Returns None and logs the reason if that fails.
    """
    path = _path(java or find_java())
    with locked(path.parent / "lock"):
        if not path.is_file():
            _remove_orphans(path.parent)
            _train(path)
    return path if path.is_file() else None


def has_archive() -> bool:
    """Whether `ensure_archive` has nothing to do."""
    return _path(find_java()).is_file()


def _path(java: Java) -> Path:
    """One per Java, installed pyspark and jar set: Java compares the whole class path."""
    parts = [str(java.path), java.version, str(_pyspark()), jar_folder().name, "1"]
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    return user_cache() / "archives" / f"{digest}.jsa"


def _pyspark() -> Path:
    spec = find_spec("pyspark")
    return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else Path()


def _remove_orphans(folder: Path) -> None:
    """Remove archives of environments that no longer exist. Each takes over 100 MB."""
    for note in folder.glob("*.json"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            if not Path(json.loads(note.read_text())["pyspark"]).is_dir():
                note.with_suffix(".jsa").unlink(missing_ok=True)
                note.unlink()


def _train(path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="training-", dir=path.parent) as folder:
        fresh = Path(folder) / path.name
        command = [sys.executable, "-m", "headrace.jobs.spark.cds_training", str(fresh)]
        try:
            subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=True, stdin=subprocess.DEVNULL)
            path.with_suffix(".json").write_text(json.dumps({"pyspark": str(_pyspark())}))
            fresh.rename(path)
        except (OSError, subprocess.SubprocessError) as error:
            output = str(getattr(error, "stderr", "") or "").strip()[-400:]
            log.warning("no class-data archive, Spark will start more slowly: error=%s said=%s", error, output)
