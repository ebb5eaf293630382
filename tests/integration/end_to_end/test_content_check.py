"""`content_matches` passes after a run, fails for every kind of wrong row, and names the keys."""

from __future__ import annotations

import json
from collections.abc import Iterator

import clickhouse_connect
import psycopg
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from helpers.depth import FULL
from helpers.pipeline_world import World, caught_up_world
from helpers.unused_session import unused_session
from pyspark.sql import SparkSession

from headrace.connectors.clickhouse.source import ClickHouseTable
from headrace.connectors.postgres.direct import DirectLoad
from headrace.jobs.checks.audit import ContentAuditOptions, audit
from headrace.jobs.planning import planner
from headrace.jobs.run.events import CheckResult, Until
from headrace.jobs.run.runner import run
from headrace.jobs.sources import handoff, pipeline_source
from headrace.pipeline.file.loader import load_pipeline
from headrace.pipeline.lineage.retractions import retractions
from headrace.pipeline.protocol.table_offsets import find_handoff_position
from headrace.services import Services


@pytest.fixture(scope="module")
def ran(services: Services, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A pipeline that has caught up."""
    with caught_up_world(services, spark, tmp_path_factory.mktemp("content")) as world:
        yield world


def matches(world: World, spark: SparkSession, sink: str = "pg", rows: int | None = None) -> CheckResult:
    content = ContentAuditOptions(rows) if rows else ContentAuditOptions(full=True)
    (result,) = [
        one
        for one in audit(
            load_pipeline(world.file), world.settings(), sinks=[sink], spark=spark, content=content
        )
        if one.name == "content_matches"
    ]
    return result


def checked(
    world: World, spark: SparkSession, table: str, text: str, until: Until = Until.CAUGHT_UP
) -> CheckResult:
    """Run another pipeline of the world to its end and compare its rows."""
    path = world.folder / f"{table}.yaml"
    path.write_text(text.format(name=world.name, database=world.database, table=table))
    file = load_pipeline(path)
    run(file, world.settings(), until=until, spark=spark)
    return next(
        one
        for one in audit(file, world.settings(), spark=spark, content=ContentAuditOptions(full=True))
        if one.name == "content_matches"
    )


def ask(world: World, query: str) -> None:
    with clickhouse_connect.get_client(
        **world.services.clickhouse.client_arguments(database=world.database)
    ) as client:
        client.command(query)


def create_topic(world: World, name: str) -> None:
    admin = AdminClient(
        {"bootstrap.servers": world.services.kafka.brokers}
    )  # its futures fail once it is collected
    admin.create_topics([NewTopic(name, 1, 1)])[name].result()


def test_rows_of_a_run_are_those_of_the_sources(ran: World, spark: SparkSession) -> None:
    for sink in ("pg", "lake"):
        result = matches(ran, spark, sink)
        assert result.passed, result.message
        assert result.numbers["complete"] is True
        assert result.numbers["rows"] == result.numbers["expected"] == len(ran.expected)


@pytest.mark.parametrize(("rows", "complete"), [(10_000, True), (1_500, False)], ids=["all", "some"])
def test_samples_need_no_spark(ran: World, rows: int, complete: bool) -> None:
    """A table of more rows than the sample is not read: the keys of the sample are looked up."""
    for sink in ("pg", "lake"):
        result = matches(ran, unused_session(), sink, rows)
        assert result.passed, result.message
        assert result.numbers["complete"] is complete, result.numbers
        assert result.numbers["expected"] > 100


def test_wrong_rows_are_named(ran: World, spark: SparkSession) -> None:
    stale, missing, *_ = sorted(ran.expected)
    statements = {
        f"UPDATE target SET name = 'stale' WHERE id = {stale}": f"id={stale}: name differs",
        f"DELETE FROM target WHERE id = {missing}": f"id={missing}: missing",
        "INSERT INTO target (id, day, name, amount) VALUES (-7, '2024-01-01', 'x', 1)": "id=-7: extra",
    }
    with psycopg.connect(ran.conninfo) as connection:
        connection.execute("CREATE TABLE before AS TABLE target")
        for statement in statements:
            connection.execute(statement)  # pyright: ignore[reportCallIssue, reportArgumentType]
    try:
        for session, rows in ((spark, None), (unused_session(), 10_000)):
            result = matches(ran, session, rows=rows)
            assert result.passed is False
            assert result.numbers["differing"] == 3
            assert sorted(result.numbers["keys"]) == sorted(statements.values())
    finally:
        with psycopg.connect(ran.conninfo) as connection:
            connection.execute("TRUNCATE target; INSERT INTO target TABLE before; DROP TABLE before")


UNORDERED = """
name: {name}_{table}
sources:
  src: {{type: kafka, topic: {name}_{table}, primary_key: id, schema: {{id: int64, v: int64}}}}
transforms:
  kept: {{type: sql, sql: "select id, v from src where _gs_op <> 'd'"}}
sinks:
  undeleted: {{type: postgres, from: kept, table: "{table}_kept"}}
  newest: {{type: postgres, from: src, table: "{table}_newest", version_column: v}}
epoch: {{interval: 0s, stream_rows: 1}}
"""


def test_deletes_that_do_not_count_or_are_not_remembered_are_no_difference(
    ran: World, spark: SparkSession
) -> None:
    """A transform leaves deletes out. A delete of a higher version does not stop a later insert."""
    topic = f"{ran.name}_deletes"
    create_topic(ran, topic)
    producer = Producer({"bootstrap.servers": ran.services.kafka.brokers})
    for op, body in (
        ("c", {"id": 1, "v": 1}),
        ("d", {"id": 1, "v": 9}),
        ("c", {"id": 2, "v": 5}),
        ("d", {"id": 2, "v": 9}),
        ("c", {"id": 2, "v": 3}),
        ("c", {"id": 3, "v": 1}),
    ):
        producer.produce(topic, json.dumps(body), headers={"dbz.op": op})
    assert producer.flush(30) == 0
    path = ran.folder / "deletes.yaml"
    path.write_text(UNORDERED.format(name=ran.name, table="deletes"))
    run(load_pipeline(path), ran.settings(), until=Until.CAUGHT_UP, spark=spark)
    with psycopg.connect(ran.conninfo) as connection:
        tables = [
            connection.execute(f"SELECT * FROM deletes_{name} ORDER BY id".encode()).fetchall()
            for name in ("kept", "newest")
        ]
    assert tables == [[(1, 1), (2, 3), (3, 1)], [(2, 3), (3, 1)]]
    for options in (ContentAuditOptions(full=True), ContentAuditOptions(100)):
        result = audit(load_pipeline(path), ran.settings(), spark=spark, content=options)
        assert [one.passed for one in result if one.name == "content_matches"] == [True, True], result


FILTERED = """
name: {name}_{table}
sources:
  src: {{type: kafka, topic: {name}, primary_key: id, schema: {{id: int64, day: date32, name: string, amount: int64}}}}
transforms:
  large: {{type: sql, sql: "select id, name, amount from src where amount > 400"}}
sinks:
  pg: {{type: postgres, from: large, table: {table}}}
"""


@pytest.mark.slow  # test_wrong_rows_are_named is the daily one
def test_rows_that_a_filter_should_have_removed_are_found(
    ran: World, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = checked(ran, spark, "filtered", FILTERED)
    assert right.passed, right.message
    monkeypatch.setattr(planner, "retractions_of", lambda model: retractions(model, lambda _: False))
    wrong = checked(ran, spark, "unfiltered", FILTERED)
    assert wrong.passed is False, (
        "deletes and updates that a filter drops left stale rows, and nothing was said"
    )
    assert all(key.endswith(": extra") for key in wrong.numbers["keys"])


SPREAD = """
name: {name}_spread
sources: {{src: {{type: clickhouse, table_name: {database}.by_time, split_rows: 500, primary_key: id}}}}
sinks: {{pg: {{type: postgres, from: src, table: spread}}}}
epoch: {{history_rows: 100000}}
"""


@pytest.mark.slow  # test_wrong_rows_are_named is the daily one
def test_keys_whose_splits_load_in_any_order_are_found(
    ran: World, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A direct load keeps no order of splits.

    Here the oldest are loaded last, by a route that takes the keys for kept together.
    """
    ask(ran, "CREATE TABLE by_time (seq Int64, id Int64, v Int64) ENGINE = MergeTree ORDER BY seq")
    ask(ran, "INSERT INTO by_time SELECT number, number % 20, number FROM numbers(2000)")
    monkeypatch.setattr(ClickHouseTable, "explain_key_spread", lambda *_: "")
    monkeypatch.setattr(ClickHouseTable, "keeps_together", lambda *_, **__: True)
    load = DirectLoad._run
    monkeypatch.setattr(
        DirectLoad,
        "_run",
        lambda self, plan, fetch, spark, splits, **options: load(
            self, plan, fetch, spark, splits[::-1], **options
        ),
    )
    wrong = checked(ran, spark, "spread", SPREAD, Until.HISTORY)
    assert wrong.passed is False, wrong.message
    assert wrong.numbers["differing"] == 20
    assert wrong.numbers["keys"][:2] == ["id=0: seq, v differ", "id=1: seq, v differ"]


UNTIMED = """
name: {name}_untimed
sources:
  src:
    type: hybrid
    primary_key: id
    bounded_sources: [{{source_type: clickhouse, table_name: {database}.untimed}}]
    unbounded_source: {{source_type: kafka, topic: {name}_untimed, schema: {{id: int64, at: timestamp, v: string}}}}
    handoff_lag: 1h
    cursor: {{column: at, allowed_lateness: 10m}}
sinks:
  pg: {{type: postgres, from: src, table: untimed}}
"""


@pytest.mark.slow  # test_wrong_rows_are_named is the daily one
def test_history_rows_without_a_time_that_a_cursor_dropped_are_found(
    ran: World, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(ran, f"{ran.name}_untimed")
    ask(
        ran,
        "CREATE TABLE untimed (id Int64, at Nullable(DateTime64(6, 'UTC')), v String) ENGINE = MergeTree"
        " ORDER BY id",
    )
    ask(
        ran,
        "INSERT INTO untimed SELECT number, if(number % 10 = 0, NULL, now64(6) - 7200), 'h' FROM numbers(30)",
    )
    monkeypatch.setattr(
        pipeline_source, "history_by_cursor", lambda column, cursor: f"`{column}` <= timestamp'{cursor}'"
    )
    wrong = checked(ran, spark, "untimed", UNTIMED)
    assert wrong.passed is False, wrong.message
    assert sorted(wrong.numbers["keys"]) == ["id=0: missing", "id=10: missing", "id=20: missing"]


HOLES = """
name: {name}_holes
sources:
  src:
    type: hybrid
    primary_key: id
    bounded_sources: [{{source_type: clickhouse, table_name: {database}.holes}}]
    unbounded_source: {{source_type: kafka, topic: {name}_holes, schema: {{id: int64, v: string}}}}
    offset_table: {{}}
sinks:
  pg: {{type: postgres, from: src, table: holes}}
"""


@pytest.mark.slow  # test_wrong_rows_are_named is the daily one
def test_messages_that_neither_history_nor_stream_brought_are_found(
    ran: World, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table lacks offsets below its largest one. A fence at the largest one skips them."""
    create_topic(ran, f"{ran.name}_holes")
    producer = Producer({"bootstrap.servers": ran.services.kafka.brokers, "enable.idempotence": True})
    for number in range(12):
        producer.produce(f"{ran.name}_holes", json.dumps({"id": number, "v": "s"}), partition=0)
    assert producer.flush(30) == 0
    ask(
        ran,
        "CREATE TABLE holes (id Int64, v String, _kafka_partition Int32, _kafka_offset Int64) ENGINE ="
        " MergeTree ORDER BY id",
    )
    ask(ran, "INSERT INTO holes SELECT number, 's', 0, number FROM numbers(10) WHERE number NOT IN (4, 5)")
    monkeypatch.setattr(
        handoff,
        "find_handoff_position",
        lambda have, first, _: find_handoff_position(have, first, lambda _: {}),
    )
    wrong = checked(ran, spark, "holes", HOLES)
    assert wrong.passed is False, wrong.message
    assert sorted(wrong.numbers["keys"]) == ["id=4: missing", "id=5: missing"]


@pytest.mark.sampled
def test_a_sample_looks_up_the_keys_that_it_read_in_a_larger_target(ran: World, spark: SparkSession) -> None:
    """The newest messages decide their keys. The target has more rows than the sample may read."""
    for sink in ("pg", "lake") if FULL else ("pg",):
        result = matches(ran, spark, sink, rows=600)
        assert result.passed, result.message
        assert 0 < result.numbers["rows"] == result.numbers["expected"] < 600
        assert "the target has more rows" in result.numbers["not_compared"]
    newest = max(ran.expected.values(), key=lambda row: (row[2].startswith("m"), row[3]))[0]
    with psycopg.connect(ran.conninfo) as connection:
        ((name,),) = connection.execute("SELECT name FROM target WHERE id = %s", (newest,)).fetchall()
        connection.execute("UPDATE target SET name = 'stale' WHERE id = %s", (newest,))
    try:
        wrong = matches(ran, spark, rows=600)
        assert (wrong.passed, wrong.numbers["keys"]) == (False, [f"id={newest}: name differs"])
    finally:
        with psycopg.connect(ran.conninfo) as connection:
            connection.execute("UPDATE target SET name = %s WHERE id = %s", (name, newest))


def test_a_sample_reads_no_more_than_its_budget(ran: World, spark: SparkSession) -> None:
    few = matches(ran, spark, rows=5_000)
    assert few.passed, few.message
    assert few.numbers["complete"] is True
