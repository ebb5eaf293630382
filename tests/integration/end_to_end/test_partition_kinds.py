"""Partitions by values and by ranges of integers: every sink has each row of the read partitions once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import clickhouse_connect
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.pipeline_world import World
from pyspark.sql import SparkSession

from headrace.jobs.checks.audit import ContentAuditOptions, audit
from headrace.jobs.run.events import RunResult, Until
from headrace.jobs.run.runner import run
from headrace.pipeline.errors import (
    GuaranteeError,
    PipelineFileError,
    PipelineStateError,
    SchemaError,
    UserError,
)
from headrace.pipeline.file.loader import load_pipeline
from headrace.services import Services

PIPELINE = """
name: {name}
sources: {{src: {{type: clickhouse, table_name: {database}.orders, split_rows: 20}}}}
sinks:
  pg: {{type: postgres, from: src, table: orders, primary_key: id}}
  log: {{type: postgres, from: src, table: orders_log}}
partitions: {partitions}
epoch: {{history_rows: 40}}
"""
REGIONS = ("NO", "de", "pt-BR", "x y")
Order = tuple[int, str, int]


class Orders(World):
    """A table of orders. `rows` are what it has, by id."""

    def create(self, partitions: str) -> None:
        self.ask("CREATE TABLE orders (id Int64, country String, v Int64) ENGINE = MergeTree ORDER BY id")
        self.rows: dict[int, Order] = {}
        self.write(partitions)

    def write(self, partitions: str) -> None:
        values = {"name": self.name, "database": self.database, "partitions": partitions}
        self.file.write_text(PIPELINE.format(**values))

    def write_values(self, *values: str) -> None:
        self.write(f"{{column: country, values: [{', '.join(values)}], any_order: true}}")

    def ask(self, statement: str, rows: list[Order] | None = None) -> None:
        arguments = self.services.clickhouse.client_arguments(database=self.database)
        with clickhouse_connect.get_client(**arguments) as client:
            if rows is None:
                client.command(statement, settings={"mutations_sync": 1})
            else:
                client.insert(statement, rows, column_names=["id", "country", "v"])

    def put(self, *rows: Order) -> None:
        self.rows |= {row[0]: row for row in rows}
        self.ask("orders", list(rows))

    def remove(self, key: int) -> None:
        self.ask(f"ALTER TABLE orders DELETE WHERE id = {key}")
        del self.rows[key]

    def check_sinks(self, wanted: Callable[[Order], bool], *tables: str) -> None:
        rows = sorted(filter(wanted, self.rows.values()))
        assert rows
        with psycopg.connect(self.conninfo) as connection:
            for table in tables or ("orders", "orders_log"):
                query = f"SELECT id, country, v FROM {table} ORDER BY id".encode()
                assert connection.execute(query).fetchall() == rows, table


Go = Callable[..., RunResult]


def is_any(row: Order) -> bool:
    """Select every row."""
    return bool(row)


@pytest.fixture
def orders(services: Services, pg: str, ch_db: str, tmp_path: Path) -> Orders:
    return Orders(services, tmp_path, ch_db, pg)


@pytest.fixture
def go(orders: Orders, spark: SparkSession) -> Go:
    def call(*keys: str, **more: Any) -> RunResult:
        file = load_pipeline(orders.file)
        return run(file, orders.settings(), until=Until.HISTORY, partitions=keys or None, spark=spark, **more)

    return call


def check_content(orders: Orders, spark: SparkSession) -> None:
    result = audit(
        load_pipeline(orders.file), orders.settings(), spark=spark, content=ContentAuditOptions(full=True)
    )
    assert [one for one in result if one.passed is False] == []
    assert "pg" in {one.sink for one in result if one.name == "content_matches" and one.passed}


def test_values_are_read_one_by_one(orders: Orders, spark: SparkSession, go: Go) -> None:
    orders.create("")
    orders.write_values(*REGIONS)
    orders.put(*[(at, REGIONS[at % 4], at) for at in range(240)])
    assert not go("pt-BR").history_complete
    orders.check_sinks(lambda row: row[1] == "pt-BR")
    assert go("x y", "NO").epochs == 4, "60 rows of a value are two epochs"
    orders.check_sinks(lambda row: row[1] != "de")
    assert go().history_complete
    orders.check_sinks(is_any)
    assert go().epochs == 0
    check_content(orders, spark)
    with pytest.raises(UserError, match="`fr` is not a partition"):
        go("fr")


def test_a_value_is_added_removed_and_read_again(orders: Orders, spark: SparkSession, go: Go) -> None:
    orders.create("")
    orders.write_values(*REGIONS)
    orders.put(*[(at, REGIONS[at % 4], at) for at in range(240)])
    go()
    orders.put((240, "fr", 1), (241, "de", 1))
    orders.write_values("fr", *REGIONS)
    assert go().history_complete
    known = dict(orders.rows)
    del orders.rows[241]  # it came after its partition was read
    orders.check_sinks(is_any)

    orders.rows = known
    orders.remove(5)
    orders.file.write_text(orders.file.read_text().replace("  log: {type", "  # log: {type"))
    assert go("de", refresh=True).history_complete
    orders.check_sinks(is_any, "orders")
    check_content(orders, spark)


def test_rows_of_other_values_are_refused(orders: Orders, go: Go) -> None:
    orders.create("")
    orders.write_values("NO", "de")
    orders.put((1, "NO", 1), (2, "de", 1), (3, "sv", 1))
    with pytest.raises(
        GuaranteeError, match=r"1 row whose `country` is not in `values` .* example `sv`"
    ) as error:
        go()
    assert "filter" in str(error.value.hint)
    orders.write_values("NO", "de", "sv")
    assert go().history_complete
    orders.check_sinks(is_any)


def test_an_unread_value_cannot_be_removed(orders: Orders, go: Go) -> None:
    orders.create("")
    orders.write_values("NO", "de")
    orders.put((1, "NO", 1), (2, "de", 1))
    go("NO")
    orders.write_values("NO")
    with pytest.raises(PipelineFileError, match="partition de of source `src` cannot be removed") as error:
        go()
    assert "values: [NO, de]" in str(error.value)
    orders.write("{column: country, values: [NO, de], any_order: true}")
    assert go().history_complete
    orders.check_sinks(is_any)


def test_integers_are_read_in_ranges(orders: Orders, spark: SparkSession, go: Go) -> None:
    orders.create("{column: id, every: 100, end: 300, any_order: true}")
    orders.put(*[(at, "NO", at) for at in range(250)])
    assert not go("200").history_complete
    orders.check_sinks(lambda row: row[0] >= 200)
    assert go().history_complete
    orders.check_sinks(is_any)
    check_content(orders, spark)

    orders.put(*[(at, "NO", at) for at in range(300, 1100, 20)])
    orders.write("{column: id, every: 100, end: 1100, any_order: true}")
    assert go("1000").history_complete is False
    orders.check_sinks(lambda row: row[0] < 250 or row[0] >= 1000)
    assert go().history_complete
    orders.check_sinks(is_any)
    orders.put((5000, "NO", 1))
    orders.write("{column: id, every: 100, end: 1200, any_order: true}")
    with pytest.raises(GuaranteeError, match=r"`id` is not from 0 to 1199, for example 5000"):
        go()


def test_an_earlier_number_is_refused_after_a_later_one(orders: Orders, go: Go) -> None:
    """The order is that of the numbers, not of their text."""
    orders.create("{column: v, every: 5, end: 15}")
    orders.put((1, "NO", 1), (6, "NO", 6), (11, "NO", 11))
    go("0")
    go("10")
    with pytest.raises(PipelineStateError, match="partition 5 cannot be loaded after 10"):
        go("5")
    orders.check_sinks(lambda row: row[0] != 6)


@pytest.mark.parametrize(
    ("partitions", "message"),
    [
        ("{column: country, every: 10, end: 100}", "needs an integer column; `country` .* is string"),
        ("{column: id, values: [1, '007']}", "`007` in `values` of `partitions` is no value of `id`"),
        ("{column: v, values: ['1'], any_order: true}", None),
    ],
)
def test_partitions_fit_the_type_of_the_column(
    orders: Orders, go: Go, partitions: str, message: str | None
) -> None:
    orders.create(partitions)
    orders.put((1, "NO", 1), (2, "de", 1))
    if message is None:
        assert go().history_complete
        orders.check_sinks(is_any)
    else:
        with pytest.raises(SchemaError, match=message):
            go()


@pytest.mark.parametrize("point", ["planned", "sinks-written"])
def test_a_kill_between_values(orders: Orders, spark: SparkSession, go: Go, point: str) -> None:
    orders.create("")
    orders.write_values(*REGIONS)
    orders.put(*[(at, REGIONS[at % 4], at) for at in range(240)])
    orders.crash(point, 3, "only")
    assert go().history_complete
    orders.check_sinks(is_any)
    check_content(orders, spark)


@pytest.mark.parametrize(
    ("partitions", "first", "message"),
    [
        ("{column: country, values: [NO, de], any_order: true}", "de", "not in `values` .* example `sv`"),
        ("{column: v, every: 10, end: 20, any_order: true}", "10", "not from 0 to 19, for example 20"),
    ],
)
def test_files_are_read_by_partition(
    orders: Orders, spark: SparkSession, go: Go, partitions: str, first: str, message: str
) -> None:
    folder = orders.folder / "orders"
    folder.mkdir()
    orders.rows = {key: (key, "NO" if key % 2 else "de", key) for key in range(20)}

    def store(name: str, rows: list[Order]) -> None:
        columns = dict(zip(("id", "country", "v"), map(list, zip(*rows, strict=True)), strict=True))
        pq.write_table(pa.table(columns), folder / name)

    store("a.parquet", list(orders.rows.values()))
    orders.write(partitions)
    text = orders.file.read_text()
    table = f"{{type: clickhouse, table_name: {orders.database}.orders, split_rows: 20}}"
    files = f"{{type: file, path: {folder}, format: parquet, mode: bounded}}"
    assert table in text
    orders.file.write_text(text.replace(table, files))
    store("b.parquet", [(99, "sv", 20)])
    with pytest.raises(GuaranteeError, match=message):
        go()
    (folder / "b.parquet").unlink()
    assert not go(first).history_complete
    orders.check_sinks(lambda row: first in (row[1], str(row[2] // 10 * 10)))
    assert go().history_complete
    orders.check_sinks(is_any)
    check_content(orders, spark)
