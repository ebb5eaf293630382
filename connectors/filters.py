"""The rows that a bounded source reads, as Spark SQL: the node's filter, a window, the handoff filter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from headrace.connectors.spark_plan import refuse_relative_timestamps
from headrace.pipeline.errors import SchemaError
from headrace.pipeline.model.sources import OffsetTable
from headrace.pipeline.protocol.epochs import Json
from headrace.pipeline.protocol.partitions import HistoryPartition
from headrace.pipeline.protocol.table_offsets import HandoffFilter

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

EVERYTHING: Json = {"window": None, "cut": None}
LOWEST = -(2**31)
"""The partition of rows without an offset in the first split or file.

It is below every partition of a topic, and increases with the splits.
"""
CUT_COLUMNS = ("partition_column", "offset_column", "topic_column")
"""Keys of a cut that name columns."""


def scope_of(window: HistoryPartition | None, cut: HandoffFilter | None) -> Json:
    """Return the partition and the handoff filter as JSON, for splits that another process reads."""
    return {
        "window": None
        if window is None
        else {"column": window.column, "start": window.start, "end": window.end},
        "cut": None if cut is None else cut.to_json(),
    }


def check_columns(names: Sequence[str], wanted: Sequence[str], what: str, node: str) -> None:
    """Raise SchemaError for a column that `what`, with the columns `names`, lacks."""
    if absent := [name for name in wanted if name not in names]:
        msg = f"`{what}` has no column {', '.join(absent)}"
        raise SchemaError(msg, hint=f"It has: {', '.join(names)}.", node=node)


def select_columns(frame: DataFrame, wanted: Sequence[str], what: str, node: str) -> DataFrame:
    """Return the wanted columns, or all columns if `wanted` is empty.

    Raise SchemaError for a column that `what` lacks.
    """
    check_columns(frame.columns, wanted, what, node)
    return frame.select(*(quote_identifier(name) for name in wanted)) if wanted else frame


def apply_filter(frame: DataFrame, predicate: str | None, node: str) -> DataFrame:
    """Return the rows that pass the pipeline file's filter. Raise SchemaError if Spark rejects the filter."""
    from pyspark.errors import AnalysisException, ParseException

    try:
        result = frame.where(predicate) if predicate else frame
    except (AnalysisException, ParseException) as error:
        reason = (error.getMessage() or str(error)).strip().splitlines()[0]
        msg = f"the filter `{predicate}` is wrong: {reason}"
        raise SchemaError(msg, hint=f"It is Spark SQL over: {', '.join(frame.columns)}.", node=node) from None
    refuse_relative_timestamps(result, predicate or "", node)
    return result


def is_in_partition(column: Column, kind: DataType, start: str, end: str) -> Column:
    """Return whether a column's value is in a partition of history, whose bounds are text.

    The bounds are cast, and not the column, so that statistics of files apply.
    """
    from pyspark.sql import functions as F  # noqa: N812

    first = F.lit(start).cast(kind)
    return column == first if start == end else (column >= first) & (column < F.lit(end).cast(kind))


def apply_scope(frame: DataFrame, scope: Json, what: str, node: str) -> DataFrame:
    """Return the rows inside the partition and the handoff filter.

    Raise SchemaError if `what` lacks their columns.
    """
    from pyspark.sql import functions as F  # noqa: N812

    if window := scope["window"]:
        select_columns(frame, [window["column"]], what, node)
        column, kind = F.col(quote_identifier(window["column"])), frame.schema[window["column"]].dataType
        frame = frame.where(is_in_partition(column, kind, window["start"], window["end"]))
    if cut := scope["cut"]:
        select_columns(frame, [cut[key] for key in CUT_COLUMNS if key in cut], what, node)
        partition, offset = (
            F.col(quote_identifier(cut["partition_column"])),
            F.col(quote_identifier(cut["offset_column"])),
        )
        # The stream reads a partition without a handoff position from its beginning.
        fence: Column = F.lit(0)
        for name, behind in cut["fence"].items():
            fence = F.when(partition == int(name), behind).otherwise(fence)
        frame = frame.where(~_has_topic_offset(cut) | (offset < fence))
    return frame


def _has_topic_offset(cut: Json) -> Column:
    """Return whether a row has partition and offset of the topic of the handoff filter."""
    from pyspark.sql import functions as F  # noqa: N812

    result = (
        F.col(quote_identifier(cut["partition_column"])).isNotNull()
        & F.col(quote_identifier(cut["offset_column"])).isNotNull()
    )
    if "topic_column" in cut:
        result &= F.col(quote_identifier(cut["topic_column"])).eqNullSafe(F.lit(cut["topic"]))
    return result


def position_column(ordinal: int, scope: Json, part: Column, off: Column) -> Column:
    """Return `_gs_pos` from the topic partition and offset of the handoff filter, else from `part` and `off`.

    Rows that lack them, or have those of another topic, sort before rows that have them, in the order of
    `part`, so that every row has a position.
    """
    from pyspark.sql import functions as F  # noqa: N812

    if cut := scope["cut"]:
        partition, offset = (
            F.col(quote_identifier(cut[key])) for key in ("partition_column", "offset_column")
        )
        there = _has_topic_offset(cut)
        part, off = (
            F.when(there, partition).otherwise(F.lit(LOWEST) + part),
            F.when(there, offset).otherwise(off),
        )
    return F.struct(
        F.lit(ordinal).alias("source"),
        part.cast("int").alias("part"),
        off.cast("bigint").alias("off"),
        F.lit(0).cast("bigint").alias("sub"),
    )


def read_end_offsets(
    frame: DataFrame, table: OffsetTable, topic: str, what: str, node: str
) -> Mapping[str, int]:
    """Return the largest offset plus one per topic partition in the rows of `frame`.

    Raise SchemaError if columns are missing.
    """
    from pyspark.sql import functions as F  # noqa: N812

    select_columns(
        frame,
        [table.partition_column, table.offset_column, *([table.topic_column] if table.topic_column else [])],
        what,
        node,
    )
    if table.topic_column:
        frame = frame.where(F.col(quote_identifier(table.topic_column)) == (table.topic_name or topic))
    partition, offset = (
        F.col(quote_identifier(table.partition_column)),
        F.col(quote_identifier(table.offset_column)),
    )
    rows = (
        frame.where(partition.isNotNull() & offset.isNotNull())
        .groupBy(partition.cast("string"))
        .agg(F.max(offset) + 1)
        .collect()
    )
    return {row[0]: int(row[1]) for row in rows}


def quote_identifier(name: str) -> str:
    """Return the name as a quoted Spark identifier."""
    return "`" + name.replace("`", "``") + "`"
