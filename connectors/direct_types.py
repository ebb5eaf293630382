"""The columns of direct loads: which ones tasks write as Arrow, and which ones need Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyarrow import types as kinds

from headrace.connectors.keys import floats_in

_PLAIN: tuple[Any, ...] = (
    *(kinds.is_boolean, kinds.is_signed_integer, kinds.is_uint8, kinds.is_uint16, kinds.is_uint32),
    *(kinds.is_float32, kinds.is_float64, kinds.is_decimal128, kinds.is_string, kinds.is_date32),
    kinds.is_timestamp,
)
"""Types whose values are the same from a source and from Spark."""


def explain_unfit_columns(
    payload: pa.Schema, key: Sequence[str], version_column: str | None, *more: Any
) -> str:
    """Return why Spark has to write rows with these columns, or an empty string.

    `more` are predicates of further types that the sink takes from tasks.
    """
    if key and version_column:
        return f"rows of a key compete by `{version_column}`, which only Spark compares"
    for field in payload:
        if not any(fits(field.type) for fits in (*_PLAIN, *more)):
            return f"column `{field.name}` is {field.type}, which only Spark writes"
    floats = floats_in(payload, [name for name in key if name in payload.names])
    return f"key column `{floats[0]}` is a float, which only Spark compares" if floats else ""
