"""ClickHouse sinks with tables of their own, and the rows that a reader with FINAL sees."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import clickhouse_connect
import pyarrow as pa
from pyspark.sql import SparkSession

from headrace.connectors.clickhouse.config import ClickHouseSinkConfig
from headrace.connectors.clickhouse.types import quote
from headrace.connectors.sink_base import Sink
from headrace.pipeline.config.sections import ClickHouseTarget
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.protocol.epochs import SinkKey
from headrace.services import Services
from helpers.sink_makers import SinkMaker

TARGET = "target"


def read_rows(client: Any, table: str, schema: pa.Schema, names: list[str]) -> list[tuple[Any, ...]]:
    """Return the rows of a table, with FINAL where its engine replaces rows."""
    engine = client.command(f"SELECT engine FROM system.tables WHERE database || '.' || name = '{table}'")
    result = client.query_arrow(
        f"SELECT {', '.join(map(quote, names))} FROM {table}{'' if engine == 'MergeTree' else ' FINAL'}",
        settings={"output_format_arrow_string_as_string": "0"},
    )
    columns = [
        [_value(value, schema.field(name).type) for value in column.to_pylist()]
        for name, column in zip(names, result.columns, strict=True)
    ]
    return list(zip(*columns, strict=True))


def _value(value: Any, kind: Any) -> Any:
    if value is None:
        return None
    if pa.types.is_string(kind):
        return value.decode()
    if pa.types.is_timestamp(kind):
        return value.replace(tzinfo=None) if kind.tz is None else value
    return value


@dataclass
class ClickHouseSinkMaker(SinkMaker):
    """Creates sinks of one table."""

    client: Any = None
    database: str = ""
    last: dict[str, Any] = field(default_factory=dict)
    """Schema and key of the last sink."""

    @property
    def table(self) -> str:
        """The table's name with its database."""
        return f"{self.database}.{TARGET}"

    def open(self, schema: pa.Schema, columns: tuple[str, ...] = ("id",)) -> Sink:
        """See `SinkMaker.open`."""
        self.last |= {"schema": schema, "key": columns}
        return super().open(schema, columns)


def clickhouse_sink_maker(
    spark: SparkSession, services: Services, database: str, folder: Path, **node: Any
) -> ClickHouseSinkMaker:
    """Return the maker of sinks into a table that they create. `node` are further keys of the node."""
    server = services.clickhouse
    client = clickhouse_connect.get_client(**server.client_arguments(database=database))
    last: dict[str, Any] = {}

    def make_node(columns: tuple[str, ...]) -> ClickHouseSinkConfig:
        return ClickHouseSinkConfig.model_validate(
            {"table": TARGET, "primary_key": columns, "from": "x"} | node
        )

    return ClickHouseSinkMaker(
        "clickhouse",
        make_node,
        Settings(
            home=folder,
            clickhouse_sink=ClickHouseTarget.model_validate(
                {
                    "url": server.url,
                    "user": server.username,
                    "password": server.password,
                    "database": database,
                }
            ),
        ),
        spark,
        lambda names: read_rows(client, f"{database}.{TARGET}", last["schema"], names),
        SinkKey(secrets.token_hex(16), "contract", "main", f"s{secrets.token_hex(3)}"),
        client=client,
        database=database,
        last=last,
    )
