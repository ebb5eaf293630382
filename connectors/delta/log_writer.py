"""Commits of given actions to the log of a Delta table, without a Spark job."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headrace.connectors.delta.session import USER_METADATA
from headrace.connectors.delta.transaction_log import TableLog, TableVersion
from headrace.connectors.java_classes import java_class
from headrace.connectors.session_options import with_options
from headrace.pipeline.protocol.epochs import Json, WriteCounts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OPERATIONS = "org.apache.spark.sql.delta.DeltaOperations"


class LogWriter:
    """Delta's own transactions: its checks, conflict detection, checkpoints and log stores apply."""

    def __init__(self, session: SparkSession, table: TableLog) -> None:
        self._session = session
        self._table = table
        self._jvm: Any = session._jvm  # noqa: SLF001  pyspark has no other access to the log

    def commit(
        self,
        since: TableVersion,
        app: str,
        txn: int,
        metadata: str,
        actions: Sequence[Json] = (),
        counts: WriteCounts | None = None,
        read_version: int | None = None,
    ) -> bool:
        """Commit the actions with the step `txn` of `app` and user metadata.

        `since` is the version at which the caller read the state of `app`. `read_version` is the version that
        an upsert read; other commits only append. `counts` are the rows that changed.

        Return False, with nothing committed, if the table was replaced or restored or has a newer step of
        `app` since then, or if it is no longer at `read_version`. Delta raises an exception if another commit
        comes in between that changes what this one read, or sets a step of `app`.
        """
        step = {"txn": {"appId": app, "version": txn}}
        with self._table.activated(), with_options(self._session, {USER_METADATA: metadata}):
            transaction = self._table.start_transaction()
            version = int(transaction.readVersion())
            if read_version not in (None, version) or self._is_overtaken(transaction, app, txn, since):
                return False
            if counts is not None:
                self._register_metrics(transaction, counts)
            if read_version is not None:
                transaction.readWholeTable()
            operation = self._append() if read_version is None else self._merge()
            parsed = [self._parse(action) for action in (step, *actions)]
            transaction.commit(self._seq(parsed), operation)
        return True

    def _is_overtaken(self, transaction: Any, app: str, txn: int, since: TableVersion) -> bool:
        """Return whether the state that the caller read is void. Delta watches the step from here on."""
        transaction.readTxn().addOne(app)
        snapshot = transaction.snapshot()
        return (
            self._table.identity(snapshot) != since.identity
            or self._table.transactions(snapshot).get(app, -1) >= txn
            or self._table.is_restored(int(snapshot.version()), since.number)
        )

    def _parse(self, action: Json) -> Any:
        return java_class(self._jvm, "org.apache.spark.sql.delta.actions.Action").fromJson(json.dumps(action))

    def _seq(self, values: Sequence[Any]) -> Any:
        return java_class(self._jvm, "org.apache.spark.api.python.PythonUtils").toSeq(list(values))

    def _append(self) -> Any:
        """Return the operation WRITE that only appends; its eight other arguments are options."""
        none = java_class(self._jvm, "scala.Option").apply(None)
        mode = java_class(self._jvm, "org.apache.spark.sql.SaveMode").Append
        return java_class(self._jvm, _OPERATIONS).Write(mode, *[none] * 8)

    def _merge(self) -> Any:
        """Return the operation MERGE without predicates: four options and three lists of clauses."""
        none, nothing = java_class(self._jvm, "scala.Option").apply(None), self._seq([])
        return java_class(self._jvm, _OPERATIONS).Merge(*[none] * 4, *[nothing] * 3)

    def _register_metrics(self, transaction: Any, counts: WriteCounts) -> None:
        """Set the metrics that `DESCRIBE HISTORY` shows."""
        values = {
            "numSourceRows": counts.rows,
            "operationNumSourceRows": counts.rows,
            "numTargetRowsCopied": 0,
            "numTargetRowsInserted": counts.inserted,
            "numTargetRowsUpdated": counts.updated,
            "numTargetRowsDeleted": counts.deleted,
            "numOutputRows": (counts.inserted or 0) + (counts.updated or 0),
        }
        spark: Any = self._session._jsparkSession  # noqa: SLF001
        metrics = java_class(self._jvm, "org.apache.spark.sql.execution.metric.SQLMetrics")
        made = {}
        for name, value in values.items():
            made[name] = metrics.createMetric(spark.sparkContext(), name)
            made[name].set(value or 0)
        python_utils = java_class(self._jvm, "org.apache.spark.api.python.PythonUtils")
        transaction.registerSQLMetrics(spark, python_utils.toScalaMap(made))
