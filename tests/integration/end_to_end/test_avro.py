"""Avro from a real broker with a real registry into Postgres, while the schema changes."""

from __future__ import annotations

import json
import threading
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import clickhouse_connect
import psycopg
import pytest
from helpers.avro_messages import encode, frame, number, record
from helpers.registered_topic import RegisteredTopic
from pyspark.sql import DataFrame, SparkSession

from headrace.connectors.kafka.avro import messages as avro_messages
from headrace.connectors.kafka.driver_reader import DriverReader
from headrace.connectors.kafka.schema_frames import read_frames
from headrace.jobs.checks.audit import ContentAuditOptions, audit
from headrace.jobs.checks.preflight import check_pipeline
from headrace.jobs.explain.build import explain
from headrace.jobs.run.events import EpochCommitted, RunMessage, Until
from headrace.jobs.run.repair import replay
from headrace.jobs.run.runner import run
from headrace.pipeline.config.sections import ClickHouseConnection
from headrace.pipeline.errors import DataError, SchemaError, TransientError
from headrace.pipeline.file.loader import load_pipeline, parse_pipeline
from headrace.services import Services

FIRST = record(
    ("id", "long"),
    ("name", "string"),
    ("price", {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 4}),
    doc=json.dumps({"primaryKeys": ["id"]}),
)
SECOND = record(
    ("name", "string"),
    ("id", "long"),
    {"name": "city", "type": ["null", "string"], "default": None},
    {"name": "rank", "type": "int", "default": 7},
    doc=FIRST["doc"],
)


def send(place: RegisteredTopic, schema_id: int, schema: Any, *values: Any, op: str = "c") -> None:
    place.send_bytes(*(frame(schema_id, encode(schema, value)) for value in values), op=op)


def first(key: int, name: str, cents: int = 12_345) -> dict[str, Any]:
    return {"id": key, "name": name, "price": cents.to_bytes(3, "big", signed=True)}


@pytest.mark.parametrize(
    "driver_rows",
    [pytest.param(100_000, id="driver"), pytest.param(0, id="spark", marks=pytest.mark.slow)],
)
def test_the_next_run_has_the_columns_of_a_new_schema(place: RegisteredTopic, driver_rows: int) -> None:
    """The key is that of the schema's `doc`."""
    one = place.register(FIRST)
    send(place, one, FIRST, first(1, "a"), first(2, "b"), first(3, "c"))
    send(place, one, FIRST, first(2, ""), op="d")
    assert place.run(driver_rows=driver_rows).caught_up
    assert [(key, name, str(price)) for key, name, price in place.rows()] == [
        (1, "a", "1.2345"),
        (3, "c", "1.2345"),
    ]
    with psycopg.connect(place.conninfo) as connection:
        connection.execute("ALTER TABLE target ADD COLUMN city text, ADD COLUMN rank int")
    send(place, one, FIRST, first(4, "d"))
    two = place.register(SECOND)
    send(place, two, SECOND, {"id": 3, "name": "C", "city": (1, "Ulm"), "rank": 1}, op="u")
    send(place, two, SECOND, {"id": 1, "name": "", "city": (0, None), "rank": 0}, op="d")
    assert place.run(driver_rows=driver_rows).caught_up
    assert place.rows("id, name, city, rank") == [(3, "C", "Ulm", 1), (4, "d", None, 7)]


def test_a_run_ends_before_it_plans_messages_of_a_newer_schema(place: RegisteredTopic) -> None:
    """A schema that is registered while the stream runs."""
    one = place.register(FIRST)
    send(place, one, FIRST, first(1, "a"))
    file, settings = load_pipeline(place.file), place.settings()

    def on_commit(event: object) -> None:
        if isinstance(event, EpochCommitted):
            two = place.register(SECOND)
            send(place, one, FIRST, first(2, "b"))
            send(place, two, SECOND, {"id": 3, "name": "c", "city": (1, "Ulm"), "rank": 1})

    with pytest.raises(TransientError, match="and this run reads it with schema"):
        run(file, settings, until=Until.FOREVER, spark=place.spark, listener=on_commit)
    assert place.rows("id, name") == [(1, "a")]
    with psycopg.connect(place.conninfo) as connection:
        connection.execute("ALTER TABLE target ADD COLUMN city text, ADD COLUMN rank int")
    assert place.run().caught_up
    assert place.rows("id, name, city, rank") == [(1, "a", None, None), (2, "b", None, 7), (3, "c", "Ulm", 1)]


def test_without_the_check_of_order_the_old_columns_stay(place: RegisteredTopic) -> None:
    place.write("validate_writer_schema_ordering: false")
    one = place.register(FIRST)
    send(place, one, FIRST, first(1, "a"))
    file, settings = load_pipeline(place.file), place.settings()
    third = record(*FIRST["fields"], {"name": "extra", "type": "int", "default": 0}, doc=FIRST["doc"])
    commits: list[EpochCommitted] = []
    stop = threading.Event()

    def on_commit(event: object) -> None:
        if not isinstance(event, EpochCommitted):
            return
        commits.append(event)
        if len(commits) == 1:
            send(place, place.register(third), third, first(2, "b") | {"extra": 5})
        else:
            stop.set()

    run(file, settings, until=Until.FOREVER, spark=place.spark, listener=on_commit, stop=stop)
    assert place.rows("id, name") == [(1, "a"), (2, "b")]


def test_the_schema_ids_of_an_epoch_are_read_once_unless_there_is_a_new_one(
    place: RegisteredTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An epoch with a schema that no earlier one had is tried again, with all its rows."""
    place.write(rows=2)
    one, two = place.register(FIRST), place.register(SECOND)
    send(place, one, FIRST, first(1, "a"), first(2, "b"), first(3, "c"))
    second = {"name": "d", "city": (1, "Ulm"), "rank": 1}
    send(place, two, SECOND, second | {"id": 4}, second | {"id": 5})
    send(place, one, FIRST, first(6, "f"))
    reads: list[int] = []

    def count_reads(messages: DataFrame, *, of_keys: bool) -> set[tuple[bytes, bool]]:
        reads.append(messages.count())
        return read_frames(messages, of_keys=of_keys)

    monkeypatch.setattr(avro_messages, "read_frames", count_reads)
    events: list[Any] = []
    run(
        load_pipeline(place.file),
        place.settings(driver_rows=0),
        until=Until.CAUGHT_UP,
        spark=place.spark,
        listener=events.append,
    )
    assert place.rows("id, name, city, rank") == [
        *((key, name, None, 7) for key, name in ((1, "a"), (2, "b"), (3, "c"))),
        *((key, "d", "Ulm", 1) for key in (4, 5)),
        (6, "f", None, 7),
    ]
    assert len([event for event in events if isinstance(event, EpochCommitted)]) == 3
    (message,) = [event.message for event in events if isinstance(event, RunMessage)]
    assert "attempt 1 failed, trying again in 0.5 s: " in message
    assert "a message has another schema than those before" in message
    assert reads == [2, 2], "the first epoch, and the second attempt at the second one"


# Daily ones: test_a_replay_writes_the_former_columns, and kills with an open epoch in test_start_without_spark.py.
@pytest.mark.slow
@pytest.mark.parametrize(("point", "nth", "kept"), [("planned", 2, 50), ("sinks-written", 2, 100)])
def test_an_epoch_is_finished_with_its_own_schema(
    place: RegisteredTopic, point: str, nth: int, kept: int
) -> None:
    """kill -9 with an open epoch; the registry has another latest schema when the next run starts.

    An epoch that a sink has is finished with its own schema. One that no sink has is planned again.
    """
    place.write(rows=50)
    one = place.register(FIRST)
    send(place, one, FIRST, *(first(key, f"n{key}", key) for key in range(150)))
    send(place, one, FIRST, first(7, ""), op="d")
    process = place.start(point, nth)
    out, _ = process.communicate(timeout=300)
    assert "now: group" in out, (place.folder / "run.log").read_text()[-3000:]
    with psycopg.connect(place.conninfo) as connection:
        connection.execute("ALTER TABLE target ADD COLUMN city text, ADD COLUMN rank int")
    two = place.register(SECOND)
    send(place, two, SECOND, {"id": 8, "name": "eight", "city": (1, "Ulm"), "rank": 1})
    assert place.run().caught_up
    wanted: dict[int, Any] = {
        key: (key, f"n{key}", None, None if key < kept else 7) for key in range(150) if key != 7
    }
    wanted[8] = (8, "eight", "Ulm", 1)
    assert place.rows("id, name, city, rank") == [wanted[key] for key in sorted(wanted)]
    # Epochs of the first schema have the price, which the new one lacks.
    assert [key for key, price in place.rows("id, price") if price is not None] == [
        key for key in range(kept) if key != 7
    ]


@pytest.mark.slow  # test_a_replay_writes_the_former_columns is the daily one
def test_a_replay_decodes_with_the_former_schema(place: RegisteredTopic) -> None:
    """`rank` has another default in the new schema."""
    place.write(transform="select id, name, rank from src")
    old = record(*FIRST["fields"], {"name": "rank", "type": "int", "default": 1}, doc=FIRST["doc"])
    one, _ = place.register(FIRST), place.register(old)
    send(place, one, FIRST, first(1, "a"))
    assert place.run().caught_up
    place.register(SECOND)
    send(place, one, FIRST, first(2, "b"))
    assert place.run().caught_up
    assert place.rows("id, name, rank") == [(1, "a", 1), (2, "b", 7)]
    with psycopg.connect(place.conninfo) as connection:
        connection.execute("UPDATE target SET rank = 0, name = 'wrong'")
    replay(load_pipeline(place.file), place.settings(), sink="pg", from_epoch=1, spark=place.spark)
    assert place.rows("id, name, rank") == [(1, "a", 1), (2, "b", 7)]


def test_a_replay_writes_the_former_columns(place: RegisteredTopic) -> None:
    one = place.register(FIRST)
    send(place, one, FIRST, first(1, "a"))
    assert place.run().caught_up
    with psycopg.connect(place.conninfo) as connection:
        connection.execute("ALTER TABLE target ADD COLUMN city text, ADD COLUMN rank int")
    two = place.register(SECOND)
    send(place, two, SECOND, {"id": 2, "name": "b", "city": (1, "Ulm"), "rank": 3})
    assert place.run().caught_up
    wanted = place.rows("id, name, price, city, rank")
    with psycopg.connect(place.conninfo) as connection:
        connection.execute("UPDATE target SET price = 0, name = 'wrong' WHERE id = 1")
        connection.execute("UPDATE target SET city = 'wrong' WHERE id = 2")
    replay(load_pipeline(place.file), place.settings(), sink="pg", from_epoch=1, spark=place.spark)
    assert place.rows("id, name, price, city, rank") == wanted
    assert place.run().caught_up


def test_an_audit_compares_the_rows_of_all_schemas(place: RegisteredTopic) -> None:
    place.write("validate_writer_schema_ordering: false")
    one = place.register(FIRST)
    send(place, one, FIRST, first(1, "a"), first(2, "b"))
    assert place.run().caught_up
    actual = audit(
        load_pipeline(place.file), place.settings(), spark=place.spark, content=ContentAuditOptions(full=True)
    )
    assert {result.name: result.passed for result in actual}["content_matches"] is True


def test_a_tombstone_deletes_by_the_key_of_the_message(place: RegisteredTopic) -> None:
    place.write("tombstone: delete")
    key = record(("id", "long"), name="key")
    one, of_key = place.register(FIRST), place.register(key, f"{place.topic}-key")
    send(place, one, FIRST, first(1, "a"), first(2, "b"))
    place.send_bytes(None, key=frame(of_key, encode(key, {"id": 1})))
    assert place.run().caught_up
    assert place.rows("id, name") == [(2, "b")]


def test_what_a_run_cannot_read_is_named(place: RegisteredTopic) -> None:
    with pytest.raises(SchemaError, match=f"has no subject `{place.topic}-value`") as missing:
        place.run()
    assert missing.value.place is not None
    one = place.register(FIRST)
    send(place, one, FIRST, first(1, "a"))
    place.send_bytes(b"\0\0\0\xff\xff" + encode(FIRST, first(2, "b")))
    with pytest.raises(
        DataError, match=f"topic {place.topic}, partition 0, offset 1: schema 65535 is not in"
    ):
        place.run()
    assert place.rows() == []
    with pytest.raises(TransientError, match="does not answer"):
        place.run(schema_registry_url="http://127.0.0.1:1")


def test_validate_and_explain_read_the_registry(place: RegisteredTopic) -> None:
    place.register(FIRST)
    file, settings = load_pipeline(place.file), place.settings()
    pipeline = check_pipeline(file, settings, lambda: place.spark)
    assert not pipeline.errors
    assert pipeline.schemas["src"].names == ["id", "name", "price"]
    (source, sink) = explain(file, settings, spark=place.spark).nodes
    assert [column.name for column in source.columns] == ["id", "name", "price"]
    assert sink.key == ("id",)
    away = place.settings(schema_registry_url="http://127.0.0.1:1")
    assert "does not answer" in check_pipeline(file, away, lambda: place.spark).unchecked["src"]
    (source, _) = explain(file, away, spark=place.spark).nodes
    assert "does not answer" in source.unchecked[0]
    (source, _) = explain(file, away, offline=True, spark=place.spark).nodes
    assert "--offline" in source.unchecked[0]


def test_a_type_that_no_column_has_is_refused_at_the_start(place: RegisteredTopic) -> None:
    place.register(record(("id", "long"), ("a", record(("b", ["int", "string"]), name="inner"))))
    with pytest.raises(SchemaError, match=r"field `a.b` is a union of int, string"):
        place.run()
    reader = json.dumps(record(("id", "long")))
    place.write(f"primary_key: id, reader_schema: '{reader}'")
    assert place.run().caught_up


def test_a_pinned_schema_needs_no_latest_one(place: RegisteredTopic) -> None:
    one, two = place.register(FIRST), place.register(SECOND)
    place.write(f"reader_schema_id: {one}")
    send(place, one, FIRST, first(1, "a"))
    assert place.run().caught_up
    assert place.rows("id, name") == [(1, "a")]
    send(place, two, SECOND, {"id": 3, "name": "C", "city": (1, "Ulm"), "rank": 1})
    with pytest.raises(DataError, match=f"schema {two} cannot be read .*: field `price` is missing"):
        place.run()


def test_schemas_may_refer_to_others(place: RegisteredTopic) -> None:
    address = record(("city", "string"), name="address", namespace="shop")
    subject = f"{place.topic}-address"
    place.register(address, subject)
    customer = record(("id", "long"), ("home", ["null", "shop.address"]))
    one = place.registry.register(
        f"{place.topic}-value",
        customer,
        references=[{"name": "shop.address", "subject": subject, "version": 1}],
    )
    place.write("primary_key: id")
    inline = record(("id", "long"), ("home", ["null", address]))
    send(place, one, inline, {"id": 1, "home": (1, {"city": "Ulm"})})
    assert place.run().caught_up
    assert place.rows("id, home") == [(1, {"city": "Ulm"})]
    place.registry.delete(f"{place.topic}-value")
    place.registry.delete(subject)


def test_history_is_followed_by_a_stream_of_avro(
    place: RegisteredTopic, services: Services, ch_db: str, spark: SparkSession
) -> None:
    """The key comes from the schema, and so the columns, to which history is cast."""
    with clickhouse_connect.get_client(**services.clickhouse.client_arguments(database=ch_db)) as client:
        client.command(
            "CREATE TABLE history (id Int32, name String, price Decimal(10, 2)) ENGINE = MergeTree ORDER BY id"
        )
        client.insert(
            "history",
            [(1, "a", Decimal("1.50")), (2, "b", Decimal("2.50"))],
            column_names=["id", "name", "price"],
        )
    place.write_hybrid(f"{ch_db}.history")
    assert parse_pipeline(place.file.read_text()).model.sources["src"].has_late_key
    one = place.register(FIRST)
    send(place, one, FIRST, first(2, "B"), first(3, "c"))
    settings = place.settings()
    clickhouse = {
        "url": services.clickhouse.url,
        "user": services.clickhouse.username,
        "password": services.clickhouse.password,
    }
    merged = settings.model_copy(
        update={"clickhouse_source": ClickHouseConnection.model_validate(clickhouse)}
    )
    assert run(load_pipeline(place.file), merged, until=Until.CAUGHT_UP, spark=spark).caught_up
    assert [(key, name, str(price)) for key, name, price in place.rows()] == [
        (1, "a", "1.5000"),
        (2, "B", "1.2345"),
        (3, "c", "1.2345"),
    ]


@pytest.mark.parametrize(
    "driver_rows",
    [pytest.param(100_000, id="driver", marks=pytest.mark.slow), pytest.param(0, id="spark")],
)
def test_types_arrive_in_postgres(place: RegisteredTopic, driver_rows: int) -> None:
    row = record(
        ("id", "long"),
        ("wei", {"type": "bytes", "logicalType": "decimal", "precision": 78}),
        ("big", ["null", {"type": "bytes", "logicalType": "decimal", "precision": 60, "scale": 4}]),
        ("day", {"type": "int", "logicalType": "date"}),
        ("at", {"type": "long", "logicalType": "timestamp-millis"}),
        ("tags", {"type": "array", "items": "string"}),
        ("sizes", {"type": "map", "values": "long"}),
        ("home", record(("city", ["null", "string"]), name="home")),
        ("data", "bytes"),
        doc=FIRST["doc"],
    )
    values = {
        "id": 1,
        "wei": number(2**256 - 1),
        "big": (1, number(-(10**50) - 1)),
        "day": 19_724,
        "at": 1_704_164_645_678,
        "tags": ["a", "ö"],
        "sizes": {"s": 1},
        "home": {"city": (1, "Ulm")},
        "data": b"\0\xff",
    }
    send(place, place.register(row), row, values, values | {"id": 2, "big": (0, None)})
    assert place.run(driver_rows=driver_rows).caught_up
    result = place.rows("id, wei, big, day, at, tags, sizes, home, data")
    day, at = date(2024, 1, 2), datetime(2024, 1, 2, 3, 4, 5, 678_000, UTC)
    rest = (day, at, ["a", "ö"], {"s": 1}, {"city": "Ulm"}, b"\0\xff")
    assert result == [
        (1, Decimal(2**256 - 1), Decimal(f"-1{'0' * 46}.0001"), *rest),
        (2, Decimal(2**256 - 1), None, *rest),
    ]


def test_small_epochs_are_read_in_the_driver(place: RegisteredTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    one = place.register(FIRST)
    send(place, one, FIRST, first(1, "a"))
    read: list[int] = []
    original = DriverReader.read

    def counted(self: DriverReader, ranges: Any) -> Any:
        result = original(self, ranges)
        read.append(len(result) if result is not None else -1)
        return result

    monkeypatch.setattr(DriverReader, "read", counted)
    assert place.run().caught_up
    assert read == [1]


def test_the_file_alone_is_checked_without_a_registry(place: RegisteredTopic) -> None:
    assert parse_pipeline(place.file.read_text()).model.sources["src"].format == "avro"
