"""SIMILAR TO and date_bin of other dialects in Spark's SQL."""

from __future__ import annotations

import re
from typing import Any

from sqlglot import exp

from headrace.pipeline.errors import UserError
from headrace.pipeline.sql.dialects.functions import template

_PLAIN = ".^$\\"
"""Signs that are literal in Postgres' patterns but not in Java's."""
_SPAN = re.compile(r"(\d+)\s*([a-z]+)", re.IGNORECASE)
_MICROS = {
    "microsecond": 1, "millisecond": 1_000, "second": 1_000_000, "sec": 1_000_000, "minute": 60_000_000,
    "min": 60_000_000, "hour": 3_600_000_000, "day": 86_400_000_000, "week": 604_800_000_000,
}  # fmt: skip


def similar(node: exp.SimilarTo, dialect: str) -> exp.Expr:
    """Return `a SIMILAR TO pattern` as RLIKE.

    In DataFusion the pattern is a regular expression. In Postgres it is an SQL pattern for the whole string.
    """
    pattern = node.expression
    known = isinstance(pattern, exp.Literal) and pattern.is_string and "[:" not in pattern.name
    if isinstance(node.parent, exp.Escape) or (dialect == "postgres" and not known):
        msg = (
            f"`{node.sql(dialect='postgres')}` cannot be written in Spark's SQL: the pattern must be written"
            " out, without ESCAPE and [:classes:]"
        )
        raise UserError(msg, hint="Use a regular expression: regexp_like(a, pattern).")
    if dialect == "postgres":
        pattern = exp.Literal.string(rf"\A(?:(?s){_of_like(pattern.name)})\z")
    return exp.RegexpLike(this=node.this, expression=pattern)


def _of_like(text: str) -> str:
    """Return a pattern of Postgres as a pattern of Java."""
    result, listed = [], False
    letters = iter(text)
    for letter in letters:
        if letter == "\\":
            result.append(re.escape(next(letters, "")))
        elif listed:
            listed = letter != "]"
            result.append(letter)
        elif letter == "[":
            listed = True
            result.append(letter)
        else:
            result.append(
                {"%": ".*", "_": "."}.get(letter) or (f"\\{letter}" if letter in _PLAIN else letter)
            )
    return "".join(result)


def build_date_bin(arguments: list[Any]) -> exp.Expr:
    """Return `date_bin(stride, time, origin)`: the start of the interval that contains a time.

    Without an origin, intervals are counted from 1970.
    """
    if len(arguments) not in (2, 3):
        msg = f"date_bin takes a stride, a time and an origin, found {len(arguments)} arguments"
        raise UserError(
            msg, hint="It is called as date_bin(INTERVAL '15 minutes', at, TIMESTAMP '2001-01-01 00:00:00')."
        )
    stride, at, *origin = arguments
    micros = _micros(stride)
    if not micros:
        msg = (
            f"date_bin by `{stride.sql(dialect='postgres')}` cannot be written in Spark's SQL: the stride"
            " must be written out, in weeks or less"
        )
        raise UserError(
            msg, hint="Such as INTERVAL '15 minutes'; for months and years use date_trunc('month', at)."
        )
    start = template("unix_micros(CAST(_0 AS TIMESTAMP))", origin[0]) if origin else exp.Literal.number(0)
    moment = "unix_micros(CAST(_0 AS TIMESTAMP))"
    return template(
        f"timestamp_micros({moment} - pmod({moment} - _1, CAST(_2 AS BIGINT)))",
        at,
        start,
        exp.Literal.number(micros),
    )


def _micros(stride: exp.Expr) -> int | None:
    """Return the microseconds of a literal time span. None for every other expression."""
    unit = stride.args.get("unit") if isinstance(stride, exp.Interval) else None
    value = stride.this if isinstance(stride, exp.Interval) else stride
    if not isinstance(value, exp.Literal):
        return None
    text = f"{value.name} {unit.name if unit is not None else ''}".strip()
    if _SPAN.sub("", text).strip():
        return None
    parts = [
        (int(number), _MICROS.get(word.lower().removesuffix("s"))) for number, word in _SPAN.findall(text)
    ]
    return (
        None
        if any(size is None for _, size in parts)
        else sum(number * (size or 0) for number, size in parts)
    )
