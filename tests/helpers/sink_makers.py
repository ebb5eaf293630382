"""Creates every sink, so that one suite runs over all of them by their capabilities."""

from __future__ import annotations

import json
import secrets
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from psycopg.conninfo import conninfo_to_dict
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema

from headrace.connectors import catalog, registry
from headrace.connectors.delta.config import DeltaSinkConfig
from headrace.connectors.frame import EpochFrame
from headrace.connectors.iceberg.catalog import WarehouseTable
from headrace.connectors.iceberg.config import IcebergSinkConfig
from headrace.connectors.postgres.config import PostgresSinkConfig
from headrace.connectors.sink_base import Sink, SinkContext
from headrace.pipeline.config.sections import IcebergSettings, PostgresConnection
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.model.capabilities import Delivery, SinkCapabilities, Visibility
from headrace.pipeline.model.connectors import Connector, SinkEntry, connectors, load_reference
from headrace.pipeline.protocol.epochs import CommitRecord, EpochPlan, Phase, SinkKey
from headrace.pipeline.sql.system_columns import OP, POS

KEYED = pa.schema([("id", pa.int64()), ("name", pa.string())])
POSITION_0 = {"src": {"stream": {"offsets": {"0": 0}}}}


def position(epoch: int) -> dict[str, Any]:
    """Where epoch number `epoch` ends."""
    return {"src": {"stream": {"offsets": {"0": epoch * 10}}}}


def plan(number: int) -> EpochPlan:
    """Epoch `number`, as every test here plans it."""
    return EpochPlan(
        number,
        Phase.LIVE,
        position(number - 1),
        position(number),
        "feedfacecafebeef",
        datetime(2024, 5, 1, tzinfo=UTC),
    )


@dataclass
class SinkMaker:
    """One kind of sink with a target of its own.

    `open` may be called again for another generation or process.
    """

    kind: str
    node: Callable[[tuple[str, ...]], Any]
    settings: Settings
    spark: SparkSession
    rows: Callable[[list[str]], list[tuple[Any, ...]]]
    key: SinkKey

    def open(self, schema: pa.Schema, columns: tuple[str, ...] = ("id",)) -> Sink:
        """A sink that was not prepared."""
        context = SinkContext(
            self.key, self.node(columns), self.settings, schema, self.spark, {"key": columns}
        )
        return registry.open_sink(context)

    def joined(self, schema: pa.Schema, columns: tuple[str, ...] = ("id",), generation: int = 1) -> Sink:
        """A prepared sink that joined before the first epoch."""
        sink = self.open(schema, columns)
        sink.prepare(schema, generation)
        sink.register(
            CommitRecord.for_registration(self.key, generation, 0, position(0), "feedfacecafebeef", None)
        )
        return sink


def sink_maker(kind: str, spark: SparkSession, conninfo: str, folder: Path) -> SinkMaker:
    """`postgres`, `postgres-staged` (large epochs' path), `delta` or `iceberg`."""
    key = SinkKey(secrets.token_hex(16), "contract", "main", f"s{secrets.token_hex(3)}")
    if kind == "delta":
        path = str(folder / "lake")
        return SinkMaker(
            kind,
            lambda columns: DeltaSinkConfig.model_validate(
                {"type": "delta", "path": path, "primary_key": columns, "from": "x"}
            ),
            Settings(home=folder),
            spark,
            lambda names: _tuples(
                spark.read.format("delta").load(path).select(*[f"`{name}`" for name in names]).toArrow()
            ),
            key,
        )
    if kind == "iceberg":
        table = WarehouseTable(str(folder), "n.target", "reader")
        return SinkMaker(
            kind,
            lambda columns: IcebergSinkConfig.model_validate(
                {"table_name": "n.target", "primary_key": columns, "from": "x"}
            ),
            Settings(home=folder, iceberg=IcebergSettings(warehouse=str(folder))),
            spark,
            lambda names: _tuples(
                table.frame(spark, None).select(*[f"`{name}`" for name in names]).toArrow()
            ),
            key,
        )
    result = conninfo_to_dict(conninfo)
    connection = PostgresConnection.model_validate(
        {name: result[name] for name in ("host", "port", "user", "password")} | {"db": result["dbname"]}
    )
    limit = 1 if kind == "postgres-staged" else 20_000

    def rows(names: list[str]) -> list[tuple[Any, ...]]:
        import psycopg
        from psycopg import sql
        from psycopg.types.json import set_json_loads

        with psycopg.connect(conninfo) as client:
            set_json_loads(partial(json.loads, parse_float=Decimal), client)
            query = sql.SQL("SELECT {} FROM target").format(sql.SQL(", ").join(map(sql.Identifier, names)))
            return client.execute(query).fetchall()

    return SinkMaker(
        kind,
        lambda columns: PostgresSinkConfig.model_validate(
            {
                "type": "postgres",
                "table": "target",
                "primary_key": columns,
                "max_driver_rows": limit,
                "from": "x",
            }
        ),
        Settings(home=folder, postgres_sink=connection),
        spark,
        rows,
        key,
    )


def sqlite_sink_maker(spark: SparkSession, folder: Path, package: str) -> SinkMaker:
    """Return the maker of the sink that `sqlite_connector` added under the name `package`."""
    path, config = str(folder / "target.db"), load_reference(f"{package}.config:SqliteSinkConfig")

    def rows(names: list[str]) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(path)) as connection:
            return connection.execute(f"SELECT {', '.join(names)} FROM target").fetchall()

    return SinkMaker(
        "sqlite",
        lambda columns: config.model_validate(
            {"type": "sqlite", "path": path, "table": "target", "primary_key": columns, "from": "x"}
        ),
        Settings(home=folder),
        spark,
        rows,
        SinkKey(secrets.token_hex(16), "contract", "main", "sqlite"),
    )


@contextmanager
def sqlite_connector(folder: Path) -> Iterator[str]:
    """Add a connector for SQLite: copy its package to `folder` and add one entry to the catalog.

    Yield the package's name.
    """
    package = f"sqlite_{secrets.token_hex(4)}"
    shutil.copytree(Path(__file__).parent / "sqlite_connector", folder / package)
    capabilities = SinkCapabilities(
        delivery=Delivery.EXACTLY_ONCE,
        upsert=True,
        delete=True,
        visibility=Visibility.EPOCH,
        creates_target=True,
        fences=True,
        counts_changes=True,
    )
    entry = Connector(
        "sqlite",
        sink=SinkEntry(f"{package}.config:SqliteSinkConfig", f"{package}.sink:SqliteSink", capabilities),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setattr(catalog, "CONNECTORS", (*catalog.CONNECTORS, entry))
        connectors.cache_clear()
        try:
            yield package
        finally:
            patch.undo()
            connectors.cache_clear()


def _tuples(table: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*[column.to_pylist() for column in table.columns], strict=True))


def frame(
    spark: SparkSession,
    schema: pa.Schema,
    rows: Iterable[Mapping[str, Any]],
    ops: str,
    key: tuple[str, ...] = ("id",),
    estimate: int | None = None,
) -> EpochFrame:
    """Rows in the order of their positions; `ops` has one letter per row."""
    listed = list(rows)
    table = pa.Table.from_pylist([dict(row) for row in listed], schema=schema)
    table = table.append_column("n", pa.array(range(len(listed)), pa.int64())).append_column(
        OP, pa.array(list(ops), pa.string())
    )
    made: DataFrame = spark.createDataFrame(
        table if listed else [], from_arrow_schema(table.schema, prefer_timestamp_ntz=True)
    )
    place = F.struct(
        F.lit(0).alias("source"),
        F.lit(0).alias("part"),
        F.col("n").alias("off"),
        F.lit(0).cast("bigint").alias("sub"),
    )
    made = made.withColumn(POS, place).select(*[f"`{name}`" for name in schema.names], OP, POS).repartition(2)
    return EpochFrame(made, schema, key, len(listed) if estimate is None else estimate, spark)


# One row with something in every column, one with the extremes, one of nulls.
TYPES = pa.schema(
    [
        ("id", pa.int64()),
        ("tiny", pa.int8()),
        ("small", pa.int16()),
        ("medium", pa.int32()),
        ("large", pa.int64()),
        ("price", pa.decimal128(20, 4)),
        ("huge", pa.decimal128(38, 0)),
        ("yes", pa.bool_()),
        ("single", pa.float32()),
        ("double", pa.float64()),
        ("day", pa.date32()),
        ("instant", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
        ("text", pa.string()),
        ("bytes", pa.binary()),
    ]
)
INF = float("inf")
VALUES: list[dict[str, Any]] = [
    {
        "id": 1, "tiny": 1, "small": 2, "medium": 3, "large": 4, "price": Decimal("12.3400"),
        "huge": Decimal(10**37), "yes": True, "single": 1.5, "double": -2.25, "day": date(2024, 2, 29),
        "instant": datetime(2024, 3, 31, 1, 30, 0, 123456, UTC),
        "local": datetime(2024, 3, 31, 2, 30, 0, 654321), "text": "grüße 漢字 🛫 '\"\\ \t\n",
        "bytes": b"\x00\xff\x01",
    },
    {
        "id": 2, "tiny": -(2**7), "small": -(2**15), "medium": -(2**31), "large": -(2**63),
        "price": Decimal("-9999999999999999.9999"), "huge": Decimal(10**38 - 1), "yes": False, "single": INF,
        "double": -INF, "day": date(1969, 12, 31), "instant": datetime(1900, 1, 1, 0, 0, 0, 1, UTC),
        "local": datetime(2262, 1, 1, 0, 0, 0, 999999), "text": "", "bytes": b"",
    },
    {
        "id": 3, "tiny": 2**7 - 1, "small": 2**15 - 1, "medium": 2**31 - 1, "large": 2**63 - 1,
        "price": Decimal("9999999999999999.9999"), "huge": Decimal(-(10**38) + 1), "yes": None,
        "single": None, "double": 1e308, "day": date(9999, 12, 31),
        "instant": datetime(9999, 12, 31, 23, 59, 59, 999999, UTC), "local": None, "text": "\U0010ffff\u0001",
        "bytes": bytes(range(256)),
    },
    {name: 4 if name == "id" else None for name in TYPES.names},
]  # fmt: skip
