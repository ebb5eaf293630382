"""The commit of an epoch to a Delta table: by the driver if it has the rows or they are few, or by Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.connectors.delta.arrow_writer import ArrowWriter
from headrace.connectors.delta.direct import DirectFileLoad, DirectFiles, FileTask
from headrace.connectors.delta.log_writer import LogWriter
from headrace.connectors.delta.spark_writer import SparkWriter
from headrace.connectors.delta.transaction_log import TableLog, TableVersion, encode_commit_metadata
from headrace.connectors.frame import EpochFrame
from headrace.connectors.lakehouse_rows import (
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


class DeltaEpochWriter:
    """Writes the epochs of one sink."""

    def __init__(
        self, context: SinkContext, log: TableLog, log_writer: LogWriter, spark_writer: SparkWriter
    ) -> None:
        self._name = context.key.sink
        self._app = context.key.text
        self._master = context.settings.spark.master
        self._version_column: str | None = context.node.version_column
        self._log = log
        self._log_writer = log_writer
        self._spark_writer = spark_writer
        self._arrow_writer = ArrowWriter(log.replay) if log.replay is not None else None
        """Writes small epochs of a local table; None for another file system."""

    def write(self, since: TableVersion, txn: int, change: SinkCommit, frame: EpochFrame) -> bool:
        """Commit rows and record under step `txn`. Return False if the table changed after `since`."""
        rows = self._collect_rows(frame)
        if rows is not None and self._arrow_writer is not None:
            snapshot = self._log.snapshot()
            written = self._arrow_writer.write(rows, frame.key, self._version_column, snapshot)
            if written is not None:
                metadata = encode_commit_metadata(self._app, txn, change.complete(written.counts))
                read_version = int(snapshot.version()) if frame.key else None
                return self._log_writer.commit(
                    since, self._app, txn, metadata, written.actions, written.counts, read_version
                )
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
        columns = self._arrow_writer.read_schema(self._log.snapshot()) if self._arrow_writer else None
        if self._log.replay is None or columns is None:
            return None
        task = FileTask(self._name, fetch, payload, columns, self._log.replay.table, key)
        return DirectFileLoad.of(task, count_task_threads(self._master))

    def commit_files(self, since: TableVersion, txn: int, change: SinkCommit, files: DirectFiles) -> bool:
        """Commit files and record under step `txn`. Return False if the table changed after `since`.

        Raise KeysMayExistError if the table may have a key of the files.
        """
        assert self._arrow_writer is not None  # noqa: S101  `plan_direct` has checked it
        snapshot = self._log.snapshot()
        if files.key:
            files.check_keys(self._arrow_writer.read_files(snapshot))
        counts = WriteCounts(files.rows, files.rows, 0, 0)
        metadata = encode_commit_metadata(self._app, txn, change.complete(counts))
        read_version = int(snapshot.version()) if files.key else None
        return self._log_writer.commit(since, self._app, txn, metadata, files.actions, counts, read_version)

    def count_rows(self, snapshot: Any) -> int | None:
        """Return the number of rows from the log, or None if the log does not have it."""
        return self._arrow_writer.count_rows(snapshot) if self._arrow_writer is not None else None

    def _collect_rows(self, frame: EpochFrame) -> pa.Table | None:
        """Return the rows of an epoch that the driver writes: all of them, or with a key the last of each.

        Return None if Spark has to write the epoch. Rows to append are not collected in vain, because Spark
        would compute them again.
        """
        if frame.key:
            return collect_last_rows(self._name, frame, self._version_column)
        if self._arrow_writer is None or not self._arrow_writer.can_write(self._log.snapshot()):
            return None
        return collect_append_rows(self._name, frame)
