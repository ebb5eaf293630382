"""Repair commands on real servers.

An epoch that cannot be read any more, a sink that comes back, a rewind, a reset.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from helpers.pipeline_world import World, until
from pyspark.sql import SparkSession

from headrace.jobs.checks.audit import audit
from headrace.jobs.run import interventions
from headrace.jobs.run.events import Until
from headrace.jobs.run.repair import accept_target, replay
from headrace.jobs.run.runner import run
from headrace.jobs.run.session import RunSession
from headrace.pipeline.config.sections import StateBackend
from headrace.pipeline.errors import (
    DataError,
    HeadraceError,
    PipelineStateError,
    RetentionError,
    SinkStateError,
    TargetError,
)
from headrace.pipeline.file.loader import PipelineFile, load_pipeline

PIPELINE = """
name: {name}
sources:
  src: {{type: kafka, topic: {topic}, primary_key: id, schema: {{id: int64, v: int64}}}}
sinks:
  pg: {{type: postgres, from: src, table: {topic}_one}}
{more}epoch: {{interval: 0s}}
"""
TWO = "  two: {{type: postgres, from: src, table: {topic}_two}}\n"


@pytest.fixture
def world(empty_world: World) -> World:
    """The targets of one test. Its messages have a topic of their own."""
    return empty_world


@pytest.fixture
def topic(world: World, request: pytest.FixtureRequest) -> str:
    from confluent_kafka.cimpl import NewTopic

    name = f"{world.name}_{abs(hash(request.node.name)) % 10**6}"
    admin = AdminClient({"bootstrap.servers": world.services.kafka.brokers})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)
    return name


def pipeline(world: World, topic: str, more: str = TWO) -> PipelineFile:
    path = Path(world.folder) / f"{topic}.yaml"
    path.write_text(PIPELINE.format(name=topic, topic=topic, more=more.format(topic=topic)))
    return load_pipeline(path)


def produce(world: World, topic: str, *rows: tuple[str, int, int]) -> None:
    producer = Producer({"bootstrap.servers": world.services.kafka.brokers, "enable.idempotence": True})
    for op, key, value in rows:
        producer.produce(topic, json.dumps({"id": key, "v": value}), partition=0, headers={"dbz.op": op})
    assert producer.flush(30) == 0


def forget(world: World, topic: str, before: int) -> None:
    """Retention passes."""
    partition = TopicPartition(topic, 0, before)
    admin = AdminClient({"bootstrap.servers": world.services.kafka.brokers})
    admin.delete_records([partition])[partition].result(30)


def rows(world: World, table: str) -> list[Any]:
    with psycopg.connect(world.conninfo) as connection:
        return connection.execute(f"SELECT id, v FROM {table} ORDER BY id").fetchall()  # type: ignore[arg-type]


def execute(world: World, statement: str) -> None:
    with psycopg.connect(world.conninfo, autocommit=True) as connection:
        connection.execute(statement)  # type: ignore[arg-type]


@pytest.fixture
def shared_spark(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """Ways out run on the session of the tests."""
    monkeypatch.setattr(RunSession, "stop", lambda _: None)
    monkeypatch.setattr("headrace.jobs.run.session.start_session", lambda *_: spark)
    return spark


def test_skip_open_ends_an_epoch_whose_messages_are_lost(
    world: World, topic: str, shared_spark: SparkSession
) -> None:
    file, settings, spark = pipeline(world, topic), world.settings(), shared_spark
    execute(world, f"CREATE TABLE {topic}_two (id bigint primary key, v bigint CHECK (v < 100))")
    produce(world, topic, ("c", 1, 1))
    run(file, settings, until=Until.CAUGHT_UP, spark=spark)
    produce(world, topic, ("c", 2, 500), ("c", 3, 5))
    with pytest.raises(HeadraceError):
        run(file, settings, until=Until.CAUGHT_UP, spark=spark)
    forget(world, topic, 3)
    produce(world, topic, ("c", 4, 5))
    assert "Epoch 2 would be closed" in interventions.skip_open(file, settings, dry_run=True).changes[0]
    changes = interventions.skip_open(file, settings).changes
    assert "skipped at: two" in changes[0]
    assert "src partition 0: offsets 1 to 2" in changes[1]
    run(file, settings, until=Until.CAUGHT_UP, spark=spark)
    assert rows(world, f"{topic}_one") == [(1, 1), (2, 500), (3, 5), (4, 5)]
    assert rows(world, f"{topic}_two") == [(1, 1), (4, 5)]
    checks = {(check.sink, check.name): check for check in audit(file, settings, spark=spark)}
    assert checks["pg", "exactly_once_epochs"].passed
    assert not checks["two", "exactly_once_epochs"].passed
    assert "epoch 2 was skipped at this sink" in checks["two", "exactly_once_epochs"].message
    with pytest.raises(RetentionError, match="begins at offset 3"):
        interventions.rewind(file, settings, to="1")
    interventions.reset(file, settings, empty=True)
    run(file, settings, until=Until.CAUGHT_UP, spark=spark)
    assert rows(world, f"{topic}_one") == rows(world, f"{topic}_two") == [(4, 5)]
    assert all(check.passed is not False for check in audit(file, settings, spark=spark))


# Daily ones: faults/protocol restores targets, test_record_that_log_cleanup_took_is_not_a_new_sink has the other
# damage, and test_a_sink_that_was_out_of_the_file_and_a_rewind a replay by the printed command.
@pytest.mark.slow
@pytest.mark.parametrize("damage", ["restored", "log cleaned up"])
def test_a_damaged_delta_table_is_repaired_by_a_replay(
    world: World, topic: str, shared_spark: SparkSession, damage: str
) -> None:
    """The refused run prints the command, and the command works."""
    path = world.folder / f"{topic}_lake"
    file = pipeline(world, topic, f"  lake: {{{{type: delta, from: src, path: {path}}}}}\n")
    settings, spark = world.settings(), shared_spark
    for number in range(1, 4):
        produce(world, topic, ("c", number, number))
        run(file, settings, until=Until.CAUGHT_UP, spark=spark)
    if damage == "restored":
        history = spark.sql(f"DESCRIBE HISTORY delta.`{path}`").select("version").collect()
        spark.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF {max(row[0] for row in history) - 2}")
        first = 3
    else:
        spark.sql(f"INSERT INTO delta.`{path}` VALUES (9, 9)")
        jvm: Any = spark._jvm
        log = jvm.org.apache.spark.sql.delta.DeltaLog
        log.forTable(spark._jsparkSession, str(path)).checkpoint()
        for old in sorted((path / "_delta_log").glob("*.json"))[:-1]:
            old.unlink()
        log.clearCache()
        first = 1
    produce(world, topic, ("u", 1, 10))
    with pytest.raises(SinkStateError) as refused:
        run(file, settings, until=Until.CAUGHT_UP, spark=spark)
    assert f"headrace replay {file.path} --sink lake --from {first}" in str(refused.value)
    replay(file, settings, sink="lake", from_epoch=first, spark=spark)
    run(file, settings, until=Until.CAUGHT_UP, spark=spark)
    result = {row["id"]: row["v"] for row in spark.read.format("delta").load(str(path)).collect()}
    result.pop(9, None)
    assert result == {1: 10, 2: 2, 3: 3} == dict(rows(world, f"{topic}_one"))


def test_a_replay_keeps_the_stored_results_of_its_later_epochs(
    world: World, topic: str, shared_spark: SparkSession
) -> None:
    """`staging.keep_epochs` was lowered since the epochs were written: only the next run removes files."""
    path, settings, spark = Path(world.folder) / f"{topic}.yaml", world.settings(), shared_spark
    path.write_text(
        PIPELINE.format(name=topic, topic=topic, more="")
        .replace(
            "sinks:", "transforms:\n  drawn: {type: sql, sql: 'SELECT id, rand() AS v FROM src'}\nsinks:"
        )
        .replace("from: src", "from: drawn")
    )
    file = load_pipeline(path)
    for number in range(1, 4):
        produce(world, topic, ("c", number, 0))
        run(file, settings, until=Until.CAUGHT_UP, spark=spark)
    written = rows(world, f"{topic}_one")
    settings.staging.keep_epochs = 0
    assert replay(file, settings, sink="pg", from_epoch=1, spark=spark).epochs == 3
    assert rows(world, f"{topic}_one") == written
    assert len([*settings.staging_folder.rglob("manifest.json")]) == 3
    produce(world, topic, ("c", 4, 0))
    run(file, settings, until=Until.CAUGHT_UP, spark=spark)
    assert not [*settings.staging_folder.rglob("manifest.json")]


def test_a_sink_that_was_out_of_the_file_and_a_rewind(
    world: World, topic: str, shared_spark: SparkSession
) -> None:
    settings, spark = world.settings(), shared_spark
    produce(world, topic, ("c", 1, 1), ("c", 2, 1))
    run(pipeline(world, topic), settings, until=Until.CAUGHT_UP, spark=spark)
    produce(world, topic, ("c", 3, 1), ("d", 1, 0))
    run(pipeline(world, topic, ""), settings, until=Until.CAUGHT_UP, spark=spark)
    file = pipeline(world, topic)
    with pytest.raises(SinkStateError, match="not in the file during epoch 2") as refused:
        run(file, settings, until=Until.CAUGHT_UP, spark=spark)
    assert "--sink two --from 2" in refused.value.hint
    replay(file, settings, sink="two", from_epoch=2, spark=spark)
    run(file, settings, until=Until.CAUGHT_UP, spark=spark)
    wanted = [(2, 1), (3, 1)]
    assert rows(world, f"{topic}_one") == rows(world, f"{topic}_two") == wanted
    execute(world, f"DELETE FROM {topic}_one")
    assert "2 offsets" in interventions.rewind(file, settings, to="1", dry_run=True).changes[1]
    interventions.rewind(file, settings, to="1")
    run(file, settings, until=Until.CAUGHT_UP, spark=spark)
    assert rows(world, f"{topic}_one") == [(3, 1)]
    checks = {(check.sink, check.name): check for check in audit(file, settings, spark=spark)}
    assert checks["two", "exactly_once_epochs"].passed
    assert not checks["pg", "row_count_matches"].passed
    with pytest.raises(PipelineStateError, match="the ledger has no epoch 99"):
        interventions.rewind(file, settings, to="99")


def test_a_sink_that_was_out_of_the_file_in_a_reset(
    world: World, topic: str, shared_spark: SparkSession
) -> None:
    """A row that retention took away before the reset does not come back by a replay.

    No row comes twice.
    """
    settings, spark = world.settings(), shared_spark
    more = "  two: {{type: delta, from: src, path: " + str(world.folder) + "/{topic}}}\n"
    produce(world, topic, ("c", 1, 1), ("c", 2, 1))
    run(pipeline(world, topic, more), settings, until=Until.CAUGHT_UP, spark=spark)
    without = pipeline(world, topic, "")
    produce(world, topic, ("c", 3, 1))
    forget(world, topic, 1)
    interventions.reset(without, settings, empty=True)
    run(without, settings, until=Until.CAUGHT_UP, spark=spark)
    file = pipeline(world, topic, more)
    with pytest.raises(SinkStateError, match="from before the last reset") as refused:
        run(file, settings, until=Until.CAUGHT_UP, spark=spark)
    assert "--sink two --from 2" in refused.value.hint
    with pytest.raises(SinkStateError, match="2 rows from before the last reset"):
        replay(file, settings, sink="two", from_epoch=2, spark=spark)
    spark.sql(f"DELETE FROM delta.`{world.folder}/{topic}`")
    replay(file, settings, sink="two", from_epoch=2, spark=spark)
    run(file, settings, until=Until.CAUGHT_UP, spark=spark)
    assert rows(world, f"{topic}_one") == [(2, 1), (3, 1)]
    lake = (
        spark.read.format("delta").load(f"{world.folder}/{topic}").select("id", "v").orderBy("id").collect()
    )
    assert [tuple(row) for row in lake] == [(2, 1), (3, 1)]
    assert all(check.passed is not False for check in audit(file, settings, spark=spark))


def renew(world: World, topic: str) -> None:
    """The topic is deleted and created again under its name."""
    from confluent_kafka.cimpl import NewTopic

    admin = AdminClient({"bootstrap.servers": world.services.kafka.brokers})
    admin.delete_topics([topic])[topic].result(30)
    for _ in range(100):
        try:
            admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
        except KafkaException:
            time.sleep(0.1)
        else:
            break
    # The broker answers before all of its requests see the topic.
    until(lambda: admin.list_topics(topic, timeout=10).topics[topic].error is None, "the new topic")


def test_rows_that_cannot_be_read_again_are_refused_before_anything_changes(
    world: World, topic: str, shared_spark: SparkSession
) -> None:
    settings, spark = world.settings(), shared_spark
    file = pipeline(world, topic, "")
    for key in (1, 2):
        produce(world, topic, ("c", key, 1))
        run(file, settings, until=Until.CAUGHT_UP, spark=spark)
    forget(world, topic, 1)
    with pytest.raises(RetentionError, match="begins at offset 1, and the replay needs 0"):
        replay(file, settings, sink="pg", from_epoch=1, spark=spark)
    run(file, settings, until=Until.CAUGHT_UP, spark=spark)  # its record was not set back
    assert all(check.passed is not False for check in audit(file, settings, spark=spark))
    renew(world, topic)
    for dry_run in (True, False):
        with pytest.raises(TargetError, match="deleted and created again") as refused:
            interventions.rewind(file, settings, to="1", dry_run=dry_run)
        assert f"headrace reset {file.path}" in refused.value.hint
    produce(world, topic, ("c", 7, 1))
    with pytest.raises(TargetError, match="recreated") as refused:
        run(file, settings, until=Until.CAUGHT_UP, spark=spark)
    assert f"headrace reset {file.path}" in refused.value.hint


def test_a_lost_ledger_and_a_sink_without_a_key(world: World, topic: str, shared_spark: SparkSession) -> None:
    """`accept-target` at epoch 0 would let the run write all rows a second time."""
    settings, spark = world.settings(), shared_spark
    path = Path(world.folder) / f"{topic}.yaml"
    path.write_text(PIPELINE.format(name=topic, topic=topic, more="").replace("primary_key: id, ", ""))
    file = load_pipeline(path)
    produce(world, topic, ("c", 1, 1), ("c", 2, 1))
    run(file, settings, until=Until.CAUGHT_UP, spark=spark)
    other = settings.model_copy(update={"state_backend": empty_ledger(world, topic)})
    with pytest.raises(SinkStateError, match="another pipeline named") as refused:
        run(file, other, until=Until.CAUGHT_UP, spark=spark)
    assert f"headrace recover {path}" in refused.value.hint
    assert f"headrace reset {path} --empty-targets" in refused.value.hint
    with pytest.raises(SinkStateError, match="a second time, and it has no key"):
        accept_target(file, other, sink="pg", spark=spark)
    interventions.reset(file, other, empty=True)
    run(file, other, until=Until.CAUGHT_UP, spark=spark)
    assert rows(world, f"{topic}_one") == [(1, 1), (2, 1)]


def empty_ledger(world: World, topic: str) -> StateBackend:
    """A ledger that knows nothing."""
    return StateBackend.model_validate({"sqlite": {"path": Path(world.folder) / f"{topic}.db"}})


def test_a_target_that_cannot_be_emptied_or_opened_names_the_next_command(
    world: World, topic: str, shared_spark: SparkSession
) -> None:
    settings, spark = world.settings(), shared_spark
    file = pipeline(world, topic)
    produce(world, topic, ("c", 1, 1))
    run(file, settings, until=Until.CAUGHT_UP, spark=spark)
    execute(world, f"CREATE TABLE {topic}_child (id bigint REFERENCES {topic}_one (id))")
    execute(world, f"INSERT INTO {topic}_child VALUES (1)")
    with pytest.raises(DataError, match="the target cannot be emptied") as refused:
        interventions.reset(file, settings, empty=True)
    assert f"headrace reset {file.path} --keep-targets" in refused.value.hint
    interventions.reset(file, settings, empty=False)
    run(file, settings, until=Until.CAUGHT_UP, spark=spark)
    execute(world, f"ALTER TABLE {topic}_two ADD CHECK (v < 100)")
    produce(world, topic, ("c", 2, 500))
    with pytest.raises(HeadraceError, match="check constraint"):
        run(file, settings, until=Until.CAUGHT_UP, spark=spark)
    execute(world, f"ALTER TABLE {topic}_two DROP COLUMN v")
    with pytest.raises(HeadraceError, match="column") as refused:
        run(pipeline(world, topic, ""), settings, until=Until.CAUGHT_UP, spark=spark)
    assert f"headrace reset {file.path}" in refused.value.hint
    interventions.reset(pipeline(world, topic, ""), settings, empty=False)
    run(pipeline(world, topic, ""), settings, until=Until.CAUGHT_UP, spark=spark)
    assert rows(world, f"{topic}_one") == [(1, 1), (2, 500)]
