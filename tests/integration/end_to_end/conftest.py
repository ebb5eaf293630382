"""The fixtures of pipelines with a schema registry."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.registered_topic import RegisteredTopic
from helpers.schema_registry import SchemaRegistry
from pyspark.sql import SparkSession

from headrace.services import Services


@pytest.fixture
def place(
    services: Services, registry: SchemaRegistry, pg: str, tmp_path: Path, spark: SparkSession
) -> Iterator[RegisteredTopic]:
    result = RegisteredTopic(services, registry, pg, tmp_path, spark)
    yield result
    registry.delete(f"{result.topic}-value")
