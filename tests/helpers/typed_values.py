"""Strategies for Arrow types and their values, with extremes and odd text."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st
from pyarrow import types as kinds

ODD_TEXTS = ("", '"', "\\", '\\"', "\\n", "/", "</", "\0", "\x1f", "\x7f", "\x85", "\u2028", "é", "漢", "🛫")
ODD_TEXTS += ("\t\n\r\f\b", "\ufeff", "\uffff", "\U0010ffff", "null", "{}", "'", "%s", "$1", "\\u0000", " ")
NAMES = (
    "a",
    "B",
    "key",
    "value",
    "place",
    'q"',
    "back\\slash",
    "tick`",
    "a.b",
    "é\n",
    "\x01",
    "🛫",
    " ",
    "null",
)

decimals = st.sampled_from([(1, 0), (5, 2), (7, 7), (18, 0), (18, 9), (20, 4), (38, 0), (38, 10), (38, 38)])
scalars = st.one_of(
    st.sampled_from(
        [
            *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.string(), pa.date32()),
            *(pa.timestamp("us", tz="UTC"), pa.timestamp("us")),
        ]
    ),
    decimals.map(lambda digits: pa.decimal128(*digits)),
)


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    members = st.lists(st.tuples(st.sampled_from(NAMES), inner), min_size=1, max_size=3, unique_by=_lower)
    return st.one_of(
        inner.map(pa.list_),
        members.map(pa.struct),
        st.builds(pa.map_, scalars, inner),
    )


def _lower(member: tuple[str, Any]) -> str:
    return member[0].lower()


types = st.recursive(scalars | st.just(pa.binary()), _nested, max_leaves=4)
schemas = st.lists(st.tuples(st.sampled_from(NAMES), types), min_size=1, max_size=6, unique_by=_lower).map(
    pa.schema
)


def values(kind: Any, *, nulls: bool = True) -> st.SearchStrategy[Any]:
    """Values of a type. With `nulls`, also None; inside of it always."""
    result = _values(kind)
    return st.none() | result if nulls else result


def _values(kind: Any) -> st.SearchStrategy[Any]:
    if kinds.is_list(kind):
        return st.lists(values(kind.value_type), max_size=4)
    if kinds.is_map(kind):
        pairs = st.tuples(values(kind.key_type, nulls=False), values(kind.item_type))
        return st.lists(pairs, max_size=4, unique_by=lambda pair: pair[0])
    if kinds.is_struct(kind):
        return st.fixed_dictionaries({member.name: values(member.type) for member in kind})
    return next(create for fits, create in _SCALARS if fits(kind))(kind)


def _integers(kind: Any) -> st.SearchStrategy[int]:
    top = 2 ** (kind.bit_width - 1)
    return st.sampled_from([0, -1, top - 1, -top]) | st.integers(-top, top - 1)


def _decimals(kind: Any) -> st.SearchStrategy[Decimal]:
    top = 10**kind.precision - 1
    unscaled = st.sampled_from([0, 1, -1, top, -top]) | st.integers(-top, top)
    return unscaled.map(lambda whole: _decimal(whole, kind.scale))


def _timestamps(kind: Any) -> st.SearchStrategy[datetime]:
    zone = UTC if kind.tz else None
    ends = [datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999), datetime(1970, 1, 1)]
    return (st.sampled_from(ends) | st.datetimes()).map(lambda moment: moment.replace(tzinfo=zone))


_DAYS = st.sampled_from([date(1, 1, 1), date(9999, 12, 31), date(1582, 10, 10)]) | st.dates()
_SCALARS: tuple[tuple[Any, Any], ...] = (
    (kinds.is_boolean, lambda _: st.booleans()),
    (kinds.is_integer, _integers),
    (kinds.is_decimal, _decimals),
    (kinds.is_string, lambda _: st.sampled_from(ODD_TEXTS) | st.text(max_size=12)),
    (kinds.is_binary, lambda _: st.binary(max_size=12)),
    (kinds.is_date, lambda _: _DAYS),
    (kinds.is_timestamp, _timestamps),
)


def _decimal(unscaled: int, scale: int) -> Decimal:
    digits = tuple(map(int, str(abs(unscaled))))
    return Decimal((int(unscaled < 0), digits, -scale))
