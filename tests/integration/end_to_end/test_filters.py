"""Filters upstream of sinks with a key.

What a filter leaves out leaves the target, from the stream and from history.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import clickhouse_connect
import psycopg
import pytest
from confluent_kafka import Producer
from helpers.pipeline_world import World
from helpers.unused_session import unused_session
from pyspark.sql import SparkSession

from headrace.jobs.checks.audit import ContentAuditOptions, audit
from headrace.jobs.explain.build import explain
from headrace.jobs.planning.compiled_pipeline import CompiledPipeline
from headrace.jobs.run.events import Until
from headrace.jobs.run.runner import run
from headrace.pipeline.file.loader import load_pipeline
from headrace.services import Services

STREAM = """
name: {name}
sources:
  all: {{type: kafka, topic: {topic}, primary_key: id, schema: {{id: int64, amount: int64}}}}
  large: {{type: kafka, topic: {topic}, primary_key: id, schema: {{id: int64, amount: int64}}, filter: amount > 10}}
transforms:
  shares: {{type: sql, sql: "select id, amount, 1000 / amount as share from all where amount > 10"}}
  middle: {{type: sql, sql: "select id, amount from large where amount < 1000"}}
sinks:
  by_transform: {{type: postgres, from: shares, table: by_transform}}
  by_both: {{type: postgres, from: middle, table: by_both}}
  lake: {{type: delta, from: shares, path: {lake}}}
epoch: {{interval: 0s}}
"""
HYBRID = """
name: {name}
sources:
  src:
    type: hybrid
    primary_key: id
    bounded_sources: [{{source_type: clickhouse, table_name: {database}.h}}]
    unbounded_source: {{source_type: kafka, topic: {topic}, schema: {{id: int64, version: int64, amount: int64}}, filter: amount < 1000}}
transforms:
  large: {{type: sql, sql: "select id, amount from src where amount > 10"}}
  positive: {{type: sql, sql: "select id, amount, 'x' as kind from src where amount > 10", primary_key: "id, kind"}}
sinks:
  pg: {{type: postgres, from: large, table: target}}
  lake: {{type: delta, from: large, path: {lake}}}
  narrow: {{type: postgres, from: positive, table: narrow}}
  whole: {{type: postgres, from: src, table: whole}}
epoch: {{interval: 0s}}
"""


@pytest.fixture
def place(services: Services, pg: str, ch_db: str, topic: Callable[..., str], tmp_path: Path) -> World:
    """A world without data; its name is that of a topic."""
    return World(services, tmp_path, ch_db, pg, name=topic().replace("-", "_"))


def produce(world: World, messages: list[tuple[str, dict[str, int]]]) -> None:
    producer = Producer({"bootstrap.servers": world.services.kafka.brokers, "enable.idempotence": True})
    for op, body in messages:
        producer.produce(world.name.replace("_", "-"), json.dumps(body), headers={"dbz.op": op})
    assert producer.flush(30) == 0


def write(world: World, text: str) -> None:
    topic = world.name.replace("_", "-")
    world.file.write_text(text.format(name=world.name, topic=topic, database=world.database, lake=world.lake))


def rows(world: World, table: str, columns: str = "id, amount") -> list[tuple[Any, ...]]:
    with psycopg.connect(world.conninfo) as connection:
        return connection.execute(f"SELECT {columns} FROM {table} ORDER BY id".encode()).fetchall()


def lake(world: World, spark: SparkSession) -> list[tuple[Any, ...]]:
    result = spark.read.format("delta").load(str(world.lake)).select("id", "amount").orderBy("id").collect()
    return [tuple(row) for row in result]


def go(world: World, spark: SparkSession) -> None:
    assert run(load_pipeline(world.file), world.settings(), until=Until.CAUGHT_UP, spark=spark).caught_up


def test_deletes_pass_filters_and_updates_that_fail_them_are_deletes(
    place: World, spark: SparkSession
) -> None:
    write(place, STREAM)
    produce(
        place,
        [("c", {"id": 1, "amount": 50}), ("c", {"id": 2, "amount": 60}), ("c", {"id": 3, "amount": 70})],
    )
    produce(place, [("c", {"id": 4, "amount": 0}), ("c", {"id": 5, "amount": 90})])
    go(place, spark)
    assert rows(place, "by_both") == [(1, 50), (2, 60), (3, 70), (5, 90)]
    produce(
        place,
        [
            ("d", {"id": 1}),
            ("u", {"id": 2, "amount": 5}),
            ("u", {"id": 4, "amount": 40}),
            ("u", {"id": 5, "amount": 5000}),
            ("d", {"id": 9}),
        ],
    )
    go(place, spark)
    wanted = [(3, 70), (4, 40), (5, 5000)]
    assert rows(place, "by_transform", "id, amount, share") == [
        (3, 70, 1000 / 70),
        (4, 40, 25),
        (5, 5000, 0.2),
    ]
    assert rows(place, "by_both") == [(3, 70), (4, 40)]
    assert lake(place, spark) == wanted
    checks = audit(load_pipeline(place.file), place.settings(), spark=spark)
    assert all(check.passed is not False for check in checks), checks


COARSE_KEY = """
name: {name}
sources:
  orders: {{type: kafka, topic: {topic}, primary_key: id, schema: {{id: int64, amount: int64}}}}
transforms:
  tens: {{type: sql, sql: "select id div 10 as id, amount from orders where amount > 10", primary_key: id}}
sinks:
  pg: {{type: postgres, from: tens, table: tens}}
  lake: {{type: delta, from: tens, path: {lake}}}
epoch: {{interval: 0s}}
"""


@pytest.mark.slow  # unit/pipeline/lineage/test_delete_marks.py is the daily one
def test_a_row_that_fails_a_filter_does_not_delete_the_row_of_another_key(
    place: World, spark: SparkSession
) -> None:
    write(place, COARSE_KEY)
    first, second, third = (
        {"id": number, "amount": amount} for number, amount in ((10, 50), (11, 5), (20, 60))
    )
    produce(place, [("c", first), ("c", second), ("c", third)])
    go(place, spark)
    produce(place, [("u", {"id": 21, "amount": 3})])
    go(place, spark)
    assert rows(place, "tens") == lake(place, spark) == [(1, 50), (2, 60)]
    checks = audit(load_pipeline(place.file), place.settings(), spark=spark)
    assert all(check.passed is not False for check in checks), checks


def test_the_last_row_of_a_key_decides_in_history_and_in_the_stream(
    place: World, spark: SparkSession
) -> None:
    """History holds several rows of a key, the last of which may fail.

    The stream updates and deletes what history brought.
    """
    with clickhouse_connect.get_client(
        **place.services.clickhouse.client_arguments(database=place.database)
    ) as client:
        client.command(
            "CREATE TABLE h (id Int64, version Int64, amount Nullable(Int64)) ENGINE = MergeTree ORDER BY"
            " (id, version)"
        )
        source_rows = [
            (1, 1, 60),
            (1, 2, 5),
            (2, 1, 5),
            (2, 2, 60),
            (3, 1, 70),
            (4, 1, 80),
            (5, 1, None),
            (6, 1, 90),
            (7, 1, 20),
        ]
        client.insert("h", source_rows, column_names=["id", "version", "amount"])
    write(place, HYBRID)
    file = load_pipeline(place.file)
    assembly = CompiledPipeline(file, place.settings(), spark)
    try:
        assert (assembly.load_paths["pg"].path, assembly.load_paths["pg"].filters) == ("direct", True), (
            assembly.load_paths["pg"].reason
        )
        assert (
            assembly.load_paths["narrow"].reason
            == "rows that `positive` filters out become deletes of their keys"
        )
        assert assembly.load_paths["whole"].path == "direct", assembly.load_paths["whole"].reason
    finally:
        assembly.close()
    writes = {
        node.name: node.target.writes
        for node in explain(file, place.settings(), spark=spark).nodes
        if node.target
    }
    assert "is a delete of its key: src (filter amount < 1000); large (WHERE amount > 10)" in writes["pg"]
    assert "is a delete of its key: src (filter amount < 1000)" in writes["whole"]
    run(file, place.settings(), until=Until.HISTORY, spark=spark)
    wanted = [(2, 60), (3, 70), (4, 80), (6, 90), (7, 20)]
    assert rows(place, "target") == lake(place, spark) == rows(place, "narrow") == wanted
    produce(
        place,
        [
            ("d", {"id": 3}),
            ("u", {"id": 4, "amount": 6}),
            ("u", {"id": 5, "amount": 50}),
            ("u", {"id": 6, "amount": 2000}),
        ],
    )
    go(place, spark)
    wanted = [(2, 60), (5, 50), (7, 20)]
    assert rows(place, "target") == lake(place, spark) == rows(place, "narrow") == wanted
    assert [row[0] for row in rows(place, "whole")] == [1, 2, 4, 5, 7]


DRIVER = """
name: {name}
sources:
  small:
    type: kafka
    topic: {topic}
    primary_key: id
    schema: {{id: int64, amount: int64}}
    filter: _gs_op <> 'x' and amount <= 1000 -- the rest is for others
    {more}
transforms:
  shares: {{type: sql, sql: "select id, amount, amount / 10 as share from small where amount > 10"}}
sinks:
  whole: {{type: postgres, from: small, table: whole}}
  part: {{type: postgres, from: shares, table: part}}
  {errors}
epoch: {{interval: 0s}}
"""


@pytest.mark.parametrize(
    ("more", "errors"),
    [("", ""), ("on_error: dead_letter", "errors: {type: postgres, from: small.errors, table: errors}")],
    ids=["plain", "dead-letters"],
)
def test_a_portable_filter_of_a_topic_starts_no_spark(place: World, more: str, errors: str) -> None:
    topic = place.name.replace("_", "-")
    place.file.write_text(DRIVER.format(name=place.name, topic=topic, more=more, errors=errors))
    file = load_pipeline(place.file)

    def replicate() -> None:
        outcome = run(file, place.settings(), until=Until.CAUGHT_UP, spark=unused_session())
        assert outcome.caught_up

    amounts = {1: 50, 2: 5, 3: 5000, 4: 70, 5: 1000}
    produce(place, [("c", {"id": key, "amount": amount}) for key, amount in amounts.items()])
    replicate()
    assert rows(place, "whole") == [(1, 50), (2, 5), (4, 70), (5, 1000)]
    assert rows(place, "part", "id, share") == [(1, 5), (4, 7), (5, 100)]
    produce(
        place,
        [
            ("u", {"id": 1, "amount": 5001}),
            ("u", {"id": 3, "amount": 30}),
            ("u", {"id": 4, "amount": 8}),
            ("d", {"id": 5}),
            ("d", {"id": 9}),
        ],
    )
    replicate()
    assert rows(place, "whole") == [(2, 5), (3, 30), (4, 8)]
    assert rows(place, "part") == [(3, 30)]
    if not more:  # Spark reads messages that can be rejected for the content check
        checks = audit(file, place.settings(), spark=unused_session(), content=ContentAuditOptions())
        assert all(check.passed is not False for check in checks), checks
        assert {check.passed for check in checks if check.name == "content_matches"} == {True}
