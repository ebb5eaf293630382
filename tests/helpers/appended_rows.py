"""What the pipelines of a `World` leave in targets that append."""

from __future__ import annotations

import json
from datetime import date, timedelta

import clickhouse_connect

from helpers.kafka_sink import read_messages
from helpers.pipeline_world import FROM_TOPIC, HISTORY, Row, World


def expected_appends(world: World) -> list[Row]:
    """History, then the messages of the source topic that history lacks and that are no deletes."""
    with clickhouse_connect.get_client(
        **world.services.clickhouse.client_arguments(database=world.database)
    ) as client:
        history = client.query("SELECT id, day, name, amount FROM history").result_rows
    assert len(history) == HISTORY
    result = [(key, day, name.upper(), amount * 2) for key, day, name, amount in history]
    for message in read_messages(world.services.kafka.brokers, world.name):
        if message.operation == "d" or (message.partition == 0 and message.offset < FROM_TOPIC):
            continue
        key, day, name, amount = json.loads(message.value or b"").values()
        result.append((key, date.fromisoformat(day), name.upper(), amount * 2))
    return sorted(result)


def expected_rows(world: World) -> list[Row]:
    """The last row of each key, as the pipelines shape it."""
    return sorted((key, day, name.upper(), amount * 2) for key, day, name, amount in world.expected.values())


def expected_changes(world: World) -> dict[int, list[tuple[str, str, str, int]]]:
    """The changes of each key in their order: operation, day, name and amount, as the pipelines shape them."""
    result: dict[int, list[tuple[str, str, str, int]]] = {}
    day = date(2024, 1, 1)
    for key in range(HISTORY):
        there = (day + timedelta(days=key % 60)).isoformat()
        result[key] = [("i", there, f"N{key}", key * 6)]
    for message in read_messages(world.services.kafka.brokers, world.name):
        if message.partition == 0 and message.offset < FROM_TOPIC:
            continue
        row = json.loads(message.value or b"")
        operation = {"c": "i"}.get(message.operation or "", message.operation or "")
        change = (operation, row["day"], row["name"].upper(), row["amount"] * 2)
        result.setdefault(row["id"], []).append(change)
    return result
