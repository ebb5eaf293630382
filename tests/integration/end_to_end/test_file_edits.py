"""Edits of the file of a started pipeline.

Refused before anything runs, or followed without a lost or doubled row.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import clickhouse_connect
import psycopg
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from helpers.pipeline_world import World, clickhouse_database, postgres_database
from psycopg import sql
from pyspark.sql import SparkSession

from headrace.connectors.ledger.factory import open_ledger
from headrace.jobs.run.epoch_writer import EpochWriter
from headrace.jobs.run.events import EpochCommitted, Event, RunMessage, RunResult, Until
from headrace.jobs.run.repair import replay
from headrace.jobs.run.runner import run
from headrace.pipeline.errors import GuaranteeError, PipelineFileError
from headrace.pipeline.file.loader import load_pipeline
from headrace.services import Services

ROWS = 60
"""One a day, from January 1 to February 29, 2024."""
TABLE = """
name: {name}
sources:
  src: {{type: clickhouse, table_name: {database}.{table}, split_rows: 10{more}}}
sinks:
  pg: {{type: postgres, from: src, table: {name}}}
epoch: {{history_rows: 20}}
"""
HYBRID = """
name: {name}
sources:
  src:
    type: hybrid
    primary_key: id
    bounded_sources: [{{source_type: clickhouse, table_name: {database}.{table}}}]
    unbounded_source: {{source_type: kafka, topic: {name}, schema: {{id: int64, day: date32, v: string}}}}
    offset_table: {{}}
sinks:
  pg: {{type: postgres, from: src, table: {name}}}
epoch: {{interval: 0s}}
"""
KAFKA = """
name: {name}
sources:
  a: {{type: kafka, topic: {name}, primary_key: id, schema: {{id: int64, v: string}}}}
sinks:
  pg: {{type: postgres, from: a, table: {name}}}
epoch: {{interval: 0s}}
"""
UNION = 'transforms:\n  both: {{type: sql, sql: "select id, v from a union all select id, v from b"}}\nsinks:'
MONTHS = "partitions: {{column: day, every: month, start: 2024-01, end: 2024-03}}\n"


class Edited:
    """One pipeline whose file the test changes between runs. The table and the servers are shared."""

    def __init__(self, shared: World, folder: Path, name: str, spark: SparkSession) -> None:
        self.shared = shared
        self.folder = folder
        self.name = name
        self.spark = spark
        self.notes: list[str] = []
        self.epochs = 0

    def write(self, text: str, **values: Any) -> Path:
        path = self.folder / f"{self.name}.yaml"
        path.write_text(
            text.format(
                **({"name": self.name, "database": self.shared.database, "table": "h", "more": ""} | values)
            )
        )
        return path

    def run(
        self,
        text: str,
        until: Until = Until.CAUGHT_UP,
        windows: list[str] | None = None,
        *,
        epochs: int | None = None,
        **values: Any,
    ) -> RunResult:
        """Run the file; with `epochs`, stop after so many of them."""
        stop, before = threading.Event(), self.epochs

        def listen(event: Event) -> None:
            if isinstance(event, RunMessage):
                self.notes.append(event.message)
            self.epochs += isinstance(event, EpochCommitted)
            if epochs is not None and self.epochs - before >= epochs:
                stop.set()

        file = load_pipeline(self.write(text, **values))
        return run(
            file,
            self.shared.settings(),
            until=until,
            partitions=windows,
            listener=listen,
            stop=stop,
            spark=self.spark,
        )

    def refused(self, text: str, *expected: str, until: Until = Until.CAUGHT_UP, **values: Any) -> None:
        """The run is refused before an epoch, with the file's name and these words.

        The target keeps its rows.
        """
        rows, epochs = self.rows(), self.epochs
        with pytest.raises(PipelineFileError) as refusal:
            self.run(text, until, **values)
        for one in (f"{self.name}.yaml:", "headrace reset", *expected):
            assert one in str(refusal.value)
        assert (self.rows(), self.epochs) == (rows, epochs)

    def rows(self) -> list[tuple]:
        with psycopg.connect(self.shared.conninfo) as connection:
            return connection.execute(
                sql.SQL("SELECT id, v FROM {} ORDER BY id").format(sql.Identifier(self.name))
            ).fetchall()

    def ids(self) -> list[int]:
        return [row[0] for row in self.rows()]

    def topic(self, name: str | None = None) -> None:
        admin = AdminClient({"bootstrap.servers": self.shared.services.kafka.brokers})
        admin.create_topics([NewTopic(name or self.name, 1, 1)])[name or self.name].result(30)

    def produce(self, *messages: tuple[str, dict[str, Any]], topic: str | None = None) -> None:
        producer = Producer({"bootstrap.servers": self.shared.services.kafka.brokers})
        for op, body in messages:
            producer.produce(topic or self.name, json.dumps(body), partition=0, headers={"dbz.op": op})
        assert producer.flush(30) == 0


@pytest.fixture(scope="module")
def shared(services: Services, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The databases, and the tables `h` and `h2` with 60 rows each."""
    with postgres_database(services) as conninfo, clickhouse_database(services) as database:
        with clickhouse_connect.get_client(
            **services.clickhouse.client_arguments(database=database)
        ) as client:
            for table in ("h", "h2"):
                client.command(
                    f"CREATE TABLE {table} (id Int64, day Date, v String, _kafka_partition Nullable(Int32),"
                    " _kafka_offset Nullable(Int64))"
                    " ENGINE = MergeTree ORDER BY id"
                )
                client.command(
                    f"INSERT INTO {table} SELECT number, toDate('2024-01-01') + number, '{table}', NULL,"
                    f" NULL FROM numbers({ROWS})"
                )
        yield World(services, tmp_path_factory.mktemp("edits"), database, conninfo)


@pytest.fixture
def edited(shared: World, tmp_path: Path, spark: SparkSession) -> Callable[[str], Edited]:
    """Makes a pipeline of the given name."""
    return lambda name: Edited(shared, tmp_path, f"{name}_{shared.database[-8:]}", spark)


def test_another_target_before_the_first_epoch_is_taken(
    edited: Callable[[str], Edited], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run died after it planned the first epoch, so the former target has a record and no row."""
    one = edited("early")

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(EpochWriter, "write", die)
        with pytest.raises(KeyboardInterrupt):
            one.run(TABLE)
    other = TABLE.replace("table: {name}}}", "table: {name}_2}}")
    assert one.run(other).history_complete
    with psycopg.connect(one.shared.conninfo) as connection:
        result = connection.execute(f"SELECT count(*) FROM {one.name}_2".encode()).fetchone()
    assert (one.rows(), result) == ([], (ROWS,))


FILES = """
name: {name}
sources:
  src:
    type: hybrid
    primary_key: id
    bounded_sources: [{{source_type: file, path: {files}, format: json, schema: {{id: int64, v: string}}}}]
    unbounded_source: {{source_type: kafka, topic: {name}, schema: {{id: int64, v: string}}}}
sinks:
  pg: {{type: postgres, from: src, table: {name}}}
epoch: {{interval: 0s, stream_rows: 2}}
"""


class TestSize:
    """Positions stay small, whatever the history was."""

    @pytest.mark.slow  # daily ones: unit/pipeline/protocol/test_file_changes.py for pins, test_growth.py for sizes
    def test_a_history_of_many_files(self, edited: Callable[[str], Edited], tmp_path: Path) -> None:
        """Pins are in the ledger once.

        A live position has none, and replays of history find them all the same.
        """
        one, files = edited("files"), tmp_path / "in"
        files.mkdir()
        for number in range(40):
            (files / f"part-{number:05d}-{number:030d}.json").write_text(
                json.dumps({"id": number, "v": "h"}) + "\n"
            )
        one.topic()
        one.run(FILES, files=files)
        for value in ("a", "b", "c"):
            one.produce(("u", {"id": 1, "v": value}), ("u", {"id": 2, "v": value}))
            one.run(FILES, files=files)
        settings = one.shared.settings()
        ledger = open_ledger(settings)
        state = ledger.state(one.name)
        plans = [row.plan for row in ledger.epochs(one.name)]
        ledger.close()
        assert state is not None
        assert {"pins", "catch_up", "cursor"} & state.position["src"].keys() == set()
        assert state.position["src"]["history"]["complete"]
        assert all(len(json.dumps([plan.start, plan.end])) < 1600 for plan in plans)
        assert len(json.dumps(state.position)) < 500
        replay(
            load_pipeline(one.write(FILES, files=files)), settings, sink="pg", from_epoch=1, spark=one.spark
        )
        assert one.rows() == [(0, "h"), (1, "c"), (2, "c"), *((number, "h") for number in range(3, 40))]


class TestPartitions:
    """A window that was read is not read again, and none is left out."""

    def test_partitions_added_after_an_append(self, edited: Callable[[str], Edited]) -> None:
        """Once, the 60 rows were there twice after this edit, and three times after the next."""
        one = edited("added")
        one.run(TABLE)
        one.refused(TABLE + MONTHS, "was begun without partitions", "Remove `partitions` again")
        one.refused(TABLE + MONTHS.replace("every: month", "every: day"))
        assert one.run(TABLE).epochs == 0
        assert one.ids() == list(range(ROWS))

    def test_windows_cut_in_another_way(self, edited: Callable[[str], Edited]) -> None:
        """Once, `every: month` after one day of `every: day` gave a complete history with half of its rows."""
        one, days = edited("cut"), MONTHS.replace("every: month", "every: day")
        one.run(TABLE + days, windows=["2024-01-01"])
        assert one.ids() == [0]
        one.refused(
            TABLE + MONTHS,
            "Restore the former value: `partitions: {column: day, every: day, start: 2024-01-01",
        )
        one.refused(TABLE, "cannot change any more")
        short = days.replace("end: 2024-03", "end: 2024-01-04")
        assert one.run(TABLE + short).history_complete
        assert one.ids() == list(range(3))
        assert "history now ends at 2024-01-04" in one.notes[-1]
        assert one.run(TABLE + short.replace("01-04", "01-06")).history_complete
        assert one.ids() == list(range(5))

    def test_partitions_added_to_a_live_pipeline(self, edited: Callable[[str], Edited]) -> None:
        """Once, a row that the stream had deleted came back, and an updated one had its old value again."""
        one = edited("live")
        one.topic()
        one.run(HYBRID)
        one.produce(("d", {"id": 5}), ("u", {"id": 6, "day": "2024-01-07", "v": "live"}))
        one.run(HYBRID)
        one.refused(HYBRID + MONTHS, "was begun without partitions")
        one.produce(("u", {"id": 7, "day": "2024-01-08", "v": "live"}))
        assert one.run(HYBRID).caught_up
        rows = dict(one.rows())
        assert (len(rows), 5 in rows, rows[6], rows[7], rows[8]) == (ROWS - 1, False, "live", "live", "h")

    def test_history_extended_under_a_live_stream(self, edited: Callable[[str], Edited]) -> None:
        one, january = edited("longer"), MONTHS.replace("end: 2024-03", "end: 2024-02")
        one.topic()
        with pytest.raises(GuaranteeError, match="29 rows after the last window, which ends at 2024-02-01"):
            one.run(HYBRID + january)
        hybrid = HYBRID.replace("{table}}}]", "{table}, filter: \"day < '2024-02-01'\"}}]")
        one.run(hybrid + january)
        one.produce(("c", {"id": 40, "day": "2024-02-10", "v": "live"}))
        one.run(hybrid + january)
        one.refused(hybrid + MONTHS, "Set `history_end: 2024-02-01` in `partitions`")
        assert one.run(
            hybrid + MONTHS.replace("end: 2024-03", "end: 2024-03, history_end: 2024-02")
        ).caught_up
        assert one.rows() == [*((day, "h") for day in range(31)), (40, "live")]


class TestSources:
    """A position belongs to the source that it was made with, and to no other."""

    def test_a_source_added_renamed_or_moved_to_another_topic(self, edited: Callable[[str], Edited]) -> None:
        """Once, this was a KeyError."""
        one = edited("added_source")
        one.topic()
        one.topic(f"{one.name}b")
        one.produce(("c", {"id": 1, "v": "a"}))
        one.produce(("c", {"id": 2, "v": "b"}), topic=f"{one.name}b")
        one.run(KAFKA)
        two = KAFKA.replace(
            "sinks:",
            "  b: {{type: kafka, topic: {name}b, primary_key: id, schema: {{id: int64, v: string}}}}\n"
            + UNION,
        )
        one.refused(
            two.replace("from: a,", "from: both,"), "source `b`: was added to a pipeline that has begun"
        )
        one.refused(
            KAFKA.replace("  a:", "  c:").replace("from: a,", "from: c,"),
            "was called `a` before",
            "Call it `a` again.",
        )
        one.refused(
            KAFKA.replace("topic: {name}", "topic: {name}b"),
            f"`topic` cannot change from `{one.name}` to `{one.name}b`",
        )
        one.refused(
            KAFKA.replace("primary_key: id, ", ""), "the primary key cannot change from `id` to `none`"
        )
        one.refused(
            KAFKA.replace("table: {name}", "table: {name}x"), f"`table` cannot change from `{one.name}`"
        )
        one.produce(("c", {"id": 3, "v": "a"}))
        assert one.run(KAFKA.replace("from: a,", "from: a, on_conflict: nothing,")).caught_up
        assert one.rows() == [(1, "a"), (3, "a")]
        assert (
            "`pg` changed: the next epochs follow the new file, rows of earlier epochs stay as they were"
            " written"
        ) in one.notes

    def test_a_source_removed_and_put_back(self, edited: Callable[[str], Edited]) -> None:
        """It goes on where it was: no message is lost, none comes twice."""
        one = edited("put_back")
        both = KAFKA.replace(
            "sinks:",
            "  b: {{type: kafka, topic: {name}b, primary_key: id, schema: {{id: int64, v: string}}}}\n"
            + UNION,
        )
        both = both.replace("from: a,", "from: both,")
        for topic in (one.name, f"{one.name}b"):
            one.topic(topic)
        one.produce(("c", {"id": 1, "v": "b"}), topic=f"{one.name}b")
        one.run(both)
        one.produce(("d", {"id": 1}), ("c", {"id": 2, "v": "b"}), topic=f"{one.name}b")
        one.produce(("c", {"id": 3, "v": "a"}))
        one.run(KAFKA)
        assert one.rows() == [(1, "b"), (3, "a")]
        assert any("source `b` is no longer in the file" in note for note in one.notes)
        assert one.run(both).caught_up
        assert one.rows() == [(2, "b"), (3, "a")]

    def test_history_under_way_keeps_its_filter_and_its_table(self, edited: Callable[[str], Edited]) -> None:
        """Once, another filter said that the pinned copy was changed, and another table was read by no one."""
        one = edited("filtered")
        one.run(TABLE, epochs=1)
        assert len(one.ids()) == 20
        one.refused(
            TABLE, "`filter` cannot change from nothing to `id % 2 = 0`", more=", filter: 'id % 2 = 0'"
        )
        one.refused(TABLE, "`table_name` cannot change", table="h2")
        assert one.run(TABLE.replace("split_rows: 10", "split_rows: 7")).history_complete
        assert one.ids() == list(range(ROWS))
        one.refused(TABLE, "`table_name` cannot change", table="h2")
        assert {row[1] for row in one.rows()} == {"h"}

    def test_a_bounded_phase_added_to_a_live_pipeline(self, edited: Callable[[str], Edited]) -> None:
        """Once, this was an IndexError."""
        one = edited("phase")
        one.topic()
        one.run(HYBRID)
        two = HYBRID.replace(
            "bounded_sources: [", "bounded_sources: [{{source_type: clickhouse, table_name: {database}.h2}}, "
        )
        one.refused(two, "`bounded_sources` cannot change")
        one.refused(
            HYBRID.replace("offset_table: {{}}", "handoff_lag: 1h"),
            "the fence between history and stream was fixed",
        )
        assert one.run(HYBRID).caught_up
