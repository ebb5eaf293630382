"""Which topic offsets the rows of a frame have, for sources that Spark reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from headrace.connectors.filters import quote_identifier, select_columns
from headrace.pipeline.model.sources import OffsetTable
from headrace.pipeline.protocol.partitions import PartitionGap, UnpartitionedRows
from headrace.pipeline.protocol.table_offsets import BLOCK, Block, Range, TableOffsets, table_offsets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PART, _OFF = "partition", "offset"


def offset_columns(table: OffsetTable) -> list[str]:
    """Return the columns that an offset table is read by."""
    return [
        table.partition_column,
        table.offset_column,
        *([table.topic_column] if table.topic_column else []),
    ]


def measure(
    frame: DataFrame, table: OffsetTable, topic: str, since: Mapping[str, int], what: str, node: str
) -> TableOffsets:
    """Return the offsets of `topic` in a frame, with the gaps at or above `since`.

    Raise SchemaError if columns are missing.
    """
    from pyspark.sql import Window as Over
    from pyspark.sql import functions as F  # noqa: N812

    select_columns(frame, offset_columns(table), what, node)
    if table.topic_column:
        frame = frame.where(F.col(quote_identifier(table.topic_column)) == (table.topic_name or topic))
    rows = frame.select(
        F.col(quote_identifier(table.partition_column)).cast("bigint").cast("string").alias(_PART),
        F.col(quote_identifier(table.offset_column)).cast("bigint").alias(_OFF),
    )
    placed = F.col(_PART).isNotNull() & F.coalesce(F.col(_OFF) >= 0, F.lit(False))
    block = F.floor(F.col(_OFF) / BLOCK)
    figures = (F.min(_OFF), F.max(_OFF) + 1, F.count(_OFF), F.count_distinct(_OFF))
    blocks = [
        Block(*row[:1], *row[2:]) for row in rows.where(placed).groupBy(_PART, block).agg(*figures).collect()
    ]

    def search(block: Block, since: int, most: int) -> Sequence[Range]:
        inside = (F.col(_PART) == block.partition) & F.col(_OFF).between(block.first, block.end - 1)
        after = F.lead(_OFF).over(Over.orderBy(_OFF))
        pairs = (
            rows.where(inside)
            .select(_OFF)
            .distinct()
            .select((F.col(_OFF) + 1).alias("first"), after.alias("end"))
        )
        gaps = (
            pairs.where((F.col("end") > F.col("first")) & (F.col("end") > since)).orderBy("first").limit(most)
        )
        return [(row[0], row[1]) for row in gaps.collect()]

    return table_offsets(blocks, since, search)


def count_unpartitioned_rows(frame: DataFrame, gap: PartitionGap) -> UnpartitionedRows:
    """Count the rows with NULL in the partition column, and the rows in the gap."""
    from pyspark.sql import functions as F  # noqa: N812

    column, kind = F.col(quote_identifier(gap.column)), frame.schema[gap.column].dataType
    if gap.values:
        here = ~column.isin([F.lit(value).cast(kind) for value in gap.values])
    else:
        here = column >= F.lit(gap.start).cast(kind)
        here = here & (column < F.lit(gap.end).cast(kind)) if gap.end else here
        here = here | (column < F.lit(gap.before).cast(kind)) if gap.before else here
    row = frame.agg(
        F.count_if(column.isNull()), F.count_if(here), F.max(F.when(here, column)).cast("string")
    ).collect()[0]
    return UnpartitionedRows(row[0], row[1], row[2] or "")


def has_nulls(frame: DataFrame, column: str) -> bool:
    """Return whether a column of a frame has NULL in some row."""
    from pyspark.sql import functions as F  # noqa: N812

    return not frame.where(F.col(quote_identifier(column)).isNull()).isEmpty()
