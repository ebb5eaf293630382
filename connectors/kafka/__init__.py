"""Kafka: a topic as an unbounded source."""
