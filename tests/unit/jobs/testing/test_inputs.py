"""The columns of a source in a test: those that the pipeline file declares."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.jobs.testing.inputs import file_schema
from headrace.pipeline.file.loader import parse_pipeline

STREAM = "topic: t, schema: {id: int64, name: string}"
SOURCES = {
    "kafka": f"{{type: kafka, primary_key: id, {STREAM}}}",
    "hybrid": (
        "{type: hybrid, primary_key: id, bounded_sources: [{source_type: clickhouse, table_name: t}],"
        f" unbounded_source: {{source_type: kafka, {STREAM}}}, handoff_lag: 1h}}"
    ),
    "text": "{type: kafka, topic: t, data_format: text}",
    "clickhouse": "{type: clickhouse, table_name: t, primary_key: id}",
}


@pytest.mark.parametrize(
    ("kind", "columns"),
    [
        ("kafka", pa.schema([("id", pa.int64()), ("name", pa.string())])),
        ("hybrid", pa.schema([("id", pa.int64()), ("name", pa.string())])),
        ("text", pa.schema([("key", pa.string()), ("value", pa.string())])),
        ("clickhouse", None),
    ],
)
def test_columns_of_the_file(kind: str, columns: pa.Schema | None) -> None:
    text = f"name: p\nsources:\n  src: {SOURCES[kind]}\nsinks:\n  out: {{type: blackhole, from: src}}\n"
    source = parse_pipeline(text).model.sources["src"]
    assert file_schema("src", source) == columns
