"""Maintenance of an Iceberg table, by the actions of Iceberg: rewrite, and expiry of snapshots.

The record of a sink is a property of the table, which outlives snapshots. Files of no snapshot, as a killed
process leaves them, stay.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from headrace.connectors.iceberg.catalog import WarehouseTable
from headrace.connectors.iceberg.errors import explain
from headrace.connectors.iceberg.metadata import IcebergMetadata
from headrace.connectors.table_maintenance import (
    DELETED_RATIO,
    FILE_SIZE,
    Compaction,
    FileTotal,
    TableMaintenance,
    Vacuum,
    measure_files,
    sum_files,
)
from headrace.pipeline.errors import SinkStateError, TargetError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

_REWRITE = {
    "target-file-size-bytes": str(FILE_SIZE),
    "min-input-files": "2",
    "delete-ratio-threshold": str(DELETED_RATIO),
}
_LEAST_HOURS = 24
"""Readers and writers can still need younger snapshots."""
_HOUR = 3_600_000
_MAX_AGE, _DEFAULT_AGE = "history.expire.max-snapshot-age-ms", 5 * 24 * _HOUR


class IcebergMaintenance(TableMaintenance):
    """Maintenance of one table. `read` returns its newest metadata."""

    def __init__(
        self,
        sink: str,
        target: str,
        spark: SparkSession,
        table: WarehouseTable,
        read: Callable[[], IcebergMetadata],
    ) -> None:
        super().__init__(sink, target)
        self._spark = spark
        self._catalog_table = table
        self._read = read

    def plan_compaction(self) -> Compaction:
        """Return the groups of files that Iceberg would rewrite."""
        table = self._read().table
        options = self._jvm.java.util.HashMap()
        for key, value in _REWRITE.items():
            options.put(key, value)
        planner = self._jvm.org.apache.iceberg.actions.BinPackRewriteFilePlanner(table)
        planner.init(options)
        groups = planner.plan().groups().iterator()
        files = size = written = 0
        while groups.hasNext():
            group = groups.next()
            files += int(group.inputFileNum())
            size += int(group.inputFilesSizeInBytes())
            written += int(group.expectedOutputFiles())
        return Compaction(_sum_table(table), FileTotal(files, size), written)

    def compact_once(self) -> Compaction:
        """Rewrite in one commit. Iceberg commits it only if the rewritten files have no new deletes."""
        table = self._read().table
        before = _sum_table(table)
        action = self._actions.rewriteDataFiles(table)
        for key, value in {**_REWRITE, "remove-dangling-deletes": "true"}.items():
            action = action.option(key, value)
        with self._explained():
            result = action.execute()
        rewritten = FileTotal(int(result.rewrittenDataFilesCount()), int(result.rewrittenBytesCount()))
        return Compaction(
            before, rewritten, int(result.addedDataFilesCount()), _sum_table(self._read().table)
        )

    def plan_vacuum(self, hours: int | None) -> Vacuum:
        """Return the snapshots that would expire and the files that would be removed."""
        table, hours = self._check(hours)
        expired = self._find_expired(table, hours)
        with self._explained():
            unused = self._find_files_of(expired)
        return Vacuum(hours, sum_files(unused), len(expired))

    def vacuum(self, hours: int | None) -> Vacuum:
        """Expire snapshots. Iceberg commits the expiry before it removes files."""
        table, hours = self._check(hours)
        expired = self._find_expired(table, hours)
        with self._explained():
            unused = self._find_files_of(expired)
            if expired:
                self._actions.expireSnapshots(table).expireOlderThan(expiry_time(hours)).execute()
        left = measure_files(self._spark, unused)
        removed = {path: size for path, size in unused.items() if path not in left}
        return Vacuum(hours, sum_files(removed), len(expired))

    def _check(self, hours: int | None) -> tuple[Any, int]:
        """Return the table and the retention in hours.

        Raise SinkStateError if a sink lost rows by a rollback: the expiry would remove the proof of it.
        """
        self.check_retention(hours, _LEAST_HOURS, "a run or a reader can need younger snapshots")
        metadata = self._read()
        properties = metadata.table.properties()
        if str(properties.get("gc.enabled")) == "false":
            msg = f"{self.target} has the property gc.enabled = false: its files may belong to other tables"
            raise TargetError(msg, hint="Set it to true if they do not.", node=self._sink)
        for app, stored in metadata.properties():
            if stored.record is not None and not metadata.contains(stored):
                msg = f"{self.target} was rolled back to a snapshot without the newest rows of {app}"
                hint = "First repair that sink: `headrace replay --from` or `accept-target`."
                raise SinkStateError(msg, hint=hint, node=self._sink)
        if hours is None:
            age = properties.get(_MAX_AGE)
            hours = max(_LEAST_HOURS, int(age or _DEFAULT_AGE) // _HOUR)
        return metadata.table, hours

    def _find_expired(self, table: Any, hours: int) -> list[int]:
        """Return the ids of the snapshots that an expiry would remove."""
        found = table.expireSnapshots().expireOlderThan(expiry_time(hours)).apply()
        return [int(snapshot.snapshotId()) for snapshot in found]

    def _find_files_of(self, expired: Collection[int]) -> dict[str, int]:
        """Return the data and delete files that only expired snapshots have, with their sizes.

        A file that a kept snapshot has was added by a kept one, or is in a kept one whose parent expires.
        """
        from pyspark.sql import functions as F  # noqa: N812

        if not expired:
            return {}
        path = self._catalog_table.path(self._spark)
        snapshots = self._spark.table(f"{path}.snapshots").select("snapshot_id", "parent_id").collect()
        kept = {row["snapshot_id"] for row in snapshots} - set(expired)
        first = [row[0] for row in snapshots if row[0] in kept and row["parent_id"] not in kept]
        kept_ids = self._spark.createDataFrame([(one,) for one in sorted(kept)], "snapshot_id bigint")
        files: DataFrame = (
            self._spark.table(f"{path}.all_entries")
            .join(kept_ids, "snapshot_id", "left_anti")
            .select(
                F.col("data_file.file_path").alias("path"),
                F.col("data_file.file_size_in_bytes").alias("size"),
            )
            .distinct()
        )
        for snapshot in first:
            live = self._spark.read.option("versionAsOf", str(snapshot)).table(f"{path}.files")
            files = files.join(live.select(F.col("file_path").alias("path")), "path", "left_anti")
        return measure_files(self._spark, [row["path"] for row in files.collect()])

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise explain(error, self.target, self._sink) from error

    @property
    def _jvm(self) -> Any:
        return self._spark._jvm  # noqa: SLF001  Iceberg's actions have a Java interface only

    @property
    def _actions(self) -> Any:
        session: Any = self._spark._jsparkSession  # noqa: SLF001
        return self._jvm.org.apache.iceberg.spark.actions.SparkActions.get(session)


def expiry_time(hours: int) -> int:
    """Return the time before which snapshots expire, in milliseconds."""
    return int(time.time() * 1000) - hours * _HOUR


def _sum_table(table: Any) -> FileTotal:
    """Return the files of the newest snapshot, those of deletes included."""
    snapshot = table.currentSnapshot()
    if snapshot is None:
        return FileTotal()
    summary = snapshot.summary()
    data, deletes, size = (
        int(summary.get(name) or 0) for name in ("total-data-files", "total-delete-files", "total-files-size")
    )
    return FileTotal(data + deletes, size)
