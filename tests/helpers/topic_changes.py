"""A hybrid source into the topic `<name>-out`, and the changes of each key that a consumer must read there."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from datetime import date, timedelta
from typing import Any

from helpers.kafka_sink import read_messages
from helpers.pipeline_world import FROM_TOPIC, HISTORY, HYBRID_SOURCE, World

PIPELINE = (
    HYBRID_SOURCE
    + """\
transforms:
  shaped: {{type: sql, sql: "select id, day, upper(name) as name, {doubled} as amount from src"}}
sinks:
  out: {{type: kafka, from: shaped, topic: {topic}-out, topic_partitions: 3, data_format: {data_format}}}
epoch: {{interval: 0s, stream_rows: 250, history_rows: 1000}}
"""
)
Changes = dict[int, list[tuple[str | None, dict[str, Any] | None]]]


def write_topic_pipeline(world: World, data_format: str, **changes: str) -> None:
    """Write the file of a pipeline into the topic. `changes` replace values of the world."""
    world.file.write_text(PIPELINE.format(**(world.file_values | changes), data_format=data_format))


def read_changes(world: World, decode: Callable[[bytes], dict[str, Any]] = json.loads) -> Changes:
    """The changes of each key in the topic, in the order of a consumer of committed transactions."""
    result: Changes = defaultdict(list)
    places: dict[int, set[int]] = defaultdict(set)
    for message in read_messages(world.services.kafka.brokers, f"{world.name}-out"):
        assert message.key is not None
        assert message.value is not None
        key = decode(message.key)["id"]
        places[key].add(message.partition)
        result[key].append((message.operation, decode(message.value)))
    assert all(len(parts) == 1 for parts in places.values())
    return result


def expected_changes(world: World) -> Changes:
    """History, then the messages of the source topic that history lacks, as the pipeline shapes them."""
    result: Changes = defaultdict(list)
    for key in range(HISTORY):
        day = date(2024, 1, 1) + timedelta(days=key % 60)
        result[key].append(("c", shaped(key, day.isoformat(), f"n{key}", key * 3)))
    for message in read_messages(world.services.kafka.brokers, world.name):
        if message.partition == 0 and message.offset < FROM_TOPIC:
            continue
        row = json.loads(message.value or b"")
        result[row["id"]].append((message.operation, shaped(*row.values())))
    return result


def shaped(key: int, day: str, name: str, amount: int) -> dict[str, Any]:
    """A row as the pipeline shapes it."""
    return {"id": key, "day": day, "name": name.upper(), "amount": amount * 2}
