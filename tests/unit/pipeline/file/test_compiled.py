"""What the ledger stores of a file reads back as the same file.

An open epoch may have to be finished by it.
"""

from __future__ import annotations

import pytest
from helpers.checkout import ROOT

from headrace.pipeline.file.loader import from_compiled, load_pipeline, parse_pipeline
from headrace.pipeline.types.durations import parse_duration, spell_duration

LAGGING = """
name: lagging
sources:
  src:
    type: hybrid
    primary_key: id
    bounded_sources: [{source_type: clickhouse, table_name: t, start_at: "5", split_rows: 10}]
    unbounded_source: {source_type: kafka, topic: t, schema: {id: int64, at: timestamp}, batch_size: 7}
    handoff_lag: 1h 30m
    cursor: {column: at, allowed_lateness: 500ms}
sinks:
  pg: {type: postgres, from: src, table: t, update_where: {at: ">"}}
  lake: {type: delta, from: src, path: x}
partitions: {column: at, every: day, start: 2024-01-01, end: 2024-02-01}
"""
EXAMPLE = ROOT / "examples" / "flights.yaml"


@pytest.mark.parametrize(
    "file", [load_pipeline(EXAMPLE), parse_pipeline(LAGGING)], ids=["example", "lagging"]
)
def test_a_compiled_file_reads_back(file):
    again = from_compiled(file.compiled())
    assert again.hash == file.hash
    assert again.model.sources == file.model.sources
    assert again.model.sinks == file.model.sinks


@pytest.mark.parametrize("text", ["0s", "500ms", "1h 30m", "1w 2d", "1us"])
def test_a_duration_is_spelled_as_it_is_read(text):
    assert spell_duration(parse_duration(text)) == text
