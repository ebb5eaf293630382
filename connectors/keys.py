"""One spelling per key: -0.0 equals 0.0, and every NaN equals every other, at all sinks as in Postgres."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.compute

from headrace.connectors.filters import quote_identifier

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pc: Any = pyarrow.compute
"""Its functions are made at import, so type checkers do not see them."""
_Rows = TypeVar("_Rows", pa.Table, pa.RecordBatch)


def floats_in(schema: pa.Schema, key: Sequence[str]) -> list[str]:
    """Return the floating-point key columns."""
    return [name for name in key if pa.types.is_floating(schema.field(name).type)]


def canonical(rows: _Rows, key: Sequence[str]) -> _Rows:
    """Return the rows with 0.0 for -0.0 and a single NaN value in the key columns."""
    for name in floats_in(rows.schema, key):
        place = rows.schema.get_field_index(name)
        column = rows.column(name)
        zero, nan = pa.scalar(0.0, column.type), pa.scalar(math.nan, column.type)
        rows = rows.set_column(
            place, rows.schema.field(place), pc.if_else(pc.is_nan(column), nan, pc.add(column, zero))
        )
    return rows


def canonical_frame(rows: DataFrame, schema: pa.Schema, key: Sequence[str]) -> DataFrame:
    """Return the frame with 0.0 for -0.0 and a single NaN value in the key columns, lazily."""
    from pyspark.sql import functions as F  # noqa: N812

    for name in floats_in(schema, key):
        column, kind = (
            F.col(quote_identifier(name)),
            "double" if pa.types.is_float64(schema.field(name).type) else "float",
        )
        zero, nan = F.lit(0.0).cast(kind), F.lit(math.nan).cast(kind)
        rows = rows.withColumn(name, F.when(F.isnan(column), nan).otherwise(column + zero))
    return rows
