"""Refuses history with rows that are in no partition and in no stream, when a pipeline is first opened."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING

from headrace.connectors.source_base import Snapshot
from headrace.jobs.sources.handoff import DEFAULT_LAG
from headrace.pipeline.errors import GuaranteeError, SchemaError
from headrace.pipeline.model.run_options import PartitionsConfig
from headrace.pipeline.protocol.epochs import Json
from headrace.pipeline.protocol.partitions import HistoryPartition, history_end

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from headrace.jobs.sources.pipeline_source import PipelineSource


def check_windows(
    source: PipelineSource, spark: SparkSession, position: Json, partitions: PartitionsConfig
) -> None:
    """Raise GuaranteeError for rows of a snapshot that would be lost.

    `position` is the one before the first epoch.

    Rows with NULL in the column of `partitions` are in no partition. Rows after the last partition belong to
    the stream. If the stream begins after them, they are in neither.
    """
    end = history_end(partitions)
    end = end.date() if isinstance(end, datetime) else end  # only days can be the end before a stream
    until = _stream_time(source)
    for rank, part in enumerate(source.bounded):
        handle = source.snapshot_handles(position)[rank]
        snapshot = Snapshot(handle, is_stable=bool(handle.get("pinned", True)))
        cut = source.handoff_filter(position) if rank == len(source.bounded) - 1 else None
        window = HistoryPartition("", partitions.column, end.isoformat(), until.isoformat() if until else "")
        found = part.count_unpartitioned_rows(spark, snapshot, window, cut)
        about = part.describe()
        where = f"history `{about.get('table_name') or about.get('location') or source.name}`"
        if partitions.every == "hour":
            _check_has_time(part.schema(spark), partitions.column, where, source.name)
        if found.nulls:
            msg = (
                f"{where} has {_rows(found.nulls)} with NULL in `{partitions.column}`, by which"
                " `partitions` divides it: no window has them"
            )
            hint = (
                f"Fill the column, or leave these rows out: `filter: {partitions.column} IS NOT NULL` at"
                " the bounded source."
            )
            raise GuaranteeError(msg, hint=hint, node=source.name)
        if found.later and source.unbounded is not None and (until is None or until > end):
            after = date.fromisoformat(found.last[:10]) + timedelta(days=1)
            msg = (
                f"{where} has {_rows(found.later)} after the last window, which ends at {end}, and the"
                " stream begins after them:"
                " they would be in neither"
            )
            hint = f"Set `history_end` in `partitions` to {after} or later, and `end` too if it is earlier."
            raise GuaranteeError(msg, hint=hint, node=source.name)


def _stream_time(source: PipelineSource) -> date | None:
    """Return the date before which a row counts as older than the stream.

    Returns None if the handoff filter decides this for each row.
    """
    node = source.node
    if source.handoff is None or node.offset_table is not None:
        return None
    lag = node.handoff_lag or DEFAULT_LAG
    return (datetime.now(UTC) - (max(lag, node.cursor.allowed_lateness) if node.cursor else lag)).date()


def _check_has_time(columns: pa.Schema, name: str, where: str, node: str) -> None:
    """Raise SchemaError if hours of a column cannot be read: a date has none, text no order of times."""
    from pyarrow.types import is_timestamp

    if name in columns.names and is_timestamp(columns.field(name).type):
        return
    found = f"is {columns.field(name).type} there" if name in columns.names else "is not selected there"
    msg = f"`every: hour` in `partitions` needs a timestamp column; `{name}` of {where} {found}"
    raise SchemaError(msg, hint="Choose a timestamp column, or `every: day`.", node=node)


def _rows(count: int) -> str:
    return f"{count} row{'s' if count != 1 else ''}"
