"""The storage that a path leads to."""

from __future__ import annotations

from headrace.connectors.files.bucket_storage import bucket_storage
from headrace.connectors.files.storage import FileStorage, LocalStorage
from headrace.pipeline.config.settings import Settings


def storage_of(path: str, settings: Settings) -> FileStorage:
    """Return the storage of a path: folders of this host, or a bucket."""
    if "://" not in path or path.startswith("file://"):
        return LocalStorage()
    return bucket_storage(path, settings.file_source.s3)
