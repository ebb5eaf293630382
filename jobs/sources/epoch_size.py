"""How many messages a stream epoch may have while a backlog is read."""

from __future__ import annotations

from headrace.connectors.frame import DRIVER_BYTES

FIRST_ROWS = 100_000
_MOST_ROWS = 400_000
_MOST_BYTES = DRIVER_BYTES * 3 // 4
"""Messages of more bytes might not fit into the driver."""
_FAST_SECONDS = 2.0
_SLOW_SECONDS = 5.0


class StreamEpochSize:
    """The rows of the next epoch: those of the pipeline file, or as many as epochs without Spark prove fit.

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
        elif seconds > _SLOW_SECONDS or size * self.rows > _MOST_BYTES * max(1, rows):
            self.rows = max(FIRST_ROWS, self.rows // 2)
        elif rows >= self.rows and seconds < _FAST_SECONDS and 2 * size <= _MOST_BYTES:
            self.rows = min(2 * self.rows, _MOST_ROWS)
