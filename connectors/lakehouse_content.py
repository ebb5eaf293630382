"""What a table of files holds, read back for the content audit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.connectors.content import TargetContent
from headrace.connectors.filters import quote_identifier
from headrace.connectors.lakehouse_rows import bounds_of
from headrace.pipeline.protocol.epochs import CommitRecord

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

LOOKUP_ROWS = 5_000_000
"""Keys are looked up in tables of at most so many rows: a table of files has no index."""


def content_of(record: CommitRecord, frame: DataFrame, columns: tuple[str, ...], rows: int, limit: int | None) -> TargetContent:
    """Return the content of one snapshot. `frame` has all its rows; `rows` is their number."""
    if limit is None or rows <= limit:
        return TargetContent(record, frame, columns)
    return TargetContent(record, None, columns, lookup=lambda keys: rows_of_keys(frame, keys) if rows <= LOOKUP_ROWS else None)


def rows_of_keys(frame: DataFrame, keys: pa.Table) -> DataFrame:
    """Return the rows of these keys. The bounds of the keys let Spark skip files."""
    from pyspark.sql import functions as F  # noqa: N812

    for name, (low, high) in bounds_of(keys, tuple(keys.column_names)).items():
        frame = frame.where(F.col(quote_identifier(name)).between(low, high))
    listed = frame.sparkSession.createDataFrame(keys, frame.select(*map(quote_identifier, keys.column_names)).schema)
    return frame.join(F.broadcast(listed), keys.column_names, "left_semi")
