"""Checks the columns that a file names: keys must exist, and versions need one order at all sinks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.pipeline.errors import SchemaError
from headrace.pipeline.model import graph
from headrace.pipeline.sql.system_columns import OP
from headrace.pipeline.suggestions import suggest_closest
from headrace.pipeline.types.int256 import is_wide

if TYPE_CHECKING:
    from headrace.pipeline.file.loader import PipelineFile

ORDERED = "a whole number, a decimal of up to 38 digits, a date or a timestamp"


def version_problems(file: PipelineFile, sink: str, schema: pa.Schema) -> Iterator[SchemaError]:
    """Yield what is wrong with the version of a sink whose rows have `schema`."""
    column = getattr(file.model.nodes()[sink], "version_column", None)
    if column is None:
        return
    if column not in schema.names:
        msg = f"`version_column` names `{column}`, and the rows have {', '.join(schema.names)}"
        yield SchemaError(
            msg,
            hint="Correct it, or select the column in the transform.",
            node=sink,
            keys=("version_column",),
        )
    elif not is_ordered(schema.field(column).type):
        msg = f"`version_column` `{column}` is {schema.field(column).type}, which is not {ORDERED}"
        hint = "Cast it in a transform: text and floating point have no order that is the same at every sink."
        yield SchemaError(msg, hint=hint, node=sink, keys=("version_column",))


def unknown_check_columns(file: PipelineFile, sink: str, schema: pa.Schema) -> Iterator[SchemaError]:
    """Yield the columns of a sink's checks that its rows lack. The target can have them nevertheless."""
    for name, check in getattr(file.model.nodes()[sink], "checks", {}).items():
        for column, keys in check.columns:
            if column not in schema.names:
                close = suggest_closest(column, schema.names)
                msg = f"check `{name}`: the rows have no column `{column}`{close}"
                place = file.place("sinks", sink, "checks", name, *keys)
                hint = f"Columns of the rows: {', '.join(schema.names)}."
                yield SchemaError(msg, hint=hint, node=sink, place=place)


def is_ordered(kind: pa.DataType) -> bool:
    """Return whether all sinks order the values of a type alike."""
    import pyarrow as pa

    plain = pa.types.is_integer(kind) or pa.types.is_date(kind) or pa.types.is_timestamp(kind)
    return plain or (pa.types.is_decimal(kind) and not is_wide(kind))


def missing_key(file: PipelineFile, name: str, columns: Sequence[str]) -> Iterator[SchemaError]:
    """Yield an error if the key of a node, its own or an inherited one, is not among its columns."""
    if missing := [column for column in graph.key_of(file.model, name) if column not in columns]:
        shown = ", ".join(f'"{column}"' for column in missing)
        available = ", ".join(f'"{column}"' for column in [*columns, OP])
        msg = (
            f"Primary key validation failed for node '{name}': columns [{shown}] not found in schema."
            f" Available columns: [{available}]"
        )
        yield SchemaError(msg, node=name, keys=("primary_key",))


def has_types(table: pa.Table, payload: pa.Schema) -> bool:
    """Return whether the columns have the payload's types, or the strings that its wide numbers are."""
    return all(
        table.schema.field(field.name).type == (pa.string() if is_wide(field.type) else field.type)
        for field in payload
    )
