"""Which columns tasks load as Arrow, by the type of the sink."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from headrace.connectors.clickhouse.config import ClickHouseSinkConfig
from headrace.connectors.delta.config import DeltaSinkConfig
from headrace.pipeline.types.int256 import UINT256

DELTA: dict[str, Any] = {"type": "delta", "from": "x", "path": "p"}
CLICKHOUSE: dict[str, Any] = {"type": "clickhouse", "from": "x", "table": "t"}


@pytest.mark.parametrize(
    ("node", "columns", "key", "reason"),
    [
        (DELTA, {"id": pa.int64(), "b": pa.binary()}, ("id",), ""),
        (
            CLICKHOUSE,
            {"id": pa.int64(), "b": pa.binary()},
            (),
            "column `b` is binary, which only Spark writes",
        ),
        (CLICKHOUSE, {"id": pa.uint64(), "at": pa.timestamp("us", "UTC")}, ("id",), ""),
        (
            CLICKHOUSE,
            {"wei": UINT256},
            (),
            "column `wei` is uint256, which only Spark writes",
        ),
        (DELTA, {"id": pa.float64()}, ("id",), "key column `id` is a float, which only Spark compares"),
        (DELTA, {"id": pa.float64()}, (), ""),
        (
            CLICKHOUSE | {"version_column": "v"},
            {"id": pa.int64(), "v": pa.int64()},
            ("id",),
            "rows of a key compete by `v`, which only Spark compares",
        ),
    ],
)
def test_columns_that_need_spark_are_named(
    node: dict[str, Any], columns: dict[str, pa.DataType], key: tuple[str, ...], reason: str
) -> None:
    kind = DeltaSinkConfig if node["type"] == "delta" else ClickHouseSinkConfig
    result = kind.model_validate(node).explain_direct_obstacle(pa.schema(columns), key)
    assert result == reason
