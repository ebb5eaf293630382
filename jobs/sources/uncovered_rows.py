"""Refuses history with rows that are in no partition and in no stream, when a pipeline is first opened."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from headrace.connectors.source_base import Snapshot
from headrace.jobs.sources.handoff import DEFAULT_LAG
from headrace.pipeline.errors import GuaranteeError, SchemaError
from headrace.pipeline.model.partitions import (
    IntegerPartitionsConfig,
    PartitionsConfig,
    TimePartitionsConfig,
    ValuePartitionsConfig,
)
from headrace.pipeline.protocol.epochs import Json
from headrace.pipeline.protocol.partitions import (
    PartitionGap,
    UnpartitionedRows,
    has_time_bounds,
    history_end,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from headrace.jobs.sources.pipeline_source import PipelineSource


def check_windows(
    source: PipelineSource, spark: SparkSession, position: Json, partitions: PartitionsConfig
) -> None:
    """Raise GuaranteeError for rows of a snapshot that would be lost.

    `position` is the one before the first epoch that reads the snapshot.

    Rows with NULL in the column of `partitions` are in no partition. Rows after the last window of time
    belong to the stream. If the stream begins after them, they are in neither. Ranges of integers and values
    must have all rows.
    """
    until = _stream_time(source)
    gap = _gap(partitions, until)
    for rank, part in enumerate(source.bounded):
        handle = source.snapshot_handles(position)[rank]
        snapshot = Snapshot(handle, is_stable=bool(handle.get("pinned", True)))
        cut = source.handoff_filter(position) if rank == len(source.bounded) - 1 else None
        about = part.describe()
        where = f"history `{about.get('table_name') or about.get('location') or source.name}`"
        if not isinstance(partitions, TimePartitionsConfig) or has_time_bounds(partitions):
            _check_type(part.schema(spark), partitions, where, source.name)
        uncovered = part.count_unpartitioned_rows(spark, snapshot, gap, cut)
        if uncovered.nulls:
            msg = (
                f"{where} has {_rows(uncovered.nulls)} with NULL in `{partitions.column}`, by which"
                " `partitions` divides it: no window has them"
            )
            hint = (
                f"Fill the column, or leave these rows out: `filter: {partitions.column} IS NOT NULL` at"
                " the bounded source."
            )
            raise GuaranteeError(msg, hint=hint, node=source.name)
        if uncovered.outside and not isinstance(partitions, TimePartitionsConfig):
            raise _outside_error(partitions, uncovered, where, source.name)
        if uncovered.outside and source.unbounded is not None and _is_before(partitions, until):
            assert isinstance(partitions, TimePartitionsConfig)  # noqa: S101  the others are refused above
            msg = (
                f"{where} has {_rows(uncovered.outside)} after the last window, which ends at"
                f" {partitions.history_end or partitions.end}, and the stream begins after them:"
                " they would be in neither"
            )
            after = _day_of(uncovered.last, partitions) + timedelta(days=1)
            hint = f"Set `history_end` in `partitions` to {after} or later, and `end` too if it is earlier."
            raise GuaranteeError(msg, hint=hint, node=source.name)


def _is_before(partitions: PartitionsConfig, until: date | None) -> bool:
    """Return whether the last window of time ends before the stream begins, or whether that is unknown."""
    if until is None:
        return True
    if not isinstance(partitions, TimePartitionsConfig):
        return False
    end = history_end(partitions)
    return datetime.combine(until, time()) > (
        end if isinstance(end, datetime) else datetime.combine(end, time())
    )


def _day_of(text: str, partitions: TimePartitionsConfig) -> date:
    """Return the day of a date, or of a time in UTC, in the time zone of the partitions."""
    moment = datetime.fromisoformat(text[:19])
    if not has_time_bounds(partitions):
        return moment.date()
    return moment.replace(tzinfo=UTC).astimezone(ZoneInfo(partitions.timezone)).date()


def _gap(partitions: PartitionsConfig, until: date | None) -> PartitionGap:
    """Return the values that no partition has. The stream has those of `until` and later."""
    if isinstance(partitions, ValuePartitionsConfig):
        return PartitionGap(partitions.column, values=tuple(partitions.values))
    if isinstance(partitions, IntegerPartitionsConfig):
        return PartitionGap(partitions.column, start=str(partitions.end), before=str(partitions.start))
    end = history_end(partitions).isoformat()
    return PartitionGap(partitions.column, start=end, end=until.isoformat() if until else "")


def _outside_error(
    partitions: IntegerPartitionsConfig | ValuePartitionsConfig,
    uncovered: UnpartitionedRows,
    where: str,
    node: str,
) -> GuaranteeError:
    column = partitions.column
    if isinstance(partitions, ValuePartitionsConfig):
        msg = (
            f"{where} has {_rows(uncovered.outside)} whose `{column}` is not in `values` of `partitions`, for"
            f" example `{uncovered.last}`: no partition has them"
        )
        change = "Add the value to `values`"
    else:
        msg = (
            f"{where} has {_rows(uncovered.outside)} whose `{column}` is not from {partitions.start} to"
            f" {partitions.end - 1}, for example {uncovered.last}: no partition has them"
        )
        change = "Change `start` or `end` in `partitions`"
    hint = f"{change}, or leave these rows out with `filter` on `{column}` at the source."
    return GuaranteeError(msg, hint=hint, node=node)


def _stream_time(source: PipelineSource) -> date | None:
    """Return the date before which a row counts as older than the stream.

    Returns None if the handoff filter decides this for each row.
    """
    node = source.node
    if source.handoff is None or node.offset_table is not None:
        return None
    lag = node.handoff_lag or DEFAULT_LAG
    return (datetime.now(UTC) - (max(lag, node.cursor.allowed_lateness) if node.cursor else lag)).date()


def _check_type(columns: pa.Schema, partitions: PartitionsConfig, where: str, node: str) -> None:
    """Raise SchemaError if the partitions cannot divide a column of this type.

    A date has no hours, and text has no order of times or numbers. Two texts of one number would be two
    partitions with the same rows.
    """
    from pyarrow import types

    name = partitions.column
    kind = columns.field(name).type if name in columns.names else None
    result = f"is {kind} there" if kind is not None else "is not selected there"
    if isinstance(partitions, TimePartitionsConfig):
        if kind is None or not types.is_timestamp(kind):
            key = "every: hour" if partitions.every == "hour" else f"timezone: {partitions.timezone}"
            instead = "`every: day`" if partitions.every == "hour" else "remove `timezone`"
            msg = f"`{key}` in `partitions` needs a timestamp column; `{name}` of {where} {result}"
            raise SchemaError(msg, hint=f"Choose a timestamp column, or {instead}.", node=node)
        return
    if isinstance(partitions, IntegerPartitionsConfig):
        if kind is None or not types.is_integer(kind):
            every = f"`every: {partitions.every}` in `partitions`"
            msg = f"{every} needs an integer column; `{name}` of {where} {result}"
            raise SchemaError(msg, hint="Choose an integer column, or time, as in `every: day`.", node=node)
        return
    spelling = next((rule for is_kind, rule in _spellings() if kind is not None and is_kind(kind)), None)
    if spelling is None:
        needs = "`values` in `partitions` needs a text, integer, boolean or date column"
        msg = f"{needs}; `{name}` of {where} {result}"
        raise SchemaError(msg, hint="Choose another column.", node=node)
    if wrong := next((value for value in partitions.values if not spelling.fullmatch(value)), None):
        msg = f"`{wrong}` in `values` of `partitions` is no value of `{name}`, which {result} of {where}"
        raise SchemaError(
            msg, hint="Write integers without zeros in front, and dates as 2013-01-31.", node=node
        )


def _spellings() -> tuple[tuple[Callable[[pa.DataType], bool], re.Pattern[str]], ...]:
    """Return the only spelling of a value as text, by the type of its column."""
    from pyarrow import types

    return (
        (types.is_string, re.compile(r".*")),
        (types.is_large_string, re.compile(r".*")),
        (types.is_integer, re.compile(r"0|-?[1-9]\d*")),
        (types.is_boolean, re.compile(r"true|false")),
        (types.is_date, re.compile(r"\d{4}-\d{2}-\d{2}")),
    )


def _rows(count: int) -> str:
    return f"{count} row{'s' if count != 1 else ''}"
