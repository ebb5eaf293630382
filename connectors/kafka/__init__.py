"""Kafka: a topic as an unbounded source."""

from __future__ import annotations

from headrace.connectors.kafka.source import KafkaStream

__all__ = ["KafkaStream"]
