"""Avro messages that Arrow decodes in the driver: without Spark, and the rows that Spark has for them."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from helpers.avro_messages import encode, frame, number, record
from helpers.depth import FULL
from pyspark.sql import SparkSession

from headrace.connectors.avro.schema import parse_record, write_schema
from headrace.connectors.dead_letters import ERROR
from headrace.connectors.kafka.avro.messages import AvroMessages
from headrace.connectors.kafka.config import KafkaSourceConfig
from headrace.connectors.kafka.message_batch import MessageBatch
from headrace.connectors.local_relation import frame_of_table
from headrace.pipeline.config.sections import KafkaConnection
from headrace.pipeline.sql.system_columns import OP, POS


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


FIXED = {"type": "fixed", "name": "f2", "size": 2}
ENUM = {"type": "enum", "name": "color", "symbols": ["RED", "BLUE"]}
TYPES: list[tuple[Any, list[tuple[Any, Any]]]] = [
    ("boolean", [(True, True), (False, False)]),
    ("int", [(one, one) for one in (0, -1, 63, -64, 64, 8191, 8192, 2**31 - 1, -(2**31))]),
    ("long", [(one, one) for one in (0, -1, 2**63 - 1, -(2**63), 2**35)]),
    ("float", [(1.5, 1.5), (-0.0, -0.0), (float("inf"), float("inf"))]),
    ("double", [(0.1, 0.1), (-0.0, -0.0), (float("-inf"), float("-inf"))]),
    ("string", [(one, one) for one in ("", "a", "\u00e4\U0010ffff\0", "x" * 300)]),
    ("bytes", [(one, one) for one in (b"", b"\0\xff", bytes(200))]),
    (FIXED, [(b"ab", b"ab"), (b"\0\xff", b"\0\xff")]),
    (ENUM, [("RED", "RED"), ("BLUE", "BLUE")]),
    (logical("int", "date"), [(0, date(1970, 1, 1)), (-719162, date(1, 1, 1)), (2932896, date(9999, 12, 31))]),
    (
        logical("long", "timestamp-millis"),
        [(-62135596800000, datetime(1, 1, 1, tzinfo=UTC)), (1, datetime(1970, 1, 1, 0, 0, 0, 1000, tzinfo=UTC))],
    ),
    (logical("long", "timestamp-micros"), [(-1, datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC))]),
    (logical("long", "local-timestamp-micros"), [(1, datetime(1970, 1, 1, 0, 0, 0, 1))]),
    (logical("long", "timestamp-nanos"), [(5, 5)]),
    (logical("string", "uuid"), [("a-b", "a-b")]),
    (
        logical("bytes", "decimal", precision=38, scale=2),
        [
            (number(one), Decimal(f"{one}E-2"))
            for one in (0, 1, -1, 127, 128, -128, -129, 255, 10**37, -(10**37), 10**38 - 1)
        ] + [(b"", Decimal("0.00"))],
    ),
    (logical("bytes", "decimal", precision=4), [(number(9999, 16), Decimal(9999)), (number(-9999, 3), Decimal(-9999))]),
    ({"type": "fixed", "name": "d", "size": 3, "logicalType": "decimal", "precision": 6}, [(number(-5, 3), Decimal(-5))]),
]  # fmt: skip


def messages_of(schemas: dict[int, Any], reader: int, **options: Any) -> AvroMessages:
    values = {
        "topic": "t",
        "reader_schema": write_schema(parse_record(json.dumps(schemas[reader]))),
        "reader_schema_id": reader,
        **options,
    }
    result = AvroMessages("src", KafkaSourceConfig.model_validate(values), KafkaConnection(), 3)
    result._schemas._client.find_schema = {  # type: ignore[method-assign]
        at: parse_record(json.dumps(schema)) for at, schema in schemas.items()
    }.get
    return result


def batch_of(values: Sequence[bytes | None], keys: list[bytes | None] | None = None) -> MessageBatch:
    count = len(values)
    return MessageBatch(
        list(values), [0] * count, list(range(count)), [0] * count, [None] * count, keys or []
    )


def rows_of(table: pa.Table | None) -> list[dict[str, Any]]:
    assert table is not None, "Spark would decode them"
    table.validate(full=True)
    return [{name: row[name] for name in row if name not in (OP, POS)} for row in table.to_pylist()]


@pytest.mark.parametrize(("kind", "values"), TYPES, ids=lambda one: str(one)[:40])
def test_every_type_without_spark(kind: Any, values: list[tuple[Any, Any]]) -> None:
    """Alone, nullable with null first and last, and in a record that may be null."""
    # A name is declared once.
    again = kind["name"] if isinstance(kind, dict) and "name" in kind else kind
    fields = [("a", kind), ("b", ["null", again]), ("c", [again, "null"])]
    schema = record(*fields, ("d", ["null", record(("w", ["null", again]), name="inner")]))
    written = record(
        ("a", kind),
        ("b", ["null", kind]),
        ("c", [kind, "null"]),
        ("d", ["null", record(("w", ["null", kind]))]),
    )
    sent, expected = [], []
    for at, (value, wanted) in enumerate(values):
        row = {"a": value, "b": (1, value), "c": (0, value), "d": (1, {"w": (1, value)})}
        seen = {"a": wanted, "b": wanted, "c": wanted, "d": {"w": wanted}}
        if at % 2:
            row |= {"b": (0, None), "c": (1, None), "d": (0, None) if at % 4 == 1 else (1, {"w": (0, None)})}
            seen |= {"b": None, "c": None, "d": None if at % 4 == 1 else {"w": None}}
        sent.append(frame(1, encode(written, row)))
        expected.append(seen)
    result = rows_of(messages_of({1: schema}, 1).decode_batch(None, batch_of(sent), "t"))
    # As text, because -0.0 equals 0.0.
    assert repr(result).replace("zoneinfo.ZoneInfo(key='UTC')", "datetime.timezone.utc") == repr(expected)


def test_other_schemas_are_resolved_without_spark() -> None:
    old = record(
        ("id", "int"), ("dropped", "string"), ("name", "string"), ("rate", "int"), ("size", ["null", "int"])
    )
    new = record(
        ("id", "long"),
        {"name": "title", "type": "string", "aliases": ["name"]},
        ("rate", "double"),
        ("size", ["null", "long"]),
        {"name": "city", "type": ["null", "string"], "default": None},
        {"name": "rank", "type": "int", "default": 7},
    )
    schemas = {1: old, 2: new}
    first = {"id": -5, "dropped": "x" * 70, "name": "a", "rate": 3, "size": (1, 2)}
    second = {"id": 2**40, "title": "b", "rate": 0.5, "size": (0, None), "city": (1, "Ulm"), "rank": 1}
    sent = [
        frame(1, encode(old, first)),
        frame(2, encode(new, second)),
        frame(1, encode(old, first | {"id": 6})),
    ]
    result = rows_of(messages_of(schemas, 2).decode_batch(None, batch_of(sent), "t"))
    base = {"id": -5, "title": "a", "rate": 3.0, "size": 2, "city": None, "rank": 7}
    last = {"id": 2**40, "title": "b", "rate": 0.5, "size": None, "city": "Ulm", "rank": 1}
    assert result == [base, last, base | {"id": 6}]


def test_tombstones_without_spark() -> None:
    schemas = {1: record(("id", "long"), ("name", "string")), 2: record(("id", "int"))}
    sent = [frame(1, encode(schemas[1], {"id": 1, "name": "a"})), None]
    keys: list[bytes | None] = [None, frame(2, encode(schemas[2], {"id": 1}))]
    messages = messages_of(schemas, 1, primary_key="id", tombstone="delete")
    table = messages.decode_batch(None, batch_of(sent, keys), "t")
    assert rows_of(table) == [{"id": 1, "name": "a"}, {"id": 1, "name": None}]
    assert table is not None
    assert table[OP].to_pylist() == ["i", "d"]


@pytest.mark.parametrize(
    "value",
    [b"", b"{}", frame(9, b"\2"), frame(1, b""), frame(1, b"\x80"), frame(1, b"\2\2"), frame(1, b"\2\2\xff"),
     frame(1, b"\2\2a" + b"\0"), frame(1, b"\2\1"), frame(1, b"\xff" * 10 + b"\1\2a"), None],
)  # fmt: skip
def test_a_message_that_does_not_fit_is_left_to_spark(value: bytes | None) -> None:
    schemas = {1: record(("id", "long"), ("name", "string"))}
    good = frame(1, encode(schemas[1], {"id": 1, "name": "a"}))
    messages = messages_of(schemas, 1)
    assert messages.decode_batch(None, batch_of([good, value]), "t") is None
    assert len(rows_of(messages.decode_batch(None, batch_of([good, good]), "t"))) == 2


@pytest.mark.parametrize(
    "kind",
    [
        {"type": "array", "items": "int"},
        {"type": "map", "values": "int"},
        ["null", "int", "string"],
        logical("int", "time-millis"),
        logical("bytes", "decimal", precision=60),
    ],
)
def test_other_types_are_left_to_spark(kind: Any) -> None:
    schemas = {2: record(("id", "int"), ("v", kind))}
    good = frame(2, b"\2\0")
    assert messages_of(schemas, 2).decode_batch(None, batch_of([good]), "t") is None


def plain_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Returns the rows with the time as a number: Python has not all of them."""
    at = table.column_names.index("h")
    return table.set_column(at, "h", table["h"].cast(pa.int64())).to_pylist()


def test_bytes_that_are_no_payload_are_read_as_by_spark(spark: SparkSession) -> None:
    """Random changes of payloads. Where Arrow has rows, Spark has the same ones."""
    schema = record(
        ("a", ["null", "long"]), ("b", "string"), ("c", ["int", "null"]), ("d", "boolean"), ("e", "double"), ("f", ENUM),
        ("g", ["null", logical("bytes", "decimal", precision=20, scale=3)]), ("h", logical("long", "timestamp-millis")),
        ("i", ["null", record(("x", "int"), ("y", ["null", "bytes"]), name="inner")]),
    )  # fmt: skip
    chance = random.Random(7)
    values = [
        {"a": (1, 2**40), "b": "h\u00e4", "c": (0, -3), "d": True, "e": 2.5, "f": "BLUE", "g": (1, number(-12345)),
         "h": 1_700_000_000_000, "i": (1, {"x": 5, "y": (1, b"\xff")})},
        {"a": (0, None), "b": "", "c": (1, None), "d": False, "e": -0.0, "f": "RED", "g": (0, None), "h": 0,
         "i": (0, None)},
    ]  # fmt: skip
    sent: list[bytes | None] = []
    for _ in range(3_000 if FULL else 400):
        data = bytearray(encode(schema, chance.choice(values)))
        for _ in range(chance.randint(0, 2)):
            at = chance.randrange(len(data))
            if chance.random() < 0.7:
                data[at] = chance.randrange(256)
            else:
                data[at : at + 1] = bytes(chance.randrange(256) for _ in range(chance.choice([0, 2])))
        sent.append(frame(1, bytes(data)))
    messages = messages_of({1: schema}, 1, on_error="dead_letter")
    frame_of_all = frame_of_table(spark, batch_of(sent).as_table("t"))
    by_spark = {row[POS]["off"]: row for row in plain_rows(messages.decode(frame_of_all).toArrow())}
    read = 0
    for at, value in enumerate(sent):
        table = messages.decode_batch(None, batch_of([value]), "t")
        if table is not None:
            read += 1
            (row,) = plain_rows(table)
            assert by_spark[at][ERROR] is None, (value, by_spark[at][ERROR])
            assert repr({**row, POS: 0}) == repr({**by_spark[at], POS: 0}), value
    good = sum(row[ERROR] is None for row in by_spark.values())
    assert 0.9 * good <= read <= good


def test_rows_of_arrow_and_of_spark_can_be_put_together(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A range may be decoded in pieces, some of them by Spark."""
    fields = [(f"v{at}", ["null", kind]) for at, (kind, _) in enumerate(TYPES) if isinstance(kind, str)]
    inner = record(
        ("a", "int"), ("b", ["null", logical("bytes", "decimal", precision=9, scale=2)]), name="inner"
    )
    schema = record(("id", "long"), ("at", logical("long", "timestamp-millis")), ("in", inner), *fields)
    row = {"id": 1, "at": 5, "in": {"a": 1, "b": (0, None)}} | {name: (0, None) for name, _ in fields}
    value = frame(1, encode(schema, row))
    messages = messages_of({1: schema}, 1, include_metadata=True)
    by_arrow = messages.decode_batch(None, batch_of([value]), "t")
    monkeypatch.setattr(messages, "_decode_with_arrow", lambda *_: None)
    by_spark = messages.decode_batch(spark, batch_of([value]), "t")
    assert by_arrow is not None
    assert by_spark is not None
    both = pa.concat_tables([by_arrow, by_spark])
    assert both.slice(0, 1).to_pylist() == both.slice(1).to_pylist()
