"""Strict types: valid values, invalid values, and rows without a schema."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headrace.pipeline.testcases.values import Timestamp, as_written, fit, infer
from headrace.pipeline.types.int256 import INT256, UINT256

AT = pa.timestamp("us", tz="UTC")
LOCAL = pa.timestamp("us")


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (None, pa.int32(), None),
        ("abc", pa.string(), "abc"),
        (Decimal("2.50"), pa.string(), "2.50"),
        (7, pa.string(), "7"),
        (True, pa.string(), "true"),
        (Timestamp("2025-01-01"), pa.string(), "2025-01-01"),
        ({"a": [1, Decimal("2.5")]}, pa.string(), '{"a":[1,2.5]}'),
        (127, pa.int8(), 127),
        ("-5", pa.int64(), -5),
        (Decimal("2.0"), pa.int64(), 2),
        (2, pa.float64(), 2.0),
        (Decimal("0.1"), pa.float32(), 0.10000000149011612),
        (float("inf"), pa.float64(), math.inf),
        (Decimal("2.5"), pa.decimal128(10, 2), Decimal("2.50")),
        ("2.500", pa.decimal128(10, 2), Decimal("2.50")),
        ("True", pa.bool_(), True),
        (Timestamp("2025-01-31"), pa.date32(), date(2025, 1, 31)),
        (Timestamp("2025-01-01T10:00:00+02:00"), AT, datetime(2025, 1, 1, 8, tzinfo=UTC)),
        ("2025-01-01 10:00:00", AT, datetime(2025, 1, 1, 10, tzinfo=UTC)),
        ("2025-01-01 10:00:00 Z", AT, datetime(2025, 1, 1, 10, tzinfo=UTC)),
        (date(2025, 1, 1), AT, datetime(2025, 1, 1, tzinfo=UTC)),
        ("2025-01-01T10:00:00", LOCAL, datetime(2025, 1, 1, 10)),
        ("00ff", pa.binary(), b"\x00\xff"),
        ({"a": "1"}, pa.struct([("a", pa.int32()), ("b", pa.string())]), {"a": 1, "b": None}),
        ({"x": 1}, pa.map_(pa.string(), pa.int32()), {"x": 1}),
        (["1", None], pa.list_(pa.int32()), [1, None]),
        (2**255 - 1, INT256, 2**255 - 1),
        (str(2**256 - 1), UINT256, 2**256 - 1),
        ("1.50", pa.decimal256(60, 3), Decimal("1.500")),
    ],
)
def test_what_fits(value: Any, kind: pa.DataType, expected: Any) -> None:
    assert fit(value, kind) == expected
    assert type(fit(value, kind)) is type(expected)


@pytest.mark.parametrize(
    ("value", "kind", "name"),
    [
        ("abc", pa.int64(), "int64"),
        (128, pa.int8(), "int8"),
        (Decimal("2.5"), pa.int32(), "int32"),
        (True, pa.int32(), "int32"),
        (1, pa.bool_(), "boolean"),
        (Decimal("2.555"), pa.decimal128(10, 2), "decimal(10, 2)"),
        (Decimal(10) ** 9, pa.decimal128(10, 2), "decimal(10, 2)"),
        (Decimal("1e39"), pa.float32(), "float32"),
        ("x", pa.float64(), "float64"),
        (Timestamp("2025-01-01T00:00:00Z"), pa.date32(), "date32"),
        ("2025-02-30", pa.date32(), "date32"),
        ("12:30", AT, "timestamp"),
        ("2025", AT, "timestamp"),
        (5, AT, "timestamp"),
        ("2025-01-01T10:00:00Z", LOCAL, "timestamp without a zone"),
        ("xyz", pa.binary(), "binary"),
        ({"c": 1}, pa.struct([("a", pa.int32())]), "struct<a: int32>"),
        ([300], pa.list_(pa.int8()), "list<item: int8>"),
        ("a", pa.list_(pa.string()), "list<item: string>"),
        (2**255, INT256, "int256"),
        (-1, UINT256, "uint256"),
        (Decimal("1.5"), UINT256, "uint256"),
        (Decimal("0.0001"), pa.decimal256(60, 3), "decimal(60, 3)"),
    ],
)
def test_what_does_not_fit_is_named_with_its_type(value: Any, kind: pa.DataType, name: str) -> None:
    with pytest.raises(ValueError, match="cannot be cast to") as caught:
        fit(value, kind)
    assert str(caught.value).endswith(f"cannot be cast to {name}")


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, None], pa.int64()),
        ([1, Decimal("2.5")], pa.float64()),
        (["a"], pa.string()),
        ([None], pa.string()),
        ([Timestamp("2025-01-01"), Timestamp("2025-01-01T00:00:00Z")], AT),
        ([Timestamp("2025-01-01")], pa.date32()),
        (["2025-01-01"], pa.string()),
        ([True], pa.bool_()),
        ([[1, 2]], pa.list_(pa.int64())),
        ([{"a": 1}], pa.struct([("a", pa.int64())])),
        ([1, "a"], None),
        ([1, True], None),
    ],
)
def test_what_rows_without_a_schema_are(values: list[Any], kind: pa.DataType | None) -> None:
    assert infer(values) == kind


def test_floats_are_kept_as_they_are_written() -> None:
    assert str(as_written(12345678901234567.89, "12345678901234567.89")) == "12345678901234567.89"
    assert as_written(float("nan"), ".nan") != as_written(float("nan"), ".nan")
