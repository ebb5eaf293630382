"""A hybrid source into a topic in Avro, with kill -9 and pauses around the transaction of an epoch.

Also a registry that stops, and one that refuses a schema. Each time a consumer of committed transactions must
read every change once, those of a key in their order.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from helpers.avro_messages import decode
from helpers.kafka_sink import read_messages
from helpers.pipeline_world import World, until
from helpers.schema_registry import SchemaRegistry
from helpers.topic_changes import expected_changes, read_changes, write_topic_pipeline
from pyspark.sql import SparkSession

from headrace.pipeline.errors import SchemaError, TransientError

# Transactions of a run: 1 the generation, 2 the claim, 3 the first record, 4 to 6 history, then the stream.
STEPS = [
    ("schemas-registering", 1, "driver"),
    ("schemas-registered", 1, "group"),
    ("avro-encoding", 2, "driver"),
    ("avro-encoded", 3, "group"),
    ("avro-encoding", 5, "driver"),
    ("topic-sending", 2, "driver"),
    ("topic-sent", 1, "driver"),
    ("topic-sent", 5, "group"),
    ("topic-committing", 5, "driver"),
    ("topic-committing", 8, "group"),
    ("topic-committed", 2, "driver"),
    ("topic-committed", 6, "group"),
    ("topic-committed", 7, "driver"),
    ("topic-committed", 8, "driver"),
    ("topic-sending", 5, "jvm"),
]


def decoder(registry_url: str) -> Callable[[bytes], dict[str, Any]]:
    """Return a function that decodes a message by the schema of its id, with days as text."""
    schemas: dict[int, Any] = {}

    def read(message: bytes) -> dict[str, Any]:
        assert message[0] == 0
        number = int.from_bytes(message[1:5], "big")
        if number not in schemas:
            answer = httpx.get(f"{registry_url}/schemas/ids/{number}", timeout=30).raise_for_status()
            schemas[number] = json.loads(answer.json()["schema"])
        row = decode(schemas[number], message[5:])
        if "day" in row:
            row["day"] = (date(1970, 1, 1) + timedelta(days=row["day"])).isoformat()
        return row

    return read


def check(world: World) -> None:
    """A consumer reads every change once."""
    assert world.registry_url is not None
    assert read_changes(world, decoder(world.registry_url)) == expected_changes(world)


@pytest.fixture
def avro_world(world: World, registry: SchemaRegistry) -> World:
    """The world with a pipeline into the topic `<name>-out`."""
    world.registry_url = registry.url
    write_topic_pipeline(world, "avro")
    return world


# The daily sample is in integration/connectors/test_kafka_avro_sink.py: one kill, and a source that reads.
@pytest.mark.slow
@pytest.mark.parametrize(("point", "nth", "who"), STEPS)
def test_every_change_is_there_once(
    avro_world: World, spark: SparkSession, point: str, nth: int, who: str
) -> None:
    assert avro_world.crash(point, nth, who) != 0
    assert avro_world.run_here(spark).caught_up
    check(avro_world)


@pytest.mark.slow
@pytest.mark.parametrize("point", ["topic-sending", "topic-sent", "topic-committed"])
def test_a_paused_run_wakes_up_after_a_takeover(avro_world: World, point: str) -> None:
    nth = 4 if point == "topic-sending" else 7
    zombie = avro_world.start(point, nth, "stop")
    avro_world.await_stop(zombie)
    answer = until(
        lambda: (result := avro_world.run())["code"] == 0 and result, "the takeover after the lease", 240
    )
    assert answer["caught_up"]
    check(avro_world)
    os.kill(zombie.pid, signal.SIGCONT)
    assert avro_world.answer(zombie)["error"] == "FencedError"
    assert zombie.returncode != 0
    check(avro_world)


@pytest.fixture
def own(fresh_home: Path) -> Iterator[SchemaRegistry]:
    """A registry of this test, which it may kill."""
    result = SchemaRegistry(fresh_home)
    result.start()
    yield result
    result.stop()


@pytest.mark.slow
def test_a_registry_that_is_killed_stops_starts_only(
    world: World, own: SchemaRegistry, spark: SparkSession
) -> None:
    """A run has its schemas and ends without the registry. The next run needs it before it writes."""
    world.registry_url = own.url
    write_topic_pipeline(world, "avro")
    process = world.start("topic-committed", 4, "stop")
    world.await_stop(process)
    own.kill()
    os.kill(process.pid, signal.SIGCONT)
    assert world.answer(process)["caught_up"]
    sent = read_messages(world.services.kafka.brokers, f"{world.name}-out")

    produce_more(world)
    with pytest.raises(TransientError, match=f"registry {own.url} does not answer") as refused:
        world.run_here(spark)
    assert "kafka_sink.schema_registry_url" in str(refused.value.hint)
    assert read_messages(world.services.kafka.brokers, f"{world.name}-out") == sent
    own.start()
    world.registry_url = own.url
    assert world.run_here(spark).caught_up
    check(world)


@pytest.mark.slow
@pytest.mark.parametrize("open_epoch", [False, True])
def test_a_schema_that_the_registry_refuses_loses_nothing(
    avro_world: World, spark: SparkSession, open_epoch: bool
) -> None:
    """The file has another type for a column, before or after an epoch was interrupted."""
    world = avro_world
    if open_epoch:
        assert world.crash("topic-sending", 5) != 0
    else:
        assert world.run_here(spark).caught_up
    subject = f"{world.name}-out-value"
    answer = httpx.put(
        f"{world.registry_url}/config/{subject}", json={"compatibility": "FULL_TRANSITIVE"}, timeout=30
    )
    assert answer.is_success
    sent = read_messages(world.services.kafka.brokers, f"{world.name}-out")
    produce_more(world)
    write_topic_pipeline(world, "avro", doubled="cast(amount as string)")
    with pytest.raises(SchemaError, match=f"refuses the schema of `{subject}`") as refused:
        world.run_here(spark)
    assert "compatibility of the subject" in str(refused.value.hint)
    assert read_messages(world.services.kafka.brokers, f"{world.name}-out") == sent
    write_topic_pipeline(world, "avro")
    assert world.run_here(spark).caught_up
    check(world)


def produce_more(world: World) -> None:
    """Put two messages on the source topic."""
    day = date(2024, 3, 5)
    world.produce([("u", (2, day, "later", 5), 0), ("c", (9_000, day, "new", 6), 0)])
