# ruff: noqa: S608  MERGE is built from quoted names, integers and dates
"""From a frame to a snapshot on a branch, and what that snapshot did."""

from __future__ import annotations

import logging
import uuid
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

from headrace.connectors.filters import quote_identifier
from headrace.connectors.frame import EpochFrame
from headrace.connectors.lakehouse_rows import (
    MergeSource,
    build_merge_source,
    collect_last_rows,
    select_append_rows,
)
from headrace.connectors.versions import ENDED
from headrace.pipeline.protocol.epochs import WriteCounts
from headrace.pipeline.sql.system_columns import OP

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

log = logging.getLogger(__name__)

_MERGED = "spark.merge-into.num-target-rows-"


def write_epoch(sink: str, frame: EpochFrame, path: str, branch: str, version: str | None) -> None:
    """Write the rows of an epoch to a branch of the table at `path`, in one snapshot."""
    target = f"{path}.{quote_identifier('branch_' + branch)}"
    if not frame.key:
        append(select_append_rows(sink, frame), frame.spark.table(path).schema, target)
        return
    last = collect_last_rows(sink, frame, version)
    merge(build_merge_source(sink, frame, frame.spark, version, last), target, frame, version)


def append(rows: DataFrame, columns: StructType, target: str) -> None:
    """Append all rows; a column that only the table has becomes null."""
    from pyspark.sql import functions as F  # noqa: N812

    brought = {name.lower() for name in rows.columns}
    others = [
        F.lit(None).cast(field.dataType).alias(field.name)
        for field in columns
        if field.name.lower() not in brought
    ]
    rows.select("*", *others).writeTo(target).append()


def merge(source: MergeSource, target: str, frame: EpochFrame, version: str | None = None) -> None:
    """Update, insert and delete by key in one commit. A delete of a missing key does nothing.

    With a version, a row that is newer than the winner stays.
    """
    rows = source.rows
    view = f"headrace_{uuid.uuid4().hex}"
    columns = [quote_identifier(name) for name in frame.schema.names]
    same = [f"t.{quote_identifier(name)} = s.{quote_identifier(name)}" for name in frame.key]
    # These bounds let Iceberg skip files.
    near = [
        f"t.{quote_identifier(name)} BETWEEN {_literal(low)} AND {_literal(high)}"
        for name, (low, high) in source.bounds.items()
        if _literal(low)
    ]
    matched = " AND ".join([*same, *near])
    newest = f"t.{quote_identifier(version)}" if version else ""
    wins = (
        f" AND (s.{ENDED} OR {newest} IS NULL OR {newest} <= s.{quote_identifier(version)})"
        if version
        else ""
    )
    changed = f" AND s.{OP} <> 'd'{wins}" if version else ""
    rows.createOrReplaceTempView(view)
    spark = rows.sparkSession
    try:
        spark.sql(
            f"MERGE INTO {target} t USING {view} s ON {matched} WHEN MATCHED AND s.{OP} = 'd'{wins} THEN"
            " DELETE"
            f" WHEN MATCHED{changed} THEN UPDATE SET {', '.join(f't.{name} = s.{name}' for name in columns)}"
            f" WHEN NOT MATCHED AND s.{OP} <> 'd' THEN INSERT ({', '.join(columns)}) VALUES"
            f" ({', '.join(f's.{name}' for name in columns)})"
        )
    finally:
        spark.catalog.dropTempView(view)


def _literal(value: Any) -> str:
    """Return an integer or a date as SQL; "" for anything else."""
    if isinstance(value, datetime | bool):
        return ""
    return (
        str(value)
        if isinstance(value, int)
        else f"DATE'{value.isoformat()}'"
        if isinstance(value, date)
        else ""
    )


def read_counts(staged: Any, begun: int | None, *, keyed: bool) -> WriteCounts:
    """Return the row counts of the branch's snapshot from its summary.

    Task retries may count rows twice, so the counts are compared with those of its files.
    """
    if int(staged.snapshotId()) == begun:
        return WriteCounts()
    result = {str(entry.getKey()): str(entry.getValue()) for entry in staged.summary().entrySet()}

    def number(name: str) -> int:
        return int(result.get(name, "0"))

    added = number("added-records")
    if not keyed:
        return WriteCounts(added, added, 0, 0)
    inserted, updated, deleted, copied = (
        number(_MERGED + what) for what in ("inserted", "updated", "deleted", "copied")
    )
    # A rewritten delete file with more positions counts its old positions as added and as removed.
    gone = number("added-position-deletes") - number("removed-position-deletes") + number("deleted-records")
    if (
        _MERGED + "inserted" not in result
        or inserted + updated + max(copied, 0) != added
        or updated + deleted + max(copied, 0) != gone
    ):
        log.warning("event=snapshot_summary_inconsistent summary=%s", result)
        return WriteCounts(added, None, None, None)
    return WriteCounts(inserted + updated + deleted, inserted, updated, deleted)
