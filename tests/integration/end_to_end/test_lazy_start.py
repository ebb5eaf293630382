"""Every source and every sink in a process whose Spark session has not started, without transforms.

PySpark's functions for columns and `StructType.fromDDL` need a started session. The session of the tests is
hidden from them until a run starts its own, so code that uses them too early fails here as in a new process.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, cast

import clickhouse_connect
import psycopg
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from deltalake import write_deltalake
from helpers import protobuf_messages
from helpers.avro_files import write_avro
from helpers.avro_messages import encode, frame, record
from helpers.depth import with_slow
from helpers.kafka_sink import read_messages
from helpers.otlp_collector import Collector
from helpers.pipeline_world import World, clickhouse_database
from helpers.redis_server import redis_server
from helpers.schema_registry import SchemaRegistry
from helpers.web_server import served
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession, functions
from pyspark.sql.types import StructType

from headrace.connectors.clickhouse import source as clickhouse_source
from headrace.connectors.files import source as file_source
from headrace.connectors.lazy_session import LazySession
from headrace.jobs.run.events import RunResult, Until
from headrace.jobs.run.runner import run
from headrace.pipeline.config.monitoring import MetricsSettings
from headrace.pipeline.file.loader import load_pipeline
from headrace.services import Services

ROWS = 40
TABLE = pa.table({"id": pa.array(range(ROWS), "int64"), "v": [f"v{at}" for at in range(ROWS)]})
AVRO = record(("id", "long"), ("v", "string"), doc=json.dumps({"primaryKeys": ["id"]}))
_AVRO_FILE = (("id", "long"), ("v", "string"))
PROTOBUF = 'syntax = "proto3"; message Row { int64 id = 1; string v = 2; }'
_KAFKA = "type: kafka, primary_key: id, topic: '{topic}'"
_JSON = _KAFKA + ", schema: {{id: int64, v: string}}"
_CLICKHOUSE = "type: clickhouse, primary_key: id, table_name: '{database}.history', split_rows: 10"

SOURCES = {
    "parquet": "type: file, format: parquet, path: '{folder}/parquet', mode: bounded, primary_key: id",
    "parquet-schema": "type: file, format: parquet, path: '{folder}/parquet', mode: bounded, primary_key: id,"
    " schema: {{id: int64, v: string}}",
    "parquet-filter": "type: file, format: parquet, path: '{folder}/parquet', mode: bounded, primary_key: id,"
    " filter: id >= 0",
    "folders": "type: file, format: parquet, path: '{folder}/folders', mode: bounded, primary_key: id",
    "csv": "type: file, format: csv, path: '{folder}/rows.csv', mode: bounded, primary_key: id,"
    " schema: {{id: int64, v: string}}",
    "json": "type: file, format: json, path: '{folder}/rows.json', mode: bounded, primary_key: id,"
    " schema: {{id: int64, v: string}}",
    "parquet-stream": "type: file, format: parquet, path: '{folder}/parquet', primary_key: id",
    "csv-stream": "type: file, format: csv, path: '{folder}/rows.csv', primary_key: id, min_file_age: 0s,"
    " schema: {{id: int64, v: string}}, filter: id >= 0",
    "json-stream-errors": "type: file, format: json, path: '{folder}/rows.json', primary_key: id,"
    " min_file_age: 0s, schema: {{id: int64, v: string}}, on_error: dead_letter",
    "avro": "type: file, format: avro, path: '{folder}/rows.avro', mode: bounded, primary_key: id",
    "avro-stream": "type: file, format: avro, path: '{folder}/rows.avro', primary_key: id, min_file_age: 0s",
    "postgres": "type: postgres, table: history, primary_key: id",
    "clickhouse": _CLICKHOUSE,
    "clickhouse-filter": _CLICKHOUSE + ", filter: id >= 0",
    "delta": "type: delta, path: '{folder}/delta', primary_key: id",
    "delta-filter": "type: delta, path: '{folder}/delta', primary_key: id, filter: id >= 0",
    "iceberg": "type: iceberg, table_name: n.rows, warehouse: '{folder}/warehouse', primary_key: id",
    "kafka-json": _JSON,
    "kafka-filter": _JSON + ", filter: id >= 0",
    "kafka-metadata": _JSON + ", include_metadata: true",
    "kafka-tombstones": _JSON + ", tombstone: delete",
    "kafka-errors": _JSON + ", on_error: dead_letter",
    "kafka-avro": _KAFKA.replace("{topic}", "{avro_topic}"),
    "kafka-avro-errors": _KAFKA.replace("{topic}", "{avro_topic}") + ", on_error: dead_letter",
    "kafka-protobuf": _KAFKA.replace("{topic}", "{protobuf_topic}") + ", data_format: protobuf",
    "hybrid": "type: hybrid, primary_key: id, offset_table: {{}}, bounded_sources: [{{source_type: clickhouse,"
    " table_name: '{database}.history'}}], unbounded_source: {{source_type: kafka, topic: '{topic}', schema:"
    " {{id: int64, v: string}}}}",
    "hybrid-cursor": "type: hybrid, primary_key: id, cursor: {{column: at, allowed_lateness: 1h}}, handoff_lag: 1h, bounded_sources:"
    " [{{source_type: clickhouse, table_name: '{database}.history'}}], unbounded_source: {{source_type: kafka,"
    " topic: '{topic}', schema: {{id: int64, v: string, at: timestamp}}}}",
}
SINKS = {
    "blackhole": "type: blackhole",
    "print": "type: print",
    "postgres": "type: postgres, table: target",
    "postgres-staged": "type: postgres, table: target, max_driver_rows: 1",
    "postgres_aggregate": "type: postgres_aggregate, landing_table: landing, agg_table: totals, group_by: {{v: {{}}}},"
    " aggregate: {{n: {{fn: count}}}}",
    "delta": "type: delta, path: '{folder}/lake'",
    "iceberg": "type: iceberg, table_name: n.target, warehouse: '{folder}/warehouse'",
    "file-parquet": "type: file, path: '{folder}/out', format: parquet",
    "file-csv": "type: file, path: '{folder}/out', format: csv",
    "file-json": "type: file, path: '{folder}/out', format: json",
    "clickhouse": "type: clickhouse, table: '{database}.target'",
    "kafka": "type: kafka, topic: '{topic}-out'",
    "redis": "type: redis, prefix: '{topic}', url: '{redis}'",
    "webhook": "type: webhook, url: '{url}'",
}


@dataclass
class Inputs:
    """One set of rows in every source. `names` fills the templates."""

    names: Mapping[str, str]
    spark: SparkSession


@pytest.fixture(scope="module")
def inputs(
    services: Services,
    registry: SchemaRegistry,
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Inputs]:
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "parquet").mkdir()
    pq.write_table(TABLE, folder / "parquet" / "part.parquet")
    for day in (1, 2):
        (folder / "folders" / f"day={day}").mkdir(parents=True)
        pq.write_table(TABLE, folder / "folders" / f"day={day}" / "part.parquet")
    write_deltalake(folder / "delta", TABLE)
    pa_csv.write_csv(TABLE, folder / "rows.csv")
    (folder / "rows.json").write_text("".join(json.dumps(row) + "\n" for row in TABLE.to_pylist()))
    record = {
        "type": "record",
        "name": "r",
        "fields": [{"name": name, "type": kind} for name, kind in _AVRO_FILE],
    }
    write_avro(folder / "rows.avro", record, [TABLE.to_pylist()])
    session = spark.newSession()
    for suffix, value in {"": "org.apache.iceberg.spark.SparkCatalog", ".type": "hadoop"}.items():
        session.conf.set(f"spark.sql.catalog.lazy{suffix}", value)
    session.conf.set("spark.sql.catalog.lazy.warehouse", str(folder / "warehouse"))
    session.createDataFrame(TABLE).writeTo("lazy.n.rows").using("iceberg").create()
    topic, avro_topic = f"lazy-{secrets.token_hex(4)}", f"lazy-{secrets.token_hex(4)}-avro"
    admin = AdminClient({"bootstrap.servers": services.kafka.brokers})
    protobuf_topic = f"{avro_topic}-protobuf"
    topics = [NewTopic(name, 1, 1) for name in (topic, avro_topic, protobuf_topic)]
    for created in admin.create_topics(topics).values():
        created.result(30)
    number = registry.register(f"{avro_topic}-value", AVRO)
    protobuf_number = registry.register(f"{protobuf_topic}-value", PROTOBUF, kind="PROTOBUF")
    protobuf_row = protobuf_messages.message_class(PROTOBUF, "Row")
    producer = Producer({"bootstrap.servers": services.kafka.brokers})
    for row in TABLE.to_pylist():
        at = f"2024-01-01T00:00:{row['id']:02}Z"
        producer.produce(topic, json.dumps(row | {"at": at}), key=json.dumps({"id": row["id"]}))
        producer.produce(avro_topic, frame(number, encode(AVRO, row)))
        payload = protobuf_row(**row).SerializeToString()
        producer.produce(protobuf_topic, protobuf_messages.frame(protobuf_number, payload))
    assert producer.flush(30) == 0
    with clickhouse_database(services) as database:
        with clickhouse_connect.get_client(
            **services.clickhouse.client_arguments(database=database)
        ) as client:
            client.command(
                "CREATE TABLE history (id Int64, v String, at DateTime64(6, 'UTC') DEFAULT '2024-01-01 00:00:00',"
                " _kafka_partition Nullable(Int32), _kafka_offset Nullable(Int64)) ENGINE = MergeTree ORDER BY id"
            )
            client.command(
                f"INSERT INTO history (id, v) SELECT number, concat('v', toString(number)) FROM numbers({ROWS})"
            )
        names = {"folder": str(folder), "topic": topic, "avro_topic": avro_topic, "database": database}
        yield Inputs(names | {"protobuf_topic": protobuf_topic, "registry": registry.url}, spark)


@pytest.fixture
def world(empty_world: World) -> World:
    """The targets of one case. Its source is one of the inputs."""
    return empty_world


@contextmanager
def hidden_session(spark: SparkSession) -> Iterator[LazySession]:
    """Hide the context from PySpark until the session that this yields starts."""
    context = SparkContext._active_spark_context

    def start() -> SparkSession:
        SparkContext._active_spark_context = context
        return spark.newSession()

    SparkContext._active_spark_context = None
    try:
        yield LazySession(start)
    finally:
        SparkContext._active_spark_context = context


TRANSFORMS = {
    "sql": "type: sql, sql: 'select id, upper(v) as v from src'",
    "portable": "type: sql, sql: \"select id, v || '!' as v from src where id <> 3\"",
    "script": "type: script, from: src, language: javascript, script: 'const invoke = (row) => row'",
    "handler": "type: handler, from: src, url: '{url}'",
}
PORTABLE_ROWS = [(at, f"v{at}!") for at in range(ROWS) if at != 3]
_DAILY_SOURCES = ("parquet", "avro-stream", "csv-stream", "clickhouse", "kafka-filter", "hybrid-cursor")
_DAILY_SINKS = ("delta", "file-parquet")
_PARTNERS = {"sources": ("kafka-json", "clickhouse"), "sinks": ("postgres", "kafka")}
"""Sources that meet every sink, and sinks that meet every source. A source does not know its sink."""
DAILY = {("kafka-json", sink) for sink in _DAILY_SINKS} | {(source, "postgres") for source in _DAILY_SOURCES}
CASES = [
    pytest.param(
        source,
        sink,
        driver_rows,
        marks=() if (source, sink) in DAILY and driver_rows is None else pytest.mark.slow,
        id=f"{source}-{sink}{'' if driver_rows is None else '-spark'}",
    )
    for source in SOURCES
    for sink in SINKS
    if source in _PARTNERS["sources"] or sink in _PARTNERS["sinks"]
    for driver_rows in ([None, 1] if source.startswith(("kafka", "hybrid")) else [None])
]
"""Source, sink, and the limit of rows that the driver reads; with None it reads all messages of these topics."""


def test_the_session_is_hidden_until_it_starts(spark: SparkSession) -> None:
    with hidden_session(spark) as lazy:
        for use in (lambda: StructType.fromDDL("a int"), lambda: functions.col("a")):
            with pytest.raises((AssertionError, PySparkException)):
                use()
        lazy.start()
        functions.col("a")


@pytest.mark.parametrize(("source", "sink", "driver_rows"), CASES)
def test_a_run_starts_spark_before_it_uses_columns(
    inputs: Inputs, world: World, source: str, sink: str, driver_rows: int | None
) -> None:
    assert run_lazily(inputs, world, source, sink, driver_rows).result.epochs >= 1


@pytest.mark.parametrize(
    "source",
    with_slow(
        ("kafka-metadata", "kafka-avro-errors", "delta"),
        (
            "kafka-json",
            "kafka-metadata",
            "kafka-avro",
            "kafka-avro-errors",
            "kafka-protobuf",
            "clickhouse",
            "delta",
            "parquet",
            "parquet-stream",
        ),
    ),
)
def test_small_epochs_into_a_topic_never_start_spark(inputs: Inputs, world: World, source: str) -> None:
    outcome = run_lazily(inputs, world, source, "kafka", None)
    assert not outcome.has_started_spark
    assert outcome.result.caught_up
    sent = read_messages(world.services.kafka.brokers, f"{world.name}-out")
    assert sorted((one.key, one.operation) for one in sent) == sorted(
        (b'{"id":%d}' % at, "c") for at in range(ROWS)
    )
    for one in sent:
        row = json.loads(one.value or b"")
        assert row["v"] == f"v{row['id']}"


@pytest.mark.parametrize(
    ("source", "module"),
    [("clickhouse", clickhouse_source), pytest.param("parquet", file_source, marks=pytest.mark.slow)],
)
def test_spark_and_the_driver_read_the_same_history(
    inputs: Inputs, world: World, monkeypatch: pytest.MonkeyPatch, source: str, module: ModuleType
) -> None:
    """Positions are compared by the order of the messages of one partition."""
    monkeypatch.setitem(SINKS, "kafka", SINKS["kafka"] + ", topic_partitions: 1")
    assert not run_lazily(inputs, world, source, "kafka", None).has_started_spark
    by_driver = read_messages(world.services.kafka.brokers, f"{world.name}-out")
    monkeypatch.setattr(module, "DRIVER_ROWS", 1)
    monkeypatch.setattr(world, "name", f"{world.name}-spark")
    assert run_lazily(inputs, world, source, "kafka", None).has_started_spark
    by_spark = read_messages(world.services.kafka.brokers, f"{world.name}-out")
    assert len(by_driver) == ROWS
    assert [(one.key, one.value) for one in by_driver] == [(one.key, one.value) for one in by_spark]


@pytest.mark.parametrize("transform", with_slow(("handler", "sql"), ("script", "handler", "sql")))
def test_a_transform_starts_spark_before_it_uses_columns(
    inputs: Inputs, world: World, transform: str
) -> None:
    assert run_lazily(inputs, world, "kafka-json", "postgres", None, TRANSFORMS[transform]).result.epochs >= 1


_PORTABLE_DAILY = [("kafka-json", "kafka"), ("kafka-avro", "kafka"), ("clickhouse", "kafka")]
_PORTABLE_SINKS = ("postgres", "delta", "clickhouse", "redis", "postgres_aggregate")
_PORTABLE_SOURCES = ("kafka-metadata", "kafka-protobuf", "parquet", "delta")


@pytest.mark.parametrize(
    ("source", "sink"),
    [
        *_PORTABLE_DAILY,
        *(pytest.param("kafka-json", sink, marks=pytest.mark.slow) for sink in _PORTABLE_SINKS),
        *(pytest.param(source, "kafka", marks=pytest.mark.slow) for source in _PORTABLE_SOURCES),
    ],
)
def test_portable_sql_never_starts_spark(inputs: Inputs, world: World, source: str, sink: str) -> None:
    outcome = run_lazily(inputs, world, source, sink, None, TRANSFORMS["portable"])
    assert not outcome.has_started_spark
    assert outcome.result.caught_up
    if sink == "kafka":
        sent = read_messages(world.services.kafka.brokers, f"{world.name}-out")
        rows = [json.loads(one.value) for one in sent if one.operation == "c" and one.value]
        assert sorted((row["id"], row["v"]) for row in rows) == PORTABLE_ROWS
    if sink == "postgres":
        with psycopg.connect(world.conninfo) as connection:
            assert connection.execute("SELECT id, v FROM target ORDER BY id").fetchall() == PORTABLE_ROWS


def test_metrics_start_no_spark(inputs: Inputs, world: World) -> None:
    collector = Collector()
    try:
        metrics = MetricsSettings(
            ingestion_endpoint=collector.url, batch_interval_secs=0.5, prefix="streamling"
        )
        transform = TRANSFORMS["portable"]
        outcome = run_lazily(inputs, world, "kafka-json", "kafka", None, transform, metrics)
    finally:
        collector.shutdown()
        collector.server_close()
    assert not outcome.has_started_spark
    written = outcome.result.counts["out"].rows
    result = collector.last("streamling_output_rows_total")
    assert result == {"src": ROWS, "t": ROWS - 1, "out": written}


@pytest.mark.parametrize(("source", "sink"), [("kafka-json", "postgres"), ("parquet", "iceberg")])
def test_portable_sql_starts_spark_where_an_epoch_needs_it(
    inputs: Inputs, world: World, source: str, sink: str
) -> None:
    """Its columns are known without Spark, which then computes the rows."""
    outcome = run_lazily(inputs, world, source, sink, 1, TRANSFORMS["portable"])
    assert outcome.has_started_spark
    assert outcome.result.caught_up or outcome.result.history_complete
    if sink == "postgres":
        with psycopg.connect(world.conninfo) as connection:
            assert connection.execute("SELECT id, v FROM target ORDER BY id").fetchall() == PORTABLE_ROWS


@dataclass(frozen=True)
class Outcome:
    """The result of a run, and whether something used its session."""

    result: RunResult
    has_started_spark: bool


def run_lazily(
    inputs: Inputs,
    world: World,
    source: str,
    sink: str,
    driver_rows: int | None,
    transform: str = "",
    metrics: MetricsSettings | None = None,
) -> Outcome:
    with ExitStack() as stack:
        names = dict(inputs.names) | {"url": stack.enter_context(served()).url}
        if sink == "redis":
            names["redis"] = stack.enter_context(redis_server(world.folder / "redis")).url
        own = names | {"folder": str(world.folder), "database": world.database, "topic": world.name}
        lines = [
            f"name: {world.name}",
            "sources: {src: {" + SOURCES[source].format(**names) + "}}",
            "transforms: {" + (f"t: {{{transform.format(**names)}}}" if transform else "") + "}",
            "sinks:",
            f"  out: {{from: {'t' if transform else 'src'}, " + SINKS[sink].format(**own) + "}",
        ]
        if source.endswith("errors"):
            lines.append("  rejected: {from: src.errors, type: postgres, table: rejected}")
        world.file.write_text("\n".join(lines))
        changes: dict[str, Any] = {"schema_registry_url": names["registry"]}
        changes |= {} if driver_rows is None else {"driver_rows": driver_rows}
        settings = world.settings()
        kafka = settings.kafka_source.model_copy(update=changes)
        settings = settings.model_copy(update={"kafka_source": kafka})
        if metrics is not None:
            settings = settings.model_copy(update={"open_telemetry_metrics": metrics})
        if source == "postgres":
            with psycopg.connect(world.conninfo) as connection:
                connection.execute("CREATE TABLE history AS SELECT 1::bigint AS id, 'v1' AS v")
        with hidden_session(inputs.spark) as lazy:
            session = cast("SparkSession", lazy)
            result = run(load_pipeline(world.file), settings, until=Until.CAUGHT_UP, spark=session)
            return Outcome(result, lazy.started_session is not None)
