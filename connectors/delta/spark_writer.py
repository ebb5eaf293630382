"""Commits of Spark to a Delta table: appends, and MERGE by primary key."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

from headrace.connectors.delta.session import USER_METADATA
from headrace.connectors.filters import quote_identifier
from headrace.connectors.frame import EpochFrame
from headrace.connectors.lakehouse_rows import MergeSource
from headrace.connectors.lazy_session import ensure_session
from headrace.connectors.session_options import with_options
from headrace.connectors.versions import ENDED
from headrace.pipeline.sql.system_columns import OP

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_APP, _TXN = "spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion"
_MATERIALIZE = "spark.databricks.delta.merge.materializeSource"


class SparkWriter:
    """Writes rows to the table at `path` under steps of the transaction identifier `app`.

    Delta silently skips a write whose step is not newer.
    """

    def __init__(self, session: SparkSession, path: str, app: str) -> None:
        self._session = session
        self._path = path
        self._app = app

    @property
    def session(self) -> SparkSession:
        """The session of the sink. Start Spark if nothing has used it before."""
        return ensure_session(self._session)

    def append(self, rows: DataFrame, txn: int, metadata: str) -> None:
        """Append all rows in one commit with user metadata."""
        self._save(rows, "append", txn, metadata)

    def truncate(self, txn: int, metadata: str) -> None:
        """Replace all rows by none in one commit."""
        columns = self.session.read.format("delta").load(self._path).schema
        self._save(self.session.createDataFrame([], columns), "overwrite", txn, metadata)

    def merge(
        self, source: MergeSource, frame: EpochFrame, version: str | None, txn: int, metadata: str
    ) -> None:
        """Merge rows by the key of `frame` in one commit. See `merge`."""
        options = {_APP: self._app, _TXN: str(txn), USER_METADATA: metadata, **conf_for(source)}
        with with_options(self.session, options):
            merge(self.session, self._path, source, frame, version)

    def _save(self, rows: DataFrame, mode: str, txn: int, metadata: str) -> None:
        options = {
            "txnAppId": self._app,
            "txnVersion": txn,
            "userMetadata": metadata,
            "optimizeWrite": "false",
            "mergeSchema": "false",
        }
        rows.write.format("delta").mode(mode).options(**options).save(self._path)


def _literal(value: Any) -> Column:
    """Return a value as a literal of Spark's calendar.

    PySpark converts dates and timestamps through java.sql, which uses another calendar.
    """
    from pyspark.sql import functions as F  # noqa: N812

    if isinstance(value, datetime):
        since = value - datetime(1970, 1, 1, tzinfo=UTC)
        return F.timestamp_micros(
            F.lit((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds)
        )
    return (
        F.date_from_unix_date(F.lit(value.toordinal() - date(1970, 1, 1).toordinal()))
        if isinstance(value, date)
        else F.lit(value)
    )


def conf_for(source: MergeSource) -> Mapping[str, str]:
    """Return the session options for `merge`.

    MERGE reads its source twice, so Spark materializes a source that is expensive to compute.
    """
    return (
        {_MATERIALIZE: "none"}
        if source.local
        else {_MATERIALIZE: "auto", "spark.sql.adaptive.enabled": "true"}
    )


def merge(
    session: SparkSession, path: str, source: MergeSource, frame: EpochFrame, version: str | None = None
) -> None:
    """Update, insert and delete by key in one commit. A delete of a missing key does nothing.

    With a version, a row that is newer than the winner stays.
    """
    from delta.tables import DeltaTable
    from pyspark.sql import functions as F  # noqa: N812

    condition = F.lit(True)
    for name in frame.key:
        condition = condition & (F.col(f"t.{quote_identifier(name)}") == F.col(f"s.{quote_identifier(name)}"))
    for name, (low, high) in source.bounds.items():
        condition = condition & F.col(f"t.{quote_identifier(name)}").between(_literal(low), _literal(high))
    values: dict[str, str | Column] = {
        quote_identifier(name): F.col(f"s.{quote_identifier(name)}") for name in frame.schema.names
    }
    deleted = F.col(f"s.{OP}") == "d"
    wins = F.lit(True)
    if version is not None:
        there, brought = F.col(f"t.{quote_identifier(version)}"), F.col(f"s.{quote_identifier(version)}")
        wins = F.col(f"s.{ENDED}") | there.isNull() | (there <= brought)
    merging = DeltaTable.forPath(session, path).alias("t").merge(source.rows.alias("s"), condition)
    matched = merging.whenMatchedDelete(deleted if version is None else deleted & wins)
    matched = matched.whenMatchedUpdate(None if version is None else ~deleted & wins, values)
    matched.whenNotMatchedInsert(~deleted, values).execute()
