"""Reads the targets without Headrace: Postgres by SQL, Delta by delta-rs, which has no code of Spark's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, LiteralString

import pyarrow as pa
from sqlglot import exp

from headrace.connectors import registry
from headrace.connectors.sink_base import SinkContext
from headrace.demo.flights import KEY
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import InternalError
from headrace.pipeline.file.loader import PipelineFile
from headrace.pipeline.protocol.epochs import SinkKey
from headrace.services import Services


def postgres_table(services: Services, columns: list[str]) -> pa.Table:
    """Return all rows of the Postgres table."""
    from adbc_driver_postgresql import dbapi
    from psycopg.sql import SQL, Identifier

    column_list = SQL(", ").join(Identifier(name) for name in columns)
    query = SQL("SELECT {} FROM public.flights").format(column_list).as_string()
    with dbapi.connect(services.postgres.conninfo()) as connection, connection.cursor() as cursor:
        cursor.execute(query)
        return cursor.fetch_arrow_table()


def count_postgres_rows(services: Services) -> int | None:
    """Return the number of rows of the Postgres table, None if it does not exist."""
    import psycopg

    with psycopg.connect(services.postgres.conninfo()) as connection:
        try:
            row = connection.execute("SELECT count(*) FROM public.flights").fetchone()
        except psycopg.errors.UndefinedTable:
            return None
    return int(row[0]) if row else None


def delta_table(path: Path, columns: list[str]) -> pa.Table:
    """Return all rows of a Delta table."""
    table = _query_delta(path, *(exp.column(name, quoted=True) for name in columns))
    fields = [
        field.with_type(pa.string()) if pa.types.is_string_view(field.type) else field
        for field in table.schema
    ]
    return table.cast(pa.schema(fields))


def count_delta_rows(path: Path) -> int | None:
    """Return the number of rows of a Delta table, None if it does not exist."""
    from deltalake import DeltaTable

    if not DeltaTable.is_deltatable(str(path)):
        return None
    return int(_query_delta(path, exp.Count(this=exp.Star())).column(0)[0].as_py())


def _query_delta(path: Path, *expressions: exp.Expr) -> pa.Table:
    from deltalake import DeltaTable, QueryBuilder

    query = exp.select(*expressions).from_("flights").sql("postgres")
    return pa.table(QueryBuilder().register("flights", DeltaTable(path)).execute(query))


def delta_epoch(path: Path) -> int | None:
    """Return the epoch of the newest commit record, None if there is none."""
    from deltalake import DeltaTable

    if not DeltaTable.is_deltatable(str(path)):
        return None
    for commit in DeltaTable(path).history():
        metadata = commit.get("userMetadata")
        record = json.loads(metadata).get("record") if metadata else None
        if record:
            return int(record["epoch"])
    return None


def postgres_epoch(file: PipelineFile, settings: Settings, uuid: str, sink: str) -> int | None:
    """Return the epoch of the sink's commit record in Postgres, None if there is none."""
    node = file.model.sinks[sink]
    handle = registry.open_sink(
        SinkContext(SinkKey(uuid, file.name, "main", sink), node, settings, pa.schema([]), None, {})
    )
    try:
        record = handle.record()
    finally:
        handle.close()
    return record.epoch if record else None


def bucket_counts(services: Services, query: LiteralString) -> list[tuple[str, int]]:
    """Return the rows of a query with two columns."""
    import psycopg

    with psycopg.connect(services.postgres.conninfo()) as connection:
        return connection.execute(query).fetchall()


def delete_row(services: Services, day: str) -> dict[str, Any]:
    """Delete the first flight since a date from Postgres, without Headrace. Return its key."""
    import psycopg

    with psycopg.connect(services.postgres.conninfo()) as connection:
        key = connection.execute(
            "DELETE FROM public.flights WHERE (time_hour, carrier, flight) = "
            "(SELECT time_hour, carrier, flight FROM public.flights WHERE time_hour >= %s ORDER BY 1, 2, 3"
            " LIMIT 1) "
            "RETURNING time_hour, carrier, flight",
            [day],
        ).fetchone()
    if key is None:
        msg = f"Postgres contains no flight of {day} or later"
        raise InternalError(msg)
    return dict(zip(KEY, key, strict=True))
