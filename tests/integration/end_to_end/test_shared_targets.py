"""Targets with rows of other pipelines, and rows that no source has.

Windows, shared targets, filters that ask for columns, resets.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import clickhouse_connect
import psycopg
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from helpers.depth import with_slow
from helpers.pipeline_world import World
from pyspark.sql import SparkSession

from headrace.jobs.run import interventions
from headrace.jobs.run.events import Until
from headrace.jobs.run.repair import replay
from headrace.jobs.run.runner import run
from headrace.jobs.run.session import RunSession
from headrace.pipeline.errors import (
    GuaranteeError,
    PipelineFileError,
    PipelineStateError,
    SinkStateError,
    UserError,
)
from headrace.pipeline.file.loader import PipelineFile, load_pipeline


@pytest.fixture
def world(empty_world: World) -> World:
    """The targets of one test. Its messages have a topic of their own."""
    return empty_world


@pytest.fixture
def topic(world: World, request: pytest.FixtureRequest) -> str:
    name = f"{world.name}_{abs(hash(request.node.name)) % 10**6}"
    admin = AdminClient({"bootstrap.servers": world.services.kafka.brokers})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)
    return name


@pytest.fixture
def shared_spark(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    monkeypatch.setattr(RunSession, "stop", lambda _: None)
    monkeypatch.setattr("headrace.jobs.run.session.start_session", lambda *_: spark)
    return spark


def produce(world: World, topic: str, *rows: tuple[str, dict[str, Any]]) -> None:
    producer = Producer({"bootstrap.servers": world.services.kafka.brokers, "enable.idempotence": True})
    for op, body in rows:
        producer.produce(topic, json.dumps(body), partition=0, headers={"dbz.op": op})
    assert producer.flush(30) == 0


def pipeline(world: World, name: str, text: str, **values: str) -> PipelineFile:
    path = Path(world.folder) / f"{name}.yaml"
    path.write_text(text.format(name=name, database=world.database, folder=world.folder, **values))
    return load_pipeline(path)


def rows(world: World, table: str, columns: str = "id") -> list[Any]:
    with psycopg.connect(world.conninfo) as connection:
        return connection.execute(f"SELECT {columns} FROM {table} ORDER BY 1".encode()).fetchall()


WINDOWS = """
name: {name}
sources:
  src:
    type: hybrid
    primary_key: id
    bounded_sources: [{{source_type: clickhouse, table_name: {database}.{name}_h{filter}}}]
    unbounded_source: {{source_type: kafka, topic: {topic}, schema: {{id: int64, day: date32}}}}
    {cut}
sinks:
  pg: {{type: postgres, from: src, table: {name}_t}}
partitions: {{column: day, every: month, start: 2024-01, end: 2024-06, history_end: {end}}}
epoch: {{interval: 0s}}
"""


@pytest.mark.parametrize("cut", with_slow(("handoff_lag: 1h",), ("offset_table: {}", "handoff_lag: 1h")))
def test_rows_that_neither_a_window_nor_the_stream_has_are_refused(
    world: World, spark: SparkSession, topic: str, cut: str
) -> None:
    """Once, rows after `history_end` and below the fence were lost, and so were rows without a day.

    Every check was green.
    """
    days = ["2024-01-10", "2024-02-10", "2024-03-10", "2024-04-11", None, "2024-04-20"]
    name = topic.replace("-", "_")
    produce(world, topic, *[("c", {"id": n, "day": day}) for n, day in enumerate(days)])
    with clickhouse_connect.get_client(
        **world.services.clickhouse.client_arguments(database=world.database)
    ) as client:
        kept = "id Int64, day Nullable(Date), _kafka_partition Nullable(Int32), _kafka_offset Nullable(Int64)"
        client.command(f"CREATE TABLE {name}_h ({kept}) ENGINE = MergeTree ORDER BY id")
        for n, day in enumerate(days[:5]):
            client.command(
                f"INSERT INTO {name}_h VALUES ({n}, {'NULL' if day is None else repr(day)}, 0, {n})"
            )
    settings = world.settings()

    def again(end: str, more: str = "") -> None:
        file = pipeline(world, name, WINDOWS, topic=topic, cut=cut, end=end, filter=more)
        run(file, settings, until=Until.CAUGHT_UP, spark=spark)

    with pytest.raises(GuaranteeError, match="1 row with NULL in `day`") as refused:
        again("2024-03-01")
    assert "`filter: day IS NOT NULL`" in (refused.value.hint or "")
    there = ", filter: day IS NOT NULL"
    with pytest.raises(
        GuaranteeError, match="2 rows after the last window, which ends at 2024-03-01"
    ) as refused:
        again("2024-03-01", there)
    assert "Set `history_end` in `partitions` to 2024-04-12 or later" in (refused.value.hint or "")
    again("2024-05-01", there)
    lost = (
        [4] if "offset" in cut else []
    )  # left out by the user; the stream of a lag reads the topic from its beginning
    assert [row[0] for row in rows(world, f"{name}_t")] == [n for n in range(6) if n not in lost]


def test_files_without_a_day_are_refused(world: World, spark: SparkSession) -> None:
    (world.folder / "days.csv").write_text("id,day\n1,2024-01-05\n2,\n3,2025-01-01\n")
    text = """
name: {name}
sources:
  src:
    {{type: file, path: {folder}/days.csv, format: csv, mode: bounded, null_value: "", primary_key: id, schema: {{id: int64, day: date32}}{more}}}
sinks:
  pg: {{type: postgres, from: src, table: days}}
partitions: {{column: day, every: month, start: 2024-01, end: 2024-03}}
"""
    with pytest.raises(GuaranteeError, match="1 row with NULL in `day`"):
        run(pipeline(world, "days", text, more=""), world.settings(), until=Until.HISTORY, spark=spark)
    run(
        pipeline(world, "days", text, more=", filter: day IS NOT NULL"),
        world.settings(),
        until=Until.HISTORY,
        spark=spark,
    )
    assert rows(world, "days") == [(1,)]


SHARED = """
name: {name}
sources: {{src: {{type: kafka, topic: {topic}, primary_key: id, schema: {{id: int64, v: int64}}}}}}
transforms: {{t: {{type: sql, sql: "select * from src where {where}"}}}}
sinks: {{out: {sink}}}
epoch: {{interval: 0s}}
"""


@pytest.mark.parametrize("kind", with_slow(("delta",), ("postgres", "delta")))
def test_pipelines_that_share_a_target_leave_each_others_rows(
    world: World, shared_spark: SparkSession, topic: str, kind: str
) -> None:
    """Once, a filter deleted the keys of the other pipeline.

    A reset of one emptied the Delta table of both.
    """
    sink = {
        "postgres": "{type: postgres, from: t, table: shared_one, share: true}",
        "delta": "{type: delta, from: t, path: %s, share: true}",
    }
    target = sink[kind].replace("%s", f"{world.folder}/shared")
    settings, spark = world.settings(), shared_spark

    def file(name: str, where: str) -> PipelineFile:
        return pipeline(world, f"{name}_{kind}", SHARED, topic=topic, where=where, sink=target)

    def read_target_ids() -> list[int]:
        if kind == "postgres":
            return [row[0] for row in rows(world, "shared_one")]
        return sorted(
            row["id"] for row in spark.read.format("delta").load(f"{world.folder}/shared").collect()
        )

    with pytest.raises(
        (GuaranteeError, PipelineFileError),
        match=r"`t` \(WHERE v % 2 = 0\) leaves out is a delete of its key",
    ):
        run(file("a", "v % 2 = 0"), settings, until=Until.CAUGHT_UP, spark=spark)
    a, b = file("a", "id % 2 = 0"), file("b", "id % 2 = 1")
    produce(world, topic, *[("c", {"id": n, "v": n}) for n in range(6)])
    run(a, settings, until=Until.CAUGHT_UP, spark=spark)
    run(b, settings, until=Until.CAUGHT_UP, spark=spark)
    assert read_target_ids() == [0, 1, 2, 3, 4, 5]
    produce(world, topic, ("d", {"id": 1}), ("d", {"id": 2}))
    run(a, settings, until=Until.CAUGHT_UP, spark=spark)
    assert read_target_ids() == [0, 1, 3, 4, 5]
    with pytest.raises(UserError, match=f"pipeline b_{kind} writes the target too") as refused:
        interventions.reset(a, settings, empty=True)
    assert "--keep-targets" in (refused.value.hint or "")
    run(a, settings, until=Until.CAUGHT_UP, spark=spark)
    run(b, settings, until=Until.CAUGHT_UP, spark=spark)
    assert read_target_ids() == [0, 3, 4, 5]


ASKS = """
name: {name}
sources: {{src: {{type: kafka, topic: {topic}, primary_key: id, schema: {{id: int64, region: string, ver: int64}}}}}}
transforms:
  versioned: {{type: sql, sql: "select * from src where ver is not null"}}
  regional: {{type: sql, sql: "select * from src where region is not null"}}
sinks:
  newest: {{type: postgres, from: versioned, table: {name}_newest, version_column: ver}}
  by_id: {{type: postgres, from: regional, table: {name}_by_id}}
  by_both: {{type: postgres, from: regional, table: {name}_by_both, primary_key: "id, region"}}
epoch: {{interval: 0s}}
"""


def test_a_column_that_is_not_in_every_key_leaves_no_row_out_for_good(
    world: World, spark: SparkSession, topic: str
) -> None:
    """Once, `ver IS NOT NULL` kept deletes from the sink that has `ver` as version, and the key of one sink counted at another."""
    name, settings = topic.replace("-", "_"), world.settings()
    file = pipeline(world, name, ASKS, topic=topic)
    produce(world, topic, *[("c", {"id": n, "region": "eu", "ver": 1}) for n in range(3)])
    run(file, settings, until=Until.CAUGHT_UP, spark=spark)
    produce(world, topic, ("d", {"id": 0, "region": "eu"}), ("u", {"id": 1, "region": None, "ver": 2}))
    run(file, settings, until=Until.CAUGHT_UP, spark=spark)
    assert rows(world, f"{name}_newest") == [(1,), (2,)]
    assert rows(world, f"{name}_by_id") == [(2,)]
    assert rows(world, f"{name}_by_both") == [(1,), (2,)]  # (1, NULL) is another row, and no key


APPENDED = """
name: {name}
sources: {{src: {{type: kafka, topic: {topic}, schema: {{id: int64}}}}}}
sinks:
  pg: {{type: postgres, from: src, table: {name}_t}}
  ice: {{type: iceberg, from: src, table_name: db.{name}, warehouse: {folder}/warehouse}}
epoch: {{interval: 0s}}
"""


def test_a_reset_doubles_no_rows_and_leads_somewhere(
    world: World, shared_spark: SparkSession, topic: str
) -> None:
    """Once, an Iceberg table without a key could be kept and got all rows twice.

    Beside a Postgres table nothing was possible.
    """
    name, settings, spark = topic.replace("-", "_"), world.settings(), shared_spark
    file = pipeline(world, name, APPENDED, topic=topic)
    produce(world, topic, ("c", {"id": 1}), ("c", {"id": 2}))
    run(file, settings, until=Until.CAUGHT_UP, spark=spark)
    for empty, sink in ((False, "pg"), (True, "ice")):
        with pytest.raises(GuaranteeError, match="its target has 2 rows") as refused:
            interventions.reset(file, settings, empty=empty)
        assert refused.value.node == sink
        assert f"headrace reset {file.path} --empty-targets" in (refused.value.hint or "")
        run(file, settings, until=Until.CAUGHT_UP, spark=spark)
    from headrace.connectors.iceberg.catalog import WarehouseTable

    table = WarehouseTable(f"{world.folder}/warehouse", f"db.{name}", "ice").path(spark)
    spark.sql(f"DROP TABLE {table}")
    interventions.reset(file, settings, empty=True)
    run(file, settings, until=Until.CAUGHT_UP, spark=spark)
    assert rows(world, f"{name}_t") == [(1,), (2,)]
    assert spark.table(table).count() == 2


SKIPPED = """
name: {name}
sources: {{src: {{type: kafka, topic: {topic}, schema: {{id: int64}}}}}}
sinks: {{pg: {{type: postgres, from: src, table: {name}_t}}}}
epoch: {{interval: 0s}}
"""


def test_a_skipped_epoch_leads_to_a_reset_where_there_is_no_key(
    world: World, shared_spark: SparkSession, topic: str
) -> None:
    """Once, the hint of `replay` was to empty the target and to write the epochs after the skipped one alone."""
    name, settings, spark = topic.replace("-", "_"), world.settings(), shared_spark
    file = pipeline(world, name, SKIPPED, topic=topic)
    with psycopg.connect(world.conninfo, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE {name}_t (id bigint CHECK (id <> 2))".encode())
        produce(world, topic, ("c", {"id": 1}))
        run(file, settings, until=Until.CAUGHT_UP, spark=spark)
        produce(world, topic, ("c", {"id": 2}))
        with pytest.raises(UserError, match="violates check constraint"):
            run(file, settings, until=Until.CAUGHT_UP, spark=spark)
        interventions.skip_open(file, settings)
        connection.execute(f"ALTER TABLE {name}_t DROP CONSTRAINT {name}_t_id_check".encode())
    with pytest.raises(SinkStateError, match="it has no key and its target holds 1 rows") as refused:
        replay(file, settings, sink="pg", from_epoch=2, spark=spark)
    assert f"headrace reset {file.path} --empty-targets" in (refused.value.hint or "")
    interventions.reset(file, settings, empty=True)
    run(file, settings, until=Until.CAUGHT_UP, spark=spark)
    assert rows(world, f"{name}_t") == [(1,), (2,)]


MONTHS = """
name: {name}
sources: {{src: {{type: clickhouse, table_name: {database}.moved, primary_key: id}}}}
sinks:
  last: {{type: postgres, from: src, table: moved_last}}
  newest: {{type: postgres, from: src, table: moved_newest, version_column: day}}
partitions: {{column: day, every: month, start: 2024-01, end: 2024-03}}
"""


def test_a_partition_after_a_later_one_is_refused(world: World, spark: SparkSession) -> None:
    """The last row that is written wins, so a key in both would keep the row of the earlier partition."""
    with clickhouse_connect.get_client(
        **world.services.clickhouse.client_arguments(database=world.database)
    ) as client:
        client.command(
            "CREATE TABLE moved (id Int64, day Date, v Int64) ENGINE = MergeTree ORDER BY (id, day)"
        )
        client.command("INSERT INTO moved VALUES (1, '2024-01-05', 1), (1, '2024-02-05', 2)")
    file, settings = pipeline(world, "moved", MONTHS), world.settings()

    def load(window: str) -> None:
        run(file, settings, until=Until.HISTORY, partitions=[window], spark=spark)

    load("2024-02-01")
    with pytest.raises(
        PipelineStateError, match="2024-01-01 cannot be loaded after 2024-02-01: at sink last"
    ):
        load("2024-01-01")
    assert rows(world, "moved_last", "id, v") == rows(world, "moved_newest", "id, v") == [(1, 2)]
    file = pipeline(world, "moved", MONTHS.replace("end: 2024-03", "end: 2024-03, any_order: true"))
    load("2024-01-01")
    assert (rows(world, "moved_last", "id, v"), rows(world, "moved_newest", "id, v")) == ([(1, 1)], [(1, 2)])
