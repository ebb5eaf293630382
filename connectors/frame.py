"""The rows of one epoch for one sink."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.connectors.lazy_session import ensure_started
from headrace.connectors.local_relation import collect_arrow

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

DRIVER_BYTES = 32 << 20
"""Rows of more bytes than this pass through the driver only by a `LargeEpochCollector`.

The JVM and Python hold several copies.
"""
LARGE_ROWS, LARGE_BYTES = 1_000_000, 128 << 20
"""Limits of epochs that the driver collects where it writes them several times faster than Spark's tasks."""
_RESULT_LIMIT = "spark.driver.maxResultSize"
"""Spark's error names this option if the driver would get more bytes."""


@dataclass(frozen=True, slots=True)
class EpochFrame:
    """The rows of one epoch for one sink.

    `node_rows` are the rows of the node that the sink reads, with the payload columns plus `_gs_op` and
    `_gs_pos`. `schema` is the payload as Arrow, `key` the sink's primary key (empty: append). `estimate` is
    an upper bound of the rows where one is known: sinks choose the driver path or the worker path by it.
    `spark` is the session that owns the rows. `likely` is how many rows there are if programs and lists make
    one of each, where that is no bound.
    """

    node_rows: DataFrame
    schema: pa.Schema
    key: tuple[str, ...]
    estimate: int | None
    spark: SparkSession
    likely: int | None = None
    size: int | None = None
    """Bytes of the rows, about, as their sources estimate them; None where they do not."""
    table: pa.Table | None = None
    """The rows, if they are in the driver already: the columns of `rows`, perhaps in another order."""
    boundary: Callable[[DataFrame], DataFrame] | None = None
    """Returns the sink's rows of `node_rows`: without those that filters dropped, or with their deletes."""

    @property
    def rows(self) -> DataFrame:
        """Return the sink's rows, as a lazy frame. Start Spark if nothing has used it before."""
        rows = ensure_started(self.node_rows)
        return rows if self.boundary is None else self.boundary(rows)

    def get_local_rows(self, limit: int) -> pa.Table | None:
        """Return `table` if it has at most `limit` rows."""
        return self.table if self.table is not None and self.table.num_rows <= limit else None

    def has_at_most(self, rows: int, size: int) -> bool:
        """Return whether the frame is known to have at most this number of rows and, about, of bytes."""
        if self.estimate is None or self.size is None:
            return False
        return self.estimate <= rows and self.size <= size

    def collect_if_small(self, rows: DataFrame, limit: int) -> pa.Table | None:
        """Collect `rows` in the driver; return None if they exceed `limit` rows or `DRIVER_BYTES`.

        `rows` has as many rows as the frame. If their number is unknown, up to `limit` + 1 rows are read,
        unless `likely` exceeds the limit, because rows read in vain are computed again.
        """
        if self.size is not None and self.size > DRIVER_BYTES:
            return None
        if self.estimate is not None:
            return collect_arrow(rows) if self.estimate <= limit else None
        if self.likely is not None and self.likely > limit:
            return None
        table = collect_arrow(rows.limit(limit + 1))
        return table if table.num_rows <= limit else None


@dataclass(slots=True)
class LargeEpochCollector:
    """Collects the large epochs of one sink in the driver, until one has rows that are too large for it."""

    node: str
    _is_off: bool = False

    def accepts(self, frame: EpochFrame) -> bool:
        """Return whether the driver should collect the rows of a frame."""
        return not self._is_off and frame.has_at_most(LARGE_ROWS, LARGE_BYTES)

    def collect(self, frame: EpochFrame, rows: DataFrame) -> pa.Table | None:
        """Collect `rows`, as many as the frame has. Return None if they are too large, and stop."""
        try:
            return collect_arrow(rows)
        except Exception as error:
            # SQL can make rows that are much larger than those of the sources.
            if _RESULT_LIMIT not in str(error):
                raise
            log.info("event=rows_too_large_for_driver node=%s rows=%s", self.node, frame.estimate)
            self.stop()
            return None

    def stop(self) -> None:
        """Accept no further epoch."""
        self._is_off = True
