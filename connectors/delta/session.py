"""The Spark session of a Delta sink."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from headrace.connectors.lazy_session import LazySession, find_started_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_OPTIONS = {
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.databricks.delta.history.metricsEnabled": "true",
    "spark.databricks.delta.optimizeWrite.enabled": "false",
    # The commit of a compaction would have our identifier and metadata.
    "spark.databricks.delta.autoCompact.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    # It runs a job per stage, which costs small queries more than their rows.
    "spark.sql.adaptive.enabled": "false",
}


def open_session(spark: SparkSession) -> SparkSession:
    """Return a new session for one sink: a commit takes its metadata from the options of its session.

    The session is lazy if nothing has started Spark yet.
    """
    started = find_started_session(spark)
    if started is None:
        return cast("SparkSession", LazySession(lambda: open_session(cast("LazySession", spark).start())))
    session = started.newSession()
    for key, value in _OPTIONS.items():
        session.conf.set(key, value)
    return session
