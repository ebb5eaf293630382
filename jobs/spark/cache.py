"""The folder per user for files that can be created again: jars, Java wrapper, class-data archives."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def user_cache() -> Path:
    """`$HEADRACE_CACHE`, else `$XDG_CACHE_HOME/headrace`, else `~/.cache/headrace`; made if missing."""
    own = os.environ.get("HEADRACE_CACHE")
    folder = (
        Path(own).expanduser()
        if own
        else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "headrace"
    )
    folder.mkdir(parents=True, exist_ok=True)
    return folder.resolve()


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Hold an exclusive flock on `path`, which is created if missing.

    Waits for it. The end of the process releases it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
