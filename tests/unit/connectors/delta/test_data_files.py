"""Statistics of data files: no reader may skip a file that has the value."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from headrace.connectors.delta.data_files import (
    DataFile,
    collect_statistics,
    dump_statistics,
    may_contain,
    write_data_file,
)

_TYPES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.int8(), st.integers(-128, 127)),
    (pa.string(), st.text(max_size=3)),
    (pa.string(), st.text("aé\U0010ffff", min_size=30, max_size=36)),
    (pa.date32(), st.dates()),
    (
        pa.timestamp("us", "UTC"),
        st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)).map(lambda at: at.replace(tzinfo=UTC)),
    ),
    (pa.decimal128(38, 0), st.integers(-(10**37), 10**37).map(Decimal)),
    (pa.decimal128(10, 2), st.integers(-(10**9), 10**9).map(lambda value: Decimal(value) / 100)),
]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_file_with_a_value_is_never_skipped(data: st.DataObject) -> None:
    kind, values = data.draw(st.sampled_from(_TYPES))
    column = data.draw(st.lists(st.one_of(st.none(), values), min_size=1, max_size=4))
    statistics = json.loads(json.dumps(collect_statistics(pa.table({"v": pa.array(column, kind)}))))
    for value in column:
        if value is not None:
            low, high = sorted([value, data.draw(values)])
            assert may_contain(statistics, "v", low, high)
            assert may_contain(statistics, "v", value, value)


@pytest.mark.parametrize("bound", ["0.10", "0.1", "-7.30", "12345678901234567890123456.789", "1E-7"])
def test_decimal_bounds_of_other_writers_are_exact(bound: str) -> None:
    stats = f'{{"numRecords":1,"minValues":{{"v":{bound}}},"maxValues":{{"v":{bound}}},"tightBounds":true}}'
    result = DataFile(Path("t"), {"path": "a", "stats": stats}).statistics
    assert may_contain(result, "v", Decimal(bound), Decimal(bound))
    assert not may_contain(result, "v", Decimal(bound) + 1, Decimal(bound) + 1)
    assert DataFile(Path("t"), {"path": "a", "stats": dump_statistics(result)}).statistics == result


@pytest.mark.parametrize(
    ("kind", "values", "outside"),
    [
        (pa.int64(), [3, 9], 10),
        (pa.string(), ["b", "d"], "a"),
        (pa.string(), ["b" * 40], "c"),
        (pa.date32(), [date(2020, 1, 1)], date(2020, 1, 2)),
        (
            pa.timestamp("us", "UTC"),
            [datetime(2020, 1, 1, tzinfo=UTC)],
            datetime(2020, 1, 1, 0, 0, 1, tzinfo=UTC),
        ),
    ],
)
def test_file_without_a_value_is_skipped(kind: pa.DataType, values: list[Any], outside: Any) -> None:
    statistics = collect_statistics(pa.table({"v": pa.array(values, kind)}))
    assert not may_contain(statistics, "v", outside, outside)


@pytest.mark.parametrize("statistics", [{}, {"minValues": {"v": "x"}, "maxValues": {"v": "y"}}])
def test_file_of_unknown_bounds_is_read(statistics: dict[str, Any]) -> None:
    assert may_contain(statistics, "v", 1, 2)


def test_file_is_described(tmp_path: Path) -> None:
    rows = pa.table({"id": pa.array([1, 2, None]), "flag": [True, None, False], "list": [[1], None, []]})
    add = write_data_file(tmp_path, rows)
    assert parquet.read_table(tmp_path / add["path"]).equals(rows)
    assert add["size"] == (tmp_path / add["path"]).stat().st_size
    assert json.loads(add["stats"]) == {
        "numRecords": 3,
        "minValues": {"id": 1},
        "maxValues": {"id": 2},
        "nullCount": {"id": 1, "flag": 1},
        "tightBounds": True,
    }
