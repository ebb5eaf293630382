"""The files of a table's metadata versions: old ones are removed so that no late commit goes back to them.

A hadoop catalog commits version N+1 by a rename to `v<N+1>.metadata.json`, which fails only if that name
exists. Readers start at the version in `version-hint.text` and go on as long as the next file exists. A
writer that pauses inside its commit until version N+1 is deleted would commit it and set the hint back to it.

So Headrace, not Iceberg, removes old versions. It first replaces them by empty files, which keep the names
taken, and deletes these placeholders a day later. The file `headrace-oldest-version.text` contains the first
version from which no file is missing: a lower hint is wrong.
"""

from __future__ import annotations

import logging
import re
from bisect import bisect_left
from typing import TYPE_CHECKING, Any

from headrace.connectors.iceberg.catalog import WarehouseTable
from headrace.connectors.java_classes import java_class
from headrace.pipeline.errors import TransientError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

VERSIONS_KEPT = 500
"""How many of the newest versions keep their content."""
PLACEHOLDER_AGE = 24 * 60 * 60 * 1000
"""How long the name of an old version stays taken, in milliseconds."""
PRUNE_EVERY = 100
"""Old metadata is removed after this many versions."""
BATCH = 1000
"""At most this many files are replaced, and as many deleted, at a time."""
HINT = "version-hint.text"
OLDEST = "headrace-oldest-version.text"
_LISTED = re.compile(r"/(v(\d+)\.[\w.]*metadata\.json[\w.]*)(?=, |\)$)")


class MetadataFiles:
    """The metadata folder of one table, through Hadoop's file systems."""

    def __init__(self, spark: SparkSession, table: WarehouseTable) -> None:
        self._jvm: Any = spark._jvm  # noqa: SLF001  Hadoop's file systems have a Java interface only
        self._files, self._folder = table.metadata_folder(spark)
        self._table = table
        self._prune_at = 0
        """The version from which `prune` is due."""

    def repair_hint(self, *, suspect: bool = False) -> None:
        """Point a hint that is too old to lead to the newest version at that version.

        List the folder only if the hint is below the oldest version, or if it is `suspect` and no oldest
        version is stored. Raise TransientError if that fails.
        """
        from py4j.protocol import Py4JJavaError

        try:
            hint, oldest = self._read_number(HINT), self._read_number(OLDEST)
            if hint is None or (not suspect if oldest is None else hint >= oldest):
                return
            newest = max(self._list(), default=0)
            if hint < newest:
                log.warning(
                    "event=version_hint_repaired table=%s hint=%s version=%s", self._table.name, hint, newest
                )
                self._write_number(HINT, newest)
        except Py4JJavaError as error:
            msg = f"the metadata folder of the Iceberg table `{self._table.name}` cannot be read"
            raise TransientError(msg, node=self._table.node) from error

    def is_newest(self, version: int) -> bool:
        """Return whether no newer version was committed. List the folder if the hint cannot show it."""
        hint = self._read_number(HINT)
        if hint is not None and self._oldest() <= version:
            return hint <= version
        return max(self._list(), default=0) == version

    def prune(self, version: int) -> None:
        """Replace old versions by placeholders and delete expired placeholders, if that is due at `version`.

        Every step leaves a table that opens, so a crash in between is harmless. A failure is logged. A large
        folder is pruned less often, because listing it takes long.
        """
        if version < self._prune_at:
            return
        names: dict[int, str] = {}
        try:
            names = self._list()
            self._prune(names)
        except Exception as error:  # noqa: BLE001  the epoch is committed, and the next call does the rest
            reason = getattr(error, "java_exception", error)
            log.warning("event=metadata_not_pruned table=%s error=%s", self._table.name, reason)
        self._prune_at = version + max(PRUNE_EVERY, len(names) // 100)

    def _prune(self, names: dict[int, str]) -> None:
        if not names:
            return
        newest = max(names)
        # The newest file's time is the clock, because all files have the clock of their file system.
        now = int(self._status(names[newest]).getModificationTime())
        old = sorted(version for version in names if version <= newest - VERSIONS_KEPT)
        expired = self._find_expired(old, names, now)
        oldest = _start_of_run(names.keys() - expired)
        # It is written before the deletion: a hint in between leads nowhere from then on.
        if oldest != self._oldest():
            self._write_number(OLDEST, oldest)
        for version in sorted(expired):
            if self._is_expired(self._status(names[version]), now):
                self._delete(names[version])
        rest = [version for version in old if version not in expired]
        # In ascending order, so that after a crash all versions with content still follow all placeholders.
        first = bisect_left(rest, True, key=lambda version: _has_content(self._status(names[version])))
        late = [version for version in rest[:first] if version < oldest]
        for version in [*late, *rest[first : first + BATCH]]:
            status = self._status(names[version])
            # A newer file belongs to a table that replaced this one in the meantime.
            if _has_content(status) and int(status.getModificationTime()) <= now:
                self._empty(names[version])

    def _find_expired(self, old: list[int], names: dict[int, str], now: int) -> set[int]:
        """Return the versions whose placeholders can be deleted. Placeholders are made in ascending order."""
        expired: set[int] = set()
        for version in old[:BATCH]:
            status = self._status(names[version])
            if self._is_expired(status, now):
                expired.add(version)
            elif not _has_content(status):
                break
        return expired

    @staticmethod
    def _is_expired(status: Any, now: int) -> bool:
        if status is None or _has_content(status):
            return False
        return now - int(status.getModificationTime()) > PLACEHOLDER_AGE

    def _empty(self, name: str) -> None:
        """Replace a file by an empty one in one step. Do not create the folder of a dropped table."""
        self._files.createFile(self._path(name)).overwrite(True).build().close()

    def _delete(self, name: str) -> None:
        self._files.delete(self._path(name), False)

    def _list(self) -> dict[int, str]:
        """Return the names of all metadata files by version."""
        pattern = java_class(self._jvm, "org.apache.hadoop.fs.GlobFilter")("v*.metadata.json*")
        try:
            result = self._files.listStatus(self._folder, pattern)
        except Exception as error:
            if _is_missing(error):
                return {}
            raise
        paths = java_class(self._jvm, "org.apache.hadoop.fs.FileUtil").stat2Paths(result)
        # One string, "Array(…, …)", because a call per file is slow.
        text = java_class(self._jvm, "scala.runtime.ScalaRunTime").stringOf(paths)
        return {int(version): name for name, version in _LISTED.findall(text)}

    def _oldest(self) -> int:
        return self._read_number(OLDEST) or 0

    def _status(self, name: str) -> Any:
        """Return Hadoop's status of a file, or None if there is no such file."""
        try:
            return self._files.getFileStatus(self._path(name))
        except Exception as error:
            if _is_missing(error):
                return None
            raise

    def _read_number(self, name: str) -> int | None:
        """Return the number in a file; None if there is no such file, or while another process writes it."""
        try:
            stream = self._files.open(self._path(name))
            try:
                text = str(stream.readLine())
            finally:
                stream.close()
        except Exception as error:
            if _is_missing(error):
                return None
            raise
        return int(text) if text.strip().isdigit() else None

    def _write_number(self, name: str, number: int) -> None:
        stream = self._files.create(self._path(name), True)
        try:
            stream.writeBytes(str(number))
        finally:
            stream.close()

    def _path(self, name: str) -> Any:
        return java_class(self._jvm, "org.apache.hadoop.fs.Path")(self._folder, name)


def _has_content(status: Any) -> bool:
    return status is not None and int(status.getLen()) > 0


def _start_of_run(versions: set[int]) -> int:
    """Return the first version from which none is missing up to the newest one."""
    start = max(versions)
    while start - 1 in versions:
        start -= 1
    return start


def _is_missing(error: Exception) -> bool:
    """Return whether Hadoop reports a missing file, or one that changes while it is read."""
    result = getattr(error, "java_exception", None)
    names = ("FileNotFoundException", "ChecksumException")
    return result is not None and str(result.getClass().getSimpleName()) in names
