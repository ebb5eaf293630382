"""A Kafka sink in Avro, with a real broker and a real registry."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pyarrow as pa
import pytest
from helpers.avro_messages import encode, number
from helpers.avro_messages import frame as avro_frame
from helpers.kafka_sink import KafkaSinkMaker, kafka_sink_maker, read_messages
from helpers.pipeline_world import World
from helpers.schema_registry import SchemaRegistry
from helpers.sink_makers import KEYED, frame, plan
from pyspark.sql import SparkSession

from headrace.pipeline.errors import HeadraceError, SchemaError, TransientError
from headrace.pipeline.types.int256 import UINT256, storage_schema
from headrace.services import Services

Make = Callable[..., KafkaSinkMaker]

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("small", pa.int16()),
        ("flag", pa.bool_()),
        ("ratio", pa.float64()),
        ("price", pa.decimal128(20, 4)),
        ("name", pa.string()),
        ("raw", pa.binary()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
        ("wide", UINT256),
        ("tags", pa.list_(pa.string())),
        ("place", pa.struct([("x", pa.int32()), ("y", pa.string())])),
        ("counts", pa.map_(pa.int32(), pa.int64())),
    ]
)
FULL_ROW = {
    "id": 7,
    "small": -3,
    "flag": True,
    "ratio": -0.0,
    "price": Decimal("-1.5000"),
    "name": "é🛫",
    "raw": b"\0\xff",
    "day": date(1969, 12, 31),
    "at": datetime(2024, 5, 1, 12, 30, 15, 123456, tzinfo=UTC),
    "local": datetime(1900, 1, 1),
    "wide": str(2**255),
    "tags": ["a", None],
    "place": {"x": 1, "y": None},
    "counts": {1: 10},
}
NULL_ROW = dict.fromkeys(SCHEMA.names) | {"id": 8}
EPOCH = datetime(1970, 1, 1)


@pytest.fixture
def make(spark: SparkSession, services: Services, registry: SchemaRegistry, tmp_path: Path) -> Make:
    """`make(**node)` returns the maker of sinks in Avro into a topic of its own."""
    return lambda **node: kafka_sink_maker(
        spark, services.kafka.brokers, tmp_path, registry=registry.url, data_format="avro", **node
    )


def registered(registry: SchemaRegistry, subject: str) -> tuple[int, dict[str, Any]]:
    """The id and the schema of the latest version of a subject."""
    result = httpx.get(f"{registry.url}/subjects/{subject}/versions/latest", timeout=30).json()
    return int(result["id"]), json.loads(result["schema"])


def some(value: Any) -> Any:
    """A value of a union with null, as `encode` takes it."""
    return (0, None) if value is None else (1, value)


def micros(moment: datetime) -> int:
    since = moment.replace(tzinfo=None) - EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def avro_value(row: dict[str, Any]) -> dict[str, Any]:
    """A row of SCHEMA as `encode` takes it."""
    place, counts = row["place"], row["counts"]
    plain = row | {
        "price": row["price"] and number(int(row["price"].scaleb(4))),
        "day": row["day"] and (row["day"] - EPOCH.date()).days,
        "at": row["at"] and micros(row["at"]),
        "local": row["local"] and micros(row["local"]),
        "tags": row["tags"] and [some(tag) for tag in row["tags"]],
        "place": place and {name: some(value) for name, value in place.items()},
        "counts": counts and {str(key): some(value) for key, value in counts.items()},
    }
    return {name: some(value) for name, value in plain.items()}


def test_messages_have_the_frame_and_the_schemas_of_the_registry(
    make: Make, registry: SchemaRegistry
) -> None:
    maker = make(topic_partitions=1)
    sink = maker.joined(SCHEMA)
    rows = frame(maker.spark, storage_schema(SCHEMA), [FULL_ROW, NULL_ROW], "id")
    sink.write(plan(1), replace(rows, schema=SCHEMA))
    sink.close()
    value_id, value = registered(registry, f"{maker.topic}-value")
    key_id, key = registered(registry, f"{maker.topic}-key")
    assert json.loads(value["doc"]) == {"primaryKeys": ["id"]}
    assert [one["name"] for one in key["fields"]] == ["id"]
    assert [(one.key, one.value, one.operation) for one in read_messages(maker.brokers, maker.topic)] == [
        (
            avro_frame(key_id, encode(key, {"id": some(row["id"])})),
            avro_frame(value_id, encode(value, avro_value(row))),
            operation,
        )
        for row, operation in ((FULL_ROW, "c"), (NULL_ROW, "d"))
    ]


def test_a_schema_is_registered_once_and_a_new_column_is_a_new_version(
    make: Make, registry: SchemaRegistry
) -> None:
    maker = make()
    maker.joined(KEYED).close()
    subject = f"{maker.topic}-value"
    httpx.put(f"{registry.url}/config/{subject}", json={"compatibility": "FULL_TRANSITIVE"}, timeout=30)
    first, _ = registered(registry, subject)
    maker.joined(KEYED, generation=2).close()
    assert registered(registry, subject)[0] == first
    maker.joined(KEYED.append(pa.field("city", pa.string())), generation=3).close()
    second, schema = registered(registry, subject)
    assert second != first
    assert schema["fields"][-1] == {"name": "city", "type": ["null", "string"], "default": None}
    with pytest.raises(SchemaError, match=f"refuses the schema of `{subject}`"):
        maker.joined(pa.schema([("id", pa.int64()), ("name", pa.int64())]), generation=4)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.field("full name", pa.string()), "cannot have a field `full name`"),
        (pa.field("1st", pa.string()), "cannot have a field `1st`"),
        (pa.field("place", pa.struct([("é", pa.int32())])), "column `place.é`: Avro messages cannot have"),
        (pa.field("wait", pa.duration("us")), "column `wait`: Avro messages cannot carry duration"),
    ],
    ids=lambda value: value.name if isinstance(value, pa.Field) else "",
)
def test_columns_that_avro_cannot_carry_are_refused(make: Make, column: pa.Field, message: str) -> None:
    sink = make().open(KEYED.append(column))
    with pytest.raises(SchemaError) as refused:
        sink.validate_target()
    sink.close()
    assert message in refused.value.message
    assert "transform" in str(refused.value.hint)


def test_a_registry_that_does_not_answer_is_named_before_anything_is_written(
    spark: SparkSession, services: Services, tmp_path: Path
) -> None:
    maker = kafka_sink_maker(spark, services.kafka.brokers, tmp_path, data_format="avro")
    for attempt in ("validate_target", "prepare"):
        sink = maker.open(KEYED)
        with pytest.raises(
            TransientError, match=r"registry http://127\.0\.0\.1:1 does not answer"
        ) as refused:
            sink.validate_target() if attempt == "validate_target" else sink.prepare(KEYED, 1)
        assert "kafka_sink.schema_registry_url" in str(refused.value.hint)
        sink.close()


INTO_AVRO = """
name: {name}
sources: {{src: {{type: kafka, topic: {topic}, primary_key: id, schema: {{id: int64, day: date32, name: string, amount: int64}}}}}}
sinks: {{out: {{type: kafka, from: src, topic: {topic}-avro, data_format: avro, tombstones: true}}}}
"""
FROM_AVRO = """
name: {name}_back
sources: {{src: {{type: kafka, topic: {topic}-avro, tombstone: delete}}}}
sinks: {{pg: {{type: postgres, from: src, table: target}}}}
"""


@pytest.mark.parametrize("point", ["sinks-written", pytest.param("topic-sending", marks=pytest.mark.slow)])
def test_a_source_reads_what_the_sink_wrote_after_a_kill(
    world: World, spark: SparkSession, registry: SchemaRegistry, point: str
) -> None:
    """Updates, and deletes as tombstones. The key columns are those of the schema's `doc`."""
    world.registry_url = registry.url

    def write_file(text: str) -> None:
        world.file.write_text(text.format(name=world.name, topic=world.name))

    write_file(INTO_AVRO)
    assert world.crash(point, 1) != 0
    assert world.run_here(spark).caught_up
    write_file(FROM_AVRO)
    assert world.run_here(spark).caught_up
    sent = read_messages(world.services.kafka.brokers, world.name)
    rows: dict[int, Any] = {}
    for one in sent:
        row = json.loads(one.value or b"")
        if one.operation == "d":
            rows.pop(row["id"], None)
        else:
            rows[row["id"]] = (row["id"], date.fromisoformat(row["day"]), row["name"], row["amount"])
    with psycopg.connect(world.conninfo) as connection:
        result = connection.execute("SELECT id, day, name, amount FROM target ORDER BY id").fetchall()
    assert result == sorted(rows.values())
    copied = read_messages(world.services.kafka.brokers, f"{world.name}-avro")
    assert len(copied) == len(sent)
    assert sum(one.value is None for one in copied) == sum(one.operation == "d" for one in sent) > 0


def test_the_error_of_a_null_in_a_key_names_the_position(make: Make) -> None:
    maker = make()
    sink = maker.joined(KEYED)
    with pytest.raises(HeadraceError, match="key column `id` is null"):
        sink.write(plan(1), frame(maker.spark, KEYED, [{"id": None, "name": "a"}], "c"))
    sink.close()
