"""Rejected rows of a source with `on_error: dead_letter`: the column `ERROR`, and the rows without it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ERROR = "_headrace_error"
"""Of the rows that `UnboundedSource.read_with_errors` returns: NULL for a good row, else a struct.

It has `reason`, why the row is rejected, and the original in the `error_columns` of the source. The payload
of a rejected row has no meaning.
"""
REASON = "reason"


def good_rows(rows: DataFrame) -> DataFrame:
    """Return the rows that are not rejected, without `ERROR`."""
    return rows.where(f"{ERROR} IS NULL").drop(ERROR)
