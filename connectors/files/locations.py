"""The storage that a path leads to, and paths of this host for Spark."""

from __future__ import annotations

import re
from pathlib import PurePath

from headrace.connectors.files.bucket_storage import bucket_storage
from headrace.connectors.files.storage import FileStorage, LocalStorage
from headrace.pipeline.config.settings import Settings


def storage_of(path: str, settings: Settings) -> FileStorage:
    """Return the storage of a path: folders of this host, or a bucket."""
    if "://" not in path or path.startswith("file://"):
        return LocalStorage()
    return bucket_storage(path, settings.file_source.s3)


def spark_pattern(path: PurePath | str) -> str:
    """Return a path for Spark to read, as a file URL with glob characters escaped.

    Spark takes paths without a scheme for its default file system, and some characters for patterns.
    """
    return "file://" + re.sub(r"([\\{}\[\]*?])", r"\\\1", str(path))
