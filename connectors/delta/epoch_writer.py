"""The commit of an epoch to a Delta table: by the driver if it has the rows or they are few, or by Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headrace.connectors.delta.arrow_writer import ArrowWriter
from headrace.connectors.delta.commit_metadata import TableVersion, encode_commit_metadata
from headrace.connectors.delta.direct import DirectFileLoad, DirectFiles, FileTask
from headrace.connectors.delta.local_log import LocalTableLog
from headrace.connectors.delta.spark_writer import SparkWriter
from headrace.connectors.delta.table_log import TableLog
from headrace.connectors.frame import EpochFrame, LargeEpochCollector
from headrace.connectors.lakehouse_rows import (
    DRIVER_ROWS,
    build_merge_source,
    collect_append_rows,
    collect_last_rows,
    select_append_rows,
)
from headrace.connectors.sink_base import SinkContext
from headrace.connectors.source_base import SplitReader
from headrace.connectors.split_tasks import count_task_threads
from headrace.connectors.transactional_sink import SinkCommit
from headrace.pipeline.protocol.epochs import WriteCounts

if TYPE_CHECKING:
    import pyarrow as pa


class _LocalTable(NamedTuple):
    """What writes a local table without Spark."""

    log: LocalTableLog
    writer: ArrowWriter


class DeltaEpochWriter:
    """Writes the epochs of one sink."""

    def __init__(self, context: SinkContext, log: TableLog, spark_writer: SparkWriter) -> None:
        self._name = context.key.sink
        self._app = context.key.text
        self._master = context.settings.spark.master
        self._version_column: str | None = context.node.version_column
        self._spark_writer = spark_writer
        self._large = LargeEpochCollector(self._name)
        self._local: _LocalTable | None = None
        """Writes epochs of a local table without Spark; None for another file system."""
        if isinstance(log, LocalTableLog):
            self._local = _LocalTable(log, ArrowWriter(log.folder))

    def write(self, since: TableVersion, txn: int, change: SinkCommit, frame: EpochFrame) -> bool:
        """Commit rows and record under step `txn`. Return False if the table changed after `since`."""
        large = self._large if self._can_write(frame) else None
        rows = self._collect_rows(frame, large)
        if rows is not None and self._local is not None:
            snapshot = self._local.log.snapshot()
            written = self._local.writer.write(rows, frame.key, self._version_column, snapshot)
            if written is not None:
                metadata = encode_commit_metadata(self._app, txn, change.complete(written.counts))
                read_version = snapshot.version.number if frame.key else None
                return self._local.log.commit_files(
                    since, self._app, txn, metadata, written.actions, written.counts, read_version
                )
        if large is not None and rows is not None and rows.num_rows > DRIVER_ROWS:
            # Spark would send them back to its tasks, so it computes them again. Later ones go to it at once.
            large.stop()
            rows = None
        metadata = encode_commit_metadata(self._app, txn, change.complete(WriteCounts()), derive=True)
        if frame.key:
            version = self._version_column
            source = build_merge_source(self._name, frame, self._spark_writer.session, version, rows)
            self._spark_writer.merge(source, frame, version, txn, metadata)
        else:
            self._spark_writer.append(select_append_rows(self._name, frame), txn, metadata)
        return True

    def plan_direct(
        self, fetch: SplitReader, payload: pa.Schema, key: tuple[str, ...]
    ) -> DirectFileLoad | None:
        """Return a load of splits with the columns of `payload` by tasks. None if Spark has to write them."""
        local = self._local
        columns = local.writer.read_schema(local.log.snapshot()) if local is not None else None
        if local is None or columns is None:
            return None
        task = FileTask(self._name, fetch, payload, columns, local.log.folder, key)
        return DirectFileLoad.of(task, count_task_threads(self._master))

    def commit_files(self, since: TableVersion, txn: int, change: SinkCommit, files: DirectFiles) -> bool:
        """Commit files and record under step `txn`. Return False if the table changed after `since`.

        Raise KeysMayExistError if the table may have a key of the files.
        """
        assert self._local is not None  # noqa: S101  `plan_direct` has checked it
        snapshot = self._local.log.snapshot()
        if files.key:
            files.check_keys(snapshot.read_files())
        counts = WriteCounts(files.rows, files.rows, 0, 0)
        metadata = encode_commit_metadata(self._app, txn, change.complete(counts))
        read_version = snapshot.version.number if files.key else None
        return self._local.log.commit_files(
            since, self._app, txn, metadata, files.actions, counts, read_version
        )

    def count_rows(self, version: TableVersion) -> int | None:
        """Return the rows of a version, or None if the log does not tell or the table has a newer version."""
        snapshot = self._local.log.snapshot() if self._local is not None else None
        if self._local is None or snapshot is None or snapshot.version != version:
            return None
        return self._local.writer.count_rows(snapshot)

    def _can_write(self, frame: EpochFrame) -> bool:
        """Return whether the table takes rows with the columns of a frame without Spark."""
        if self._local is None:
            return False
        log, writer = self._local
        return writer.can_write(log.snapshot(), frame.schema.names, frame.key, self._version_column)

    def _collect_rows(self, frame: EpochFrame, large: LargeEpochCollector | None) -> pa.Table | None:
        """Return the rows of an epoch that the driver writes: all of them, or with a key the last of each.

        Return None if Spark has to write the epoch. Rows to append are not collected in vain, because Spark
        would compute them again.
        """
        if frame.key:
            return collect_last_rows(self._name, frame, self._version_column, large)
        return collect_append_rows(self._name, frame, large) if self._can_write(frame) else None
