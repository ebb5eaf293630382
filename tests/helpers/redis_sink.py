"""Redis sinks with prefixes of their own, and the rows that a client reads back from their entries."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import types as kinds
from pyspark.sql import SparkSession

from headrace.connectors.redis.config import RedisSinkConfig
from headrace.connectors.sink_base import Sink
from headrace.pipeline.config.sections import RedisConnection
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.protocol.epochs import SinkKey
from headrace.pipeline.types.arrow import is_nested
from helpers.redis_server import RedisServer
from helpers.sink_makers import SinkMaker


def read_entries(server: RedisServer, prefix: str, schema: pa.Schema) -> dict[str, dict[str, Any]]:
    """Return the rows of all entries by the rest of their name. A column that an entry lacks is None."""
    result: dict[str, dict[str, Any]] = {}
    with server.client as client:
        for name in set(client.scan_iter(f"{prefix}:*", count=1000)):
            if client.type(name) == b"hash":
                row = {key.decode(): value.decode() for key, value in client.hgetall(name).items()}
            elif text := client.get(name):
                row = json.loads(text, parse_float=Decimal)
            else:
                continue  # it expired after the scan
            result[name.decode().removeprefix(f"{prefix}:")] = {
                one.name: _value(row.get(one.name), one.type) for one in schema
            }
    return result


_PARSERS: list[tuple[Callable[[Any], bool], Callable[[Any], Any]]] = [
    (is_nested, lambda value: json.loads(value, parse_float=Decimal) if isinstance(value, str) else value),
    (kinds.is_boolean, lambda value: {"true": True, "false": False}.get(value, value)),
    (kinds.is_integer, int),
    (kinds.is_floating, float),
    (kinds.is_decimal, Decimal),
    (kinds.is_date, date.fromisoformat),
    (kinds.is_timestamp, datetime.fromisoformat),
    (kinds.is_binary, bytes.fromhex),
]


def _value(value: Any, kind: Any) -> Any:
    parse = next((parse for is_kind, parse in _PARSERS if is_kind(kind)), str)
    return None if value is None else parse(value)


@dataclass
class RedisSinkMaker(SinkMaker):
    """Creates sinks of one prefix."""

    server: RedisServer | None = None
    prefix: str = ""
    last: dict[str, Any] = field(default_factory=dict)
    """The schema of the last sink."""

    def open(self, schema: pa.Schema, columns: tuple[str, ...] = ("id",)) -> Sink:
        """See `SinkMaker.open`."""
        self.last |= {"schema": schema}
        return super().open(schema, columns)


def redis_sink_maker(
    spark: SparkSession, server: RedisServer, folder: Path, port: int = 0, **node: Any
) -> RedisSinkMaker:
    """Return the maker of sinks into a prefix of a server. `node` are further keys of the node."""
    prefix = f"p{secrets.token_hex(4)}"
    last: dict[str, Any] = {}

    def rows(names: list[str]) -> list[tuple[Any, ...]]:
        result = read_entries(server, prefix, last["schema"])
        return [tuple(row[name] for name in names) for row in result.values()]

    url = f"redis://127.0.0.1:{port or server.port}/0"
    return RedisSinkMaker(
        "redis",
        lambda columns: RedisSinkConfig.model_validate(
            {"prefix": prefix, "primary_key": columns, "from": "x"} | node
        ),
        Settings(home=folder, redis_sink=RedisConnection(url=url)),
        spark,
        rows,
        SinkKey(secrets.token_hex(16), "contract", "main", f"s{secrets.token_hex(3)}"),
        server=server,
        prefix=prefix,
        last=last,
    )
