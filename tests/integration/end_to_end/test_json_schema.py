"""JSON from a real broker with a JSON Schema in a real registry into Postgres, while the schema changes."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest
from helpers.avro_messages import frame
from helpers.registered_topic import RegisteredTopic

from headrace.jobs.run.events import EpochCommitted, Until
from headrace.jobs.run.runner import run
from headrace.pipeline.errors import TransientError
from headrace.pipeline.file.loader import load_pipeline

FIRST = {"type": "object", "properties": {"id": {"type": "integer"}, "name": {"type": "string"}}}
SECOND = {
    "type": "object",
    "properties": FIRST["properties"] | {"at": {"type": "string", "format": "date-time"}},
}  # type: ignore[operator]


@pytest.fixture
def shop(place: RegisteredTopic) -> RegisteredTopic:
    place.write("data_format: json_schema, primary_key: id")
    return place


def register(place: RegisteredTopic, schema: Any) -> int:
    return place.register(json.dumps(schema), kind="JSON")


def message(schema_id: int, **values: Any) -> bytes:
    return frame(schema_id, json.dumps(values).encode())


def test_the_next_run_has_the_columns_of_a_new_schema(shop: RegisteredTopic) -> None:
    one = register(shop, FIRST)
    shop.send_bytes(message(one, id=1, name="a", more=[1]), message(one, id=2), b'{"id": 3}')
    shop.send_bytes(message(one, id=2), op="d")
    assert shop.run().caught_up
    assert shop.rows("id, name") == [(1, "a"), (3, None)]

    def on_commit(event: object) -> None:
        if isinstance(event, EpochCommitted):
            shop.send_bytes(message(register(shop, SECOND), id=5, at="2024-01-02T03:04:05Z"))

    shop.send_bytes(message(one, id=4, name="d"))
    file, settings = load_pipeline(shop.file), shop.settings()
    with pytest.raises(TransientError, match="and this run reads it with schema"):
        run(file, settings, until=Until.FOREVER, spark=shop.spark, listener=on_commit)
    with psycopg.connect(shop.conninfo) as connection:
        connection.execute("ALTER TABLE target ADD COLUMN at timestamptz")
    assert shop.run().caught_up
    rows = shop.rows("id, name, at AT TIME ZONE 'UTC'")
    assert [(key, name, at and at.isoformat()) for key, name, at in rows] == [
        (1, "a", None),
        (3, None, None),
        (4, "d", None),
        (5, None, "2024-01-02T03:04:05"),
    ]
