"""A small pipeline, and its test files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from headrace.jobs.testing.runner import CaseOutcome
from headrace.pipeline.testcases.loader import Case, load_cases

Run = Callable[..., CaseOutcome]

ORDERS = """\
version: 1
name: orders
sources:
  orders:
    type: kafka
    topic: orders
    primary_key: id
    schema:
      id: int64
      cents: string
      placed_at: timestamp
      note: string
transforms:
  priced:
    type: sql
    sql: SELECT id, CAST(CAST(cents AS INT) / 100 AS DECIMAL(10, 2)) AS amount, placed_at FROM orders
sinks:
  orders_pg:
    type: postgres
    from: priced
    table: orders
"""


def write(folder: Path, tests: str, pipeline: str = ORDERS) -> Path:
    """A pipeline file and a file of tests; returns the latter."""
    (folder / "orders.yaml").write_text(pipeline)
    path = folder / "orders.test.yaml"
    path.write_text(f"pipeline: orders.yaml\ntests:\n{tests}")
    return path


def case(folder: Path, tests: str, pipeline: str = ORDERS) -> Case:
    """The only test of such a file."""
    (result,) = load_cases(write(folder, tests, pipeline))
    return result
