"""A topic whose schemas are in a registry, and a pipeline that reads it."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

import psycopg
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from headrace.jobs.run.events import RunResult, Until
from headrace.jobs.run.runner import run
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.file.loader import load_pipeline
from headrace.services import Services
from helpers.forked_process import ForkedProcess, start_fault_run
from helpers.pipeline_world import (
    SHORT_LEASE,
    SHORT_LEASE_ENVIRONMENT,
    postgres_sink,
    postgres_sink_environment,
)
from helpers.schema_registry import SchemaRegistry
from helpers.spark_settings import SHORT_LIVED_SPARK_ENVIRONMENT

PIPELINE = """
name: {name}
sources:
  src: {{type: kafka, topic: {topic}{source}}}
transforms: {transforms}
sinks:
  pg: {{type: postgres, from: {upstream}, table: target}}
epoch: {{interval: 0s, stream_rows: {rows}}}
"""
HYBRID = """
name: {name}
sources:
  src:
    type: hybrid
    bounded_sources: [{{source_type: clickhouse, table_name: {table}}}]
    unbounded_source: {{source_type: kafka, topic: {topic}}}
    handoff_lag: 1h
sinks:
  pg: {{type: postgres, from: src, table: target}}
epoch: {{interval: 0s}}
"""


class RegisteredTopic:
    """A topic with its subject, and a pipeline into one Postgres table."""

    def __init__(
        self, services: Services, registry: SchemaRegistry, conninfo: str, folder: Path, spark: SparkSession
    ) -> None:
        from confluent_kafka.admin import AdminClient
        from confluent_kafka.cimpl import NewTopic

        self.topic = f"topic-{secrets.token_hex(4)}"
        self.registry = registry
        self.conninfo = conninfo
        self.folder = folder
        self.brokers = services.kafka.brokers
        self.spark = spark
        admin = AdminClient({"bootstrap.servers": self.brokers})
        admin.create_topics([NewTopic(self.topic, 1, 1)])[self.topic].result(30)
        self.file = folder / "pipeline.yaml"
        self.write()

    def write(self, source: str = "", rows: int = 100_000, transform: str = "") -> None:
        text = PIPELINE.format(
            name=self.topic.replace("-", "_"),
            topic=self.topic,
            source=source and f", {source}",
            rows=rows,
            transforms=f"{{t: {{type: sql, sql: '{transform}'}}}}" if transform else "{}",
            upstream="t" if transform else "src",
        )
        self.file.write_text(text)

    def write_hybrid(self, table: str) -> None:
        """Write a pipeline with history in a ClickHouse table."""
        text = HYBRID.format(name=self.topic.replace("-", "_"), topic=self.topic, table=table)
        self.file.write_text(text)

    def settings(self, **kafka: Any) -> Settings:
        return Settings.model_validate(
            {
                "home": self.folder / "home",
                "state_backend": {"sqlite": {"path": self.folder / "home" / "ledger.db"}},
                "kafka_source": {"brokers": self.brokers, "schema_registry_url": self.registry.url} | kafka,
                "postgres_sink": postgres_sink(self.conninfo),
                **SHORT_LEASE,
            }
        )

    def env(self) -> dict[str, str]:
        return os.environ | {
            "HEADRACE_HOME": str(self.folder / "home"),
            "HEADRACE__KAFKA_SOURCE__BROKERS": self.brokers,
            "HEADRACE__KAFKA_SOURCE__SCHEMA_REGISTRY_URL": self.registry.url,
            **postgres_sink_environment(self.conninfo),
            **SHORT_LIVED_SPARK_ENVIRONMENT,
            **SHORT_LEASE_ENVIRONMENT,
        }

    def register(self, schema: Any, subject: str = "", **more: Any) -> int:
        return self.registry.register(subject or f"{self.topic}-value", schema, **more)

    def send_bytes(self, *values: bytes | None, op: str = "c", key: bytes | None = None) -> None:
        producer = Producer({"bootstrap.servers": self.brokers})
        for value in values:
            producer.produce(self.topic, value, key=key, headers={"dbz.op": op})
        assert producer.flush(30) == 0

    def run(self, **kafka: Any) -> RunResult:
        return run(load_pipeline(self.file), self.settings(**kafka), until=Until.CAUGHT_UP, spark=self.spark)

    def start(self, point: str = "none", nth: int = 1) -> ForkedProcess:
        return start_fault_run(self.file, point, nth, "group", env=self.env())

    def rows(self, columns: str = "id, name, price") -> list[tuple[Any, ...]]:
        with psycopg.connect(self.conninfo) as connection:
            return connection.execute(f"SELECT {columns} FROM target ORDER BY id".encode()).fetchall()
