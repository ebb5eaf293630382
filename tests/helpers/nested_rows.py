"""Lists, structs and maps of all types, and their expected values, also as JSON."""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types as kinds

INSTANT, LOCAL = pa.timestamp("us", tz="UTC"), pa.timestamp("us")
PAIR = pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))])
NESTED = pa.schema(
    [
        ("id", pa.int64()),
        ("whole", pa.list_(pa.int64())),
        ("floats", pa.list_(pa.float64())),
        ("singles", pa.list_(pa.float32())),
        ("exact", pa.list_(pa.decimal128(38, 10))),
        ("flags", pa.list_(pa.bool_())),
        ("texts", pa.list_(pa.string())),
        ("blobs", pa.list_(pa.binary())),
        ("days", pa.list_(pa.date32())),
        ("instants", pa.list_(INSTANT)),
        ("locals", pa.list_(LOCAL)),
        ("deep", pa.list_(pa.list_(PAIR))),
        (
            "record",
            pa.struct(
                [
                    ("tiny", pa.int8()),
                    ("at", INSTANT),
                    ("odd `name", pa.string()),
                    ("in", pa.struct([("x", LOCAL)])),
                ]
            ),
        ),
        ("prices", pa.map_(pa.string(), pa.decimal128(20, 4))),
        ("by_number", pa.map_(pa.int32(), PAIR)),
        ("by_price", pa.map_(pa.decimal128(10, 2), pa.bool_())),
        ("by_day", pa.map_(pa.date32(), pa.list_(pa.date32()))),
        ("by_instant", pa.map_(INSTANT, pa.map_(LOCAL, pa.int8()))),
        ("inner", pa.struct([("m", pa.list_(pa.map_(pa.date32(), pa.string())))])),
    ]
)
LATE = datetime(9999, 12, 31, 23, 59, 59, 999999)
EARLY = datetime(1900, 1, 1, 0, 0, 0, 1)
INF = float("inf")
ROWS: list[dict[str, Any]] = [
    {
        "id": 1,
        "whole": [2**63 - 1, None, -(2**63)],
        "floats": [0.1, INF, -INF, None, 1e308, 5e-324],
        "singles": [0.1, -INF, None, 3.4028234663852886e38],
        "exact": [Decimal("1234567890123456789012345678.0123456789"), None, Decimal("-0.0000000001")],
        "flags": [True, None, False],
        "texts": [
            "",
            None,
            "grüße 漢字 🛫 '\"\\ \t\n\\u0000 \x7f\u2028",
            "\U0001d11e\U0002f800\U000e0041\U0010ffff",
        ],
        "blobs": [bytes(range(256)), None, b""],
        "days": [date(1, 1, 1), None, date(9999, 12, 31)],
        "instants": [
            EARLY.replace(tzinfo=UTC),
            None,
            LATE.replace(tzinfo=UTC),
            datetime(2024, 3, 31, 1, 30, tzinfo=UTC),
        ],
        "locals": [EARLY, None, LATE, datetime(2024, 3, 31, 2, 30, 0, 120000)],
        "deep": [[{"a": 1, "b": ["x", None]}, None, {"a": None, "b": None}], None, [], [{"a": 2, "b": []}]],
        "record": {
            "tiny": -128,
            "at": datetime(1969, 12, 31, 23, 59, 59, 999999, UTC),
            "odd `name": "é",
            "in": {"x": LATE},
        },
        "prices": [("", Decimal("9999999999999999.9999")), ("none", None), ("🛫", Decimal("-0.0001"))],
        "by_number": [(-1, {"a": 1, "b": None}), (2**31 - 1, None)],
        "by_price": [(Decimal("-1.50"), True), (Decimal("99999999.99"), None)],
        "by_day": [(date(1969, 12, 31), [date(2024, 2, 29), None]), (date(9999, 12, 31), None)],
        "by_instant": [
            (datetime(2024, 1, 1, 0, 0, 0, 123456, UTC), [(EARLY, 1), (LATE, None)]),
            (LATE.replace(tzinfo=UTC), None),
        ],
        "inner": {"m": [[(date(2024, 1, 1), "x")], None, []]},
    },
    {name: 2 if name == "id" else None for name in NESTED.names},
    {
        "id": 3,
        **{
            name: []
            for name in NESTED.names
            if kinds.is_list(NESTED.field(name).type) or kinds.is_map(NESTED.field(name).type)
        },
        "record": {"tiny": None, "at": None, "odd `name": None, "in": None},
        "inner": {"m": None},
    },
    {
        name: 4 if name == "id" else [None] if kinds.is_list(NESTED.field(name).type) else None
        for name in NESTED.names
    }
    | {"record": {"tiny": None, "at": None, "odd `name": None, "in": {"x": None}}},
]


def same_as(value: Any, kind: Any) -> Any:
    """Something that equal values of a type have in common.

    NaN equals itself, singles are rounded, maps have no order.
    """
    if value is None:
        return None
    if kinds.is_map(kind):
        pairs = value.items() if isinstance(value, dict) else value
        return sorted(
            ((same_as(key, kind.key_type), same_as(item, kind.item_type)) for key, item in pairs), key=repr
        )
    if kinds.is_struct(kind):
        return {member.name: same_as(value[member.name], member.type) for member in kind}
    if kinds.is_list(kind):
        return [same_as(item, kind.value_type) for item in value]
    if kinds.is_floating(kind):
        return repr(np.float32(value) if kinds.is_float32(kind) else float(value))
    return value


def from_json(value: Any, kind: Any, *, hexadecimal: bool = False) -> Any:
    """A value of a type, as the documented rules turn it into JSON.

    Decimals and floats were parsed as Decimal. Bytes are base64, or `hexadecimal`.
    """
    if value is None:
        return None

    def inner(result: Any, its: Any) -> Any:
        return from_json(result, its, hexadecimal=hexadecimal)

    if kinds.is_map(kind):
        return [(inner(key, kind.key_type), inner(item, kind.item_type)) for key, item in value.items()]
    if kinds.is_struct(kind):
        assert set(value) == {member.name for member in kind}
        return {member.name: inner(value[member.name], member.type) for member in kind}
    if kinds.is_list(kind):
        return [inner(item, kind.value_type) for item in value]
    if hexadecimal and kinds.is_binary(kind):
        return bytes.fromhex(value)
    return next(read for fits, read in _READ if fits(kind))(value)


def _truth(value: Any) -> bool:
    assert value in (True, False, "true", "false")
    return value in (True, "true")


_READ: tuple[tuple[Callable[[Any], bool], Callable[[Any], Any]], ...] = (
    (kinds.is_date, date.fromisoformat),
    (kinds.is_timestamp, datetime.fromisoformat),
    (kinds.is_binary, lambda text: base64.b64decode(text, validate=True)),
    (kinds.is_boolean, _truth),
    (kinds.is_integer, int),
    (kinds.is_decimal, Decimal),
    (kinds.is_floating, float),
    (kinds.is_string, str),
)
