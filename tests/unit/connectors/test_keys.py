"""The spelling of keys, and the location of rows of one key. Without servers and Spark."""

from __future__ import annotations

import math
import struct
from typing import Any

import pyarrow as pa
import pytest

from headrace.connectors.clickhouse.colocation import columns_in, exact_key_columns, leading
from headrace.connectors.keys import canonical
from headrace.connectors.lakehouse_rows import last_by_key

POSITION = pa.struct([("source", pa.int32()), ("part", pa.int32()), ("off", pa.int64()), ("sub", pa.int64())])
OTHER_NAN: float = struct.unpack("<d", struct.pack("<Q", 0xFFF8000000000001))[0]


def rows(keys: list[Any], kind: pa.DataType) -> pa.Table:
    places = [{"source": 0, "part": 0, "off": at, "sub": 0} for at in range(len(keys))]
    columns = [
        pa.array(keys, kind),
        pa.array(range(len(keys))),
        ["i"] * len(keys),
        pa.array(places, POSITION),
    ]
    return pa.table(columns, names=["k", "v", "_gs_op", "_gs_pos"])


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_zero_has_no_sign_in_a_key_and_nan_is_one(kind: pa.DataType) -> None:
    result = last_by_key("out", rows([0.0, -0.0, math.nan, OTHER_NAN, 1.5], kind), ("k",))
    assert sorted(
        (repr(key), v) for key, v in zip(result["k"].to_pylist(), result["v"].to_pylist(), strict=True)
    ) == [
        ("0.0", 1),
        ("1.5", 4),
        ("nan", 3),
    ]
    assert result.schema.field("k").type == kind


def test_other_keys_and_columns_stay_as_they_are() -> None:
    table = rows(["a", "b"], pa.string()).append_column("f", pa.array([-0.0, None]))
    assert canonical(table, ("k",)) is table
    assert canonical(table.to_batches()[0], ("f",)).column("f").to_pylist() == [0.0, None]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("id", {"id"}),
        ("`a column`", {"a column"}),
        ("cityHash64(id, `b`)", {"id", "b"}),
        ("toDate(at)", {"at"}),
        ("intDiv(id, 10) % 3", {"id"}),
        ("dictGet('d', 'x', id)", None),
        ("rand()", None),
        ("x -> x", None),
        ("lower(concat(a, b))", None),
    ],
)
def test_what_decides_an_expression_of_a_sorting_key(expression: str, expected: set[str] | None) -> None:
    assert columns_in(expression) == expected


def test_how_far_a_key_decides_a_sorting_key() -> None:
    types = {
        "id": "Int64",
        "at": "DateTime64(9)",
        "ms": "DateTime64(3, 'UTC')",
        "f": "Float64",
        "low": "LowCardinality(Nullable(String))",
    }
    assert exact_key_columns(("id", "at", "ms", "f", "low", "none"), types) == {"id", "ms", "low"}
    assert leading(("id", "ms", "at"), frozenset({"id", "ms"})) == 2
    assert leading(("ms", "id"), frozenset({"id"})) == 0
    assert leading(("1", "id"), frozenset({"id"})) == 0
