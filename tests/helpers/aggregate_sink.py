"""Sinks of totals, and the totals that a query over the rows gives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
from pyspark.sql import SparkSession

from headrace.connectors.postgres_aggregate.config import PostgresAggregateSinkConfig
from helpers.sink_makers import SinkMaker, sink_maker

TOTALS = "totals"
COUNT_BY_NAME = {"group_by": {"name": {}}, "aggregate": {"rows": {"fn": "count"}}}


def aggregate_sink_maker(
    spark: SparkSession, conninfo: str, folder: Path, node: dict[str, Any] | None = None
) -> SinkMaker:
    """Return the maker of sinks with the landing table `target` and the table of totals `totals`."""
    base = sink_maker("postgres", spark, conninfo, folder)

    def make_node(columns: tuple[str, ...]) -> PostgresAggregateSinkConfig:
        return PostgresAggregateSinkConfig.model_validate(
            {"landing_table": "target", "agg_table": TOTALS, "primary_key": columns, "from": "x"}
            | (node or COUNT_BY_NAME)
        )

    return replace(base, kind="aggregate", node=make_node)


def compare_totals(conninfo: str, columns: str, query: str) -> list[tuple[Any, ...]]:
    """Return the rows of the totals. They must be those of a query over the landing table."""
    with psycopg.connect(conninfo) as client:
        result = client.execute(f"SELECT {columns} FROM totals".encode()).fetchall()
        wanted = client.execute(query.encode()).fetchall()
    key = repr
    assert sorted(result, key=key) == sorted(wanted, key=key)
    return sorted(result, key=key)
