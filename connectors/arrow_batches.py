"""Batches of a source on their way into a target."""

from __future__ import annotations

import pyarrow as pa

from headrace.pipeline.errors import DataError, SchemaError


def cast_batch(batch: pa.RecordBatch, schema: pa.Schema, node: str) -> pa.RecordBatch:
    """Return a source's batch with the columns of `schema`, found by name, and their types. Lose nothing.

    Raise SchemaError or DataError for a column that cannot be cast.
    """
    if missing := [name for name in schema.names if name not in batch.schema.names]:
        msg = f"the source gave no column '{missing[0]}'; it gave {', '.join(batch.schema.names)}"
        raise SchemaError(msg, node=node)
    columns = []
    for field in schema:
        try:
            columns.append(batch.column(field.name).cast(field.type))
        except pa.ArrowNotImplementedError as error:
            msg = (
                f"column '{field.name}' came as {batch.schema.field(field.name).type} and was planned as"
                f" {field.type}"
            )
            raise SchemaError(msg, node=node) from error
        except pa.ArrowInvalid as error:
            msg = f"column '{field.name}' holds a value that {field.type} cannot hold: {error}"
            raise DataError(msg, node=node, hint="Cast it in the source's own SQL.") from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)
