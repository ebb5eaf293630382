"""What a target holds, read back for the content audit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.pipeline.protocol.epochs import CommitRecord

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class TargetContent:
    """Record and rows of one snapshot, with the `columns` that can be compared.

    The rows are in Spark (`rows`) or in the driver (`table`). Both are None where the target has more rows
    than allowed. Then `lookup` returns the rows of some keys of the same snapshot, or None where it cannot.
    """

    record: CommitRecord
    rows: DataFrame | None
    columns: tuple[str, ...]
    table: pa.Table | None = None
    lookup: Callable[[pa.Table], DataFrame | pa.Table | None] = lambda _: None
    close: Callable[[], None] = lambda: None

    @property
    def is_whole(self) -> bool:
        """Whether all rows of the target are in `rows` or `table`."""
        return self.rows is not None or self.table is not None
