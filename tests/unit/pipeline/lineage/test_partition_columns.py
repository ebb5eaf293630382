"""The name of the partition column at a sink."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.pipeline.file.loader import load_pipeline
from headrace.pipeline.lineage.partition_columns import partition_column_at

FILE = """
name: sales
sources: {{src: {{type: clickhouse, table_name: sales, primary_key: id}}}}
transforms:
  one: {{type: sql, primary_key: id, sql: "{0}"}}
  two: {{type: sql, primary_key: id, sql: "{1}"}}
sinks: {{pg: {{type: postgres, from: two, table: sales}}}}
"""


@pytest.mark.parametrize(
    ("one", "two", "column"),
    [
        ("select * from src", "select * from one where v > 0", "day"),
        ("select id, day as sold_on from src", "select * from one", "sold_on"),
        ("select id, Day as sold_on from src", "select id, SOLD_ON as d from one", "d"),
        ("select id, v as day, day as d from src", "select * from one", "d"),
        ("select id, to_date(day) as day from src", "select * from one", None),
        ("select id, v from src", "select * from one", None),
        ("select id, v as day from src", "select * from one", None),
        ("select id, day from src union all select id, d2 as day from src", "select * from one", None),
        ("select *, upper(v) as day from (select id, v from src)", "select * from one", None),
    ],
)
def test_partition_column(tmp_path: Path, one: str, two: str, column: str | None) -> None:
    path = tmp_path / "sales.yaml"
    path.write_text(FILE.format(one, two))
    assert partition_column_at(load_pipeline(path).model, "pg", "src", "day") == column
