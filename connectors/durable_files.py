"""Files that survive a power failure."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def sync_to_disk(path: Path) -> None:
    """Flush a file or folder to disk, so that it survives a power failure."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        # Folders of some shared file systems know no fsync.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)
