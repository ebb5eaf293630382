"""The errors output of a source as a node of the graph."""

from __future__ import annotations

import pytest

from headrace.connectors.kafka.config import KafkaSourceConfig
from headrace.jobs.transforms.retractions import retractions_of
from headrace.pipeline.file.loader import PipelineFile, from_compiled, parse_pipeline
from headrace.pipeline.lineage.columns import lineage
from headrace.pipeline.model import graph

FILE = """
sources:
  orders:
    type: kafka
    topic: orders
    primary_key: id
    filter: id > 0
    schema: {id: int64, city: string}
    on_error: dead_letter
sinks:
  pg: {type: postgres, from: orders, table: orders}
  bad: {type: postgres, from: orders.errors, table: bad}
"""
KEY = ("__kafka_topic", "__kafka_partition", "__kafka_offset")


@pytest.fixture
def file() -> PipelineFile:
    return parse_pipeline(FILE)


def test_the_key_is_the_place_of_the_message(file: PipelineFile) -> None:
    assert graph.key_of(file.model, "bad") == KEY == graph.key_of(file.model, "orders.errors")
    assert graph.key_sources(file.model, "bad") == ("orders.errors",)
    assert graph.key_of(file.model, "pg") == ("id",)
    assert graph.upstream_sources(file.model, "bad") == ("orders",)
    assert set(KEY) <= set(KafkaSourceConfig.error_columns)


def test_its_columns_have_no_source(file: PipelineFile) -> None:
    result = lineage(file.model, {})["bad"]
    assert list(result.columns) == ["node", "reason", "epoch", *KafkaSourceConfig.error_columns]
    assert not any(one.origins for one in result.columns.values())
    assert result.types["__kafka_value"] == "BINARY"


def test_a_filter_of_the_source_deletes_none_of_its_rows(file: PipelineFile) -> None:
    assert set(retractions_of(file.model).sinks) == {"pg"}
    without_key = parse_pipeline(FILE.replace("    primary_key: id\n", ""))
    assert not retractions_of(without_key.model).sinks


def test_a_stored_pipeline_keeps_it(file: PipelineFile) -> None:
    again = from_compiled(file.compiled())
    assert again.hash == file.hash
    assert graph.reads_errors(again.model, "bad")
    assert parse_pipeline(FILE + "epoch: {}").hash == file.hash
    assert parse_pipeline(FILE.replace("on_error:", "max_error_rate: 0.5\n    on_error:")).hash != file.hash
