"""Spark columns of Avro values: what from_avro does not read, and what it does not check."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from functools import reduce
from typing import TYPE_CHECKING

from headrace.connectors.avro.columns import BIG_DECIMAL_DIGITS
from headrace.connectors.avro.schema import AvroType
from headrace.connectors.filters import quote_identifier
from headrace.connectors.row_errors import RowConditions
from headrace.pipeline.types.int256 import SPARK_DIGITS, UINT256

if TYPE_CHECKING:
    from pyspark.sql import Column

_DAY = {"time-millis": 86_400_000, "time-micros": 86_400_000_000}
_LAST_ONE = r"^(.*)([1-9A-F])(0*)$"
"""The hexadecimal digits before the last one that is not 0, that one, and the zeros after it."""
_TRAILING_ZEROS = r"\.?0+$"
"""Of a number or a time with a point."""


class ValueConverter:
    """Converts the values of one node's columns. `where` is the place of a row, for errors, as is `hint`."""

    def __init__(
        self,
        checks: RowConditions,
        where: Mapping[str, Column],
        hint: str = "Correct the message's producer.",
    ) -> None:
        self._checks = checks
        self._where = where
        self._hint = hint

    def convert(self, value: Column, kind: AvroType, name: str) -> Column:
        """Return the value of a column. `name` is the column, for errors.

        A collected check is one of the whole value: an expression for an item of a list cannot leave it.
        """
        converted = self._convert(value, kind, name)
        if self._checks.collect and _can_misfit(kind):
            what = f"column `{name}` is {kind}, which cannot hold its value"
            fits = self._checks.require(value.isNull() | self._fits(value, kind), what)
            converted = self._checks.guard(converted, fits)
        return converted

    def _convert(self, value: Column, kind: AvroType, name: str) -> Column:
        from pyspark.sql import functions as F  # noqa: N812

        if not _is_converted(kind):
            return value
        if kind.is_decimal or kind.logical in _DAY:
            return self._check_value(value, kind, name)
        if kind.kind == "array":
            return F.transform(value, lambda item: self._convert(item, kind.item_type, name))
        if kind.kind == "map":
            return F.transform_values(value, lambda _, item: self._convert(item, kind.item_type, name))
        if kind.kind == "record":
            fields = [
                self._convert(value.getField(one.name), one.type, name).alias(one.name) for one in kind.fields
            ]
            return F.when(value.isNotNull(), F.struct(*fields))
        return _uuid(value)

    def _check_value(self, value: Column, kind: AvroType, name: str) -> Column:
        """Return a value without parts if its type can hold it."""
        from pyspark.sql import functions as F  # noqa: N812

        result, good, shown = _decimal_or_time(value, kind)
        good = value.isNull() | good
        if self._checks.collect:
            return F.when(good, result)
        what = F.concat(F.lit(f"column `{name}` is {kind}, which cannot hold `"), shown, F.lit("`"))
        fits = self._checks.require(good, what, self._hint, **self._where)
        return self._checks.guard(result, fits)

    def _fits(self, value: Column, kind: AvroType) -> Column:
        """Return whether the type can hold a value that is not NULL, with all its parts."""
        from pyspark.sql import functions as F  # noqa: N812

        def part_fits(part: Column, of: AvroType) -> Column:
            return part.isNull() | self._fits(part, of)

        if kind.is_decimal or kind.logical in _DAY:
            return _decimal_or_time(value, kind)[1]
        if kind.kind == "array":
            return F.forall(value, lambda item: part_fits(item, kind.item_type))
        if kind.kind == "map":
            return F.forall(F.map_values(value), lambda item: part_fits(item, kind.item_type))
        parts = [
            part_fits(value.getField(one.name), one.type) for one in kind.fields if _can_misfit(one.type)
        ]
        return reduce(operator.and_, parts)


def _decimal_or_time(value: Column, kind: AvroType) -> tuple[Column, Column, Column]:
    """Return a value as its column has it, whether its type can hold it, and its text for errors.

    A time of day becomes text, such as 12:30:00 or 12:30:00.5.
    """
    from pyspark.sql import functions as F  # noqa: N812

    if kind.is_decimal:
        return _decimal(value, kind)
    micros = value.cast("bigint") * (1000 if kind.logical == "time-millis" else 1)
    text = F.date_format(F.timestamp_micros(micros).cast("timestamp_ntz"), "HH:mm:ss.SSSSSS")
    good = (value >= 0) & (value < _DAY[kind.logical])
    return F.regexp_replace(text, _TRAILING_ZEROS, ""), good, value.cast("string")


def _decimal(value: Column, kind: AvroType) -> tuple[Column, Column, Column]:
    from pyspark.sql import functions as F  # noqa: N812

    if kind.precision <= SPARK_DIGITS:
        fitted = value.try_cast(f"decimal({kind.precision},{kind.scale})")
        return fitted, fitted.isNotNull(), value.cast("string")
    number = _whole_number(value)
    digits = F.ltrim(number, F.lit("-"))
    limit = str(UINT256.highest) if kind.precision > BIG_DECIMAL_DIGITS else "9" * kind.precision
    good = F.lpad(digits, len(limit) + 1, "0") <= "0" + limit
    good = good & (F.length(digits) <= len(limit))
    if kind.precision > BIG_DECIMAL_DIGITS:
        good = good & ~number.startswith("-")
    text = _with_point(number, digits, kind.scale) if kind.scale else number
    return text, good, number


def _is_converted(kind: AvroType) -> bool:
    """Return whether from_avro's value is not the column's value yet."""
    return (
        kind.is_decimal
        or kind.logical in _DAY
        or (kind.logical == "uuid" and kind.kind == "fixed")
        or (kind.items is not None and _is_converted(kind.items))
        or any(_is_converted(one.type) for one in kind.fields)
    )


def _can_misfit(kind: AvroType) -> bool:
    """Return whether a value, or a part of it, may be one that its type cannot hold."""
    return (
        kind.is_decimal
        or kind.logical in _DAY
        or (kind.items is not None and _can_misfit(kind.items))
        or any(_can_misfit(one.type) for one in kind.fields)
    )


def _whole_number(value: Column) -> Column:
    """Return the digits of a big-endian two's complement number. No bytes are 0, as for Avro.

    Only Java has whole numbers of that size, and reads them as hexadecimal digits with a sign.
    """
    from pyspark.sql import functions as F  # noqa: N812

    digits = F.when(F.length(value) == 0, "00").otherwise(F.hex(value))
    flipped = F.concat(
        F.translate(F.regexp_extract(digits, _LAST_ONE, 1), "0123456789ABCDEF", "FEDCBA9876543210"),
        F.translate(F.regexp_extract(digits, _LAST_ONE, 2), "123456789ABCDEF", "FEDCBA987654321"),
        F.regexp_extract(digits, _LAST_ONE, 3),
    )
    is_negative = F.substring(digits, 1, 1) >= "8"
    text = F.when(is_negative, F.concat(F.lit("-0x"), flipped)).otherwise(F.concat(F.lit("0x"), digits))
    java = F.lit("org.apache.commons.lang3.math.NumberUtils"), F.lit("createBigInteger")
    return F.when(value.isNotNull(), F.java_method(*java, text))


def _with_point(number: Column, digits: Column, scale: int) -> Column:
    """Return the digits with a decimal point, and without zeros that have no meaning."""
    from pyspark.sql import functions as F  # noqa: N812

    long = F.lpad(digits, F.greatest(F.length(digits), F.lit(scale + 1)), F.lit("0"))
    text = F.concat(
        F.when(number.startswith("-"), "-").otherwise(""),
        F.substring(long, F.lit(1), F.length(long) - scale),
        F.lit("."),
        F.substring(long, F.length(long) - scale + 1, F.lit(scale)),
    )
    return F.regexp_replace(text, _TRAILING_ZEROS, "")


def _uuid(value: Column) -> Column:
    """Return 16 bytes as the text of a UUID."""
    from pyspark.sql import functions as F  # noqa: N812

    return F.regexp_replace(F.lower(F.hex(value)), "^(.{8})(.{4})(.{4})(.{4})(.{12})$", "$1-$2-$3-$4-$5")


def has_broken_text(value: Column, kind: AvroType) -> Column | None:
    """Return whether a text in a value is not UTF-8, or None for a type without texts."""
    from pyspark.sql import functions as F  # noqa: N812

    if kind.kind == "string":
        return ~F.is_valid_utf8(value)
    if kind.kind == "map":
        keys = F.exists(F.map_keys(value), lambda text: ~F.is_valid_utf8(text))
        if not _has_text(kind.item_type):
            return keys
        return keys | F.exists(F.map_values(value), lambda item: _broken(item, kind.item_type))
    if kind.kind == "array" and _has_text(kind.item_type):
        return F.exists(value, lambda item: _broken(item, kind.item_type))
    if kind.kind == "record":
        broken = [has_broken_text(value.getField(one.name), one.type) for one in kind.fields]
        return any_of([one for one in broken if one is not None])
    return None


def _broken(value: Column, kind: AvroType) -> Column:
    result = has_broken_text(value, kind)
    assert result is not None  # noqa: S101  the caller asked `_has_text`
    return result


def _has_text(kind: AvroType) -> bool:
    return (
        kind.kind in ("string", "map")
        or (kind.items is not None and _has_text(kind.items))
        or any(_has_text(one.type) for one in kind.fields)
    )


def any_of(conditions: list[Column]) -> Column | None:
    """Return whether one of the conditions is true, NULL counted as false; None without conditions."""
    from pyspark.sql import functions as F  # noqa: N812

    result: Column | None = None
    for one in conditions:
        safe = F.coalesce(one, F.lit(False))
        result = safe if result is None else result | safe
    return result


def column_of(name: str, prefix: str) -> Column:
    """Return a field of a struct column by its name, which may have any letters."""
    from pyspark.sql import functions as F  # noqa: N812

    return F.col(f"{prefix}.{quote_identifier(name)}")
