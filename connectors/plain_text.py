"""Converts text to values with Arrow, if Spark's casts certainly mean the same by it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute
from pyarrow import types as kinds

from headrace.pipeline.types.arrow import spark_type

pc: Any = pyarrow.compute
"""Its functions are made at import, so type checkers do not see them."""

_DATE = r"^[1-9]\d{3}-\d{2}-\d{2}$"
_TIME = r"^[1-9]\d{3}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(\.\d{1,6})?Z?$"
_INTEGER = r"^-?\d{1,20}$"
_DECIMAL = r"^-?\d{1,38}(\.\d{1,38})?$"
_DOUBLE = r"^-?\d{1,300}(\.\d{1,300})?([eE][+-]?\d{1,3})?$"
_BOOLEAN = r"^(true|false)$"


class UnprovenTextError(Exception):
    """Spark must decide about a text. Never leaves the connectors."""


def is_supported(kind: pa.DataType) -> bool:
    """Return whether `convert_text` converts to a type."""
    return spark_type(kind) == "STRING" or has_plain_form(kind)


def has_plain_form(kind: pa.DataType) -> bool:
    """Return whether Arrow and Spark read all plain values of a type alike. Text is not among these types.

    Spark rounds a float32 through a double, and Arrow does not.
    """
    return (
        kinds.is_integer(kind)
        or kinds.is_float64(kind)
        or kinds.is_boolean(kind)
        or kinds.is_decimal128(kind)
        or kinds.is_date(kind)
        or kinds.is_timestamp(kind)
    )


def convert_text(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a column of text in a type. NULL stays NULL.

    Raise UnprovenTextError for a text that is not in the usual form of the type, or does not fit it.
    """
    if spark_type(kind) == "STRING":
        return column
    try:
        if kinds.is_date(kind):
            return convert_dates(column)
        if kinds.is_timestamp(kind):
            return convert_moments(column, kind)
        if kinds.is_float64(kind):
            return require_finite(require_form(column, _DOUBLE).cast(kind))
        if kinds.is_boolean(kind):
            return pc.equal(require_form(column, _BOOLEAN), "true")
        return require_form(column, _DECIMAL if kinds.is_decimal(kind) else _INTEGER).cast(kind)
    except pa.ArrowInvalid:
        raise UnprovenTextError from None


def convert_dates(column: Any) -> Any:
    """Return ISO dates as date32. Raise UnprovenTextError for another form, ArrowInvalid for no date."""
    return require_form(column, _DATE).cast(pa.date32())


def convert_moments(column: Any, kind: pa.DataType) -> Any:
    """Return ISO dates with times, without a zone or in UTC, as timestamps of a type.

    Raise UnprovenTextError for another form, ArrowInvalid for no time.
    """
    plain = pc.utf8_rtrim(require_form(column, _TIME), "Z")
    return plain.cast(pa.timestamp("us")).cast(kind)


def require_finite(column: Any) -> Any:
    """Return a column of floats. Raise UnprovenTextError for a value that is not finite."""
    if pc.all(pc.is_finite(column)).as_py() is False:
        raise UnprovenTextError
    return column


def require_form(column: Any, pattern: str) -> Any:
    """Return the column. Raise UnprovenTextError for a value that does not match."""
    if pc.all(pc.match_substring_regex(column, pattern)).as_py() is False:
        raise UnprovenTextError
    return column
