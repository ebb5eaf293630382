"""The rows of one epoch for one sink."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

DRIVER_BYTES = 32 << 20
"""Rows of more bytes than this never pass through the driver, however few they are: JVM and Python hold them several times over."""


@dataclass(frozen=True, slots=True)
class EpochFrame:
    """The rows of one epoch for one sink.

    `rows` has the payload columns plus `_gs_op` and `_gs_pos`. `schema` is the payload as Arrow, `key` the sink's
    primary key (empty: append). `estimate` is an upper bound of the rows where one is known: sinks choose the driver
    path or the worker path by it. `spark` is the session that owns `rows`. `likely` is how many rows there are if
    programs and lists make one of each, where that is no bound.
    """

    rows: DataFrame
    schema: pa.Schema
    key: tuple[str, ...]
    estimate: int | None
    spark: SparkSession
    likely: int | None = None
    size: int | None = None
    """Bytes of the rows, about, as their sources estimate them; None where they do not."""

    def collect_if_small(self, rows: DataFrame, limit: int) -> pa.Table | None:
        """`rows`, as many as the frame's, in the driver; None where they are more than `limit`, or than `DRIVER_BYTES`.

        Where their number is not known it is looked at, unless they are likely more: what is looked at in vain is computed again.
        """
        if self.size is not None and self.size > DRIVER_BYTES:
            return None
        if self.estimate is not None:
            return rows.toArrow() if self.estimate <= limit else None
        if self.likely is not None and self.likely > limit:
            return None
        table = rows.limit(limit + 1).toArrow()
        return table if table.num_rows <= limit else None
