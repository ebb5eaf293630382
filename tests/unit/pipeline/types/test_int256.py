"""Numbers wider than Spark's: their types, and their text forms."""

from __future__ import annotations

import pickle
import re

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.pipeline.types.arrow import parse_type, postgres_type, spark_type
from headrace.pipeline.types.int256 import (
    INT256,
    UINT256,
    digits,
    is_wide,
    pattern,
    plain_columns,
    plain_digits,
    storage_schema,
)


def matches(text: str, kind: pa.DataType) -> bool:
    return pc.call_function(
        "match_substring_regex", [pa.array([text])], pc.MatchSubstringOptions(pattern(kind))
    )[0].as_py()


@pytest.mark.parametrize(
    ("spelling", "postgres"),
    [
        ("uint256", "NUMERIC(78,0)"),
        ("I256", "NUMERIC(78,0)"),
        ("decimal256(76, 2)", "NUMERIC(76,2)"),
        ("decimal256(39)", "NUMERIC(39,0)"),
    ],
)
def test_a_wide_type_is_text_in_spark_and_numeric_in_postgres(spelling: str, postgres: str) -> None:
    kind = parse_type(spelling)
    assert (is_wide(kind), spark_type(kind), postgres_type(kind)) == (True, "STRING", postgres)
    assert pickle.loads(pickle.dumps(kind)) == kind
    assert storage_schema(pa.schema([("a", kind), ("b", pa.int8())])) == pa.schema(
        [("a", pa.string()), ("b", pa.int8())]
    )


def test_narrow_decimals_stay_what_they_are() -> None:
    assert not is_wide(parse_type("decimal(38, 9)"))
    assert not is_wide(parse_type("decimal256(38, 9)"))
    assert INT256 != UINT256


@settings(deadline=None)
@given(st.decimals(allow_nan=False, allow_infinity=False, places=2, min_value=-(10**40), max_value=10**40))
def test_the_pattern_takes_exactly_the_numbers_with_room(value: object) -> None:
    kind = parse_type("decimal256(41, 2)")
    text = format(value, "f")
    fits = len(text.lstrip("-").split(".")[0].lstrip("0") or "0") <= digits(kind)[0] - 2
    assert bool(re.fullmatch(pattern(kind), text)) is fits
    assert matches(text, kind) is fits


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("007", "7"), ("0", "0"), ("000", "0"), ("-0", "0"), ("-0.00", "0"), ("1.50", "1.5"), ("1.0", "1"),
        ("-05.", "-5"), ("00.10", "0.1"), ("100", "100"), ("10.010", "10.01"), ("x", "x"), ("1e5", "1e5"),
        ("", ""),
    ],
)  # fmt: skip
def test_a_number_has_one_text(text: str, plain: str) -> None:
    assert plain_digits(text) == plain
    assert plain_columns(pa.array([text, None])).to_pylist() == [plain, None]


@pytest.mark.parametrize("text", ["", "-", ".", "1e5", "NaN", " 1", "1 ", "0x10", "1_000", "--1", "\u0661"])
def test_what_is_no_number(text: str) -> None:
    for kind in (INT256, UINT256, parse_type("decimal256(50, 10)")):
        assert matches(text, kind) is False
    assert matches("-1", UINT256) is False
