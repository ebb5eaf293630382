"""An open Delta table: its log, and what writes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headrace.connectors.delta.commit_history import CommitHistory
from headrace.connectors.delta.epoch_writer import DeltaEpochWriter
from headrace.connectors.delta.jvm_log import JvmTableLog
from headrace.connectors.delta.local_log import LocalTableLog
from headrace.connectors.delta.local_snapshot import find_local_table
from headrace.connectors.delta.session import open_session
from headrace.connectors.delta.spark_writer import SparkWriter
from headrace.connectors.delta.table_log import TableLog
from headrace.connectors.lazy_session import ensure_session
from headrace.connectors.sink_base import SinkContext
from headrace.pipeline.errors import TransientError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class OpenTable(NamedTuple):
    """What reads and writes a table. The session is lazy if nothing has started Spark yet."""

    session: SparkSession
    log: TableLog
    history: CommitHistory
    spark_writer: SparkWriter
    epoch_writer: DeltaEpochWriter

    @property
    def is_outdated(self) -> bool:
        """Whether the table has to be opened again, because its log needs Delta's own classes now."""
        return isinstance(self.log, LocalTableLog) and not self.log.is_supported


def open_table(context: SinkContext, spark: SparkSession, path: str, target: str) -> OpenTable:
    """Open the table at a path. Spark starts only if the log needs it."""
    session = open_session(spark)
    log = _open_log(context, session, path)
    writer = SparkWriter(session, path, context.key.text)
    history = CommitHistory(log, context.key.text, target)
    return OpenTable(session, log, history, writer, DeltaEpochWriter(context, log, writer))


def _open_log(context: SinkContext, session: SparkSession, path: str) -> TableLog:
    if (folder := find_local_table(path, context.settings)) is not None:
        checkpoint = lambda: JvmTableLog(ensure_session(session), path).write_checkpoint()  # noqa: E731
        log = LocalTableLog(folder, context.key.sink, checkpoint)
        try:
            log.snapshot()
        except TransientError:
            if log.is_supported:
                raise
        else:
            return log
    return JvmTableLog(ensure_session(session), path)
