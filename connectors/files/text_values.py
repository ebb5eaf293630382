"""Converts the text of a csv field or a partition folder to its declared type, exactly or with an error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import types as kinds

from headrace.connectors.filters import quote_identifier
from headrace.connectors.row_errors import RowConditions
from headrace.pipeline.types.arrow import parse_type, spark_type

if TYPE_CHECKING:
    from pyspark.sql import Column

_ISO_DATE = 10  # characters
_DIGITS = 38
_UNSIGNED = {pa.uint8(): 2**8, pa.uint16(): 2**16, pa.uint32(): 2**32}


def value(
    checks: RowConditions, column: str, name: str, declared: str, where: Mapping[str, Column]
) -> Column:
    """Return the string in `column` as `name`, in the type that the pipeline file declares.

    Null stays null. A value that does not fit fails a check. Errors show `where`.
    """
    from pyspark.sql import functions as F  # noqa: N812

    raw = F.col(quote_identifier(column))
    kind = parse_type(declared)
    if spark_type(kind) == "STRING":
        return raw.alias(name)
    final, good = _parse_text(raw, kind)
    what = F.concat(
        F.lit(f"column `{name}` is {declared}, which cannot hold `"), F.substring(raw, 1, 100), F.lit("`")
    )
    hint = f"Correct the file, or the type of `{name}` in `schema`."
    fits = checks.require(raw.isNull() | (final.isNotNull() & good), what, hint, **where)
    return checks.guard(final, fits).alias(name)


def _parse_text(raw: Column, kind: pa.DataType) -> tuple[Column, Column]:
    """Return the value (null if the string is invalid), and whether it equals the string exactly."""
    from pyspark.sql import functions as F  # noqa: N812

    final = raw.try_cast(spark_type(kind))
    if kind in _UNSIGNED:
        return final, final.between(0, _UNSIGNED[kind] - 1)
    if kind == pa.uint64():
        wide = raw.try_cast(f"decimal({_DIGITS},{_DIGITS - 20})")
        return final, wide.between(F.lit(0), F.lit(str(2**64 - 1)).cast("decimal(20,0)")) & (wide == final)
    if kinds.is_decimal(kind):
        return final, final == raw.try_cast(f"decimal({_DIGITS},{_DIGITS - (kind.precision - kind.scale)})")
    if kinds.is_date(kind) or kinds.is_timestamp(kind):
        # Spark would also accept `12:30` (today), `2024`, and a date with a time after it, dropping the time.
        length = F.length(raw) == _ISO_DATE if kinds.is_date(kind) else F.length(raw) >= _ISO_DATE
        return final, length & (F.substring(raw, 5, 1) == "-") & (F.substring(raw, 8, 1) == "-")
    if kinds.is_binary(kind):
        return F.try_to_binary(raw, F.lit("hex")), F.lit(True)
    return final, F.lit(True)
