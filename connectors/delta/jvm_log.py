"""The log of a Delta table through Delta's own classes in the JVM, for tables on other file systems."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.connectors.delta.commit_metadata import NO_TABLE, TableVersion
from headrace.connectors.delta.data_files import DataFile
from headrace.connectors.delta.session import USER_METADATA
from headrace.connectors.delta.table_log import TableLog, TableSnapshot
from headrace.connectors.java_classes import java_class
from headrace.connectors.session_options import with_options
from headrace.pipeline.protocol.epochs import Json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


def open_delta_log(session: SparkSession, path: str) -> Any:
    """Return Delta's own object for the log of a table. Delta caches it."""
    spark: Any = session
    logs = java_class(spark._jvm, "org.apache.spark.sql.delta.DeltaLog")  # noqa: SLF001  pyspark has no other access
    return logs.forTable(spark._jsparkSession, path)  # noqa: SLF001


def update_delta_log(log: Any) -> Any:
    """Read new commits. Return Delta's own object of the newest version."""
    return log.update(False, getattr(log, "update$default$2")(), getattr(log, "update$default$3")())


def parse_action(jvm: Any, action: Json) -> Any:
    """Return Delta's own object of an action, as the log stores it."""
    return java_class(jvm, "org.apache.spark.sql.delta.actions.Action").fromJson(json.dumps(action))


class JvmSnapshot(TableSnapshot):
    """A version of a table as an object of the JVM."""

    def __init__(self, log: JvmTableLog, snapshot: Any) -> None:
        self._log = log
        self.java = snapshot
        number = int(snapshot.version())
        self.version = TableVersion(str(snapshot.metadata().id()), number) if number >= 0 else NO_TABLE

    def read_columns(self) -> StructType:
        """Return the columns."""
        from pyspark.sql.types import StructType

        return StructType.fromJson(json.loads(str(self.java.metadata().schemaString())))

    def read_properties(self) -> Mapping[str, str]:
        """Return the properties of the table."""
        return dict(_items(self.java.metadata().configuration()))

    def read_transactions(self) -> Mapping[str, int]:
        """Return the versions of all transaction identifiers.

        Delta computes the state of the version for this. The write that follows reuses the state. The log's
        session computes it in one job.
        """
        with self._log.activate():
            return {app: int(version) for app, version in _items(self.java.transactions())}

    def read_files(self) -> list[DataFile]:
        """Return the data files, by a Spark job."""
        listed = self.java.allFiles().toJSON().collectAsList()
        return [DataFile(Path(), json.loads(text)) for text in listed]


class JvmTableLog(TableLog):
    """The log of the table at a path."""

    def __init__(self, session: SparkSession, path: str) -> None:
        self._jvm: Any = session._jvm  # noqa: SLF001  pyspark has no other access to the log
        self._spark = session
        self._session: Any = session._jsparkSession  # noqa: SLF001
        self._path = path

    def _log(self) -> Any:
        return open_delta_log(self._spark, self._path)

    def snapshot(self) -> JvmSnapshot:
        """Return the newest version."""
        return JvmSnapshot(self, update_delta_log(self._log()))

    def read_commit(self, version: int) -> Json | None:
        """Return a commit's info, {} if it has none, or None if there is no such version (any more)."""
        from py4j.protocol import Py4JJavaError

        log = self._log()
        names = java_class(self._jvm, "org.apache.spark.sql.delta.util.FileNames")
        path = names.unsafeDeltaFile(log.logPath(), version)
        try:
            lines = log.store().readAsIterator(path, log.newDeltaHadoopConf())
        except Py4JJavaError as error:
            if "FileNotFoundException" in error.java_exception.getClass().getName():
                return None
            raise
        try:
            while lines.hasNext():  # usually the first line; there may be thousands of adds
                action = json.loads(lines.next())
                if "commitInfo" in action:
                    return action["commitInfo"]
        finally:
            lines.close()
        return {}

    def log_retention(self, snapshot: JvmSnapshot) -> int:
        """Return how long the log keeps commits, in milliseconds."""
        return int(self._log().deltaRetentionMillis(snapshot.java.metadata()))

    def file_retention(self, snapshot: JvmSnapshot) -> int:
        """Return how long the files of older versions are kept, in milliseconds."""
        delta_log = java_class(self._jvm, "org.apache.spark.sql.delta.DeltaLog")
        return int(delta_log.tombstoneRetentionMillis(snapshot.java.metadata()))

    @contextmanager
    def activate(self) -> Iterator[None]:
        """Make this log's session the active one of the thread: Delta takes configuration from that."""
        active = java_class(self._jvm, "org.apache.spark.sql.SparkSession")
        before = active.getActiveSession()
        active.setActiveSession(self._session)
        try:
            yield
        finally:
            if before.isDefined():
                active.setActiveSession(before.get())

    def commit(self, since: TableVersion, app: str, txn: int, metadata: str) -> bool:
        """Commit a step without rows. See `LogWriter.commit`.

        Delta raises an exception if another commit comes in between that sets a step of `app`.
        """
        with self.activate(), with_options(self._spark, {USER_METADATA: metadata}):
            transaction = self._log().startTransaction()
            transaction.readTxn().addOne(app)  # Delta watches the step from here on
            if self.is_overtaken(JvmSnapshot(self, transaction.snapshot()), app, txn, since):
                return False
            parsed = parse_action(self._jvm, {"txn": {"appId": app, "version": txn}})
            sequence = java_class(self._jvm, "org.apache.spark.api.python.PythonUtils").toSeq([parsed])
            transaction.commit(sequence, self._append())
        return True

    def _append(self) -> Any:
        """Return the operation WRITE that only appends; its eight other arguments are options."""
        none = java_class(self._jvm, "scala.Option").apply(None)
        mode = java_class(self._jvm, "org.apache.spark.sql.SaveMode").Append
        operations = java_class(self._jvm, "org.apache.spark.sql.delta.DeltaOperations")
        return operations.Write(mode, *[none] * 8)

    def set_properties(self, values: Mapping[str, str | None]) -> None:
        """Set properties of the table. Remove those whose value is None."""
        added = [f"{_text(name)} = {_text(value)}" for name, value in values.items() if value is not None]
        removed = [_text(name) for name, value in values.items() if value is None]
        table = f"delta.`{self._path.replace('`', '``')}`"
        if added:
            self._spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ({', '.join(added)})")
        if removed:
            self._spark.sql(f"ALTER TABLE {table} UNSET TBLPROPERTIES IF EXISTS ({', '.join(removed)})")

    def write_checkpoint(self) -> None:
        """Write a checkpoint of the newest version, and remove expired commits from the log."""
        none = java_class(self._jvm, "scala.Option").apply(None)
        with self.activate():
            self._log().checkpointAndCleanUpDeltaLog(self.snapshot().java, none)


def _items(entries: Any) -> Iterator[tuple[str, str]]:
    """Yield the entries of a Scala map or sequence of pairs."""
    result = entries.iterator()
    while result.hasNext():
        entry = result.next()
        yield str(entry._1()), str(entry._2())  # noqa: SLF001  a Scala tuple


def _text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
