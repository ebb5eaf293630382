"""No row is lost or duplicated with gaps in offsets, several topics in a table, or missing or late times."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, LiteralString

import clickhouse_connect
import psycopg
import pytest
from confluent_kafka import Producer
from helpers.kafka_log import await_marker
from helpers.pipeline_world import World
from pyspark.sql import SparkSession

from headrace.connectors.clickhouse.source import ClickHouseTable
from headrace.jobs.run.events import EpochCommitted, Event, RunResult, Until
from headrace.jobs.run.runner import run
from headrace.pipeline.errors import DataError, GuaranteeError, SchemaError, TargetError
from headrace.pipeline.file.loader import load_pipeline
from headrace.services import Services

HYBRID = """
name: {name}
sources:
  src:
    type: hybrid
    bounded_sources: [{{source_type: clickhouse, table_name: {database}.h, split_rows: {split_rows}}}]
    unbounded_source: {{source_type: kafka, topic: {topic}, schema: {{{schema}}}}}
    {handoff}
sinks:
  rows: {{type: postgres, from: src, table: target}}
  {more}
epoch: {{interval: 0s, history_rows: {split_rows}}}
"""
OFFSETS = "_kafka_partition Nullable(Int32), _kafka_offset Nullable(Int64)"
KEYED = "keyed: {type: postgres, from: src, table: keyed, primary_key: id}"


@dataclass
class Case:
    """A table `h`, a topic, and a pipeline from both into a table without a key."""

    world: World
    topic: str
    spark: SparkSession

    def table(self, columns: str, *inserts: str) -> None:
        """Creates the table; inserts are SELECTs."""
        self.ask(f"CREATE TABLE h ({columns}) ENGINE = MergeTree ORDER BY id")
        for insert in inserts:
            self.ask(f"INSERT INTO h SELECT {insert}")

    def ask(self, query: str) -> Any:
        with clickhouse_connect.get_client(
            **self.world.services.clickhouse.client_arguments(database=self.world.database)
        ) as client:
            return client.command(query)

    def produce(self, rows: list[dict[str, Any]], partition: int = 0, **options: str) -> None:
        producer = Producer(
            {"bootstrap.servers": self.world.services.kafka.brokers, "acks": "all", **options}
        )
        if options:
            producer.init_transactions()
            producer.begin_transaction()
        for row in rows:
            producer.produce(self.topic, json.dumps(row), partition=partition)
        assert producer.flush(30) == 0
        if options:
            with await_marker(self.world.services.kafka.brokers, self.topic, partition):
                producer.commit_transaction()

    def run(
        self,
        handoff: str,
        schema: str = "id: int64, v: string",
        *,
        more: str = "",
        split_rows: int = 1000,
        **options: Any,
    ) -> RunResult:
        values = {
            "name": self.world.name,
            "database": self.world.database,
            "topic": self.topic,
            "handoff": handoff,
            "schema": schema,
        }
        self.world.file.write_text(HYBRID.format(**values, more=more, split_rows=split_rows))
        return run(
            load_pipeline(self.world.file),
            self.world.settings(),
            until=Until.CAUGHT_UP,
            spark=self.spark,
            **options,
        )

    def ids(self, table: LiteralString = "target") -> list[int]:
        with psycopg.connect(self.world.conninfo) as connection:
            return [
                row[0] for row in connection.execute("SELECT id FROM " + table + " ORDER BY id").fetchall()
            ]

    def copies(self) -> list[str]:
        return [name for name in str(self.ask("SHOW TABLES")).split() if name.startswith("_headrace_")]


@pytest.fixture
def case(
    services: Services, pg: str, ch_db: str, tmp_path: Path, topic: Callable[..., str], spark: SparkSession
) -> Case:
    return Case(World(services, tmp_path, ch_db, pg), topic(2), spark)


def test_messages_that_the_table_lacks_below_its_largest_offset(case: Case) -> None:
    """The stream starts at the first of them.

    The marker of a transaction is an offset that no table has, and no reason to read again.
    """
    case.produce([{"id": number, "v": "s"} for number in range(30)])
    case.produce(
        [{"id": 100 + number, "v": "t"} for number in range(5)], 1, **{"transactional.id": case.topic}
    )
    case.produce([{"id": 105 + number, "v": "t"} for number in range(5)], 1)
    case.table(
        f"id Int64, v String, {OFFSETS}",
        "number, 's', 0, number FROM numbers(10)",
        "number + 15, 's', 0, number + 15 FROM numbers(5)",
        "100 + number, 't', 1, number FROM numbers(5)",
        "105 + number, 't', 1, number + 6 FROM numbers(4)",
    )
    plans: list[EpochCommitted] = []
    case.run(
        "offset_table: {}",
        more=KEYED,
        listener=lambda event: plans.append(event) if isinstance(event, EpochCommitted) else None,
    )
    assert case.ids() == case.ids("keyed") == [*range(30), *range(100, 110)]
    assert plans[0].plan.start["src"]["fence"]["offsets"] == {"0": 10, "1": 10}


def test_rows_of_another_topic_are_history_whatever_their_offsets(case: Case) -> None:
    case.table(
        f"id Int64, v String, topic LowCardinality(Nullable(String)), {OFFSETS}",
        f"number, 'mine', '{case.topic}', 0, number FROM numbers(10)",
        "1000 + number, 'other', 'other', number % 3, number FROM numbers(100)",
        "2000 + number, 'none', NULL, 0, number FROM numbers(5)",
    )
    case.produce([{"id": number, "v": "mine"} for number in range(12)])
    case.run("offset_table: {topic_column: topic}")
    assert case.ids() == [*range(12), *range(1000, 1100), *range(2000, 2005)]


def test_offsets_that_cannot_be_the_topics_are_refused_and_nothing_stays_pinned(case: Case) -> None:
    case.table(
        f"id Int64, v String, {OFFSETS}", "number, 'x', number % 3, intDiv(number, 3) FROM numbers(30)"
    )
    with pytest.raises(
        TargetError, match=r"history has rows of partition 2, topic .* has only partition 0, 1"
    ):
        case.run("offset_table: {}")
    case.ask("ALTER TABLE h DELETE WHERE _kafka_partition = 2 SETTINGS mutations_sync = 2")
    case.ask("INSERT INTO h SELECT 100 + number, 'x', 0, number FROM numbers(2)")
    with pytest.raises(GuaranteeError, match=r"more than once \(rows too many by partition 0: 2\)"):
        case.run("offset_table: {}")
    assert case.copies() == []


def test_rows_without_a_time_and_late_rows_under_a_cursor(case: Case) -> None:
    """History has rows without a time.

    The backfill takes several epochs; what is produced meanwhile cannot be in the pinned history.
    """
    case.table(
        "id Int64, at Nullable(DateTime64(6, 'UTC')), v String",
        "number, if(number % 10 = 0, NULL, now64(6) - 7200), 'h' FROM numbers(100)",
    )
    late = {"at": (datetime.now(UTC) - timedelta(minutes=30)).isoformat(), "v": "late"}
    done = False

    def listener(event: Event) -> None:
        nonlocal done
        if isinstance(event, EpochCommitted) and not done:
            done = True
            case.produce([{"id": 2000, **late}, {"id": 2001, "at": None, "v": "none"}])

    handoff, schema = (
        "handoff_lag: 1h\n    cursor: {column: at, allowed_lateness: 10m}",
        "id: int64, at: timestamp, v: string",
    )
    case.run(handoff, schema, split_rows=50, listener=listener)
    assert case.ids() == [*range(100), 2000, 2001]
    case.produce([{"id": 2002, **late}])
    case.run(handoff, schema, split_rows=50)
    assert case.ids()[-3:] == [2000, 2001, 2002]


def test_a_row_of_the_overlap_without_a_time_is_refused_where_history_may_have_it(case: Case) -> None:
    case.table("id Int64, at Nullable(DateTime64(6, 'UTC')), v String", "number, NULL, 'h' FROM numbers(3)")
    case.produce([{"id": 1, "at": None, "v": "h"}])
    handoff, schema = (
        "handoff_lag: 1h\n    cursor: {column: at, allowed_lateness: 10m}",
        "id: int64, at: timestamp, v: string",
    )
    with pytest.raises(
        DataError,
        match="partition 0, offset 0: cursor column `at` is NULL, and history has rows with NULL too",
    ):
        case.run(handoff, schema)
    assert case.ids() == [0, 1, 2]


def test_history_in_types_that_the_stream_has_no_room_for(case: Case) -> None:
    case.table(
        f"id UInt64, price Float64, at DateTime64(6), {OFFSETS}",
        "18446744073709551615 - number, 1.99, now64(6), NULL, NULL FROM numbers(1)",
    )
    with pytest.raises(
        SchemaError, match="`price` is float64 in history and int64 in the stream, `at` is timestamp"
    ):
        case.run("offset_table: {}", "id: int64, price: int64, at: date32")
    with pytest.raises(DataError, match="column `id` of history has 18446744073709551615, which is no int64"):
        case.run("offset_table: {}", "id: int64, price: float64")


def test_a_copy_that_a_dead_start_left_is_dropped(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    case.table(f"id Int64, v String, {OFFSETS}", "number, 'h', NULL, NULL FROM numbers(50)")

    class DeathError(BaseException):
        pass

    real = ClickHouseTable.create_snapshot

    def dying(*arguments: Any) -> Any:
        real(*arguments)
        raise DeathError

    with monkeypatch.context() as patched:
        patched.setattr(ClickHouseTable, "create_snapshot", dying)
        with pytest.raises(DeathError):
            case.run("offset_table: {}")
    (orphan,) = case.copies()
    case.run("offset_table: {}")
    (copy,) = case.copies()
    assert copy != orphan
    case.run("offset_table: {}")
    assert case.copies() == [copy]
    assert case.ids() == list(range(50))
