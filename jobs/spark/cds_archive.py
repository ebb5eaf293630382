"""A class-data archive: the JVM maps the classes of a training run, and starts in about half the time.

Java ignores an archive of another Java, of other jars, or of jars with another modification time. See "Class
Data Sharing" in the reference of the java command.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from headrace.jobs.spark.cache import file_lock, user_cache
from headrace.jobs.spark.jars import jar_folder
from headrace.jobs.spark.java import Java, find_java

log = logging.getLogger(__name__)

_TIMEOUT = 240.0
_TRAINING = "training-"


def archive_options(java: Java) -> str:
    """Return the JVM options that use the archive of this installation. Empty if there is none."""
    path = _path(java)
    return f"-XX:SharedArchiveFile={path}" if path.is_file() else ""


def ensure_archive(java: Java | None = None) -> Path | None:
    """Create the archive if it is missing, which takes about 20 seconds.

    Returns None and logs the reason if that fails.
    """
    path = _path(java or find_java())
    with file_lock(path.parent / "lock"):
        if not path.is_file():
            _remove_orphans(path.parent)
            _train(path)
    return path if path.is_file() else None


def has_archive() -> bool:
    """Whether `ensure_archive` has nothing to do."""
    return _path(find_java()).is_file()


def _path(java: Java) -> Path:
    """One per Java and class path.

    Another installation of pyspark in the same folder needs another archive.
    """
    parts = [str(java.path), java.version, _hash_jars(_class_path())]
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    return user_cache() / "archives" / f"{digest}.jsa"


def _class_path() -> list[Path]:
    """Return the folders whose jars Spark's JVM has on its class path."""
    spec = find_spec("pyspark")
    pyspark = Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else Path()
    return [pyspark / "jars", jar_folder() / "spark"]


def _hash_jars(folders: Iterable[Path]) -> str:
    """Return a hash of what Java compares: the path, size and modification time of each jar."""
    stats = [(str(jar), jar.stat()) for folder in folders for jar in sorted(folder.glob("*.jar"))]
    lines = [f"{path} {stat.st_size} {stat.st_mtime_ns}" for path, stat in stats]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _remove_orphans(folder: Path) -> None:
    """Remove archives whose environment no longer exists or has other jars, and what killed trainings left.

    Each takes over 100 MB. The caller holds the lock, so no training is running.
    """
    for left in folder.glob(f"{_TRAINING}*"):
        shutil.rmtree(left, ignore_errors=True)
    for note in folder.glob("*.json"):
        with contextlib.suppress(OSError, ValueError):
            trained = json.loads(note.read_text())
            if trained.get("hash") != _hash_jars(Path(folder) for folder in trained.get("class_path", ())):
                note.with_suffix(".jsa").unlink(missing_ok=True)
                note.unlink()


def _train(path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=_TRAINING, dir=path.parent) as folder:
        fresh = Path(folder) / path.name
        command = [sys.executable, "-m", "headrace.jobs.spark.cds_training", str(fresh)]
        folders = _class_path()
        trained = {"class_path": [str(folder) for folder in folders], "hash": _hash_jars(folders)}
        try:
            subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=_TIMEOUT,
                check=True,
                stdin=subprocess.DEVNULL,
            )
            path.with_suffix(".json").write_text(json.dumps(trained))
            fresh.rename(path)
        except (OSError, subprocess.SubprocessError) as error:
            output = str(getattr(error, "stderr", "") or "").strip()[-400:]
            log.warning("event=cds_archive_failed error=%s output=%s", error, output)
