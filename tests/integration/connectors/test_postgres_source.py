"""A Postgres table as history: every value as the server has it, of one moment, or an error that names it."""

from __future__ import annotations

import json
import threading
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from helpers.pipeline_world import postgres_sink
from pyspark.sql import SparkSession

from headrace.connectors import registry
from headrace.connectors.postgres_source.config import PostgresSourceConfig
from headrace.connectors.source_base import Snapshot
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import (
    DataError,
    HeadraceError,
    SchemaError,
    SnapshotStoppedError,
    TargetError,
    TransientError,
)
from headrace.pipeline.protocol.partitions import HistoryPartition
from headrace.pipeline.sql.system_columns import OP, POS


class Database:
    """The database of one test, and a folder of stored rows."""

    def __init__(self, conninfo: str, folder: Path, spark: SparkSession) -> None:
        self.conninfo, self.spark, self.home = conninfo, spark, folder
        self.settings = Settings.model_validate({"home": folder, "postgres_source": postgres_sink(conninfo)})

    def run(self, *statements: str) -> None:
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)  # type: ignore[arg-type]

    def source(self, table: str = "t", **node: Any) -> Any:
        config = PostgresSourceConfig.model_validate({"table": table} | node)
        return registry.bounded_source("src", config, self.settings, 4)

    def rows(self, source: Any, token: str = "a_1_0") -> list[Any]:
        snapshot = source.create_snapshot(self.spark, token)
        splits = source.splits(self.spark, snapshot, None, None)
        rows = source.read(self.spark, snapshot, splits).collect()
        assert len(rows) == sum(split["rows"] for split in splits)
        return sorted(rows, key=lambda row: row[POS])


@pytest.fixture
def database(pg: str, tmp_path: Path, spark: SparkSession) -> Database:
    return Database(pg, tmp_path, spark)


def refused(ask: Any) -> HeadraceError:
    with pytest.raises(HeadraceError) as caught:
        ask()
    assert caught.value.node == "src"
    return caught.value


TYPES: dict[str, tuple[str, pa.DataType, Any]] = {
    "boolean": ("true", pa.bool_(), True),
    "smallint": ("-32768", pa.int16(), -(2**15)),
    "integer": ("2147483647", pa.int32(), 2**31 - 1),
    "bigint": ("-9223372036854775808", pa.int64(), -(2**63)),
    "real": ("'-0'", pa.float32(), -0.0),
    "double precision": ("'Infinity'", pa.float64(), float("inf")),
    "numeric(12, 4)": ("-99999999.9999", pa.decimal128(12, 4), Decimal("-99999999.9999")),
    "numeric(2, 5)": ("0.00099", pa.decimal128(5, 5), Decimal("0.00099")),
    "numeric(38, 0)": ("9" * 38, pa.decimal128(38, 0), Decimal("9" * 38)),
    "numeric(76, 2)": (f"-{'9' * 74}.25", pa.decimal256(76, 2), f"-{'9' * 74}.25"),
    "numeric(78, 0)": ("1" + "0" * 77, pa.string(), "1" + "0" * 77),
    "numeric": ("'NaN'", pa.string(), "NaN"),
    "text": ("E'a\\\\ü\\n\U00010000'", pa.string(), "a\\ü\n\U00010000"),
    "varchar(5)": ("''", pa.string(), ""),
    "char(3)": ("'a'", pa.string(), "a  "),
    "bytea": ("'\\x00ff'", pa.binary(), b"\x00\xff"),
    "date": ("'0001-01-01'", pa.date32(), date(1, 1, 1)),
    "timestamp": (
        "'9999-12-31 23:59:59.999999'",
        pa.timestamp("us"),
        datetime(9999, 12, 31, 23, 59, 59, 999999),
    ),
    "timestamptz": (
        "'1900-01-01 00:00:00.000001+00'",
        pa.timestamp("us", tz="UTC"),
        datetime(1900, 1, 1, 0, 0, 0, 1, UTC),
    ),
    "uuid": ("'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", pa.string(), "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    "json": ('\'{"b": 1, "a": 2}\'', pa.string(), '{"b": 1, "a": 2}'),
    "jsonb": ('\'{"b": 1, "a": 2}\'', pa.string(), '{"a": 2, "b": 1}'),
    "time": ("'12:30:00.5'", pa.string(), "12:30:00.5"),
    "interval": ("'1 mon 2 days'", pa.string(), "1 mon 2 days"),
    "inet": ("'10.0.0.1/8'", pa.string(), "10.0.0.1/8"),
    "mood": ("'happy'", pa.string(), "happy"),
    "cents": ("12.5", pa.decimal128(10, 2), Decimal("12.50")),
    "pair": ("ROW(1, 'a b')", pa.string(), '(1,"a b")'),
    "int4range": ("'[1,5)'", pa.string(), "[1,5)"),
    "integer[]": ("'{1,NULL,3}'", pa.list_(pa.int32()), [1, None, 3]),
    "text[]": ("'{a,\"b,c\",NULL}'", pa.list_(pa.string()), ["a", "b,c", None]),
    "numeric[]": ("'{1.50}'", pa.list_(pa.string()), ["1.50"]),
    "date[]": ("'{infinity}'", pa.list_(pa.string()), ["infinity"]),
}
"""A value of each type as SQL, its type in Arrow, and the value in Spark."""


def test_every_type_arrives_as_the_server_has_it(database: Database) -> None:
    database.run(
        "CREATE TYPE mood AS ENUM ('sad', 'happy')",
        "CREATE DOMAIN money2 AS numeric(10, 2)",
        "CREATE DOMAIN cents AS money2 CHECK (VALUE >= 0)",
        "CREATE TYPE pair AS (n integer, s text)",
        f"CREATE TABLE t (id bigint, {', '.join(f'c{at} {kind}' for at, kind in enumerate(TYPES))})",
        f"INSERT INTO t VALUES (1, {', '.join(literal for literal, _, _ in TYPES.values())})",
        "INSERT INTO t VALUES (2)",
    )
    source = database.source()
    schema = source.schema(database.spark)
    assert [field.type for field in schema][1:] == [kind for _, kind, _ in TYPES.values()]
    # Lists are read by Arrow, all other types by Spark.
    flat = [field.name for field in schema if not pa.types.is_nested(field.type)]
    full, empty = database.rows(source)
    few = database.source(columns=flat)
    assert database.rows(few, "a_2_0") == [
        full.__class__(*(row[name] for name in [*flat, OP, POS])) for row in (full, empty)
    ]
    for at, (kind, (_, arrow, expected)) in enumerate(TYPES.items()):
        value = full[f"c{at}"]
        if arrow == pa.timestamp("us", tz="UTC"):
            value = value.astimezone(UTC)
        assert value == expected, kind
        assert str(value) == str(expected), kind
        assert empty[f"c{at}"] is None
    assert (full[OP], full[POS].source) == ("i", 4)


def test_the_rows_are_those_of_one_moment_and_read_once(database: Database) -> None:
    database.run(
        "CREATE TABLE t (id bigint PRIMARY KEY, v text)",
        "INSERT INTO t SELECT n, 'v' || n FROM generate_series(1, 120000) n",
    )
    source = database.source()
    snapshot = source.create_snapshot(database.spark, "a_1_0")
    assert snapshot.is_stable
    database.run("UPDATE t SET v = 'new'", "DELETE FROM t WHERE id > 5")
    handle = json.loads(json.dumps(snapshot.handle))
    again = database.source()
    assert again.create_snapshot(database.spark, "a_1_0").handle == handle
    splits = again.splits(database.spark, Snapshot(handle, is_stable=True), None, None)
    rows = again.read(database.spark, snapshot, splits, ["id", "v"])
    assert rows.where("v = 'v' || id").count() == 120_000
    assert again.create_snapshot(database.spark, "a_2_0").handle["rows" if "rows" in handle else "count"]
    window = HistoryPartition("0", "id", "10", "20")
    parts = again.splits(database.spark, snapshot, window, None)
    assert again.read(database.spark, snapshot, parts).count() == 10
    again.release_snapshot(snapshot)
    assert not (database.settings.staging_folder / "snapshots" / "a_1_0").exists()


def test_views_partitions_columns_and_filter(database: Database) -> None:
    database.run(
        "CREATE SCHEMA shop",
        'CREATE TABLE shop."Odd ""t" (id bigint, "select" text, old int) PARTITION BY RANGE (id)',
        'CREATE TABLE shop.low PARTITION OF shop."Odd ""t" FOR VALUES FROM (0) TO (10)',
        'CREATE TABLE shop.high PARTITION OF shop."Odd ""t" FOR VALUES FROM (10) TO (100)',
        'ALTER TABLE shop."Odd ""t" DROP COLUMN old',
        'INSERT INTO shop."Odd ""t" SELECT n, \'100% {\' || n FROM generate_series(0, 19) n',
        'CREATE VIEW shop.v AS SELECT id * 2 AS twice FROM shop."Odd ""t"',
    )
    source = database.source(
        'Odd "t',
        schema="shop",
        columns=["select", "id"],
        filter="\"select\" LIKE '100\\%% {%' AND id > 15 -- last",
    )
    source.check(database.spark, ["id"])
    assert source.schema(database.spark).names == ["select", "id"]
    assert [(row.id, row["select"]) for row in database.rows(source)] == [
        (n, f"100% {{{n}") for n in range(16, 20)
    ]
    assert source.describe()["asset_key"] == ["postgres", "shop", 'Odd "t']
    assert [row.twice for row in database.rows(database.source("v", schema="shop"), "a_3_0")][-1] == 38


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("'infinity'::date", "infinity in column v"),
        ("'-infinity'::timestamptz", "-infinity in column v"),
        ("'NaN'::numeric(10, 2)", "column `v` of `public.t`"),
        ("'{{1,2},{3,4}}'::int[]", ""),
    ],
)
def test_a_value_that_arrow_cannot_hold_is_an_error(database: Database, value: str, message: str) -> None:
    database.run(f"CREATE TABLE t AS SELECT 1 AS id, {value} AS v")
    error = refused(lambda: database.source().create_snapshot(database.spark, "a_1_0"))
    assert isinstance(error, DataError), error
    assert message in error.message
    assert "a view" in error.hint
    assert not list((database.settings.staging_folder / "snapshots").iterdir())


def test_wrong_names_filters_and_servers_are_named(database: Database) -> None:
    database.run("CREATE TABLE t (id bigint)")
    error = refused(lambda: database.source("nothing").schema(database.spark))
    assert isinstance(error, TargetError)
    assert "`public.nothing` does not exist" in error.message
    error = refused(lambda: database.source(columns=["id", "v"]).schema(database.spark))
    assert isinstance(error, SchemaError)
    assert error.hint == "It has: id."
    for wrong in ("nothing > 1", "id > 1) OR (true", "id >"):
        error = refused(lambda wrong=wrong: database.source(filter=wrong).check(database.spark, []))
        assert "Postgres says" in error.message
    away = Settings.model_validate(
        {"home": database.home, "postgres_source": {"host": "127.0.0.1", "port": 1, "password": "hunter2"}}
    )
    source = registry.bounded_source("src", PostgresSourceConfig(table="t"), away, 0)
    assert "hunter2" not in json.dumps(source.describe())


def test_a_stop_ends_the_reading(database: Database) -> None:
    database.run("CREATE VIEW t AS SELECT n AS id, pg_sleep(5)::text AS s FROM generate_series(1, 10) n")
    source, stop = database.source(), threading.Event()
    source.watch_stop(stop)
    threading.Timer(0.5, stop.set).start()
    with pytest.raises(SnapshotStoppedError):
        source.create_snapshot(database.spark, "a_1_0")


def test_only_unique_indexes_of_all_rows_keep_keys_apart(database: Database) -> None:
    columns = "(id int, a int, b int)"
    database.run(
        "CREATE TABLE t (id int PRIMARY KEY, a int, b int, c int, UNIQUE (b, a) INCLUDE (c))",
        f"CREATE TABLE partial {columns}",
        "CREATE UNIQUE INDEX ON partial (id) WHERE a > 0",
        "CREATE UNIQUE INDEX ON partial ((id + a))",
        "CREATE INDEX ON partial (a)",
        f"CREATE TABLE deferred {columns}",
        "ALTER TABLE deferred ADD UNIQUE (id) DEFERRABLE INITIALLY DEFERRED",
        "CREATE TABLE parent (id int PRIMARY KEY)",
        "CREATE TABLE child () INHERITS (parent)",
        f"CREATE TABLE parts {columns} PARTITION BY RANGE (id)",
        "ALTER TABLE parts ADD PRIMARY KEY (id)",
        "CREATE VIEW v AS SELECT * FROM t",
    )
    keys = {
        name: database.source(name).unique_keys
        for name in ("t", "partial", "deferred", "parent", "parts", "v")
    }
    assert keys.pop("t") == (("id",), ("a", "b"))
    assert keys.pop("parts") == (("id",),)
    assert set(keys.values()) == {()}
    source = database.source()
    assert source.explain_key_spread(["c", "id"]) == source.explain_key_spread(["a", "b"]) == ""
    assert source.explain_key_spread(["a"])
    assert database.source("partial").explain_key_spread(["id"])


def test_stored_rows_keep_the_keys_that_they_had(database: Database) -> None:
    database.run("CREATE TABLE t AS SELECT n / 2 AS id FROM generate_series(0, 99999) n")
    first = database.source()
    snapshot = first.create_snapshot(database.spark, "a_1_0")
    database.run("TRUNCATE t", "ALTER TABLE t ADD PRIMARY KEY (id)")
    later = database.source()
    assert later.unique_keys == (("id",),)
    assert later.create_snapshot(database.spark, "a_1_0") == snapshot
    splits = later.splits(database.spark, snapshot, None, None)
    assert not later.keeps_together([*splits, *splits], ["id"])
    database.run("INSERT INTO t VALUES (1), (2)")
    other = later.create_snapshot(database.spark, "a_2_0")
    splits = database.source().splits(database.spark, other, None, None)
    assert later.keeps_together([*splits, *splits], ["id"], ever=True)
    assert not later.keeps_together([*splits, *splits], ["v"])


def test_an_index_that_changes_at_the_start_is_an_error(database: Database) -> None:
    database.run("CREATE TABLE t (id int PRIMARY KEY)")
    source = database.source()
    assert source.unique_keys
    database.run("ALTER TABLE t DROP CONSTRAINT t_pkey")
    error = refused(lambda: source.create_snapshot(database.spark, "a_1_0"))
    assert isinstance(error, TransientError)
    assert not (database.settings.staging_folder / "snapshots" / "a_1_0").exists()
