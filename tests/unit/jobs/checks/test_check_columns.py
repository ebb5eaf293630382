"""Columns of declared checks that the rows of a sink lack."""

from __future__ import annotations

import pyarrow as pa

from headrace.jobs.planning.column_checks import unknown_check_columns
from headrace.pipeline.file.loader import parse_pipeline

FILE = """\
name: p
sources: {s: {type: clickhouse, table_name: t, primary_key: id}}
sinks:
  pg:
    type: postgres
    from: s
    table: t
    checks:
      known: {not_null: id}
      keys: {unique: [id, custmer]}
      cents: {range: {column: cent, min: 0}}
"""


def test_declared_checks_with_unknown_columns_are_warned_of_at_their_lines() -> None:
    schema = pa.schema([("id", pa.int64()), ("customer", pa.string()), ("cents", pa.int64())])
    result = [str(problem) for problem in unknown_check_columns(parse_pipeline(FILE, "f.yaml"), "pg", schema)]
    assert result == [
        (
            "f.yaml:10:14: node 'pg': check `keys`: the rows have no column `custmer`; did you mean `customer`?\n"
            "  Columns of the rows: id, customer, cents."
        ),
        (
            "f.yaml:11:23: node 'pg': check `cents`: the rows have no column `cent`; did you mean `cents`?\n"
            "  Columns of the rows: id, customer, cents."
        ),
    ]
