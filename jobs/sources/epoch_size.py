"""How many messages a stream epoch may have while a backlog is read."""

from __future__ import annotations

from headrace.connectors.driver_share import divide_limit

FIRST_ROWS = 100_000
_MOST_ROWS = 1_600_000
_MOST_BYTES = 96 << 20
"""Bytes of the messages of an epoch, in all streams of the process.

The driver has the rows of an epoch, and those of the next one.
"""
_MOST_GROWTH = 4
_TARGET_SECONDS = 10.0


class StreamEpochSize:
    """The rows of the next epoch: those of the pipeline file, or as many as take some seconds without Spark.

    Larger epochs update a row once for more messages. With Spark they are not faster, because small epochs
    are computed in the driver.
    """

    def __init__(self, fixed: int | None) -> None:
        self._fixed = fixed
        self.rows = fixed or FIRST_ROWS

    def adapt(self, rows: int, size: int | None, seconds: float, *, has_spark: bool) -> None:
        """Set the rows of the next epoch after one with these rows and bytes, which took these seconds.

        `size` is None if it is unknown.
        """
        if self._fixed is not None:
            return
        if has_spark or size is None:
            self.rows = FIRST_ROWS
            return
        growth = _TARGET_SECONDS / max(seconds, _TARGET_SECONDS / _MOST_GROWTH)
        wanted = self.rows if growth > 1 and rows < self.rows else int(rows * growth)
        fitting = divide_limit(_MOST_BYTES) * max(1, rows) // max(1, size)
        self.rows = max(FIRST_ROWS, min(wanted, fitting, _MOST_ROWS))
