"""The columns of a node's frame: as Arrow, as types of a statement, and whether they can be stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from headrace.connectors.spark_types import arrow_schema
from headrace.pipeline.errors import UserError
from headrace.pipeline.sql.int256.types import type_of_wide
from headrace.pipeline.sql.system_columns import HIDDEN
from headrace.pipeline.sql.types import spark_type

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType
    from sqlglot import exp


def types_of(
    frame: DataFrame, wide: Mapping[str, pa.DataType], nested: Mapping[str, exp.DataType]
) -> dict[str, exp.DataType]:
    """Return the types of the columns of a frame, for `pipeline.sql.types`."""
    known = {**nested, **{name: type_of_wide(kind) for name, kind in wide.items()}}
    return {
        field.name: known.get(field.name.lower()) or spark_type(field.dataType.simpleString())
        for field in frame.schema.fields
    }


def payload_of(frame: DataFrame) -> pa.Schema:
    """Return the columns without the system columns. Raises UserError for a type that cannot leave Spark."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    fields = [field for field in frame.schema.fields if field.name not in HIDDEN]
    for field in fields:
        if (name := _twice(field.dataType)) is not None:
            msg = (
                f"column `{field.name}` is {field.dataType.simpleString()}, a struct with two fields `{name}`"
            )
            raise UserError(msg, hint="Give one of the two another name.")
        try:
            arrow_schema(StructType([field]))
        except (
            PySparkException,
            ValueError,
        ) as error:  # Arrow's own where items that cannot be NULL have no type
            msg = f"column `{field.name}` is {field.dataType.simpleString()}, a type that cannot leave Spark"
            hint = f"CAST it in the SQL: {_instead(field.dataType)}."
            raise UserError(msg, hint=hint) from error
    return arrow_schema(StructType(fields))


def _twice(kind: DataType) -> str | None:
    """Return a name that two fields of one struct share, or None."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, StructType):
        names = kind.fieldNames()
        doubled = next((name for name in names if names.count(name) > 1), None)
        parts = [field.dataType for field in kind.fields]
    else:
        doubled = None
        parts = (
            [kind.elementType]
            if isinstance(kind, ArrayType)
            else [kind.keyType, kind.valueType]
            if isinstance(kind, MapType)
            else []
        )
    return doubled or next((result for part in parts if (result := _twice(part)) is not None), None)


def _instead(kind: DataType) -> str:
    """Return what to write for a column whose type does not exist in Arrow."""
    from pyspark.sql.types import ArrayType, MapType

    if isinstance(kind, ArrayType):
        return "an empty list is CAST(array() AS ARRAY<STRING>), with the type that its items have elsewhere"
    if isinstance(kind, MapType):
        return "an empty map is CAST(map() AS MAP<STRING, STRING>), with the types that it has elsewhere"
    return "AS STRING, or a span of time as a number, such as months of type INT"


def check_staged(frame: DataFrame, why: str) -> None:
    """Raise UserError if a stored node has a column of a type that Parquet cannot restore.

    `why` it is stored.
    """
    for field in frame.schema.fields:
        for what, hint in _find_unstaged(field.dataType):
            msg = (
                f"column `{field.name}` is {field.dataType.simpleString()}: {what}, and the rows of this"
                f" node are stored in Parquet ({why})"
            )
            raise UserError(msg, hint=hint)


def _find_unstaged(kind: DataType) -> Iterator[tuple[str, str]]:
    """Yield what Parquet cannot store of a type, and what to write instead."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, StructType):
        names = [field.name for field in kind.fields]
        if not names:
            yield (
                "a struct without fields",
                (
                    "Give it a field, such as named_struct('none', CAST(NULL AS STRING)), or leave the column"
                    " out."
                ),
            )
        for at, name in enumerate(names):
            if (other := next((one for one in names[:at] if one.lower() == name.lower()), None)) is not None:
                yield (
                    f"its fields `{other}` and `{name}` are one name there",
                    "Give one of the two another name.",
                )
        for field in kind.fields:
            yield from _find_unstaged(field.dataType)
    elif isinstance(kind, ArrayType):
        yield from _find_unstaged(kind.elementType)
    elif isinstance(kind, MapType):
        yield from _find_unstaged(kind.keyType)
        yield from _find_unstaged(kind.valueType)
