"""Postgres: one transaction holds the rows of an epoch and the record of it."""

from headrace.connectors.postgres.sink import PostgresSink

__all__ = ["PostgresSink"]
