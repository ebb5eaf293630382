"""Versions of a Delta table on a local disk, read from its log without Spark."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import quote, urlsplit

from headrace.connectors.delta.data_files import DataFile
from headrace.connectors.delta.local_snapshot import (
    LocalSnapshot,
    UnsupportedLogError,
    find_local_table,
    read_snapshot,
    read_version,
)
from headrace.pipeline.config.settings import Settings

_PLAIN = re.compile(r"[ -~]+")
_UNQUOTED = "/-_.!~'()*,;:$&+=@"
"""Characters that `java.net.URI` leaves as they are in a path."""
_COLUMN_MAPPING = "delta.columnMapping.mode"


class LocalVersions:
    """The versions of the table at a path that Headrace reads itself."""

    def __init__(self, path: str, settings: Settings) -> None:
        folder = find_local_table(path, settings)
        self.folder = folder.absolute() if folder is not None and _PLAIN.fullmatch(str(folder)) else None
        self._newest: LocalSnapshot | None = None
        self._pinned: LocalSnapshot | None = None

    def find(self, number: int | None = None) -> LocalSnapshot | None:
        """Return a version, or the newest one. None if only Delta's own classes can read it."""
        if self.folder is None:
            return None
        try:
            result = self._read(self.folder, number)
        except (UnsupportedLogError, OSError):
            return None
        return result if result.version.exists and _has_plain_files(result) else None

    def locate(self, file: DataFile) -> str:
        """Return the location of a file of the table as Spark spells it."""
        return f"file:{quote(str(self.folder), safe=_UNQUOTED)}/{file.add['path']}"

    def _read(self, folder: Path, number: int | None) -> LocalSnapshot:
        if number is None:
            self._newest = read_snapshot(self._newest or LocalSnapshot(folder))
            return self._newest
        if self._pinned is None or self._pinned.version.number != number:
            self._pinned = read_version(folder, number)
        return self._pinned


def _has_plain_files(snapshot: LocalSnapshot) -> bool:
    """Return whether columns have their names in the files, and the files are in the folder of the table."""
    mapping = snapshot.read_properties().get(_COLUMN_MAPPING, "none")
    return mapping == "none" and not any(
        urlsplit(path).scheme or path.startswith("/") for path in snapshot.files
    )
