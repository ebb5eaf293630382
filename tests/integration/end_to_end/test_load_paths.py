"""The load path of the history. The rows are the same on each path.

Of several rows of one key the last one wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import clickhouse_connect
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.pipeline_world import World
from pyspark.sql import SparkSession

from headrace.jobs.planning.compiled_pipeline import CompiledPipeline
from headrace.jobs.planning.load_path import Columns, plan_load_path, plan_load_paths
from headrace.jobs.run.events import Until
from headrace.jobs.run.runner import run
from headrace.jobs.sources.pipeline_source import PipelineSource, create_pipeline_sources
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.file.loader import load_pipeline, parse_pipeline

FILE = """
name: {name}
sources: {{src: {{type: clickhouse, table_name: {database}.shapes, primary_key: id}}}}
{transforms}
sinks:
  pg: {{type: postgres, from: {last}, table: target}}
  lake: {{type: delta, from: {last}, path: {lake}}}
"""
PLAIN = "transforms: {plain: {type: sql, sql: 'select id, name from src'}}"
ROWS = [(1, "a", [1, 2], {"x": 1}), (2, "b", [], {})]


@pytest.fixture
def shapes(world: World) -> World:
    """The world's database with a table that has nested columns."""
    with clickhouse_connect.get_client(
        **world.services.clickhouse.client_arguments(database=world.database)
    ) as client:
        client.command(
            "CREATE TABLE shapes (id Int64, name String, tags Array(Int32), marks Map(String, Int32))"
            " ENGINE = MergeTree ORDER BY id"
        )
        client.insert("shapes", ROWS, column_names=["id", "name", "tags", "marks"])
    return world


@pytest.mark.parametrize(
    ("transforms", "last", "path", "columns"),
    [("", "src", "rows", "id, name, tags, marks"), (PLAIN, "plain", "direct", "id, name")],
)
def test_nested_columns_go_by_rows_and_plain_ones_directly(
    shapes: World, spark: SparkSession, transforms: str, last: str, path: str, columns: str
) -> None:
    shapes.file.write_text(
        FILE.format(
            name=f"r{shapes.name}",
            database=shapes.database,
            transforms=transforms,
            last=last,
            lake=shapes.lake,
        )
    )
    file = load_pipeline(shapes.file)
    assembly = CompiledPipeline(file, shapes.settings(), spark)
    try:
        assert [one.path for one in assembly.load_paths.values()] == [path] * 2
    finally:
        assembly.close()
    assert run(file, shapes.settings(), until=Until.HISTORY, spark=spark).history_complete
    with psycopg.connect(shapes.conninfo) as connection:
        result = connection.execute(f"SELECT {columns} FROM target ORDER BY id".encode()).fetchall()
    assert result == [row[: len(result[0])] for row in ROWS]


SPREAD = "is sorted by seq first and the key is id: one key lies in several splits"
KEYED = """
name: {name}
sources:
  times: {{type: clickhouse, table_name: {database}.by_time, split_rows: 500, primary_key: id}}
  keys: {{type: clickhouse, table_name: {database}.often, split_rows: 500}}
transforms:
  renamed: {{type: sql, sql: "select id as k, v from keys", primary_key: k}}
sinks:
  by_time: {{type: postgres, from: times, table: by_time}}
  lake_by_time: {{type: delta, from: times, path: {lake}_by_time}}
  ch_by_time: {{type: clickhouse, from: times, table: {database}.times}}
  often: {{type: postgres, from: renamed, table: often}}
  lake: {{type: delta, from: renamed, path: {lake}}}
  ch: {{type: clickhouse, from: renamed, table: {database}.copies}}
epoch: {{history_rows: 100000}}
"""


def test_the_last_row_of_a_key_wins_by_every_route(world: World, spark: SparkSession, tmp_path: Path) -> None:
    """Several rows for each of 200 keys, counted by `v`.

    One table is sorted by the key, and one key of it fills several splits.
    """
    with clickhouse_connect.get_client(
        **world.services.clickhouse.client_arguments(database=world.database)
    ) as client:
        for table, order, key in (
            ("by_time", "seq", "number % 200"),
            ("often", "(id, seq)", "if(number % 2 = 0, 7, number % 200)"),
        ):
            client.command(
                f"CREATE TABLE {table} (seq Int64, id Int64, v Int64) ENGINE = MergeTree ORDER BY {order}"
            )
            client.command(f"INSERT INTO {table} SELECT number, {key}, number FROM numbers(5000)")
    lake = str(tmp_path / "lake")
    world.file.write_text(KEYED.format(name=world.name, database=world.database, lake=lake))
    file = load_pipeline(world.file)
    assembly = CompiledPipeline(file, world.settings(), spark)
    try:
        assert {name: way.path for name, way in assembly.load_paths.items()} == {
            "by_time": "direct",
            "lake_by_time": "direct",
            "ch_by_time": "rows",
            "often": "direct",
            "lake": "direct",
            "ch": "direct",
        }
        spread = f"`{world.database}.by_time` {SPREAD}"
        assert assembly.load_paths["by_time"].reason == (
            f"history goes from source to sink as Arrow; {spread}, so the sink loads splits in their order"
        )
        assert assembly.load_paths["ch_by_time"].reason == f"{spread}, and the order of splits is not kept"
    finally:
        assembly.close()
    assert run(file, world.settings(), until=Until.HISTORY, spark=spark).history_complete
    expected = {
        "by_time": {number % 200: number for number in range(5000)},
        "often": {7 if number % 2 == 0 else number % 200: number for number in range(5000)},
    }
    with clickhouse_connect.get_client(
        **world.services.clickhouse.client_arguments(database=world.database)
    ) as client:
        copies = client.query("SELECT k, v FROM copies FINAL ORDER BY k").result_rows
        times = client.query("SELECT id, v FROM times FINAL ORDER BY id").result_rows
    assert [tuple(row) for row in copies] == sorted(expected["often"].items())
    assert [tuple(row) for row in times] == sorted(expected["by_time"].items())
    with psycopg.connect(world.conninfo) as connection:
        for name, rows in expected.items():
            assert (
                dict(
                    connection.execute(
                        f"SELECT {'k' if name == 'often' else 'id'}, v FROM {name}".encode()
                    ).fetchall()
                )
                == rows
            ), name
    for path, name in ((lake, "often"), (f"{lake}_by_time", "by_time")):
        delta = spark.read.format("delta").load(path).select("k" if name == "often" else "id", "v")
        assert sorted(map(tuple, delta.collect())) == sorted(expected[name].items())


OVER_ARROW = """
name: {name}
sources:
  src: {{type: postgres, table: original, primary_key: id}}
  files: {{type: file, path: "{folder}/*.parquet", format: parquet, mode: bounded}}
transforms:
  some: {{type: sql, sql: "select id, n + 1 as n, v * 2 as v from src where n <> 3"}}
  more: {{type: sql, sql: "select n, v, id as k from some where v is not null", primary_key: k}}
  capitals: {{type: sql, sql: "select id, initcap(text) as text from src"}}
  doubled: {{type: sql, sql: "select n * 2 as twice from files where id > 10"}}
sinks:
  pg: {{type: postgres, from: some, table: target}}
  lake: {{type: delta, from: some, path: "{folder}/lake"}}
  ch: {{type: clickhouse, from: some, table: {database}.copies}}
  twice: {{type: postgres, from: more, table: more}}
  upper: {{type: postgres, from: capitals, table: upper}}
  loose: {{type: postgres, from: doubled, table: loose}}
  keyed: {{type: postgres, from: doubled, table: keyed, primary_key: twice}}
"""


def test_transforms_over_arrow_give_the_rows_of_spark(
    world: World, spark: SparkSession, tmp_path: Path
) -> None:
    world.file.write_text(OVER_ARROW.format(name=world.name, database=world.database, folder=tmp_path))
    rows = [(n, n % 7, None if n % 5 == 0 else n / 4, f"t{n}") for n in range(100)]
    with psycopg.connect(world.conninfo) as connection:
        connection.execute("CREATE TABLE original (id bigint PRIMARY KEY, n int, v float8, text text)")
        connection.cursor().executemany("INSERT INTO original VALUES (%s, %s, %s, %s)", rows)
    pq.write_table(pa.table({"id": range(20), "n": range(20)}), tmp_path / "a.parquet")
    settings, file = world.settings(), load_pipeline(world.file)
    assembly = CompiledPipeline(file, settings, spark)
    try:
        result = {name: one.path for name, one in assembly.load_paths.items()}
        reasons = {name: one.reason for name, one in assembly.load_paths.items()}
    finally:
        assembly.close()
    direct = dict.fromkeys(("pg", "lake", "ch", "loose", "twice"), "direct")
    assert result == {**direct, "upper": "rows", "keyed": "rows"}
    # `more` reads integers of `some`, which may overflow where Spark computes none. A cluster cannot ask Spark.
    on_cluster = settings.spark.model_copy(update={"master": "spark://host:7077"})
    wrapping = on_cluster.model_copy(update={"conf": {"spark.sql.ansi.enabled": "false"}})
    for spark_settings, bulk_copied in ((on_cluster, {"pg", "lake", "ch", "loose"}), (wrapping, set())):
        elsewhere = settings.model_copy(update={"spark": spark_settings})
        paths = plan_load_paths(file, assembly.planner, assembly.sources, elsewhere)
        assert {name for name, path in paths.items() if path.is_bulk_copy} == bulk_copied
    over_arrow = "history goes from source to sink as Arrow, the SQL is computed over Arrow"
    assert reasons["ch"] == over_arrow
    assert reasons["twice"] == f"{over_arrow}, and by Spark for values that Arrow does not compute"
    assert reasons["upper"] == "transform `capitals`: Spark and Arrow may not mean the same by this SQL"
    assert run(file, settings, until=Until.HISTORY, spark=spark).history_complete
    expected = [(key, n + 1, v and v * 2) for key, n, v, _ in rows if n != 3]
    with psycopg.connect(world.conninfo) as connection:

        def select(query: str) -> list[tuple[Any, ...]]:
            return connection.execute(query.encode()).fetchall()

        assert select("SELECT id, n, v FROM target ORDER BY id") == expected
        assert select("SELECT k, n, v FROM more ORDER BY k") == [
            row for row in expected if row[2] is not None
        ]
        assert select("SELECT twice FROM loose ORDER BY 1") == [(2 * n,) for n in range(11, 20)]
        assert select("SELECT twice FROM keyed ORDER BY 1") == [(2 * n,) for n in range(11, 20)]
    lake = spark.read.format("delta").load(str(tmp_path / "lake")).select("id", "n", "v")
    assert sorted(map(tuple, lake.collect())) == expected
    with clickhouse_connect.get_client(
        **world.services.clickhouse.client_arguments(database=world.database)
    ) as client:
        assert client.query("SELECT id, n, v FROM copies FINAL ORDER BY id").result_rows == expected


CHECKED = """
name: {name}
sources:
  src: {{type: clickhouse, table_name: {database}.prices, split_rows: 500, primary_key: id}}
transforms:
  priced: {{type: sql, sql: "select id, upper(name) as name, cast(cents / 100 as decimal(12, 2)) as amount from src{where}"}}
sinks:
  pg: {{type: postgres, from: priced, table: prices}}
  ch: {{type: clickhouse, from: priced, table: {database}.copies}}
  lake: {{type: delta, from: priced, path: {lake}}}
epoch: {{history_rows: 1500}}
"""


@pytest.mark.parametrize("where", ["", " where abs(cents) < 400000"], ids=["all", "filtered"])
def test_values_are_checked_and_left_to_spark(world: World, spark: SparkSession, where: str) -> None:
    """Every 700th name has a letter that is not ASCII. The last row of a key counts, also for a filter."""
    with clickhouse_connect.get_client(
        **world.services.clickhouse.client_arguments(database=world.database)
    ) as client:
        client.command(
            "CREATE TABLE prices (seq Int64, id Int64, name String, cents Int64) ENGINE = MergeTree"
            " ORDER BY (id, seq)"
        )
        client.command(
            "INSERT INTO prices SELECT number, number % 4000, if(number % 700 = 0, 'ä', 'a'),"
            " number * 100 + 1 FROM numbers(5000)"
        )
    world.file.write_text(
        CHECKED.format(name=world.name, database=world.database, lake=world.lake, where=where)
    )
    file = load_pipeline(world.file)
    assembly = CompiledPipeline(file, world.settings(), spark)
    try:
        assert {one.path for one in assembly.load_paths.values()} == {"direct"}
        assert {one.guarded_transforms for one in assembly.load_paths.values()} == {("priced",)}
    finally:
        assembly.close()
    assert run(file, world.settings(), until=Until.HISTORY, spark=spark).history_complete
    last = {number % 4000: number for number in range(5000)}
    expected = [
        (key, "Ä" if number % 700 == 0 else "A", Decimal(number * 100 + 1) / 100)
        for key, number in last.items()
        if not where or number * 100 + 1 < 400_000
    ]
    with psycopg.connect(world.conninfo) as connection:
        assert connection.execute("SELECT id, name, amount FROM prices ORDER BY id").fetchall() == expected
    with clickhouse_connect.get_client(
        **world.services.clickhouse.client_arguments(database=world.database)
    ) as client:
        copies = client.query("SELECT id, name, amount FROM copies FINAL ORDER BY id").result_rows
        assert [tuple(row) for row in copies] == expected
    lake = spark.read.format("delta").load(str(world.lake)).select("id", "name", "amount")
    assert sorted(tuple(row) for row in lake.collect()) == expected


@pytest.mark.parametrize(
    ("transform", "key", "carried"),
    [
        ("select a, b, v from src", "a, b", ("a", "b")),
        ("select a as k, v from src", "k", ("a",)),
        ("select cast(a as string) as a, b, v from src", "a, b", ("b",)),
        ("select coalesce(a, 0) as a, v from src", "a", ()),
    ],
)
def test_what_of_a_key_the_source_has_itself(transform: str, key: str, carried: tuple[str, ...]) -> None:
    text = "name: p\nsources: {src: {type: clickhouse, table_name: d.t}}\n"
    text += f'transforms: {{t: {{type: sql, sql: "{transform}"}}}}\n'
    text += f'sinks: {{out: {{type: postgres, from: t, table: t, primary_key: "{key}"}}}}'
    file = parse_pipeline(text)
    have = pa.schema([("a", pa.int64()), ("b", pa.int64()), ("v", pa.int64())])
    columns = pa.schema([(name, pa.int64()) for name in [*key.split(", "), "v"]])
    requests: list[Sequence[str]] = []

    def spreads(_: PipelineSource, key: Sequence[str]) -> str:
        requests.append(key)
        return ""

    seen = Columns({"src": have}, {"src": have, "t": columns, "out": columns}, lambda _: have, spreads)
    result = plan_load_path(file, seen, create_pipeline_sources(file.model.sources, Settings()), "out")
    assert (result.path, result.key) == ("direct", carried), result.reason
    assert requests == [carried]
