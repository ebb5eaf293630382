"""Which casts of history to the stream's types are safe, checked by value, or refused."""

from __future__ import annotations

import pytest

from headrace.jobs.sources.casts import Cast, cast_of
from headrace.pipeline.types.arrow import parse_type

CASES = {
    Cast.SAFE: (
        "int32 int64, int16 float32, int32 float64, int64 decimal(19;0), float32 float64, decimal(8;2)"
        " decimal(10;2), date32 timestamp,"
        " int64 string, timestamp string, uint256 string"
    ),
    Cast.CHECKED: (
        "int64 int32, decimal(20;0) int64, decimal(10;2) decimal(8;2), string int64, uint256 int64, int64"
        " uint256, string uint256"
    ),
    Cast.LOSSY: (
        "float64 int64, float64 float32, int64 float64, decimal(10;4) decimal(10;2), timestamp date32,"
        " binary string, string timestamp,"
        " string float64, boolean int64, decimal(10;2) int64"
    ),
}


@pytest.mark.parametrize(
    ("pair", "wanted"), [(pair, kind) for kind, pairs in CASES.items() for pair in pairs.split(", ")]
)
def test_casts(pair: str, wanted: Cast) -> None:
    have, want = pair.replace(";", ",").split()
    assert cast_of(parse_type(have), parse_type(want)) is wanted
