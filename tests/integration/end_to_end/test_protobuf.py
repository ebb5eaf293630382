"""Protobuf from a real broker with a real registry into Postgres, while the schema changes."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from helpers.protobuf_messages import frame, message_class
from helpers.registered_topic import RegisteredTopic

from headrace.connectors.kafka.driver_reader import DriverReader
from headrace.connectors.kafka.protobuf.messages import ProtobufMessages
from headrace.jobs.checks.audit import ContentAuditOptions, audit
from headrace.jobs.checks.preflight import check_pipeline
from headrace.jobs.explain.build import explain
from headrace.jobs.run.events import EpochCommitted, Until
from headrace.jobs.run.runner import run
from headrace.pipeline.errors import DataError, SchemaError, TransientError
from headrace.pipeline.file.loader import load_pipeline

FIRST = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
message Order { int64 id = 1; string name = 2; uint64 cents = 3; google.protobuf.Timestamp placed = 4; }
message Key { int64 id = 1; }
"""
SECOND = FIRST.replace("string name = 2;", "string name = 2; optional string city = 5;")
SOURCE = "data_format: protobuf, primary_key: id"


@pytest.fixture
def shop(place: RegisteredTopic) -> RegisteredTopic:
    """A topic of orders in Protobuf."""
    place.write(SOURCE)
    return place


def register(place: RegisteredTopic, text: str, **more: Any) -> int:
    return place.register(text, kind="PROTOBUF", **more)


def order(schema_id: int, text: str, key: int, **values: Any) -> bytes:
    return frame(schema_id, message_class(text, "shop.Order")(id=key, **values).SerializeToString())


@pytest.mark.parametrize("driver_rows", [pytest.param(100_000, id="driver"), pytest.param(0, id="spark")])
def test_the_next_run_has_the_columns_of_a_new_schema(shop: RegisteredTopic, driver_rows: int) -> None:
    one = register(shop, FIRST)
    placed = {"seconds": 1_700_000_000, "nanos": 123_456_789}
    shop.send_bytes(order(one, FIRST, 1, name="a", cents=2**64 - 1, placed=placed), order(one, FIRST, 2))
    shop.send_bytes(order(one, FIRST, 2), op="d")
    assert shop.run(driver_rows=driver_rows).caught_up
    (row,) = shop.rows("id, name, cents, placed")
    assert (row[0], row[1], int(row[2]), row[3].isoformat()) == (
        1,
        "a",
        2**64 - 1,
        "2023-11-14T22:13:20.123456+00:00",
    )
    with psycopg.connect(shop.conninfo) as connection:
        connection.execute("ALTER TABLE target ADD COLUMN city text")
    shop.send_bytes(order(one, FIRST, 4, name="d"))
    two = register(shop, SECOND)
    shop.send_bytes(order(two, SECOND, 3, name="c", city="Ulm"), order(two, SECOND, 5))
    assert shop.run(driver_rows=driver_rows).caught_up
    assert shop.rows("id, name, city") == [(1, "a", None), (3, "c", "Ulm"), (4, "d", None), (5, "", None)]
    settings = shop.settings(driver_rows=driver_rows)
    actual = audit(
        load_pipeline(shop.file), settings, spark=shop.spark, content=ContentAuditOptions(full=True)
    )
    # The rows of the first epoch have no city, and are audited with their own schema.
    assert {result.name: result.passed for result in actual}["content_matches"] is True


def test_a_run_ends_before_it_plans_messages_of_a_newer_schema(shop: RegisteredTopic) -> None:
    one = register(shop, FIRST)
    shop.send_bytes(order(one, FIRST, 1, name="a"))

    def on_commit(event: object) -> None:
        if isinstance(event, EpochCommitted):
            two = register(shop, SECOND)
            shop.send_bytes(order(two, SECOND, 2, name="b", city="Ulm"))

    settings = shop.settings()
    with pytest.raises(TransientError, match="and this run reads it with schema"):
        run(load_pipeline(shop.file), settings, until=Until.FOREVER, spark=shop.spark, listener=on_commit)
    assert shop.rows("id, name") == [(1, "a")]


def test_small_and_large_epochs_are_read_in_the_driver(
    shop: RegisteredTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = register(shop, FIRST)
    shop.send_bytes(*(order(one, FIRST, key, name=f"n{key}") for key in range(30_000)))
    monkeypatch.setattr(ProtobufMessages, "decode", None)
    reads = []
    read = DriverReader.read
    monkeypatch.setattr(DriverReader, "read", lambda *arguments: reads.append(1) or read(*arguments))
    assert shop.run().caught_up
    assert reads
    assert shop.rows("id, name") == [(key, f"n{key}") for key in range(30_000)]


@pytest.mark.parametrize(("point", "nth"), [("planned", 3), ("sinks-written", 2)])
def test_a_kill_in_a_backlog_loses_and_doubles_nothing(shop: RegisteredTopic, point: str, nth: int) -> None:
    shop.write(SOURCE, rows=2_000)
    one = register(shop, FIRST)
    shop.send_bytes(*(order(one, FIRST, key, name=f"n{key}") for key in range(10_000)))
    shop.send_bytes(*(order(one, FIRST, key, name="new", cents=key) for key in range(0, 10_000, 3)), op="u")
    out, _ = shop.start(point, nth).communicate(timeout=300)
    assert "now: group" in out, (shop.folder / "run.log").read_text()[-3000:]
    assert shop.run().caught_up
    assert [(key, name, int(cents)) for key, name, cents in shop.rows("id, name, cents")] == [
        (key, "new", key) if key % 3 == 0 else (key, f"n{key}", 0) for key in range(10_000)
    ]


@pytest.mark.parametrize("driver_rows", [pytest.param(100_000, id="driver"), pytest.param(0, id="spark")])
def test_a_tombstone_deletes_by_the_key_of_the_message(shop: RegisteredTopic, driver_rows: int) -> None:
    shop.write(f"{SOURCE}, tombstone: delete")
    one = register(shop, FIRST)
    of_key = register(shop, 'syntax = "proto3"; message Id { string unused = 1; int64 id = 7; }', subject="k")
    shop.send_bytes(*(order(one, FIRST, key) for key in range(4)))
    key = message_class('syntax = "proto3"; message Id { string unused = 1; int64 id = 7; }', "Id")(id=2)
    shop.send_bytes(None, key=frame(of_key, key.SerializeToString()))
    shop.send_bytes(None, key=frame(one, message_class(FIRST, "shop.Key")(id=3).SerializeToString(), 1))
    assert shop.run(driver_rows=driver_rows).caught_up
    assert shop.rows("id") == [(0,), (1,)]


def test_what_a_run_cannot_read_is_named(shop: RegisteredTopic) -> None:
    one = register(shop, FIRST)
    shop.send_bytes(order(one, FIRST, 1), frame(one, b"\x12\x05ab"))
    with pytest.raises(DataError) as broken:
        shop.run()
    text = str(broken.value)
    assert f"topic {shop.topic}, partition 0, offset 1: the payload is no `shop.Order`: " in text
    assert "payload: 0x00" in text


def test_schemas_may_import_others(shop: RegisteredTopic) -> None:
    inner = 'syntax = "proto3"; package shop; message Place { string city = 1; }'
    subject = f"{shop.topic}-place"
    register(shop, inner, subject=subject)
    text = 'syntax = "proto3"; package shop; import "shop/place.proto"; message Order { int64 id = 1; Place at = 2; }'
    references = [{"name": "shop/place.proto", "subject": subject, "version": 1}]
    one = register(shop, text, references=references)
    whole = text.replace('import "shop/place.proto";', "message Place { string city = 1; }")
    # The message's own file has only `Order`.
    shop.send_bytes(
        frame(one, message_class(whole, "shop.Order")(id=1, at={"city": "Ulm"}).SerializeToString())
    )
    assert shop.run().caught_up
    assert shop.rows("id, at->>'city'") == [(1, "Ulm")]


def test_validate_and_explain_read_the_registry(shop: RegisteredTopic) -> None:
    register(shop, FIRST)
    settings = shop.settings()
    with psycopg.connect(shop.conninfo) as connection:
        connection.execute("CREATE TABLE target (id bigint PRIMARY KEY, name int)")
    file = load_pipeline(shop.file)
    checked = check_pipeline(file, settings, lambda: shop.spark)
    assert "column 'name'" in str(checked.errors[0])
    assert checked.schemas["src"].names == ["id", "name", "cents", "placed"]
    (source, _) = explain(file, settings, spark=shop.spark).nodes
    assert [column.name for column in source.columns] == ["id", "name", "cents", "placed"]


@pytest.mark.parametrize(
    ("text", "more", "says"),
    [
        ('syntax = "proto3"; message M { M next = 1; }', "", "field `next` is a `M` inside of itself"),
        ('syntax = "proto3"; message M { int64 id = 1; }', ", message_type: N", "has no message `N`"),
        (
            'syntax = "proto3"; message M { int64 key = 1; }',
            "",
            "the primary key has `id`, and the reader schema",
        ),
    ],
)
def test_a_schema_that_cannot_be_read_is_refused_at_the_start(
    shop: RegisteredTopic, text: str, more: str, says: str
) -> None:
    shop.write(SOURCE + more)
    register(shop, text)
    with pytest.raises(SchemaError, match=says) as refused:
        shop.run()
    assert refused.value.node == "src"


def test_a_schema_of_avro_is_named(shop: RegisteredTopic) -> None:
    shop.register({"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}]})
    with pytest.raises(SchemaError, match="is AVRO, not Protobuf"):
        shop.run()
