"""Fills the demo's source systems: the history table in ClickHouse."""

from __future__ import annotations

from collections.abc import Callable

from headrace.demo.flights import history_table
from headrace.services import Services

_COLUMNS = """
    time_hour DateTime('UTC'),
    carrier LowCardinality(String),
    flight Int32,
    tailnum String,
    origin LowCardinality(String),
    dest LowCardinality(String),
    dep_delay String,
    arr_delay String,
    air_time String,
    distance Int32,
    _kafka_partition Nullable(Int32),
    _kafka_offset Nullable(Int64)"""


def load_history(services: Services, report: Callable[[str], None]) -> int:
    """Load January to November into `flights.history`, unless the table exists. Return its number of rows.

    The table is filled under another name and renamed when it is complete, so a partial table is never used.
    """
    import clickhouse_connect

    client = clickhouse_connect.get_client(**services.clickhouse.client_arguments())
    try:
        client.command("CREATE DATABASE IF NOT EXISTS flights")
        if not client.command("EXISTS TABLE flights.history"):
            rows = history_table()
            report(f"loading {rows.num_rows:,} flights of January to November into ClickHouse")
            client.command("DROP TABLE IF EXISTS flights.history_loading SYNC")
            client.command(
                f"CREATE TABLE flights.history_loading ({_COLUMNS}) ENGINE = MergeTree ORDER BY (time_hour,"
                " carrier, flight)"
            )
            client.insert_arrow("history_loading", rows, database="flights")
            client.command("RENAME TABLE flights.history_loading TO flights.history")
        return int(str(client.command("SELECT count() FROM flights.history")))
    finally:
        client.close()
