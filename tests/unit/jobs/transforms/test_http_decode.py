"""Responses as Arrow: the compiled reader and Python read the same values."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headrace.connectors.http.client import excerpt
from headrace.connectors.http.decode import AnswerError, DecodedResponse, ResponseDecoder
from headrace.pipeline.types.int256 import INT256, UINT256

MOMENT = datetime(2025, 1, 2, 3, 4, 5, 123456)
CASES: list[tuple[pa.DataType, Any, Any]] = [
    (pa.int8(), -128, -128),
    (pa.int64(), 2**63 - 1, 2**63 - 1),
    (pa.float64(), 1, 1.0),
    (pa.float64(), 1.5e300, 1.5e300),
    (pa.float32(), 0.5, 0.5),
    (pa.bool_(), True, True),
    (pa.string(), 'a "quoted"\nline, \u00e4 \U0001f600', 'a "quoted"\nline, \u00e4 \U0001f600'),
    (pa.decimal128(10, 2), "1.20", Decimal("1.20")),
    (pa.decimal128(10, 2), 7, Decimal("7.00")),
    (
        pa.decimal128(38, 18),
        "12345678901234567890.123456789012345678",
        Decimal("12345678901234567890.123456789012345678"),
    ),
    (pa.binary(), "00ff", b"\x00\xff"),
    (pa.binary(), "0xAB", b"\xab"),
    (pa.binary(), "", b""),
    (pa.date32(), "2025-01-02", date(2025, 1, 2)),
    (pa.timestamp("us", tz="UTC"), "2025-01-02T03:04:05.123456Z", MOMENT.replace(tzinfo=UTC)),
    (pa.timestamp("us", tz="UTC"), "2025-01-02T05:04:05.123456+02:00", MOMENT.replace(tzinfo=UTC)),
    (pa.timestamp("us", tz="UTC"), "2025-01-02 03:04:05.123456", MOMENT.replace(tzinfo=UTC)),
    (pa.timestamp("us", tz="UTC"), "2025-01-02T03:04:05.123456789Z", MOMENT.replace(tzinfo=UTC)),
    (pa.timestamp("us"), "2025-01-02T03:04:05.123456", MOMENT),
    (UINT256, str(2**256 - 1), str(2**256 - 1)),
    (INT256, str(-(2**255)), str(-(2**255))),
    (UINT256, 5, "5"),
    (pa.decimal256(60, 2), "1.25", "1.25"),
    (pa.list_(pa.int64()), [1, None, 2], [1, None, 2]),
    (pa.struct([("a", pa.int32()), ("b", pa.string())]), {"a": 1, "more": 2}, {"a": 1, "b": None}),
    (pa.list_(pa.date32()), ["2025-01-02"], [date(2025, 1, 2)]),
    (pa.struct([("x", pa.binary())]), {"x": "ff"}, {"x": b"\xff"}),
    (pa.map_(pa.string(), pa.int64()), {"k": 1}, [("k", 1)]),
]


def decoder(kind: pa.DataType) -> ResponseDecoder:
    return ResponseDecoder(pa.schema([("v", kind)]), 0, single=False)


def body(*values: Any) -> bytes:
    return json.dumps([{"v": value, "_gs_op": "i", "other": [{}]} for value in values]).encode()


@pytest.mark.parametrize(("kind", "written", "meant"), CASES, ids=lambda value: str(value)[:30])
def test_both_ways_read_the_same(kind: pa.DataType, written: Any, meant: Any) -> None:
    made = decoder(kind)
    text = body(written, None, written)
    slow = made._slow(text, "batch")
    assert slow.columns[0].to_pylist() == [meant, None, meant]
    if (fast := made._fast(text)) is not None:
        assert fast.columns[0].equals(slow.columns[0])
        assert fast.columns[0].type == slow.columns[0].type
        assert fast.ops.equals(slow.ops)


@pytest.mark.parametrize(
    "kind",
    [
        pa.int64(),
        pa.string(),
        pa.binary(),
        pa.date32(),
        pa.timestamp("us", tz="UTC"),
        UINT256,
        pa.list_(pa.int64()),
    ],
    ids=str,
)
def test_what_is_common_goes_the_fast_way(kind: pa.DataType) -> None:
    value = next(case[1] for case in CASES if case[0] == kind)
    assert decoder(kind)._fast(body(value, None)) is not None
    assert decoder(kind)._fast(b"[]") is not None


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int8(), 128), (pa.int64(), "1"), (pa.float64(), "1"), (pa.float64(), "NaN"), (pa.bool_(), 1),
        (pa.string(), 5), (pa.decimal128(4, 2), "123.00"), (pa.decimal128(4, 2), "1.234"),
        (pa.decimal128(4, 2), "x"), (pa.binary(), "abc"), (pa.binary(), "zz"), (pa.date32(), "2025-02-30"),
        (pa.date32(), 5), (pa.timestamp("us", tz="UTC"), "soon"),
        (pa.timestamp("us"), "2025-01-02T03:04:05Z"), (UINT256, "-1"), (UINT256, str(2**256)),
        (UINT256, "1.5"), (INT256, str(2**255)), (pa.decimal256(40, 2), "1.234"),
        (pa.list_(pa.int64()), [1, "x"]), (pa.list_(pa.int64()), {"a": 1}),
        (pa.struct([("a", pa.int32())]), [1]),
    ],
    ids=str,
)  # fmt: skip
def test_what_does_not_fit_is_told_with_its_place(kind: pa.DataType, value: Any) -> None:
    with pytest.raises(AnswerError, match=r"row 1, column `v`.* is declared as "):
        decoder(kind).read(body(None, value))


@pytest.mark.parametrize("kind", [pa.int64(), UINT256, pa.decimal256(40, 2)], ids=str)
@pytest.mark.parametrize("number", ["1e999999999", "1e-999999999", "0e-999999999"])
def test_a_number_of_a_gigabyte_is_not_written_out(kind: pa.DataType, number: str) -> None:
    with pytest.raises(AnswerError, match=r"row 0, column `v` is declared as .*, found a number"):
        decoder(kind).read(b'[{"v": ' + number.encode() + b"}]")


@pytest.mark.parametrize("text", ['{"v": "\\ud800"}', '{"v": "x", "_gs_op": "\\udfff"}'])
def test_half_of_a_character_is_told(text: str) -> None:
    with pytest.raises(AnswerError, match=r"column `(v|_gs_op)` holds half of a surrogate pair"):
        decoder(pa.string()).read(f"[{text}]".encode())


def test_text_that_is_not_utf8_is_told_and_goes_nowhere() -> None:
    assert decoder(pa.string()).read('[{"v": "größe"}]'.encode()).columns[0].to_pylist() == ["größe"]
    with pytest.raises(AnswerError, match="the body is not UTF-8"):
        decoder(pa.string()).read('[{"v": "größe"}]'.encode("latin-1"))


def test_a_body_cannot_bring_rows_of_its_own_frame() -> None:
    with pytest.raises(AnswerError, match="failed to parse JSON"):
        decoder(pa.int64()).read(b'[{"v": 1}]}{"r": [{"v": 2}]')


def test_many_rows_and_none() -> None:
    made = ResponseDecoder(pa.schema([("a", pa.int64()), ("b", pa.binary())]), 0, single=False)
    result: DecodedResponse = made.read(
        json.dumps(
            [{"a": n, "b": None if n % 7 == 0 else f"{n:08x}", "_gs_op": "u"} for n in range(5000)]
        ).encode()
    )
    assert result.rows == 5000
    assert result.columns[1].to_pylist() == [
        None if n % 7 == 0 else n.to_bytes(4, "big") for n in range(5000)
    ]
    assert made.read(b" [] \n").rows == 0


def test_an_excerpt_is_short_on_one_line_and_without_secrets() -> None:
    result = excerpt(b"first\nkey=abcdef \xff" + b"x" * 1000, ("abcdef", ""))
    assert result.startswith("first key=*** ")
    assert len(result) == 201
