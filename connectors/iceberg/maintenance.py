"""Maintenance of an Iceberg table, by the actions of Iceberg: rewrite, expiry of snapshots, orphan files.

The record of a sink is a property of the table, which outlives snapshots. The files of the metadata versions
belong to `metadata_files`, so a vacuum leaves them alone, placeholders included.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from headrace.connectors.filters import quote_identifier
from headrace.connectors.iceberg.catalog import WarehouseTable
from headrace.connectors.iceberg.errors import explain
from headrace.connectors.iceberg.metadata import IcebergMetadata
from headrace.connectors.java_classes import java_class
from headrace.connectors.table_maintenance import (
    DELETED_RATIO,
    FILE_SIZE,
    HOUR_MS,
    Compaction,
    FileTotal,
    TableMaintenance,
    Vacuum,
    measure_files,
    sum_files,
    sum_removed,
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
"""Iceberg removes no younger orphan files, because a writer can be about to commit them."""
_MAX_AGE, _DEFAULT_AGE = "history.expire.max-snapshot-age-ms", 5 * 24 * HOUR_MS


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
        options = java_class(self._jvm, "java.util.HashMap")()
        for key, value in _REWRITE.items():
            options.put(key, value)
        planner = java_class(self._jvm, "org.apache.iceberg.actions.BinPackRewriteFilePlanner")(table)
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
        with self._translate_errors():
            result = action.execute()
        rewritten = FileTotal(int(result.rewrittenDataFilesCount()), int(result.rewrittenBytesCount()))
        return Compaction(
            before, rewritten, int(result.addedDataFilesCount()), _sum_table(self._read().table)
        )

    def plan_vacuum(self, hours: int | None) -> Vacuum:
        """Return the snapshots that would expire and the files that would be removed."""
        table, hours = self._check(hours)
        expired = self._find_expired(table, hours)
        with self._translate_errors():
            unused = self._find_files_of(expired) | measure_files(self._spark, self._find_orphans(hours))
        return Vacuum(hours, sum_files(unused), len(expired))

    def vacuum(self, hours: int | None) -> Vacuum:
        """Expire snapshots, then remove orphan files. Iceberg commits the expiry before it removes files."""
        table, hours = self._check(hours)
        expired = self._find_expired(table, hours)
        with self._translate_errors():
            unused = self._find_files_of(expired)
            if expired:
                self._actions.expireSnapshots(table).expireOlderThan(expiry_time(hours)).execute()
            if orphans := self._find_orphans(hours):
                unused |= measure_files(self._spark, orphans)
                self._remove_orphans(orphans, hours)
        return Vacuum(hours, sum_removed(self._spark, unused), len(expired))

    def _check(self, hours: int | None) -> tuple[Any, int]:
        """Return the table and the retention in hours.

        Raise SinkStateError if a sink lost rows by a rollback: the expiry would remove the proof of it.
        """
        self.check_retention(hours, _LEAST_HOURS, "Iceberg removes no younger files")
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
            hours = max(_LEAST_HOURS, int(age or _DEFAULT_AGE) // HOUR_MS)
        return metadata.table, hours

    def _find_expired(self, table: Any, hours: int) -> list[int]:
        """Return the ids of the snapshots that an expiry would remove."""
        result = table.expireSnapshots().expireOlderThan(expiry_time(hours)).apply()
        return [int(snapshot.snapshotId()) for snapshot in result]

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

    def _find_orphans(self, hours: int) -> list[str]:
        """Return the data files and manifests of no snapshot.

        Other files stay: those of metadata versions, and those of tables in folders of this one.
        """
        rows = self._call_orphan_removal(hours, "dry_run => true")
        location = str(self._read().table.location()).rstrip("/")
        folder = urlsplit(location).path
        # Iceberg lists `file:/…` for a location without a scheme, but removes only what starts with it.
        result = [f"{location}{str(row['orphan_file_location']).split(folder, 1)[1]}" for row in rows]
        data, metadata = f"{location}/data/", f"{location}/metadata/"
        return [
            path
            for path in result
            if path.startswith(data) or (path.startswith(metadata) and path.endswith(".avro"))
        ]

    def _remove_orphans(self, paths: Collection[str], hours: int) -> None:
        """Remove files. Iceberg checks again that no snapshot has them."""
        view = f"headrace_{uuid.uuid4().hex}"
        listed = [(path, _moment(hours) - timedelta(seconds=1)) for path in paths]
        frame = self._spark.createDataFrame(listed, "file_path string, last_modified timestamp")
        frame.createOrReplaceTempView(view)
        try:
            self._call_orphan_removal(hours, f"file_list_view => '{view}'")
        finally:
            self._spark.catalog.dropTempView(view)

    def _call_orphan_removal(self, hours: int, options: str) -> list[Any]:
        catalog = self._catalog_table.path(self._spark).split(".", 1)[0]
        table = ".".join(quote_identifier(part) for part in self._catalog_table.name.split("."))
        literal = table.replace("\\", "\\\\").replace("'", "\\'")
        older = f"TIMESTAMP '{_moment(hours):%Y-%m-%d %H:%M:%S}'"
        arguments = f"table => '{literal}', older_than => {older}, {options}"
        return self._spark.sql(f"CALL {catalog}.system.remove_orphan_files({arguments})").collect()

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
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
        return java_class(self._jvm, "org.apache.iceberg.spark.actions.SparkActions").get(session)


def expiry_time(hours: int) -> int:
    """Return the time before which snapshots expire, in milliseconds."""
    return int(time.time() * 1000) - hours * HOUR_MS


def _moment(hours: int) -> datetime:
    """Return the time before which files without a snapshot are orphans."""
    return datetime.now(UTC) - timedelta(hours=hours, minutes=1)


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
