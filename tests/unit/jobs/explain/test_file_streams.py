"""Streams of files are explained offline without a look at their files."""

from __future__ import annotations

import pytest

from headrace.jobs.explain.build import explain
from headrace.jobs.explain.text import text
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.file.loader import parse_pipeline

FILE = """\
name: files
sources:
  events: {type: file, path: %s, format: parquet, primary_key: id%s}
sinks:
  out: {type: postgres, from: events, table: out}
"""


@pytest.mark.parametrize("path", ["/nowhere/*.parquet", "s3://bucket/events"])
def test_offline_no_file_is_read(path: str) -> None:
    result = explain(parse_pipeline(FILE % (path, "")), Settings(), offline=True)
    assert "columns of events: not asked, --offline" in text(result, lineage=False)
    declared = explain(parse_pipeline(FILE % (path, ", schema: {id: int64}")), Settings(), offline=True)
    assert "id BIGINT" in text(declared, lineage=False)
