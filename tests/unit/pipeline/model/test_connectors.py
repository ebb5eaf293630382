"""The catalog of connectors."""

from __future__ import annotations

import subprocess
import sys
from typing import get_args

import pytest

from headrace.connectors.catalog import CONNECTORS
from headrace.pipeline.file.loader import parse_pipeline
from headrace.pipeline.model.connectors import SinkEntry, SourceEntry, load_reference

ENTRIES = [
    pytest.param(connector.type, entry, id=f"{connector.type}-{part}")
    for connector in CONNECTORS
    for part, entry in (("source", connector.source), ("sink", connector.sink))
    if entry is not None
]
FILE = """\
name: base
sources:
  orders:
    type: hybrid
    primary_key: id
    bounded_sources:
      - {source_type: iceberg, table_name: shop.orders, warehouse: /lake}
    unbounded_source: {source_type: kafka, topic: orders, schema: {id: int64}}
    offset_table: {}
sinks:
  nowhere: {type: blackhole, from: orders}
"""


@pytest.mark.parametrize(("kind", "entry"), ENTRIES)
def test_an_entry_leads_to_its_classes(kind: str, entry: SourceEntry | SinkEntry) -> None:
    config = entry.config_class()
    assert get_args(config.model_fields["type"].annotation) == (kind,)
    assert load_reference(entry.implementation).capabilities is entry.capabilities


def test_the_model_of_the_file_imports_no_driver() -> None:
    code = (
        "import sys; import headrace.pipeline.model.nodes;"
        " print([name for name in ('pyspark', 'psycopg', 'adbc_driver_postgresql', 'confluent_kafka',"
        " 'clickhouse_connect', 'delta')"
        " if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_a_phase_becomes_a_source_of_its_type() -> None:
    (phase,) = parse_pipeline(FILE).model.sources["orders"].bounded_sources
    node = phase.node()
    assert (node.type, node.table_name, node.warehouse) == ("iceberg", "shop.orders", "/lake")
    assert not node.is_unbounded
