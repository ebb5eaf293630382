"""Avro messages: every type, resolution between schemas, and what is refused, in the driver and by Spark."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from helpers.avro_messages import encode, frame, number, record
from helpers.depth import FULL
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from headrace.connectors.avro.schema import parse_record, write_schema
from headrace.connectors.dead_letters import ERROR
from headrace.connectors.kafka.avro.messages import AvroMessages
from headrace.connectors.kafka.config import KafkaSourceConfig
from headrace.connectors.kafka.message_batch import MessageBatch
from headrace.connectors.local_relation import collect_arrow
from headrace.connectors.row_errors import explain_failure
from headrace.connectors.spark_types import row_schema
from headrace.pipeline.config.sections import KafkaConnection
from headrace.pipeline.errors import DataError, HeadraceError
from headrace.pipeline.sql.system_columns import OP, POS

Row = dict[str, Any]
COLUMNS = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp,"
    " headers array<struct<key: string, value: binary>>"
)


class Messages:
    """Decodes messages of several schemas, without a registry."""

    def __init__(self, spark: SparkSession, way: str) -> None:
        self.spark = spark
        self.way = way
        self.schemas: dict[int, Any] = {}
        self.sent: list[tuple[bytes | None, bytes | None, str | None]] = []

    def send(self, schema_id: int, *values: Any, op: str | None = None) -> None:
        self.sent += [
            (None, frame(schema_id, encode(self.schemas[schema_id], value)), op) for value in values
        ]

    def send_bytes(self, value: bytes | None, key: bytes | None = None) -> None:
        self.sent.append((key, value, None))

    def decoded(self, reader: int, **options: Any) -> DataFrame | Any:
        node = KafkaSourceConfig.model_validate(
            {
                "topic": "t",
                "reader_schema": write_schema(parse_record(json.dumps(self.schemas[reader]))),
                "reader_schema_id": reader,
                **options,
            }
        )
        messages = AvroMessages("src", node, KafkaConnection(), 3)
        registered = {at: parse_record(json.dumps(schema)) for at, schema in self.schemas.items()}
        messages._schemas._client.find_schema = registered.get  # type: ignore[method-assign]
        self.columns = row_schema(messages.columns)
        if self.way != "arrow":
            messages.__dict__["_arrow"] = None
        if self.way != "spark":
            values = [value for _, value, _ in self.sent]
            count = len(values)
            batch = MessageBatch(
                values,
                [0] * count,
                list(range(count)),
                [1_700_000_000_000] * count,
                [op for *_, op in self.sent],
                [key for key, *_ in self.sent],
            )
            return messages.decode_batch(self.spark, batch, "t")
        rows = [
            (
                key,
                value,
                "t",
                0,
                at,
                datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC),
                None if op is None else [("dbz.op", op.encode())],
            )
            for at, (key, value, op) in enumerate(self.sent)
        ]
        return messages.decode(self.spark.createDataFrame(rows, COLUMNS))

    def read(self, reader: int, **options: Any) -> list[Row]:
        result = self.decoded(reader, **options)
        table = collect_arrow(result) if isinstance(result, DataFrame) else result
        if isinstance(result, DataFrame):
            assert _types(result.schema) == _types(self.columns)
        rows = table.to_pylist()
        assert [row[POS]["off"] for row in sorted(rows, key=lambda row: row[POS]["off"])] == list(
            range(len(self.sent))
        )
        return [
            {name: value for name, value in row.items() if name != POS}
            for row in sorted(rows, key=lambda row: row[POS]["off"])
        ]

    def failure(self, reader: int, **options: Any) -> HeadraceError:
        try:
            self.read(reader, **options)
        except Exception as error:
            if (result := explain_failure(error)) is None:
                raise
            return result
        pytest.fail("it was read")


@pytest.fixture(params=["arrow", "driver", "spark"])
def messages(spark: SparkSession, request: pytest.FixtureRequest) -> Messages:
    return Messages(spark, request.param)


driver_is_daily = pytest.mark.parametrize(
    "messages", ["arrow", "driver", pytest.param("spark", marks=pytest.mark.slow)], indirect=True
)
"""For what the decoder does in the same way in the driver and in Spark's tasks."""


def _types(schema: StructType) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in schema]


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


def nullable(kind: Any) -> list[Any]:
    return ["null", kind]


WIDE = 10**75 + 123
EVERY: dict[str, tuple[Any, Any, Any]] = {
    "flag": ("boolean", True, True),
    "small": ("int", -7, -7),
    "big": ("long", -(2**63), -(2**63)),
    "half": ("float", 1.5, 1.5),
    "ratio": ("double", -0.1, -0.1),
    "text": ("string", "ä€😀", "ä€😀"),
    "data": ("bytes", b"\0\xff", b"\0\xff"),
    "hash": ({"type": "fixed", "name": "hash", "size": 3}, b"abc", b"abc"),
    "color": ({"type": "enum", "name": "color", "symbols": ["RED", "BLUE"]}, "BLUE", "BLUE"),
    "none": (nullable("string"), (0, None), None),
    "some": (["string", "null"], (0, "x"), "x"),
    "day": (logical("int", "date"), -719162, date(1, 1, 1)),
    "clock": (logical("int", "time-millis"), 45_000_500, "12:30:00.5"),
    "fine": (logical("long", "time-micros"), 86_399_999_999, "23:59:59.999999"),
    "at": (logical("long", "timestamp-millis"), -1, datetime(1969, 12, 31, 23, 59, 59, 999000, UTC)),
    "exact": (logical("long", "timestamp-micros"), 1, datetime(1970, 1, 1, 0, 0, 0, 1, UTC)),
    "old": (logical("long", "timestamp-micros"), -62135596800000000, datetime(1, 1, 1, tzinfo=UTC)),
    "local": (logical("long", "local-timestamp-millis"), 1, datetime(1970, 1, 1, 0, 0, 0, 1000)),
    "here": (logical("long", "local-timestamp-micros"), 1, datetime(1970, 1, 1, 0, 0, 0, 1)),
    "nanos": (logical("long", "timestamp-nanos"), 123456789123456789, 123456789123456789),
    "id": (
        logical("string", "uuid"),
        "00000000-0000-0000-0000-00000000000a",
        "00000000-0000-0000-0000-00000000000a",
    ),
    "short_id": (
        {"type": "fixed", "name": "short_id", "size": 16, "logicalType": "uuid"},
        uuid.UUID("12345678-9ABC-def0-1234-56789abcdef0").bytes,
        "12345678-9abc-def0-1234-56789abcdef0",
    ),
    "price": (logical("bytes", "decimal", precision=10, scale=2), number(-12345), Decimal("-123.45")),
    "padded": (logical("bytes", "decimal", precision=4, scale=2), number(-1, 30), Decimal("-0.01")),
    "fixed_price": (
        {"type": "fixed", "name": "fp", "size": 16, "logicalType": "decimal", "precision": 38, "scale": 9},
        number(10**38 - 1, 16),
        Decimal("9" * 29 + "." + "9" * 9),
    ),
    "tiny": (
        {"type": "fixed", "name": "tiny", "size": 2, "logicalType": "decimal", "precision": 4, "scale": 4},
        number(-9999, 2),
        Decimal("-0.9999"),
    ),
    "wide": (logical("bytes", "decimal", precision=76, scale=0), number(WIDE), str(WIDE)),
    "negative": (
        logical("bytes", "decimal", precision=76, scale=10),
        number(-WIDE),
        f"-{str(WIDE)[:-10]}.0000000123",
    ),
    "thin": (logical("bytes", "decimal", precision=50, scale=50), number(-(10**48)), "-0.01"),
    "nothing": (logical("bytes", "decimal", precision=50, scale=5), number(0), "0"),
    "wei": (logical("bytes", "decimal", precision=78), number(2**256 - 1), str(2**256 - 1)),
    "wei_fixed": (
        {"type": "fixed", "name": "wf", "size": 33, "logicalType": "decimal", "precision": 78, "scale": 0},
        number(2**256 - 16, 33),
        str(2**256 - 16),
    ),
    "list": ({"type": "array", "items": nullable("int")}, [(1, 1), (0, None)], [1, None]),
    "empty": ({"type": "array", "items": "string"}, [], []),
    "map": ({"type": "map", "values": "long"}, {"a": 1, "ö": 2}, [("a", 1), ("ö", 2)]),
    "times": (
        {"type": "array", "items": record(("c", nullable(logical("int", "time-millis"))), name="timed")},
        [{"c": (1, 0)}, {"c": (0, None)}],
        [{"c": "00:00:00"}, {"c": None}],
    ),
    "prices": (
        {"type": "map", "values": logical("bytes", "decimal", precision=5, scale=1)},
        {"a": number(15)},
        [("a", Decimal("1.5"))],
    ),
    "inner": (
        nullable(
            record(("x", "int"), ("deep", record(("y", nullable("string")), name="deep")), name="inner")
        ),
        (1, {"x": 1, "deep": {"y": (0, None)}}),
        {"x": 1, "deep": {"y": None}},
    ),
    "length": (
        {"type": "fixed", "name": "len", "size": 12, "logicalType": "duration"},
        b"\1" * 12,
        b"\1" * 12,
    ),
    "unknown": (logical("string", "of-another-vendor"), "x", "x"),
}


def test_every_type(messages: Messages) -> None:
    messages.schemas[7] = record(*((name, kind) for name, (kind, *_) in EVERY.items()))
    messages.send(7, {name: value for name, (_, value, _) in EVERY.items()})
    (row,) = messages.read(7)
    assert row.pop(OP) == "i"
    assert row == {name: want for name, (*_, want) in EVERY.items()}


CUSTOMER = record(("id", "long"), ("name", "string"), ("note", ["null", "string"]))


def rows(*values: tuple[Any, ...], columns: tuple[str, ...], op: str = "i") -> list[Row]:
    return [dict(zip(columns, value, strict=True)) | {OP: op} for value in values]


def test_messages_of_several_schemas_have_the_columns_of_one(messages: Messages) -> None:
    messages.schemas[1] = record(
        ("id", "int"), ("name", "bytes"), ("removed", ["string", record(("a", "int"), name="x")])
    )
    messages.schemas[2] = record(
        ("name", "string"), ("id", "long"), ("city", "string"), name="other", namespace="n.s"
    )
    messages.schemas[3] = record(
        {"name": "id", "type": "double"},
        {"name": "name", "type": "string"},
        {"name": "town", "type": ["null", "string"], "default": None, "aliases": ["city"]},
        {"name": "rank", "type": "int", "default": 7},
        {
            "name": "kind",
            "type": {"type": "enum", "name": "k", "symbols": ["A", "B"], "default": "A"},
            "default": "B",
        },
    )
    messages.schemas[4] = record(
        *messages.schemas[3]["fields"][:2], ("kind", {"type": "enum", "name": "k2", "symbols": ["C", "B"]})
    )
    messages.send(
        1, {"id": 1, "name": b"one", "removed": (1, {"a": 1})}, {"id": 2, "name": b"two", "removed": (0, "x")}
    )
    messages.send(2, {"id": 3, "name": "three", "city": "Ulm"})
    messages.send(3, {"id": 0.5, "name": "four", "town": (1, "Bonn"), "rank": 1, "kind": "A"})
    messages.send(4, {"id": 5.0, "name": "five", "kind": "C"})
    assert messages.read(3) == rows(
        (1.0, "one", None, 7, "B"),
        (2.0, "two", None, 7, "B"),
        (3.0, "three", "Ulm", 7, "B"),
        (0.5, "four", "Bonn", 1, "A"),
        (5.0, "five", None, 7, "A"),
        columns=("id", "name", "town", "rank", "kind"),
    )


@driver_is_daily
def test_an_override_names_the_schema_that_a_message_was_written_with(messages: Messages) -> None:
    messages.schemas |= {1: record(("a", "int"), ("b", "int")), 2: record(("b", "int"), ("a", "int"))}
    messages.send(2, {"a": 1, "b": 2})
    assert messages.read(1) == rows((1, 2), columns=("a", "b"))
    assert messages.read(1, schema_id_overrides=[{"from": 2, "to": 1}]) == rows((2, 1), columns=("a", "b"))


@driver_is_daily
def test_without_resolution_fields_match_by_name_and_type_only(messages: Messages) -> None:
    messages.schemas[1] = record(("b", "string"), ("a", "int"))
    messages.schemas[2] = record(
        ("a", "int"), {"name": "c", "type": "string", "default": "x"}, ("b", "string")
    )
    messages.schemas[3] = record(("a", "string"))
    messages.send(1, {"a": 1, "b": "one"})
    columns = ("a", "c", "b")
    assert messages.read(2) == rows((1, "x", "one"), columns=columns)
    assert messages.read(2, skip_schema_resolution=True) == rows((1, None, "one"), columns=columns)
    by_id = {"skip_schema_resolution_for_reader_schema_ids": [2]}
    assert messages.read(2, **by_id) == rows((1, None, "one"), columns=columns)
    messages.send(3, {"a": "text"})
    assert "field `a` is string, and int in the reader schema" in str(messages.failure(2, **by_id))


def test_operations_come_from_the_header_or_the_payload(messages: Messages) -> None:
    messages.schemas[1] = record(("id", "int"))
    messages.schemas[2] = record(("id", "int"), (OP, ["null", "string"]))
    for op in ("c", "r", "U", "d"):
        messages.send(1, {"id": 1}, op=op)
    assert [row[OP] for row in messages.read(1)] == ["i", "i", "u", "d"]
    messages.sent.clear()
    messages.send(2, {"id": 1, OP: (1, "d")}, {"id": 1, OP: (0, None)}, op="u")
    assert messages.read(2) == [{"id": 1, OP: "d"}, {"id": 1, OP: "i"}]
    messages.send(1, {"id": 1}, op="x")
    assert "topic t, partition 0, offset 2: header dbz.op says `x`" in str(messages.failure(1))


def test_metadata_follows_the_payload(messages: Messages) -> None:
    messages.schemas[1] = record(("id", "int"))
    messages.send(1, {"id": 1})
    (row,) = messages.read(1, include_metadata=True)
    assert list(row) == ["id", "__kafka_partition", "__kafka_offset", "__kafka_timestamp", OP]
    assert row["__kafka_timestamp"] == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)


@driver_is_daily
def test_no_message_is_no_row(messages: Messages) -> None:
    messages.schemas[1] = record(*((name, kind) for name, (kind, *_) in EVERY.items()))
    assert messages.read(1) == []


@driver_is_daily
def test_a_union_with_null_at_the_top_is_its_record(messages: Messages) -> None:
    messages.schemas[1] = {"type": ["null", record(("id", "int"))]}
    messages.send(1, (1, {"id": 4}))
    assert messages.read(1) == rows((4,), columns=("id",))
    messages.send(1, (0, None))
    assert "offset 1: the message has no payload (a tombstone)" in str(messages.failure(1))


GOOD = encode(CUSTOMER, {"id": 1, "name": "abc", "note": (1, "x")})


BROKEN: list[tuple[bytes | None, str]] = [
    (None, "the message has no payload (a tombstone)"),
    (b"", "the payload does not begin with a 0 and the id of a schema"),
    (b"\0\0\0\0", "the payload does not begin with a 0 and the id of a schema"),
    (b'{"id": 1}', "the payload does not begin with a 0 and the id of a schema"),
    (frame(9, GOOD), "schema 9 is not in the schema registry http://localhost:18081"),
    (frame(2**31 + 5, GOOD), f"schema {2**31 + 5} is not in the schema registry"),
    (frame(1, b""), "the payload does not fit its schema 1"),
    (frame(1, GOOD[:-1]), "the payload does not fit its schema 1"),
    (frame(1, GOOD + b"\0"), "the payload does not fit its schema 1"),
    (frame(1, GOOD[:2] + b"\xff" * 12), "the payload does not fit its schema 1"),
    (frame(1, encode(CUSTOMER, {"id": 1, "name": b"\xff", "note": (0, None)})), "a text is not UTF-8"),
    (frame(2, b"\2"), "schema 2 cannot be read with the reader schema: field `name` is missing"),
]


# test_dead_letters_are_the_messages_that_cannot_be_read has the reasons of all of them.
@pytest.mark.parametrize(
    ("message", "says"),
    [
        pytest.param(*one, marks=() if place in (3, 7) else pytest.mark.slow)
        for place, one in enumerate(BROKEN)
    ],
)
def test_a_message_that_cannot_be_read_is_named(messages: Messages, message: bytes | None, says: str) -> None:
    messages.schemas |= {1: CUSTOMER, 2: record(("id", "long"))}
    messages.send(1, {"id": 1, "name": "abc", "note": (0, None)})
    messages.send_bytes(message)
    result = str(messages.failure(1))
    assert f"topic t, partition 0, offset 1: {says}" in result
    messages.sent.pop()
    assert len(messages.read(1)) == 1


def test_dead_letters_are_the_messages_that_cannot_be_read(messages: Messages) -> None:
    messages.schemas |= {1: CUSTOMER, 2: record(("id", "long"))}
    for message, _ in BROKEN:
        messages.send_bytes(message, b"key")
        messages.send(1, {"id": 1, "name": "abc", "note": (0, None)})
    messages.send(1, {"id": 1, "name": "abc", "note": (0, None)}, op="x")
    result = messages.decoded(1, on_error="dead_letter")
    table = collect_arrow(result) if isinstance(result, DataFrame) else result
    rows = sorted(table.to_pylist(), key=lambda row: row[POS]["off"])
    errors = [row.pop(ERROR) for row in rows]
    assert errors[1:-1:2] == [None] * len(BROKEN)
    assert all(row["name"] == "abc" for row in rows[1:-1:2])
    for at, (message, says) in enumerate(BROKEN):
        assert errors[2 * at]["reason"].startswith(says), errors[2 * at]
        assert (errors[2 * at]["__kafka_value"], errors[2 * at]["__kafka_key"]) == (message, b"key")
        assert errors[2 * at]["__kafka_offset"] == 2 * at
    assert errors[-1]["reason"] == "header dbz.op says `x`"


def test_a_dead_letter_for_a_value_at_any_depth(messages: Messages) -> None:
    cents = logical("bytes", "decimal", precision=4, scale=2)
    clock = logical("int", "time-millis")
    inner = {"type": "record", "name": "inner", "fields": [{"name": "price", "type": cents}]}
    messages.schemas[1] = record(
        ("id", nullable("long")),
        ("list", {"type": "array", "items": clock}),
        ("map", {"type": "map", "values": nullable(clock)}),
        ("one", inner),
        ("v", nullable(cents)),
    )
    good = {
        "id": (1, 1),
        "list": [1, 2],
        "map": {"a": (1, 3), "b": (0, None)},
        "one": {"price": number(1)},
        "v": (0, None),
    }
    wrong: list[dict[str, Any]] = [
        {"list": [1, -1]},
        {"map": {"a": (1, 86_400_000)}},
        {"one": {"price": number(10_000)}},
        {"v": (1, number(10_000))},
        {"id": (0, None)},
    ]
    messages.send(1, good, *(good | one for one in wrong))
    result = messages.decoded(1, on_error="dead_letter", primary_key="id")
    table = collect_arrow(result) if isinstance(result, DataFrame) else result
    rows = sorted(table.to_pylist(), key=lambda row: row[POS]["off"])
    assert rows[0][ERROR] is None
    reasons = [row[ERROR]["reason"] for row in rows[1:]]
    for reason, column in zip(reasons, ("list", "map", "one", "v"), strict=False):
        assert reason.startswith(f"column `{column}` is ")
    assert reasons[-1] == "the key column `id` is NULL"


def test_messages_of_many_other_bytes_are_no_schemas(messages: Messages) -> None:
    messages.schemas[1] = CUSTOMER
    for at in range(2_000):
        messages.send_bytes(b"{%d}" % at)
    assert "the payload does not begin with a 0 and the id of a schema" in str(messages.failure(1))
    messages.sent.clear()
    for at in range(1_100):
        messages.send_bytes(frame(at, b""))
    with pytest.raises(DataError, match="more than 1,000 schema ids"):
        messages.read(1)


def test_a_broken_message_fails_also_where_no_column_is_used(messages: Messages) -> None:
    messages.schemas[1] = CUSTOMER
    messages.send_bytes(frame(1, GOOD + b"\0"))
    with pytest.raises(Exception, match="does not fit its schema 1"):
        messages.decoded(1).select(POS).collect()


@pytest.mark.parametrize(
    ("kind", "value", "shown"),
    [
        (logical("bytes", "decimal", precision=4, scale=2), number(10_000), "100.00"),
        pytest.param(
            logical("bytes", "decimal", precision=4, scale=2),
            number(2**64 + 5),
            "184467440737095516.21",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            logical("bytes", "decimal", precision=50),
            number(-(10**50)),
            f"-1{'0' * 50}",
            marks=pytest.mark.slow,
        ),
        pytest.param(logical("bytes", "decimal", precision=78), number(-1), "-1", marks=pytest.mark.slow),
        (logical("bytes", "decimal", precision=78), number(2**256), str(2**256)),
        pytest.param(logical("int", "time-millis"), 86_400_000, "86400000", marks=pytest.mark.slow),
        (logical("long", "time-micros"), -1, "-1"),
    ],
)
def test_a_value_out_of_range_is_an_error(messages: Messages, kind: Any, value: Any, shown: str) -> None:
    messages.schemas[1] = record(("v", nullable(kind)))
    messages.send(1, {"v": (0, None)}, {"v": (1, value)})
    result = str(messages.failure(1))
    assert "topic t, partition 0, offset 1: column `v` is " in result
    assert f"cannot hold `{shown}`" in result


def test_decimals_that_spark_has_no_room_for_are_errors(messages: Messages) -> None:
    messages.schemas[1] = record(("v", logical("bytes", "decimal", precision=38)))
    messages.send(1, {"v": number(10**38 - 1)})
    assert messages.read(1)[0]["v"] == Decimal(10**38 - 1)
    messages.send(1, {"v": number(10**38)})
    assert "offset 1: " in str(messages.failure(1))


@pytest.mark.parametrize(
    ("writer", "reader", "says"),
    [
        (
            logical("bytes", "decimal", precision=9, scale=2),
            logical("bytes", "decimal", precision=9, scale=3),
            "field `v` is decimal(9,2), and decimal(9,3) in the reader schema",
        ),
        pytest.param(
            logical("long", "timestamp-millis"),
            logical("long", "timestamp-micros"),
            "field `v` is long (timestamp-millis), and long (timestamp-micros) in the reader schema",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            logical("int", "time-millis"),
            logical("long", "time-micros"),
            "field `v` is int (time-millis)",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "long", "int", "field `v` is long, and int in the reader schema", marks=pytest.mark.slow
        ),
        pytest.param(
            {"type": "fixed", "name": "f", "size": 2},
            {"type": "fixed", "name": "f", "size": 3},
            "field `v` is fixed",
            marks=pytest.mark.slow,
        ),
        ({"type": "array", "items": "string"}, {"type": "array", "items": "int"}, "field `v[]` is string"),
        (record(("a", "int"), name="i"), record(("b", "int"), name="i"), "field `v.b` is missing"),
    ],
)
def test_schemas_that_would_change_values_are_refused(
    messages: Messages, writer: Any, reader: Any, says: str
) -> None:
    messages.schemas |= {1: record(("v", writer)), 2: record(("v", reader))}
    messages.send_bytes(frame(1, b"\0"))
    assert says in str(messages.failure(2))


@pytest.mark.sampled
def test_a_tombstone_deletes_the_row_of_its_key(messages: Messages) -> None:
    messages.schemas |= {
        1: CUSTOMER,
        5: record(("id", "int"), name="key"),
        6: record(("name", "string"), name="key"),
    }
    delete = {"tombstone": "delete", "primary_key": "id"}
    messages.send(1, {"id": 1, "name": "abc", "note": (0, None)})
    messages.send_bytes(None, key=frame(5, encode(messages.schemas[5], {"id": 1})))
    columns = ("id", "name", "note", OP)
    assert messages.read(1, **delete) == [
        dict(zip(columns, (1, "abc", None, "i"), strict=True)),
        dict(zip(columns, (1, None, None, "d"), strict=True)),
    ]
    assert "no payload (a tombstone)" in str(messages.failure(1))
    keys = (
        (frame(6, encode(messages.schemas[6], {"name": "x"})), "its key lacks `id`"),
        (b"1", "the key does not begin with a 0"),
        (None, "no payload (a tombstone)"),
        (frame(8, b""), "schema 8 is not in the schema registry"),
    )
    for key, says in keys if FULL or messages.way == "driver" else keys[:1]:
        messages.sent[1] = (key, None, None)
        result = str(messages.failure(1, **delete))
        assert "offset 1: " in result
        assert says in result
