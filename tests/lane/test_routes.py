"""Which way history takes, and that the rows are the same by either."""

from __future__ import annotations

import clickhouse_connect
import psycopg
import pytest
from lane_world import World
from pyspark.sql import SparkSession

from headrace.jobs.assembly import Assembly
from headrace.jobs.events import Until
from headrace.jobs.run import run
from headrace.pipeline.file import load_pipeline

pytestmark = [pytest.mark.services, pytest.mark.spark]

FILE = """
name: {name}
sources: {{src: {{type: clickhouse, table_name: {database}.shapes, primary_key: id}}}}
{transforms}
sinks: {{pg: {{type: postgres, from: {last}, table: target}}}}
"""
PLAIN = "transforms: {plain: {type: sql, sql: 'select id, name from src'}}"
ROWS = [(1, "a", [1, 2], {"x": 1}), (2, "b", [], {})]


@pytest.fixture
def shapes(world: World) -> World:
    """The world's database with a table that has nested columns."""
    with clickhouse_connect.get_client(**world.services.clickhouse.client_arguments(database=world.database)) as client:
        client.command(
            "CREATE TABLE shapes (id Int64, name String, tags Array(Int32), marks Map(String, Int32)) ENGINE = MergeTree ORDER BY id"
        )
        client.insert("shapes", ROWS, column_names=["id", "name", "tags", "marks"])
    return world


@pytest.mark.parametrize(
    ("transforms", "last", "path", "columns"), [("", "src", "rows", "id, name, tags, marks"), (PLAIN, "plain", "direct", "id, name")]
)
def test_nested_columns_go_by_rows_and_plain_ones_directly(
    shapes: World, spark: SparkSession, transforms: str, last: str, path: str, columns: str
) -> None:
    shapes.file.write_text(FILE.format(name=f"r{shapes.name}", database=shapes.database, transforms=transforms, last=last))
    file = load_pipeline(shapes.file)
    assembly = Assembly(file, shapes.settings(), spark)
    try:
        assert assembly.routes["pg"].path == path, assembly.routes["pg"].why
    finally:
        assembly.close()
    assert run(file, shapes.settings(), until=Until.HISTORY, spark=spark).history_complete
    with psycopg.connect(shapes.conninfo) as connection:
        found = connection.execute(f"SELECT {columns} FROM target ORDER BY id".encode()).fetchall()
    assert found == [row[: len(found[0])] for row in ROWS]
