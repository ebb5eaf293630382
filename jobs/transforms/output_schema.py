"""Columns of transforms that run in Python: declared ones as Spark has them, and the system columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.connectors.kafka.json_decoder import payload_schema
from headrace.connectors.spark_types import POS_ARROW, system_fields
from headrace.pipeline.sql.system_columns import OP, POS
from headrace.pipeline.types.int256 import storage_schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def final_schema(node: str, declared: Mapping[str, str] | None, inputs: pa.Schema) -> pa.Schema:
    """Return the output columns: the declared ones sorted by name, all nullable, or else the input columns.

    Raises SchemaError for a type that rows cannot have.
    """
    if declared is None:
        return pa.schema([field.with_nullable(True) for field in inputs])
    return payload_schema(node, dict(sorted(declared.items())), metadata=False)


def hidden_fields(payload: StructType) -> StructType:
    """Return Spark's schema of a payload with the system columns at the end."""
    from pyspark.sql.types import StructType

    return StructType([*payload.fields, *system_fields()])


def with_hidden(payload: pa.Schema) -> pa.Schema:
    """Return the Arrow schema of rows with the system columns."""
    return pa.schema([*storage_schema(payload), pa.field(OP, pa.string()), pa.field(POS, POS_ARROW)])
