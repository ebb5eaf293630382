"""Encodes rows as JSON by Spark's compiled writer: with nulls, bytes as hex, and wide numbers as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.connectors.json_text import JSON_OPTIONS, plain_values
from headrace.pipeline.sql.system_columns import OP

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType


def row_json(payload: StructType, version: int) -> Column:
    """Return a row's JSON object: the payload and `_gs_op`. NaN and the infinities are null.

    In version 1 they are under `data`, next to `metadata`.
    """
    from pyspark.sql import functions as F  # noqa: N812

    columns = [
        plain_values(F.col(f"`{field.name}`"), field.dataType, finite=True).alias(field.name)
        for field in payload.fields
    ]
    data = F.struct(*columns, F.col(OP).alias(OP))
    if version:
        data = F.struct(F.struct(F.col(OP).alias("op")).alias("metadata"), data.alias("data"))
    return F.to_json(data, JSON_OPTIONS)
