"""Operations of portable SQL that may mean something else for some values, over Arrow.

Each checks its values, and raises UnprovenValuesError or ArrowInvalid if Spark must decide.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute

from headrace.connectors.plain_text import UnprovenTextError, convert_text
from headrace.jobs.planning.portable_values import TIMESTAMP, Expression, arrow_of

pc: Any = pyarrow.compute
"""Its functions are made at import, so type checkers do not see them."""
_EXACT = 2.0**53
"""Up to here a double has all integers."""
_MOST_ROUNDED = 9e14
"""Up to here ten times the tie between two integers is exact as a double."""


class UnprovenValuesError(Exception):
    """A guarded operation got values for which Spark may give another result, or an error."""


def _prove(condition: Any, operation: str) -> None:
    """Raise UnprovenValuesError unless the condition is true for all rows, or NULL."""
    if pc.all(condition).as_py() is False:
        raise UnprovenValuesError(operation)


def _parse(expression: Expression, text: pa.Array) -> Any:
    try:
        return convert_text(text, arrow_of(expression.kind))
    except UnprovenTextError:
        raise UnprovenValuesError(expression.operation) from None


def _cast_checked(expression: Expression, values: pa.Array) -> Any:
    return pc.cast(values, arrow_of(expression.kind))


def _to_integer(function: Callable[[Any], Any], expression: Expression, values: pa.Array) -> Any:
    _prove(pc.less(pc.abs(values), _EXACT), expression.operation)
    return pc.cast(function(values), arrow_of(expression.kind))


def _round_half_up(values: pa.Array, places: int, operation: str) -> Any:
    """Return doubles rounded to a number of places, times 10^places.

    Spark rounds the decimal number as which a double is written. A double below the double of a tie is
    written as a number below the tie, and one above it as a number above. The tie itself is left to Spark.
    """
    size = pc.abs(values)
    scaled = pc.multiply(size, 10.0**places)
    _prove(pc.less(scaled, _MOST_ROUNDED), operation)
    below = pc.floor(scaled)
    tie = pc.divide(pc.multiply(pc.add(pc.multiply(below, 2.0), 1.0), 5.0), 10.0 ** (places + 1))
    _prove(pc.not_equal(size, tie), operation)
    rounded = pc.if_else(pc.greater(size, tie), pc.add(below, 1.0), below)
    # Zero has no sign as a decimal.
    return pc.add(pc.if_else(pc.less(values, 0.0), pc.negate(rounded), rounded), 0.0)


def _round_double(expression: Expression, values: pa.Array) -> Any:
    places = int(expression.text)
    return pc.divide(_round_half_up(values, places, expression.operation), 10.0**places)


def _round_to_decimal(expression: Expression, values: pa.Array) -> Any:
    places = int(expression.text)
    whole = pc.cast(_round_half_up(values, places, expression.operation), pa.int64())
    unit = pa.scalar(Decimal(1).scaleb(-places), pa.decimal128(places + 1, places))
    return pc.cast(pc.multiply(pc.cast(whole, pa.decimal128(19, 0)), unit), arrow_of(expression.kind))


def _round_decimal(expression: Expression, values: pa.Array) -> Any:
    # Arrow does not check that the result has room: 99.99 becomes 100.00.
    wider = pc.cast(values, pa.decimal128(values.type.precision + 1, values.type.scale))
    rounded = pc.round(wider, ndigits=int(expression.text), round_mode="half_towards_infinity")
    return pc.cast(rounded, arrow_of(expression.kind))


def _double_of_decimal(expression: Expression, values: pa.Array) -> Any:
    """Return decimals as doubles: an exact integer by an exact power of ten is rounded once, as in Spark."""
    scale = values.type.scale
    factor = pa.scalar(Decimal(10) ** scale, pa.decimal128(scale + 1, 0))
    whole = pc.cast(pc.cast(pc.multiply(values, factor), pa.decimal128(38, 0), safe=False), pa.int64())
    _prove(pc.less(pc.abs_checked(whole), int(_EXACT)), expression.operation)
    return pc.divide(pc.cast(whole, pa.float64()), 10.0**scale)


def _moment(_: Expression, values: pa.Array, factor: pa.Array) -> Any:
    return pc.multiply_checked(values, factor).view(arrow_of(TIMESTAMP))


def _without_zone(moments: pa.Array) -> pa.Array:
    """Return timestamps without their zone UTC, for which Arrow would need a database of zones."""
    return moments.view(pa.timestamp("us"))


def _truncate(expression: Expression, moments: pa.Array) -> Any:
    return pc.floor_temporal(_without_zone(moments), unit=expression.text).view(arrow_of(expression.kind))


def _truncate_day(expression: Expression, days: pa.Array) -> Any:
    return pc.cast(pc.floor_temporal(days, unit=expression.text), pa.date32())


def _day(_: Expression, moments: pa.Array) -> Any:
    return pc.floor_temporal(_without_zone(moments), unit="day").cast(pa.date32())


def _day_difference(_: Expression, end: pa.Array, start: pa.Array) -> Any:
    return pc.subtract_checked(end.cast(pa.int32()), start.cast(pa.int32()))


def _map_case(function: Callable[[Any], Any], _: Expression, text: pa.Array) -> Any:
    _prove(pc.string_is_ascii(text), "case mapping")
    return function(text)


def _divide_nonzero(_: Expression, dividend: pa.Array, divisor: pa.Array) -> Any:
    _prove(pc.not_equal(divisor, 0.0), "division")
    return pc.divide(dividend, divisor)


def _substring(expression: Expression, text: pa.Array) -> Any:
    start, _, stop = expression.text.partition(":")
    return pc.utf8_slice_codeunits(text, int(start), int(stop) if stop else None)


def _trim(expression: Expression, text: pa.Array) -> Any:
    trim = {"LEADING": pc.utf8_ltrim, "TRAILING": pc.utf8_rtrim}[expression.text]
    return trim(text, characters=" ")


def _replace(expression: Expression, text: pa.Array, *_: pa.Array) -> Any:
    searched, by = expression.arguments[1:]
    return pc.replace_substring(text, searched.text, by.text)


def _match(function: Callable[..., Any], expression: Expression, text: pa.Array, _: pa.Array) -> Any:
    return function(text, expression.arguments[1].text)


def _join(expression: Expression, *parts: pa.Array) -> Any:
    """Join what is not NULL. Arrow's own join loses rows whose parts are all NULL."""
    separator = expression.text
    pieces = [pc.fill_null(pc.binary_join_element_wise(separator, part, ""), "") for part in parts]
    return pc.utf8_slice_codeunits(pc.binary_join_element_wise(*pieces, ""), len(separator))


def _of_moments(function: Callable[[Any], Any], _: Expression, moments: pa.Array) -> Any:
    return function(_without_zone(moments))


def _day_of_week(_: Expression, days: pa.Array) -> Any:
    """Return 1 for Sunday."""
    return pc.day_of_week(days, count_from_zero=False, week_start=7)


def _choose(function: Callable[..., Any], _: Expression, *values: pa.Array) -> Any:
    kind = values[0].type
    if not pa.types.is_timestamp(kind):
        return function(*values)
    return function(*(one.view(pa.int64()) for one in values)).view(kind)


def _plain(function: Callable[..., Any], _: Expression, *values: pa.Array) -> Any:
    return function(*values)


GUARDED: Mapping[str, Callable[..., Any]] = {
    "parse": _parse,
    "cast_checked": _cast_checked,
    "truncate_number": functools.partial(_to_integer, pc.trunc),
    "floor": functools.partial(_to_integer, pc.floor),
    "ceil": functools.partial(_to_integer, pc.ceil),
    "round_double": _round_double,
    "round_to_decimal": _round_to_decimal,
    "round_decimal": _round_decimal,
    "double_of_decimal": _double_of_decimal,
    "moment": _moment,
    "truncate": _truncate,
    "truncate_day": _truncate_day,
    "day": _day,
    "day_difference": _day_difference,
    "ascii_upper": functools.partial(_map_case, pc.ascii_upper),
    "ascii_lower": functools.partial(_map_case, pc.ascii_lower),
    "divide_nonzero": _divide_nonzero,
    "substring": _substring,
    "trim_side": _trim,
    "replace": _replace,
    "join": _join,
    "starts_with": functools.partial(_match, pc.starts_with),
    "ends_with": functools.partial(_match, pc.ends_with),
    "contains": functools.partial(_match, pc.match_substring),
    "day_of_week": _day_of_week,
    "day_of_month": functools.partial(_plain, pc.day),
    **{name: functools.partial(_of_moments, getattr(pc, name)) for name in ("hour", "minute", "second")},
    **{
        name: functools.partial(_plain, getattr(pc, name))
        for name in ("abs_checked", "negate_checked", "year", "quarter", "month")
    },
    "greatest": functools.partial(_choose, pc.max_element_wise),
    "least": functools.partial(_choose, pc.min_element_wise),
}
"""The operations by name. Each gets its expression and the values of its arguments, one per row."""
