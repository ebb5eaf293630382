"""Functions and casts of portable SQL for rows in the driver, typed as in Spark.

Arrow computes them. It leaves rows to Spark if an operation may mean something else for their values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from sqlglot import exp

from headrace.jobs.planning.portable_decimals import (
    INTEGER_DIGITS,
    decimal_kind,
    is_decimal,
    to_decimal,
    widen,
)
from headrace.jobs.planning.portable_values import (
    INTS,
    NOTHING,
    NUMBER,
    TEXT,
    TIMESTAMP,
    Expression,
    boolean,
    common,
    ensure_type,
    is_decimal_kind,
    leave_out,
    precision_and_scale,
    present_arguments,
    to_integer,
)

Value = Callable[[exp.Expr], Expression]
"""Returns the expression of an argument."""
Rule = Callable[[Value, Any], Expression]

_MOMENT_UNITS = ("second", "minute", "hour", "day", "week", "month", "quarter", "year")
_DAY_UNITS = ("week", "month", "quarter", "year")
_MICROSECONDS = {"timestamp_seconds": 10**6, "timestamp_millis": 10**3, "timestamp_micros": 1}
_MOST_PLACES = 15


def guard_cast(expression: Expression, wanted: str) -> Expression | None:
    """Return a cast whose values Arrow checks, or None if it is none of these casts."""
    rule = _CASTS.get((_group(expression.kind), _group(wanted)))
    return rule(expression, wanted) if rule else None


def read_type(to: exp.DataType) -> str | None:
    """Return the type that a cast names, or None if portable SQL has no such type."""
    text = to.sql(dialect="").upper()
    if size := re.fullmatch(r"DECIMAL\((\d+)(?:, (\d+))?\)", text):
        return decimal_kind(int(size[1]), int(size[2] or 0))
    return _TYPES.get(text)


_TYPES = {
    "TINYINT": "Int8",
    "SMALLINT": "Int16",
    "INT": "Int32",
    "BIGINT": "Int64",
    "DOUBLE": "Float64",
    "TEXT": "String",
    "VARCHAR": "String",
    "DATE": "Date32",
    "TIMESTAMPTZ": TIMESTAMP,
    "DECIMAL": "Decimal(10, 0)",
}


def _group(kind: str) -> str:
    """Return a type, or the word for all types of its group."""
    return "integer" if kind in INTS else "decimal" if is_decimal_kind(kind) else kind


def _make(operation: str) -> Callable[[Expression, str], Expression]:
    return lambda result, wanted: Expression(operation, wanted, (result,))


def _decimal_of_integer(expression: Expression, wanted: str) -> Expression:
    scale = precision_and_scale(wanted)[1]
    digits = INTEGER_DIGITS[expression.kind] + scale
    return Expression("cast_checked", wanted, (ensure_type(expression, decimal_kind(digits, scale)),))


def _decimal_of_double(expression: Expression, wanted: str) -> Expression:
    return Expression("round_to_decimal", wanted, (expression,), text=str(precision_and_scale(wanted)[1]))


def _decimal_of_decimal(expression: Expression, wanted: str) -> Expression:
    places = precision_and_scale(wanted)[1]
    if places < precision_and_scale(expression.kind)[1]:
        expression = _round_decimal(expression, places)
    return Expression("cast_checked", wanted, (expression,))


def _moment(expression: Expression, microseconds: int) -> Expression:
    if expression.kind not in INTS:
        raise leave_out(expression)
    factor = Expression("number", "Int64", text=str(microseconds))
    return Expression("moment", TIMESTAMP, (ensure_type(expression, "Int64"), factor))


_CASTS: Mapping[tuple[str, str], Callable[[Expression, str], Expression]] = {
    **{("String", to): _make("parse") for to in ("integer", "decimal", "Float64", "Date32", TIMESTAMP)},
    (TIMESTAMP, "Date32"): _make("day"),
    ("Bool", "String"): ensure_type,
    ("integer", "integer"): _make("cast_checked"),
    ("integer", "decimal"): _decimal_of_integer,
    ("integer", TIMESTAMP): lambda result, _: _moment(result, 10**6),
    ("Float64", "integer"): _make("truncate_number"),
    ("Float64", "decimal"): _decimal_of_double,
    (NUMBER, "decimal"): to_decimal,
    ("decimal", "decimal"): _decimal_of_decimal,
    ("decimal", "Float64"): _make("double_of_decimal"),
}


def _arguments(node: exp.Expr, *names: str) -> None:
    """Raise UntranslatableError if a node has other arguments than these."""
    if set(present_arguments(node)) - {"this", *names}:
        raise leave_out(node)


def _text(value: Value, node: exp.Expr) -> Expression:
    result = value(node.this)
    if result.kind != "String":
        raise leave_out(node)
    return result


def _text_literal(value: Value, node: exp.Expr | None) -> Expression:
    result = value(node) if node is not None else NOTHING
    if result.kind != TEXT:
        raise leave_out(node)
    return result


def _count(value: Value, node: exp.Expr | None, default: int) -> int:
    """Return an argument that is a whole number, written out."""
    if node is None:
        return default
    result = value(node)
    if result.kind != NUMBER:
        raise leave_out(node)
    return int(to_integer(result).text)


def _map_case(value: Value, node: exp.Upper | exp.Lower) -> Expression:
    """Only ASCII: other letters change with the version of Unicode."""
    _arguments(node)
    operation = "ascii_upper" if isinstance(node, exp.Upper) else "ascii_lower"
    return Expression(operation, "String", (_text(value, node),))


def _trim(value: Value, node: exp.Trim) -> Expression:
    """Remove spaces from both sides, or from one."""
    _arguments(node, "position")
    position = node.text("position")
    if not position:
        return Expression("trim", "String", (_text(value, node),))
    if position not in ("LEADING", "TRAILING"):
        raise leave_out(node)
    return Expression("trim_side", "String", (_text(value, node),), text=position)


def _take_part(value: Value, node: exp.Substring) -> Expression:
    _arguments(node, "start", "length")
    start = _count(value, node.args.get("start"), 1)
    length = _count(value, node.args.get("length"), -1)
    if start < 1 or (node.args.get("length") and length < 0):
        raise leave_out(node)
    stop = "" if length < 0 else str(start - 1 + length)
    return Expression("substring", "String", (_text(value, node),), text=f"{start - 1}:{stop}")


def _take_left(value: Value, node: exp.Left) -> Expression:
    _arguments(node, "expression")
    length = max(0, _count(value, node.expression, 0))
    return Expression("substring", "String", (_text(value, node),), text=f"0:{length}")


def _replace(value: Value, node: exp.Replace) -> Expression:
    _arguments(node, "expression", "replacement")
    searched = _text_literal(value, node.expression)
    replacement = node.args.get("replacement")
    by = _text_literal(value, replacement) if replacement else Expression("text", TEXT)
    if not searched.text:
        raise leave_out(node)
    return Expression("replace", "String", (_text(value, node), searched, by))


def _join(value: Value, node: exp.ConcatWs) -> Expression:
    separator, *parts = (value(part) for part in node.expressions)
    if separator.kind != TEXT or not parts or any(part.kind not in ("String", TEXT) for part in parts):
        raise leave_out(node)
    texts = tuple(ensure_type(part, "String") for part in parts)
    return Expression("join", "String", texts, text=separator.text)


def _match(operation: str) -> Rule:
    def find(value: Value, node: exp.Func) -> Expression:
        _arguments(node, "expression")
        return boolean(operation, _text(value, node), _text_literal(value, node.args["expression"]))

    return find


def _absolute(value: Value, node: exp.Abs) -> Expression:
    result = value(node.this)
    if result.kind not in (*INTS, "Float64") and not is_decimal(result):
        raise leave_out(node)
    return Expression("abs_checked", result.kind, (result,))


def _round(value: Value, node: exp.Round) -> Expression:
    _arguments(node, "decimals")
    result, places = value(node.this), _count(value, node.args.get("decimals"), 0)
    if not 0 <= places <= _MOST_PLACES:
        raise leave_out(node)
    if result.kind == "Float64":
        return Expression("round_double", result.kind, (result,), text=str(places))
    if result.kind in INTS:
        return ensure_type(result, result.kind)
    if not is_decimal(result):
        raise leave_out(node)
    return _round_decimal(result, places)


def _round_decimal(expression: Expression, places: int) -> Expression:
    """Return a decimal with one digit more in front: 9.99 becomes 10.0."""
    precision, scale = precision_and_scale(expression.kind)
    decimal_kind(precision + 1, scale)  # where Arrow rounds
    kept = min(scale, places)
    return Expression(
        "round_decimal", decimal_kind(precision - scale + 1 + kept, kept), (expression,), text=str(kept)
    )


def _floor(value: Value, node: exp.Floor | exp.Ceil) -> Expression:
    _arguments(node)
    result = value(node.this)
    if result.kind != "Float64":
        raise leave_out(node)
    return Expression("floor" if isinstance(node, exp.Floor) else "ceil", "Int64", (result,))


def _choose(value: Value, node: exp.Greatest | exp.Least) -> Expression:
    """Return the largest or smallest value that is not NULL. Floats are left out: NaN is Spark's largest."""
    result = [value(one) for one in (node.this, *node.expressions)]
    kind = widen(result) if any(map(is_decimal, result)) else common(result)
    if kind in ("Bool", "Float64", "Float32"):
        raise leave_out(node)
    operation = "greatest" if isinstance(node, exp.Greatest) else "least"
    sides = (to_decimal(one, kind) if is_decimal_kind(kind) else ensure_type(one, kind) for one in result)
    return Expression(operation, kind, tuple(sides))


def _to_day(value: Value, node: exp.Expr) -> Expression:
    """Return a date, or the day of a timestamp."""
    result = value(node.this) if isinstance(node, exp.TsOrDsToDate) else value(node)
    if result.kind == TIMESTAMP:
        return Expression("day", "Date32", (result,))
    if result.kind == "String" and isinstance(node, exp.TsOrDsToDate):
        return Expression("parse", "Date32", (result,))
    if result.kind != "Date32":
        raise leave_out(node)
    return result


def _date_part(operation: str) -> Rule:
    def find(value: Value, node: exp.Func) -> Expression:
        _arguments(node)
        return ensure_type(Expression(operation, "Int64", (_to_day(value, node.this),)), "Int32")

    return find


def _time_part(operation: str) -> Rule:
    def find(value: Value, node: exp.Func) -> Expression:
        _arguments(node)
        result = value(node.this)
        if result.kind != TIMESTAMP:
            raise leave_out(node)
        return ensure_type(Expression(operation, "Int64", (result,)), "Int32")

    return find


def _date_difference(value: Value, node: exp.DateDiff) -> Expression:
    _arguments(node, "expression")
    days = (_to_day(value, node.this), _to_day(value, node.expression))
    return Expression("day_difference", "Int32", days)


def _truncate_moment(value: Value, node: exp.TimestampTrunc) -> Expression:
    _arguments(node, "unit")
    result, unit = value(node.this), node.text("unit").lower()
    if result.kind != TIMESTAMP or unit not in _MOMENT_UNITS:
        raise leave_out(node)
    return Expression("truncate", TIMESTAMP, (result,), text=unit)


def _truncate_day(value: Value, node: exp.DateTrunc) -> Expression:
    _arguments(node, "unit")
    unit = node.text("unit").lower()
    if unit not in _DAY_UNITS:
        raise leave_out(node)
    return Expression("truncate_day", "Date32", (_to_day(value, node.this),), text=unit)


def _nvl2(value: Value, node: exp.Nvl2) -> Expression:
    tested, then, otherwise = (value(node.args[key]) for key in ("this", "true", "false"))
    if tested.literal:
        raise leave_out(node)
    kind = common([then, otherwise])
    missing = boolean("is_null", tested)
    return Expression("case", kind, (missing, ensure_type(otherwise, kind), ensure_type(then, kind)))


def _call(value: Value, node: exp.Anonymous) -> Expression:
    microseconds = _MICROSECONDS.get(node.name.lower())
    if microseconds is None or len(node.expressions) != 1:
        raise leave_out(node)
    return _moment(value(node.expressions[0]), microseconds)


RULES: Mapping[type[exp.Expr], Rule] = {
    exp.Upper: _map_case, exp.Lower: _map_case, exp.Trim: _trim, exp.Substring: _take_part,
    exp.Left: _take_left, exp.Replace: _replace, exp.ConcatWs: _join, exp.StartsWith: _match("starts_with"),
    exp.EndsWith: _match("ends_with"), exp.Contains: _match("contains"), exp.Abs: _absolute,
    exp.Round: _round, exp.Floor: _floor, exp.Ceil: _floor, exp.Greatest: _choose, exp.Least: _choose,
    exp.Year: _date_part("year"), exp.Quarter: _date_part("quarter"), exp.Month: _date_part("month"),
    exp.Day: _date_part("day_of_month"), exp.DayOfMonth: _date_part("day_of_month"),
    exp.DayOfWeek: _date_part("day_of_week"), exp.Hour: _time_part("hour"), exp.Minute: _time_part("minute"),
    exp.Second: _time_part("second"), exp.TsOrDsToDate: _to_day, exp.DateDiff: _date_difference,
    exp.TimestampTrunc: _truncate_moment, exp.DateTrunc: _truncate_day, exp.Nvl2: _nvl2, exp.Anonymous: _call,
}  # fmt: skip
"""The functions by sqlglot's class."""
