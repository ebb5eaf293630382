"""Whether all rows of a key are in one split. Splits are ranges of the first sorting key expressions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headrace.connectors.clickhouse.key_ranges import base_of
from headrace.connectors.clickhouse.types import UnsupportedTypeError, parse

_TOKEN = re.compile(
    r"\s+|`(?P<quoted>[^`\\]+)`|'[^'\\]*'|(?P<call>[A-Za-z_]\w*)\s*(?=\()|(?P<name>[A-Za-z_]\w*)|\d+|[-+*%(),]"
)
_HASHES = (
    "cityHash64 sipHash64 farmHash64 metroHash64 xxHash32 xxHash64 murmurHash3_32 murmurHash3_64"
    " intHash32 intHash64 halfMD5 MD5"
)
_DATES = (
    "toDate toYear toMonth toMonday toYYYYMM toYYYYMMDD toStartOfMonth toStartOfYear toStartOfDay"
    " toStartOfHour toStartOfWeek"
)
_FUNCTIONS = frozenset(f"{_HASHES} {_DATES} intDiv modulo positiveModulo lower upper toString".split())
"""Functions whose result depends on nothing but their arguments."""
_EXACT = frozenset(
    {
        "Date",
        "Date32",
        "DateTime",
        "Bool",
        "UUID",
        "IPv4",
        "IPv6",
        "String",
        "FixedString",
        "Decimal",
        "Enum8",
        "Enum16",
    }
)
_INTEGER = re.compile(r"U?Int\d+")
_MICROS = 6


def columns_in(expression: str) -> frozenset[str] | None:
    """Return the columns that determine an expression's value; None if more columns may determine it."""
    result: set[str] = set()
    at = 0
    while at < len(expression):
        token = _TOKEN.match(expression, at)
        if token is None or (token["call"] and token["call"] not in _FUNCTIONS):
            return None
        result |= {name for name in (token["quoted"], token["name"]) if name}
        at = token.end()
    return frozenset(result)


def exact_key_columns(key: Iterable[str], types: Mapping[str, str]) -> frozenset[str]:
    """Return the key columns whose distinct values stay distinct in the payload.

    Times finer than microseconds are truncated when they are read, and floating point has several
    representations of one value.
    """
    return frozenset(name for name in key if name in types and _keeps_values_apart(types[name]))


def _keeps_values_apart(spelled: str) -> bool:
    try:
        parsed: Any = parse(spelled)
    except UnsupportedTypeError:
        return False
    base = base_of(spelled)
    return (
        base in _EXACT or bool(_INTEGER.fullmatch(base)) or (base == "DateTime64" and parsed.scale <= _MICROS)
    )


def leading(expressions: Sequence[str], key: frozenset[str]) -> int:
    """Return how many leading expressions of a sorting key the columns of `key` determine alone."""
    for place, expression in enumerate(expressions):
        result = columns_in(expression)
        if not result or not result <= key:
            return place
    return len(expressions)
