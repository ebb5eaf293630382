"""The Spark session of a Delta sink."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    """Return a new session for one sink: a commit takes its metadata from the options of its session."""
    session = spark.newSession()
    for key, value in _OPTIONS.items():
        session.conf.set(key, value)
    return session
