"""Casts of history to the types of its stream: lossless ones, and ones that fail on a changed value."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, cast

from headrace.connectors.filters import quote_identifier
from headrace.connectors.lakehouse import holds_every_value
from headrace.connectors.row_errors import row_error
from headrace.connectors.spark_types import spark_schema
from headrace.pipeline.types.arrow import is_nested
from headrace.pipeline.types.int256 import is_wide

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

_DIGITS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}
_FLOAT_DIGITS = {"float": 5, "double": 10}
_TIMES = {"timestamp", "timestamp_ntz"}
_TYPE_NAMES = {"double": "float64", "float": "float32", "bool": "boolean"}


class Cast(StrEnum):
    """How a column of history becomes the stream's."""

    SAFE = "safe"
    CHECKED = "checked"
    """Each value is compared: one that has no room fails the epoch with its value."""
    LOSSY = "lossy"


def cast_of(have: pa.DataType, want: pa.DataType) -> Cast:
    """Return how values of one type are cast to another."""
    if have == want:
        return Cast.SAFE
    if is_wide(have) or is_wide(want):
        return _of_wide(have, want)
    return _of(_spark(have), _spark(want))


def spell_type(kind: pa.DataType) -> str:
    """Return a type's name in the pipeline file."""
    return _TYPE_NAMES.get(str(kind), str(kind))


def _spark(kind: pa.DataType) -> DataType:
    import pyarrow as pa

    return spark_schema(pa.schema([pa.field("c", kind)]))[0].dataType


def _of_wide(have: pa.DataType, want: pa.DataType) -> Cast:
    """Numbers that Spark has no room for are their digits as text."""
    import pyarrow.types as kinds

    if kinds.is_string(want):
        return Cast.SAFE
    if is_nested(have) or is_nested(want):
        return Cast.LOSSY
    whole = [
        is_wide(one) or kinds.is_integer(one) or (kinds.is_decimal(one) and one.scale == 0)
        for one in (have, want)
    ]
    return (
        Cast.CHECKED
        if whole[1] and (whole[0] or kinds.is_string(have)) and _scale(have) == 0 == _scale(want)
        else Cast.LOSSY
    )


def _scale(kind: pa.DataType) -> int:
    return int(getattr(kind, "scale", 0))


def _of(have: DataType, want: DataType) -> Cast:
    from pyspark.sql import types as T  # noqa: N812

    if isinstance(have, T.ArrayType) and isinstance(want, T.ArrayType):
        return _inner([(have.elementType, want.elementType)])
    if isinstance(have, T.MapType) and isinstance(want, T.MapType):
        return _inner([(have.keyType, want.keyType), (have.valueType, want.valueType)])
    if isinstance(have, T.StructType) and isinstance(want, T.StructType):
        names = have.fieldNames() == want.fieldNames()
        return (
            _inner([(a.dataType, b.dataType) for a, b in zip(have, want, strict=True)])
            if names
            else Cast.LOSSY
        )
    if _is_safe(have, want):
        return Cast.SAFE
    return Cast.CHECKED if _is_checked(have, want) else Cast.LOSSY


def _is_safe(have: DataType, want: DataType) -> bool:
    from pyspark.sql import types as T  # noqa: N812

    have_type, want_type = have.simpleString(), want.simpleString()
    if (
        holds_every_value(want, have)
        or {have_type, want_type} <= _TIMES
        or (have_type == "date" and want_type in _TIMES)
    ):
        return True
    if isinstance(want, T.StringType):
        return not isinstance(have, T.BinaryType | T.ArrayType | T.MapType | T.StructType)
    room = want.precision - want.scale if isinstance(want, T.DecimalType) else _FLOAT_DIGITS.get(want_type, 0)
    return have_type in _DIGITS and _DIGITS[have_type] <= room


def _is_checked(have: DataType, want: DataType) -> bool:
    """Return whether a cast changes no value but may fail: integers and decimals that may not fit."""
    from pyspark.sql import types as T  # noqa: N812

    have_type, want_type = have.simpleString(), want.simpleString()
    if isinstance(want, T.DecimalType):
        return have_type in _DIGITS or (isinstance(have, T.DecimalType) and want.scale >= have.scale)
    whole = (
        have_type in _DIGITS
        or isinstance(have, T.StringType)
        or (isinstance(have, T.DecimalType) and have.scale == 0)
    )
    return whole and want_type in _DIGITS


def _inner(pairs: list[tuple[DataType, DataType]]) -> Cast:
    """Values inside of others are not compared one by one, so a cast of them is safe or lossy."""
    return Cast.SAFE if all(_of(*pair) is Cast.SAFE for pair in pairs) else Cast.LOSSY


def cast_column(name: str, have: pa.DataType, want: pa.DataType, node: str) -> Column:
    """Return the column cast to the type of the stream. A value that would change fails the task."""
    from pyspark.sql import functions as F  # noqa: N812

    column, kind = F.col(quote_identifier(name)), _spark(want)
    if have == want or cast_of(have, want) is Cast.SAFE:
        return column.cast(kind).alias(name)
    what = F.concat(
        F.lit(f"column `{name}` of history has "),
        column.cast("string"),
        F.lit(f", which is no {spell_type(want)}"),
    )
    wrong = row_error(node, what, f"Declare `{name}` wider in the stream's `schema`, or correct the value.")
    if is_wide(want):
        text = column.cast("string")
        sign = "" if str(want).startswith("uint") else "-?"
        return (
            F.when(text.isNull() | text.rlike(f"^{sign}[0-9]+$"), text)
            .otherwise(wrong.cast("string"))
            .alias(name)
        )
    fitted = cast("Any", column).try_cast(kind)
    return F.when(column.isNotNull() & fitted.isNull(), wrong.cast(kind)).otherwise(fitted).alias(name)
