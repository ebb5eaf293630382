"""Maintenance of a Delta table, by OPTIMIZE and VACUUM of Delta.

The record of a sink is in the log, and neither command removes it. Only the cleanup of the log does, which
follows a checkpoint: so a compaction is refused if a record is almost as old as the log. A vacuum commits
nothing, because its two commits would bring checkpoints to a table that no sink writes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from datetime import timedelta
from itertools import groupby
from typing import TYPE_CHECKING, Any

from headrace.connectors.delta.claims import read_claims
from headrace.connectors.delta.data_files import DataFile
from headrace.connectors.delta.errors import explain
from headrace.connectors.delta.jvm_log import JvmTableLog
from headrace.connectors.delta.session import open_session
from headrace.connectors.table_maintenance import (
    DELETED_RATIO,
    FILE_SIZE,
    HOUR_MS,
    SMALL_FILE_SIZE,
    Compaction,
    FileTotal,
    TableMaintenance,
    Vacuum,
    measure_files,
    sum_files,
    sum_removed,
)
from headrace.pipeline.errors import SinkStateError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OPTIONS = {
    "spark.databricks.delta.optimize.minFileSize": str(SMALL_FILE_SIZE),
    "spark.databricks.delta.optimize.maxFileSize": str(FILE_SIZE),
    "spark.databricks.delta.optimize.maxDeletedRowsRatio": str(DELETED_RATIO),
    "spark.databricks.delta.retentionDurationCheck.enabled": "true",
    "spark.databricks.delta.vacuum.logging.enabled": "false",
}
_LISTING_TASKS = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
_DAY = 24 * HOUR_MS


class DeltaMaintenance(TableMaintenance):
    """Maintenance of the table at a path."""

    def __init__(self, sink: str, target: str, spark: SparkSession, path: str) -> None:
        super().__init__(sink, target)
        self._session = open_session(spark)
        # By default, the listing of the smallest table is a job of 10,000 tasks.
        listing = {_LISTING_TASKS: str(spark.sparkContext.defaultParallelism)}
        for key, value in {**_OPTIONS, **listing}.items():
            self._session.conf.set(key, value)
        self._path = path
        self._log = JvmTableLog(self._session, path)

    def plan_compaction(self) -> Compaction:
        """Return what OPTIMIZE would do, by the rule of Delta."""
        files = self._read_files()
        bins = plan_bins(files)
        rewritten = _sum_sizes(file for one in bins for file in one)
        return Compaction(_sum_sizes(files), rewritten, len(bins))

    def compact_once(self) -> Compaction:
        """Run OPTIMIZE. It keeps the commits of others, and fails if they changed a file that it rewrote."""
        self._check_age_of_records()
        before = _sum_sizes(self._read_files())
        metrics = self._execute("OPTIMIZE", "")[0]["metrics"]
        removed = FileTotal(metrics["numFilesRemoved"], metrics["filesRemoved"]["totalSize"] or 0)
        after = _sum_sizes(self._read_files())
        return Compaction(before, removed, metrics["numFilesAdded"], after)

    def plan_vacuum(self, hours: int | None) -> Vacuum:
        """Return what VACUUM would do."""
        return Vacuum(self._retention(hours), sum_files(self._find_unused(hours)))

    def vacuum(self, hours: int | None) -> Vacuum:
        """Run VACUUM."""
        unused = self._find_unused(hours)
        self._execute("VACUUM", _retain(hours))
        return Vacuum(self._retention(hours), sum_removed(self._session, unused))

    def _find_unused(self, hours: int | None) -> dict[str, int]:
        least = self._retention(None)
        reason = f"the table property delta.deletedFileRetentionDuration keeps files for {least:g} hours"
        self.check_retention(hours, least, reason)
        rows = self._execute("VACUUM", f"{_retain(hours)} DRY RUN")
        return measure_files(self._session, [row["path"] for row in rows])

    def _retention(self, hours: int | None) -> float:
        """Return `hours`, or the retention of the table in hours."""
        if hours is not None:
            return hours
        return self._log.file_retention(self._log.snapshot()) / HOUR_MS

    def _check_age_of_records(self) -> None:
        """Raise SinkStateError if the commit could bring a log cleanup that removes the record of a sink.

        Logs are removed after `delta.logRetentionDuration`. A day is left for the compaction itself.
        """
        snapshot = self._log.snapshot()
        retention = self._log.log_retention(snapshot)
        limit = max(retention - _DAY, retention // 2)
        newest = snapshot.version.number
        for claim in read_claims(self._log):
            commit, _ = self._log.find(claim.key.text, newest)
            if commit is None:
                continue  # the log no longer has it, which the sink reports
            written = (self._log.read_commit(commit.version) or {}).get("timestamp", 0)
            age = int(time.time() * 1000) - int(written)
            if age > limit:
                msg = (
                    f"the commit record of sink `{claim.key.sink}` of pipeline `{claim.key.name}` in"
                    f" {self.target} is {timedelta(milliseconds=age).days} days old: a commit could remove"
                    f" it with the log, which is kept for {timedelta(milliseconds=retention)}"
                )
                hint = "Run that pipeline first: headrace run FILE. The run writes the record again."
                raise SinkStateError(msg, hint=hint, node=self._sink)

    def _read_files(self) -> list[DataFile]:
        return self._log.snapshot().read_files()

    def _execute(self, command: str, options: str) -> list[Any]:
        path = self._path.replace("`", "``")
        try:
            return self._session.sql(f"{command} delta.`{path}` {options}").collect()
        except Exception as error:
            raise explain(error, self._path, self._sink) from error


def plan_bins(files: Iterable[DataFile]) -> list[list[DataFile]]:
    """Return the groups of files that OPTIMIZE would rewrite into one file each.

    It takes the small files, and those with many deleted rows, of each partition by size. A file alone is
    rewritten only to remove deleted rows.
    """
    chosen = sorted(filter(_is_candidate, files), key=lambda file: (_partition(file), file.add["size"]))
    bins: list[list[DataFile]] = []
    for _, members in groupby(chosen, key=_partition):
        size = FILE_SIZE + 1
        for file in members:
            if size + file.add["size"] > FILE_SIZE:
                bins.append([])
                size = 0
            bins[-1].append(file)
            size += file.add["size"]
    return [one for one in bins if len(one) > 1 or one[0].deletion_vector is not None]


def _is_candidate(file: DataFile) -> bool:
    deleted = (file.deletion_vector or {}).get("cardinality", 0)
    ratio = deleted / file.physical_rows if file.physical_rows else 0.0
    return file.add["size"] < SMALL_FILE_SIZE or ratio > DELETED_RATIO


def _partition(file: DataFile) -> str:
    return json.dumps(file.add.get("partitionValues") or {}, sort_keys=True)


def _sum_sizes(files: Iterable[DataFile]) -> FileTotal:
    sizes: Sequence[int] = [file.add["size"] for file in files]
    return FileTotal(len(sizes), sum(sizes))


def _retain(hours: int | None) -> str:
    return "" if hours is None else f"RETAIN {hours} HOURS"
