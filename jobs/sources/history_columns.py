"""Whether the columns of history fit those of the stream that follows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.connectors.source_base import BoundedSource
from headrace.jobs.sources.casts import Cast, cast_of, spell_type
from headrace.pipeline.errors import SchemaError

if TYPE_CHECKING:
    import pyarrow as pa


def check_history_columns(
    part: BoundedSource, schema: pa.Schema, stream: pa.Schema, *, cursor: str | None, node: str
) -> None:
    """Raise SchemaError if `schema`, that of a bounded phase, does not fit the schema of the stream.

    It must have the stream's columns, in types that can be cast without losing values. `cursor` is the column
    that divides history and stream, if one does.
    """
    have, wanted = schema.names, stream.names
    if missing := [column for column in wanted if column not in have]:
        msg = f"history {_quote_name(part)} lacks the columns {', '.join(missing)} of the stream"
        hint = f"History has: {', '.join(have)}. Add them there, or remove them from `schema`."
        raise SchemaError(msg, hint=hint, node=node)
    if cursor is not None and cursor in wanted:
        _check_cursor(cursor, schema.field(cursor).type, stream.field(cursor).type, node)
    lossy = [
        (
            f"`{field.name}` is {spell_type(schema.field(field.name).type)} in history and"
            f" {spell_type(field.type)} in the stream"
        )
        for field in stream
        if cast_of(schema.field(field.name).type, field.type) is Cast.LOSSY
    ]
    if lossy:
        msg = (
            f"history {_quote_name(part)} cannot be cast to the stream's types without loss:"
            f" {', '.join(lossy)}"
        )
        hint = (
            "Declare these columns in the stream's `schema` with a type that holds both, and cast"
            " them in a transform."
        )
        raise SchemaError(msg, hint=hint, node=node)


def _quote_name(part: BoundedSource) -> str:
    described = part.describe()
    return f"`{described.get('table_name') or described['location']}`"


def _check_cursor(column: str, history: pa.DataType, stream: pa.DataType, node: str) -> None:
    """Raise SchemaError if only one side stores days.

    A row and its message would then be on two sides of the cursor.
    """
    from pyarrow.types import is_date

    if is_date(history) != is_date(stream):
        msg = (
            f"cursor column `{column}` is {spell_type(history)} in history and {spell_type(stream)}"
            " in the stream"
        )
        raise SchemaError(msg, hint="Name a column that has the same time in both.", node=node)
