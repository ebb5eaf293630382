"""A small pipeline file for these tests, and its keys."""

from __future__ import annotations

import dagster as dg
from dagster._core.remote_origin import (
    GrpcServerCodeLocationOrigin,
    RemoteJobOrigin,
    RemoteRepositoryOrigin,
)

FLIGHTS = """\
name: flights
sources:
  flights:
    type: hybrid
    primary_key: id
    bounded_sources: [{source_type: clickhouse, table_name: flights.history}]
    unbounded_source: {source_type: kafka, topic: flights, schema: {id: int64, day: timestamp, delay: string}}
    offset_table: {}
transforms:
  clean: {type: sql, sql: "SELECT id, day, CAST(delay AS INT) AS delay, delay > 15 AS late FROM flights"}
sinks:
  flights_pg: {type: postgres, from: clean, table: flights}
  lake: {type: delta, from: flights, path: lake/flights}
"""
PARTITIONS = "partitions: {column: day, start: 2013-01, end: 2014-01, history_end: 2013-12-01}\n"
PG = dg.AssetKey(["postgres", "public", "flights"])
LAKE = dg.AssetKey(["delta", "flights"])
DAILY = """\
name: daily
sources:
  sales: {type: clickhouse, table_name: sales, columns: "id, day, v"}
sinks:
  pg: {type: postgres, from: sales, table: sales, primary_key: id}
partitions: {column: day, every: day, start: 2024-03-01, end: open}
schedule: {cron: "0 3 * * *"}
"""
"""A table that grows by a partition each day."""


def job_origin(job_name: str) -> RemoteJobOrigin:
    """The origin of a job in a code location that no server serves. Dagster refuses to queue a run without one."""
    location = GrpcServerCodeLocationOrigin(host="localhost", port=1, location_name="pipelines")
    return RemoteJobOrigin(RemoteRepositoryOrigin(location, "all"), job_name)
