"""The handoff from history to stream: no row is lost or duplicated."""

from __future__ import annotations

import json
import random
from datetime import UTC, date, datetime, timedelta

import clickhouse_connect
import psycopg
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from helpers.pipeline_world import FROM_TOPIC, HISTORY, World
from pyspark.sql import SparkSession

from headrace.jobs.run.events import EpochCommitted, Event, Until
from headrace.jobs.run.runner import run
from headrace.pipeline.errors import GuaranteeError, PipelineFileError, RetentionError, UserError
from headrace.pipeline.file.loader import load_pipeline
from headrace.pipeline.protocol.epochs import Phase

LAGGING = """
name: {name}
sources:
  src:
    type: hybrid
    {key}
    bounded_sources: [{{source_type: clickhouse, table_name: {database}.lagging}}]
    unbounded_source: {{source_type: kafka, topic: {topic}, schema: {{id: int64, at: timestamp, name: string}}}}
    {handoff}
sinks:
  pg: {{type: postgres, from: src, table: target}}
epoch: {{interval: 0s}}
"""


def ids(world: World) -> list[int]:
    with psycopg.connect(world.conninfo) as connection:
        return [row[0] for row in connection.execute("SELECT id FROM target ORDER BY id").fetchall()]


def test_rows_that_reach_the_table_during_the_backfill(world: World, spark: SparkSession) -> None:
    """They came from the topic, behind the fence.

    The pinned history leaves them out, the stream brings them once.
    """
    world.write_file_without_spark()
    world.enlarge_epochs()
    added = False

    def listener(event: Event) -> None:
        nonlocal added
        if isinstance(event, EpochCommitted) and not added:
            added = True
            row = (10**6, date(2024, 2, 10), "late", 1)
            world.produce([("c", row, 1)])
            world.expected[row[0]] = row
            with clickhouse_connect.get_client(
                **world.services.clickhouse.client_arguments(database=world.database)
            ) as client:
                names = ["id", "day", "name", "amount", "_kafka_partition", "_kafka_offset"]
                client.insert("history", [(*row, 1, 10**6)], column_names=names)

    result = run(
        load_pipeline(world.file), world.settings(), until=Until.CAUGHT_UP, listener=listener, spark=spark
    )
    assert added
    assert result.caught_up
    world.check_without_spark()


def test_windows_in_any_order_and_the_stream_only_after_the_last(world: World, spark: SparkSession) -> None:
    world.write_file_without_spark()
    world.enlarge_epochs()
    text = world.file.read_text()
    world.file.write_text(text.replace("partitions: {", "partitions: {any_order: true, "))
    file, settings = load_pipeline(world.file), world.settings()
    first = run(file, settings, until=Until.CAUGHT_UP, partitions=["2024-02-01"], spark=spark)
    assert not first.history_complete
    assert set(first.phases) == {Phase.HISTORY}
    with pytest.raises(UserError, match="is not a partition of"):
        run(file, settings, until=Until.HISTORY, partitions=["2024-03-01"], spark=spark)
    run(file, settings, until=Until.CAUGHT_UP, partitions=["2024-01-01"], spark=spark)
    assert run(file, settings, until=Until.CAUGHT_UP, spark=spark).caught_up
    world.check_without_spark()


def test_history_alone_and_the_stream_after_it(world: World, spark: SparkSession) -> None:
    """History never reads the topic, and the stream reads no row that history holds.

    A deleted row that history still holds stays deleted.
    """
    world.write_file_without_spark()
    world.enlarge_epochs()
    world.produce([("d", (5, date(2024, 1, 6), "deleted", 0), 1)])
    world.expected.pop(5, None)
    file, settings = load_pipeline(world.file), world.settings()
    assert run(file, settings, until=Until.HISTORY, spark=spark).history_complete
    assert world.in_postgres()[-1][0] == HISTORY - 1
    assert len(world.in_postgres()) == HISTORY

    seen: list[EpochCommitted] = []
    run(
        file,
        settings,
        until=Until.CAUGHT_UP,
        listener=lambda event: seen.append(event) if isinstance(event, EpochCommitted) else None,
        spark=spark,
    )
    begun = next(event.plan for event in seen if event.plan.phase is not Phase.HISTORY)
    assert begun.start["src"]["fence"]["offsets"] == {"0": FROM_TOPIC, "1": 0}
    assert begun.end["src"]["began"]["offsets"] == {"0": FROM_TOPIC, "1": 0}
    world.check_without_spark()


def test_retention_that_passed_the_fence_stops_with_numbers(world: World, spark: SparkSession) -> None:
    world.write_file_without_spark()
    world.enlarge_epochs()
    file, settings = load_pipeline(world.file), world.settings()
    run(file, settings, until=Until.HISTORY, partitions=["2024-01-01"], spark=spark)
    admin = AdminClient({"bootstrap.servers": world.services.kafka.brokers})
    for done in admin.delete_records([TopicPartition(world.name, 0, FROM_TOPIC + 50)]).values():
        done.result()
    with pytest.raises(RetentionError, match=f"fence {FROM_TOPIC}, earliest {FROM_TOPIC + 50}"):
        run(file, settings, until=Until.CAUGHT_UP, spark=spark)


class Lagging:
    """A table without offsets that is fed from its topic, and lags it."""

    def __init__(self, world: World, *, key: bool, handoff: str) -> None:
        self.world = world
        self.now = datetime.now(UTC).replace(microsecond=0)
        values = {
            "name": f"l{world.name}",
            "database": world.database,
            "topic": world.name,
            "handoff": handoff,
        }
        world.file.write_text(LAGGING.format(key="primary_key: id" if key else "", **values))
        with clickhouse_connect.get_client(
            **world.services.clickhouse.client_arguments(database=world.database)
        ) as client:
            client.command(
                "CREATE TABLE lagging (id Int64, at DateTime64(6, 'UTC'), name String) ENGINE = MergeTree"
                " ORDER BY id"
            )
        admin = AdminClient({"bootstrap.servers": world.services.kafka.brokers})
        ends = {0: FROM_TOPIC, 1: 0}
        for partition in ends:  # the world's own messages are not of this pipeline
            for done in admin.delete_records([TopicPartition(world.name, partition, -1)]).values():
                done.result()

    def table(self, rows: list[tuple[int, datetime, str]]) -> None:
        with clickhouse_connect.get_client(
            **self.world.services.clickhouse.client_arguments(database=self.world.database)
        ) as client:
            client.insert("lagging", rows, column_names=["id", "at", "name"])

    def topic(self, rows: list[tuple[int, datetime, str]], arrived: datetime | None = None) -> None:
        """Rows on the topic; `arrived` is the broker's time, their own time if not given."""
        producer = Producer({"bootstrap.servers": self.world.services.kafka.brokers})
        for key, at, name in rows:
            body = json.dumps({"id": key, "at": at.isoformat(), "name": name})
            producer.produce(
                self.world.name, body, partition=0, timestamp=int((arrived or at).timestamp() * 1000)
            )
        assert producer.flush(30) == 0


def test_a_cursor_column_with_whole_seconds_in_the_table(world: World, spark: SparkSession) -> None:
    """Rows of the second that the cursor lies in are on one side, although their messages have microseconds."""
    lagging = Lagging(
        world, key=False, handoff="handoff_lag: 1h\n    cursor: {column: at, allowed_lateness: 5s}"
    )
    with clickhouse_connect.get_client(
        **world.services.clickhouse.client_arguments(database=world.database)
    ) as client:
        client.command("DROP TABLE lagging")
        client.command(
            "CREATE TABLE lagging (id Int64, at DateTime('UTC'), name String) ENGINE = MergeTree ORDER BY id"
        )
    start = lagging.now - timedelta(seconds=15)
    rows = [(number, start + timedelta(milliseconds=10 * number), "n") for number in range(6_000)]
    lagging.topic(rows)
    lagging.table([(number, at.replace(microsecond=0), name) for number, at, name in rows])
    run(load_pipeline(world.file), world.settings(), until=Until.CAUGHT_UP, spark=spark)
    assert ids(world) == list(range(6_000))


def test_a_table_that_lags_its_topic_is_caught_up_by_time(world: World, spark: SparkSession) -> None:
    """The topic holds everything, the table all but the last ten minutes.

    The fence lies an hour back, so nothing is missing.
    """
    lagging = Lagging(world, key=True, handoff="handoff_lag: 1h")
    rows = [(number, lagging.now - timedelta(minutes=120 - number), f"n{number}") for number in range(120)]
    lagging.topic(rows)
    lagging.table([row for row in rows if row[1] < lagging.now - timedelta(minutes=10)])
    assert run(load_pipeline(world.file), world.settings(), until=Until.CAUGHT_UP, spark=spark).caught_up
    assert ids(world) == list(range(120))


def test_late_rows_and_ties_at_the_cursor_of_an_appending_sink(world: World, spark: SparkSession) -> None:
    """Rows at or below the cursor are history's, rows above it the stream's.

    None is there twice, none is missing.
    """
    lagging = Lagging(
        world, key=False, handoff="handoff_lag: 1h\n    cursor: {column: at, allowed_lateness: 20m}"
    )
    rows = [(number, lagging.now - timedelta(minutes=120 - number), f"n{number}") for number in range(120)]
    rows += [(1000 + number, lagging.now - timedelta(minutes=20), "tie") for number in range(5)]
    random.Random(3).shuffle(rows)
    lagging.topic(rows)
    lagging.table(rows[: len(rows) // 2])
    lagging.table([row for row in rows[len(rows) // 2 :] if row[1] < lagging.now - timedelta(minutes=5)])
    assert run(load_pipeline(world.file), world.settings(), until=Until.CAUGHT_UP, spark=spark).caught_up
    assert ids(world) == sorted(row[0] for row in rows)


def test_an_overlap_into_a_sink_without_a_key_is_refused(world: World) -> None:
    Lagging(world, key=False, handoff="handoff_lag: 1h")
    with pytest.raises(PipelineFileError) as refused:
        load_pipeline(world.file)
    (problem,) = refused.value.problems
    assert isinstance(problem, GuaranteeError)
    assert problem.place is not None
    assert problem.place.line == 11


def test_a_sink_without_a_key_holds_every_row_once_by_offsets(world: World, spark: SparkSession) -> None:
    """The cut by offsets is exact: it needs no key."""
    text = world.file.read_text().replace("    primary_key: id\n", "").replace("  lake:", "  #lake:")
    world.file.write_text(text)
    world.enlarge_epochs()
    before = HISTORY
    with pytest.raises(
        GuaranteeError, match="key"
    ):  # the world's own messages hold deletes, which an append cannot do
        run(load_pipeline(world.file), world.settings(), until=Until.CAUGHT_UP, spark=spark)
    assert len(world.in_postgres()) >= before
