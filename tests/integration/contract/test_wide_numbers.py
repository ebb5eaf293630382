"""256-bit integers and decimals of more than 38 digits, from Kafka and ClickHouse into Postgres and Delta."""

from __future__ import annotations

import json
from decimal import Decimal

import clickhouse_connect
import psycopg
import pytest
from confluent_kafka import Producer
from helpers.pipeline_world import World
from pyspark.sql import SparkSession

from headrace.jobs.run.events import Until
from headrace.jobs.run.runner import run
from headrace.pipeline.errors import HeadraceError
from headrace.pipeline.file.loader import parse_pipeline

TOP, LOW, HIGH = 2**256 - 1, -(2**255), 2**255 - 1
LONG = "-" + "123456789" * 7 + "0.1234567891"  # 74 digits
SCHEMA = "{id: uint256, signed: i256, long: 'decimal256(76, 10)'}"


def _kafka(world: World, topic: str) -> str:
    return f"""
name: {world.name}k
sources: {{src: {{type: kafka, topic: {topic}, schema: {SCHEMA}, primary_key: id}}}}
transforms: {{plain: {{type: sql, sql: "select id, signed as s, long from src where id <> '5'"}}}}
sinks:
  pg: {{type: postgres, from: plain, table: wide}}
  lake: {{type: delta, from: plain, path: {world.lake}}}
"""


def _send(world: World, topic: str, *rows: tuple[str, str]) -> None:
    producer = Producer({"bootstrap.servers": world.services.kafka.brokers})
    for op, body in rows:
        producer.produce(topic, body, headers=[("dbz.op", op)])
    producer.flush()


def _read_target(world: World) -> list[tuple[Decimal | None, ...]]:
    with psycopg.connect(world.conninfo) as connection:
        return connection.execute("SELECT id, s, long FROM wide ORDER BY id").fetchall()


def test_from_a_topic(world: World, spark: SparkSession, topic) -> None:
    name = topic()
    _send(
        world,
        name,
        ("c", f'{{"id": {TOP}, "signed": "{LOW}", "long": "{LONG}"}}'),
        ("c", f'{{"id": "0", "signed": {HIGH}, "long": 1.5}}'),
        ("c", '{"id": 5, "signed": 1, "long": 0}'),
        ("c", '{"id": 7, "signed": null}'),
        ("u", f'{{"id": "{TOP}", "signed": -1, "long": "{LONG}"}}'),
        ("d", '{"id": "0"}'),
        ("c", '{"id": "010", "signed": "-0", "long": "01.50"}'),
        ("u", '{"id": 10, "signed": "-0", "long": "01.50"}'),
    )
    file = parse_pipeline(_kafka(world, name), "p.yaml")
    assert run(file, world.settings(), until=Until.CAUGHT_UP, spark=spark).caught_up
    assert _read_target(world) == [
        (Decimal(7), None, None),
        (Decimal(10), Decimal(0), Decimal("1.5")),
        (Decimal(TOP), Decimal(-1), Decimal(LONG)),
    ]
    with psycopg.connect(world.conninfo) as connection:
        types = connection.execute(
            "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 'wide'::regclass"
            " AND attnum > 0 ORDER BY attnum"
        ).fetchall()
    assert types == [("numeric(78,0)",), ("numeric(78,0)",), ("numeric(76,10)",)]
    lake = spark.read.format("delta").load(str(world.lake)).orderBy("id").collect()
    assert [tuple(row) for row in lake] == [("10", "0", "1.5"), (str(TOP), "-1", LONG), ("7", None, None)]


# test_value_that_the_type_cannot_hold_is_refused is the daily test.
@pytest.mark.parametrize(
    ("body", "column"),
    [
        pytest.param(f'{{"id": {TOP + 1}}}', "id", marks=pytest.mark.slow),
        pytest.param('{"id": -1}', "id", marks=pytest.mark.slow),
        pytest.param(f'{{"id": 1, "signed": {LOW - 1}}}', "signed", marks=pytest.mark.slow),
        pytest.param(f'{{"id": 1, "signed": "{HIGH + 1}"}}', "signed", marks=pytest.mark.slow),
        pytest.param('{"id": 1, "long": "0.12345678901"}', "long", marks=pytest.mark.slow),
        pytest.param(f'{{"id": 1, "long": "{"9" * 67}"}}', "long", marks=pytest.mark.slow),
        pytest.param(f'{{"id": 1, "long": 1.{"2345678901" * 5}}}', "long", marks=pytest.mark.slow),
        pytest.param('{"id": 1, "long": "much"}', "long", marks=pytest.mark.slow),
        pytest.param('{"id": 1, "long": 1e60}', "long", marks=pytest.mark.slow),
    ],
)
def test_what_has_no_room_is_refused_and_named(
    world: World, spark: SparkSession, topic, body: str, column: str
) -> None:
    name = topic()
    _send(world, name, ("c", json.dumps({"id": "2", "signed": 2})), ("c", body))
    file = parse_pipeline(_kafka(world, name), "p.yaml")
    with pytest.raises(HeadraceError, match=f"column `{column}`"):
        run(file, world.settings(), until=Until.CAUGHT_UP, spark=spark)
    assert _read_target(world) == []


# test_from_a_topic is the daily sample of rows through a transform.
@pytest.mark.parametrize("through", ["src", pytest.param("plain", marks=pytest.mark.slow)])
def test_from_a_table(world: World, spark: SparkSession, through: str) -> None:
    with clickhouse_connect.get_client(
        **world.services.clickhouse.client_arguments(database=world.database)
    ) as client:
        client.command(
            "CREATE TABLE wide (id UInt256, s Nullable(Int256), long Decimal(76, 10), i Int128, u UInt128)"
            " ENGINE = MergeTree ORDER BY id"
        )
        client.command(
            f"INSERT INTO wide SELECT toUInt256('{TOP}'), toInt256('{LOW}'), toDecimal256('{LONG}', 10),"
            f" toInt128('{-(2**127)}'), toUInt128('{2**128 - 1}')"
        )
        client.command("INSERT INTO wide SELECT toUInt256(7), NULL, toDecimal256('0.5', 10), 1, 1")
    text = f"""
name: {world.name}c
sources: {{src: {{type: clickhouse, table_name: {world.database}.wide, primary_key: id}}}}
transforms: {{plain: {{type: sql, sql: "select id, s, long, i, u, 1 as one from src"}}}}
sinks: {{pg: {{type: postgres, from: {through}, table: wide}}, void: {{type: blackhole, from: plain}}}}
"""
    file = parse_pipeline(text, "p.yaml")
    assert run(file, world.settings(), until=Until.HISTORY, spark=spark).history_complete
    assert _read_target(world) == [
        (Decimal(7), None, Decimal("0.5")),
        (Decimal(TOP), Decimal(LOW), Decimal(LONG)),
    ]
    with psycopg.connect(world.conninfo) as connection:
        assert connection.execute("SELECT i, u FROM wide WHERE id > 7").fetchall() == [
            (Decimal(-(2**127)), Decimal(2**128 - 1))
        ]
