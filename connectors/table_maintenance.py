"""Maintenance of tables of files next to their writers: compaction, and removal of files without readers.

A compaction replaces small files by larger ones in a commit that changes no row. If another writer changed
the same files meanwhile, the commit of the compaction fails, not that of the writer. A vacuum removes files
that no kept version needs, and files that a killed process left.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.connectors.java_classes import java_class
from headrace.pipeline.errors import TransientError, UserError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILE_SIZE = 128 << 20
"""The size of the files that a compaction writes, in bytes."""
SMALL_FILE_SIZE = FILE_SIZE * 3 // 4
"""Smaller files are rewritten, in bytes."""
DELETED_RATIO = 0.05
"""Files with a larger share of deleted rows are rewritten, too."""
HOUR_MS = 3_600_000
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class FileTotal:
    """A number of files and their size in bytes."""

    files: int = 0
    size: int = 0


@dataclass(frozen=True, slots=True)
class Compaction:
    """What a compaction did, or would do."""

    before: FileTotal
    """The files of the table."""
    rewritten: FileTotal
    written: int
    """The number of new files; an estimate in a plan."""
    after: FileTotal | None = None
    """The files of the table afterwards; None in a plan."""


@dataclass(frozen=True, slots=True)
class Vacuum:
    """What a vacuum did, or would do."""

    hours: float
    """The versions of these last hours keep their files."""
    removed: FileTotal
    expired: int = 0
    """The number of expired snapshots, for a table that has them."""


class TableMaintenance(ABC):
    """Maintenance of the table of one sink. `target` is the table as messages name it."""

    def __init__(self, sink: str, target: str) -> None:
        self._sink = sink
        self.target = target

    @abstractmethod
    def plan_compaction(self) -> Compaction:
        """Return what `compact` would do now."""

    @abstractmethod
    def compact_once(self) -> Compaction:
        """Compact in one commit. Raise TransientError, with nothing changed, after a conflicting commit."""

    @abstractmethod
    def plan_vacuum(self, hours: int | None) -> Vacuum:
        """Return what `vacuum` would do now. Raise UserError if `hours` is below the retention."""

    @abstractmethod
    def vacuum(self, hours: int | None) -> Vacuum:
        """Remove files that only versions older than `hours` need. None is the retention of the table."""

    def compact(self) -> Compaction:
        """Compact, again if a concurrent commit changed the same files. Raise TransientError in the end."""
        attempt = 1
        while True:
            try:
                return self.compact_once()
            except TransientError as error:
                if attempt == _ATTEMPTS:
                    msg = f"{self.target} was not compacted in {_ATTEMPTS} attempts: {error.message}"
                    hint = "If a run changes the same files, end it first: headrace stop FILE."
                    raise TransientError(msg, hint=hint, node=self._sink) from error
            attempt += 1

    def check_retention(self, hours: int | None, least: float, reason: str) -> None:
        """Raise UserError for a retention that is too short."""
        if hours is not None and hours < least:
            msg = f"--older-than {hours} is too short for {self.target}: {reason}"
            raise UserError(msg, hint=f"Use --older-than {least:g} or more.", node=self._sink)


def measure_files(spark: SparkSession, paths: Collection[str]) -> dict[str, int]:
    """Return the sizes in bytes of those paths that are files and exist."""
    jvm: Any = spark._jvm  # noqa: SLF001  Hadoop's file systems have a Java interface only
    session: Any = spark._jsparkSession  # noqa: SLF001
    conf = session.sessionState().newHadoopConf()
    result: dict[str, int] = {}
    for text in paths:
        path = java_class(jvm, "org.apache.hadoop.fs.Path")(text)
        files = path.getFileSystem(conf)
        if files.exists(path) and (status := files.getFileStatus(path)).isFile():
            result[text] = int(status.getLen())
    return result


def sum_removed(spark: SparkSession, sizes: dict[str, int]) -> FileTotal:
    """Return the total of those files by path that no longer exist."""
    left = measure_files(spark, sizes)
    return sum_files({path: size for path, size in sizes.items() if path not in left})


def sum_files(sizes: dict[str, int]) -> FileTotal:
    """Return the total of files by path."""
    return FileTotal(len(sizes), sum(sizes.values()))
