"""What the two targets hold, read past Headrace: Postgres by SQL, Delta by delta-rs, which shares no code with Spark's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, LiteralString

import pyarrow as pa
from sqlglot import exp

from headrace.connectors import registry
from headrace.connectors.base import SinkContext
from headrace.demo.flights import KEY
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import InternalError
from headrace.pipeline.file.loader import PipelineFile
from headrace.pipeline.protocol.epochs import SinkKey
from headrace.services import Services


def postgres_table(services: Services, columns: list[str]) -> pa.Table:
    """All rows of the Postgres table."""
    from adbc_driver_postgresql import dbapi
    from psycopg.sql import SQL, Identifier

    picked = SQL(", ").join(Identifier(name) for name in columns)
    query = SQL("SELECT {} FROM public.flights").format(picked).as_string()
    with dbapi.connect(services.postgres.conninfo()) as connection, connection.cursor() as cursor:
        cursor.execute(query)
        return cursor.fetch_arrow_table()


def postgres_rows(services: Services) -> int | None:
    """How many rows the Postgres table has now, None if there is none."""
    import psycopg

    with psycopg.connect(services.postgres.conninfo()) as connection:
        try:
            found = connection.execute("SELECT count(*) FROM public.flights").fetchone()
        except psycopg.errors.UndefinedTable:
            return None
    return int(found[0]) if found else None


def delta_table(path: Path, columns: list[str]) -> pa.Table:
    """All rows of a Delta table."""
    found = _ask_delta(path, *(exp.column(name, quoted=True) for name in columns))
    plain = [field.with_type(pa.string()) if pa.types.is_string_view(field.type) else field for field in found.schema]
    return found.cast(pa.schema(plain))


def delta_rows(path: Path) -> int | None:
    """How many rows a Delta table has now; None if there is none."""
    from deltalake import DeltaTable

    if not DeltaTable.is_deltatable(str(path)):
        return None
    return int(_ask_delta(path, exp.Count(this=exp.Star())).column(0)[0].as_py())


def _ask_delta(path: Path, *what: exp.Expr) -> pa.Table:
    from deltalake import DeltaTable, QueryBuilder

    query = exp.select(*what).from_("flights").sql("postgres")
    return pa.table(QueryBuilder().register("flights", DeltaTable(path)).execute(query))


def delta_epoch(path: Path) -> int | None:
    """The epoch that the newest commit with a record says it holds; None if there is none."""
    from deltalake import DeltaTable

    if not DeltaTable.is_deltatable(str(path)):
        return None
    for commit in DeltaTable(path).history():
        said = commit.get("userMetadata")
        record = json.loads(said).get("record") if said else None
        if record:
            return int(record["epoch"])
    return None


def postgres_epoch(file: PipelineFile, settings: Settings, uuid: str, sink: str) -> int | None:
    """The epoch of the sink's own record in Postgres; None if it keeps none yet."""
    node = file.model.sinks[sink]
    opened = registry.open_sink(SinkContext(SinkKey(uuid, file.name, "main", sink), node, settings, pa.schema([]), None, {}))
    try:
        record = opened.record()
    finally:
        opened.close()
    return record.epoch if record else None


def bucket_counts(services: Services, query: LiteralString) -> list[tuple[str, int]]:
    """The answer of a query of two columns."""
    import psycopg

    with psycopg.connect(services.postgres.conninfo()) as connection:
        return connection.execute(query).fetchall()


def delete_row(services: Services, day: str) -> dict[str, Any]:
    """Deletes the first flight of a day from Postgres, as somebody with a console would; returns its key."""
    import psycopg

    with psycopg.connect(services.postgres.conninfo()) as connection:
        found = connection.execute(
            "DELETE FROM public.flights WHERE (time_hour, carrier, flight) = "
            "(SELECT time_hour, carrier, flight FROM public.flights WHERE time_hour >= %s ORDER BY 1, 2, 3 LIMIT 1) "
            "RETURNING time_hour, carrier, flight",
            [day],
        ).fetchone()
    if found is None:
        msg = f"Postgres holds no flight of {day} or later"
        raise InternalError(msg)
    return dict(zip(KEY, found, strict=True))
