"""Protobuf payloads: the decoder and Google's library read the same values from the same bytes."""

from __future__ import annotations

from decimal import Decimal
from operator import itemgetter
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.message import DecodeError
from helpers.depth import FULL
from helpers.protobuf_messages import message_class
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.connectors.kafka.protobuf.columns import payload_columns
from headrace.connectors.kafka.protobuf.decoder import decode_payloads
from headrace.connectors.kafka.protobuf.schema import parse_schema

TEXT = """
syntax = "proto3";
enum Size { SMALL = 0; LARGE = 5; LOW = -3; }
message Part { sint64 a = 1; optional string b = 2; repeated fixed32 c = 3; }
message Whole {
  double d = 1; float f = 2; int32 i = 3; int64 l = 4; uint32 u = 5; uint64 v = 6; sint32 s = 7; sint64 t = 8;
  fixed32 w = 9; fixed64 x = 10; sfixed32 y = 11; sfixed64 z = 12; bool o = 13; string text = 14; bytes raw = 15;
  Size size = 16; optional int32 maybe = 17; Part part = 18; repeated int64 many = 19; repeated Part parts = 20;
  map<string, Part> named = 21; map<int64, double> numbered = 22; repeated string texts = 23;
  oneof one { bool left = 24; Part right = 25; }
}
"""
WHOLE = message_class(TEXT, "Whole")
KIND = parse_schema(TEXT).find_message("Whole")
RANGES = {
    "u32": (0, 2**32 - 1),
    "u64": (0, 2**64 - 1),
    "i32": (-(2**31), 2**31 - 1),
    "i64": (-(2**63), 2**63 - 1),
}
NUMBERS = {name: st.integers(*limits) for name, limits in RANGES.items()}
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
PARTS = st.fixed_dictionaries(
    {}, optional={"a": NUMBERS["i64"], "b": TEXTS, "c": st.lists(NUMBERS["u32"], max_size=3)}
)
VALUES = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("i", "s", "y", "maybe", "size"), NUMBERS["i32"]),
        **dict.fromkeys(("l", "t", "z"), NUMBERS["i64"]),
        **dict.fromkeys(("u", "w"), NUMBERS["u32"]),
        **dict.fromkeys(("v", "x"), NUMBERS["u64"]),
        "d": st.floats(allow_nan=False),
        "f": st.floats(width=32, allow_nan=False),
        "o": st.booleans(),
        "text": TEXTS,
        "raw": st.binary(max_size=8),
        "part": PARTS,
        "many": st.lists(NUMBERS["i64"], max_size=4),
        "parts": st.lists(PARTS, max_size=3),
        "named": st.dictionaries(TEXTS, PARTS, max_size=3),
        "numbered": st.dictionaries(NUMBERS["i64"], st.floats(allow_nan=False), max_size=3),
        "texts": st.lists(TEXTS, max_size=3),
        "left": st.booleans(),
    },
)


def expected(message: Any) -> dict[str, Any]:
    """Returns the columns of a message of Google's library."""
    result: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.has_presence and not message.HasField(field.name):
            result[field.name] = None
        elif field.message_type is not None and field.message_type.GetOptions().map_entry:
            entries = {key: value[key] for key in sorted(value)}
            is_message = field.message_type.fields_by_name["value"].message_type is not None
            result[field.name] = {key: expected(one) if is_message else one for key, one in entries.items()}
        elif field.message_type is not None:
            result[field.name] = [expected(one) for one in value] if field.is_repeated else expected(value)
        elif field.enum_type is not None:
            symbol = field.enum_type.values_by_number.get(value)
            result[field.name] = str(value) if symbol is None else symbol.name
        else:
            result[field.name] = list(value) if field.is_repeated else value
    return result


def rows_of(payloads: list[bytes]) -> tuple[list[dict[str, Any]], list[str | None]]:
    table, reasons = decode_payloads(pa.array(payloads, pa.binary()), KIND)
    table.validate(full=True)
    assert table.schema == payload_columns(KIND)
    rows = table.to_pylist()
    for row in rows:
        for name in ("named", "numbered"):
            keys = [key for key, _ in row[name]]
            assert len(set(keys)) == len(keys)
            row[name] = dict(sorted(row[name], key=itemgetter(0)))
        row |= {name: int(row[name]) for name in ("v", "x") if isinstance(row[name], Decimal)}
    return rows, reasons.to_pylist()


@given(st.lists(VALUES, max_size=5))
@settings(max_examples=2_000 if FULL else 60)
def test_values_are_those_that_were_written(values: list[dict[str, Any]]) -> None:
    messages = [WHOLE(**one) for one in values]
    rows, reasons = rows_of([one.SerializeToString() for one in messages])
    assert reasons == [None] * len(values)
    assert repr(rows) == repr([expected(one) for one in messages])


@given(VALUES, st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=3), st.integers(0, 200))
@settings(max_examples=3_000 if FULL else 100)
def test_other_bytes_are_read_as_by_google(
    value: dict[str, Any], changes: list[tuple[int, int]], cut: int
) -> None:
    data = bytearray(WHOLE(**value).SerializeToString())
    for at, byte in changes:
        if at < len(data):
            data[at] = byte
    payload = bytes(data[: len(data) if cut > 150 else cut])
    (row,), (reason,) = rows_of([payload])
    try:
        message = WHOLE.FromString(payload)
    except DecodeError:
        # Google's library also refuses field numbers and varints that are too large.
        return
    assert reason is None, payload
    wanted = expected(message)
    for name in ("named", "numbered"):
        # Google's library drops an entry with other fields than key and value.
        del row[name], wanted[name]
    assert repr(row) == repr(wanted)


@given(VALUES, st.integers(1, 100))
@settings(max_examples=3_000 if FULL else 50)
def test_a_payload_that_ends_in_a_field_is_refused(value: dict[str, Any], missing: int) -> None:
    whole = WHOLE(**value).SerializeToString()
    last = b"\x72" + bytes([missing]) + b"x" * (missing - 1)
    _, reasons = rows_of([whole, whole + last, whole + last + b"x"])
    assert [reason is None for reason in reasons] == [True, False, True]


def test_halves_find_the_broken_payloads() -> None:
    payloads = [WHOLE(i=at).SerializeToString() for at in range(1_000)]
    for at in (0, 512, 999):
        payloads[at] += b"\xff"
    rows, reasons = rows_of(payloads)
    assert [at for at, reason in enumerate(reasons) if reason is not None] == [0, 512, 999]
    assert all(row["i"] == at for at, row in enumerate(rows) if reasons[at] is None)


@pytest.mark.parametrize("payloads", [[], [b""]])
def test_no_rows_and_no_bytes(payloads: list[bytes]) -> None:
    rows, reasons = rows_of(payloads)
    assert len(rows) == len(reasons) == len(payloads)
