"""The MERGE that brings an epoch's rows into a Delta table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.connectors.base import OP, Frame
from headrace.connectors.lake_rows import Source
from headrace.connectors.scope import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

_MATERIALIZE = "spark.databricks.delta.merge.materializeSource"


def conf_for(source: Source) -> Mapping[str, str]:
    """Options of the session under which `merge` is to run: MERGE reads its source twice, and keeps it where that would cost."""
    return {_MATERIALIZE: "none"} if source.local else {_MATERIALIZE: "auto", "spark.sql.adaptive.enabled": "true"}


def merge(session: SparkSession, path: str, source: Source, frame: Frame) -> None:
    """Updates, inserts and deletes by key in one commit. A delete of a key that is not there does nothing."""
    from delta.tables import DeltaTable
    from pyspark.sql import functions as F  # noqa: N812

    condition = F.lit(True)
    for name in frame.key:
        condition = condition & (F.col(f"t.{quoted(name)}") == F.col(f"s.{quoted(name)}"))
    for name, (low, high) in source.bounds.items():
        condition = condition & F.col(f"t.{quoted(name)}").between(F.lit(low), F.lit(high))
    values: dict[str, str | Column] = {quoted(name): F.col(f"s.{quoted(name)}") for name in frame.schema.names}
    deleted = F.col(f"s.{OP}") == "d"
    merging = DeltaTable.forPath(session, path).alias("t").merge(source.rows.alias("s"), condition)
    merging.whenMatchedDelete(deleted).whenMatchedUpdate(set=values).whenNotMatchedInsert(~deleted, values).execute()
