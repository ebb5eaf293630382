"""Protobuf messages: every type, other schemas, and what is refused, in the driver and by Spark."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from helpers.protobuf_messages import frame, message_class
from pyspark.sql import DataFrame, SparkSession

from headrace.connectors.dead_letters import ERROR
from headrace.connectors.kafka.config import KafkaSourceConfig
from headrace.connectors.kafka.message_batch import MessageBatch
from headrace.connectors.kafka.protobuf.messages import ProtobufMessages
from headrace.connectors.kafka.protobuf.schema import parse_schema
from headrace.connectors.local_relation import frame_of_table
from headrace.connectors.row_errors import explain_failure
from headrace.connectors.spark_types import row_schema
from headrace.pipeline.config.sections import KafkaConnection
from headrace.pipeline.errors import HeadraceError, TransientError
from headrace.pipeline.sql.system_columns import OP, POS

Row = dict[str, Any]
TYPES = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/any.proto";
import "google/type/date.proto";
import "confluent/meta.proto";
import "confluent/type/decimal.proto";
enum Color { UNKNOWN = 0; RED = 1; BLUE = 2; }
message Inner { int32 a = 1; string b = 2; optional bool c = 3; }
message Types {
  double d = 1; float f = 2; int32 i32 = 3; int64 i64 = 4; uint32 u32 = 5; uint64 u64 = 6; sint32 s32 = 7;
  sint64 s64 = 8; fixed32 f32 = 9; fixed64 f64 = 10; sfixed32 sf32 = 11; sfixed64 sf64 = 12; bool ok = 13;
  string text = 14 [(confluent.field_meta).doc = "a text"]; bytes raw = 15; Color color = 16;
  optional string note = 17; Inner inner = 18; repeated sint64 packed = 19; repeated Inner inners = 20;
  map<string, Inner> by_name = 21; map<int32, string> by_number = 22;
  oneof one { string left = 23; Inner right = 24; }
  google.protobuf.Timestamp at = 25; google.protobuf.Duration took = 26; google.protobuf.Int64Value count = 27;
  google.protobuf.StringValue title = 28; google.protobuf.Any any = 29; google.type.Date day = 30;
  confluent.type.Decimal amount = 31; repeated google.protobuf.Timestamp times = 32; repeated Color colors = 33;
  map<bool, Color> liked = 34; repeated google.protobuf.UInt64Value counts = 35;
}
"""
ORDER = """
syntax = "proto3";
message Order { int64 id = 1; string name = 2; double price = 3; }
message Key { int64 id = 1; }
message Other { int64 id = 1; message Inside { int64 id = 1; } }
"""


class Messages:
    """Decodes messages of several schemas, without a registry."""

    def __init__(self, spark: SparkSession, way: str) -> None:
        self.spark = spark
        self.way = way
        self.schemas: dict[int, str] = {}
        self.sent: list[tuple[bytes | None, bytes | None, str | None]] = []

    def send(self, schema_id: int, name: str, /, *place: int, op: str | None = None, **values: Any) -> None:
        payload = message_class(self.schemas[schema_id], name)(**values).SerializeToString()
        self.send_bytes(frame(schema_id, payload, *place), op=op)

    def send_bytes(self, value: bytes | None, key: bytes | None = None, op: str | None = None) -> None:
        self.sent.append((key, value, op))

    def format(self, reader: int, **options: Any) -> ProtobufMessages:
        schema = parse_schema(self.schemas[reader])
        values = {
            "topic": "t",
            "data_format": "protobuf",
            "reader_schema": schema.to_text(),
            "reader_schema_id": reader,
            **options,
        }
        node = KafkaSourceConfig.model_validate(values)
        result = ProtobufMessages("src", node, KafkaConnection(), 3)
        registered = {at: parse_schema(text) for at, text in self.schemas.items()}
        result._schemas._client.find_schema = registered.get  # type: ignore[method-assign]
        return result

    def batch(self) -> MessageBatch:
        count = len(self.sent)
        return MessageBatch(
            [value for _, value, _ in self.sent],
            [0] * count,
            list(range(count)),
            [1_700_000_000_000] * count,
            [op for *_, op in self.sent],
            [key for key, *_ in self.sent],
        )

    def decoded(self, reader: int, **options: Any) -> Any:
        result = self.format(reader, **options)
        self.columns = row_schema(result.columns)
        if self.way == "driver" and (table := result.decode_batch(self.spark, self.batch(), "t")) is not None:
            return table
        return result.decode(frame_of_table(self.spark, self.batch().as_table("t")).repartition(2))

    def read(self, reader: int, **options: Any) -> list[Row]:
        result = self.decoded(reader, **options)
        if isinstance(result, DataFrame):
            columns = [(one.name, one.dataType.simpleString()) for one in result.schema if one.name != ERROR]
            assert columns == [(one.name, one.dataType.simpleString()) for one in self.columns]
            result = result.toArrow()
        rows = sorted(result.to_pylist(), key=lambda row: row[POS]["off"])
        assert [row[POS]["off"] for row in rows] == list(range(len(self.sent)))
        return [{name: value for name, value in row.items() if name != POS} for row in rows]

    def failure(self, reader: int, **options: Any) -> HeadraceError:
        with pytest.raises(Exception) as raised:  # noqa: PT011
            self.read(reader, **options)
        result = explain_failure(raised.value)
        assert result is not None, raised.value
        return result


@pytest.fixture(params=["driver", "spark"])
def messages(request: pytest.FixtureRequest, spark: SparkSession) -> Messages:
    return Messages(spark, request.param)


def test_every_type(messages: Messages) -> None:
    messages.schemas = {7: TYPES}
    kind = message_class(TYPES, "shop.Types")
    full = kind(
        d=1.5, f=-0.0, i32=-(2**31), i64=2**63 - 1, u32=2**32 - 1, u64=2**64 - 1, s32=-1, s64=-(2**63), f32=2**32 - 1,
        f64=2**64 - 1, sf32=-5, sf64=-6, ok=True, text="\u00e4\U0010ffff\0", raw=b"\0\xff", color=2, note="",
        packed=[1, -2], left="", title={"value": ""}, count={"value": 0}, liked={True: 1},
        colors=[0, 2], counts=[{"value": 2**64 - 1}, {}],
    )  # fmt: skip
    full.inner.c = False
    full.inners.add(a=1, b="x")
    full.by_name["k"].a = 5
    full.by_number[-1] = "minus"
    full.at.FromJsonString("0001-01-01T00:00:00.000001Z")
    full.took.FromSeconds(-3)
    full.any.Pack(message_class(TYPES, "shop.Inner")(a=4))
    full.day.year = 2024
    full.amount.value = b"\1"
    full.times.add().FromJsonString("9999-12-31T23:59:59.999999Z")
    empty = kind(color=9)
    for one in (full, empty):
        messages.send_bytes(frame(7, one.SerializeToString(), 1))
    first, second = messages.read(7, message_type="shop.Types")
    inner = {"a": 0, "b": "", "c": False}
    assert first == {
        "d": 1.5, "f": -0.0, "i32": -(2**31), "i64": 2**63 - 1, "u32": 2**32 - 1, "u64": Decimal(2**64 - 1), "s32": -1,
        "s64": -(2**63), "f32": 2**32 - 1, "f64": Decimal(2**64 - 1), "sf32": -5, "sf64": -6, "ok": True,
        "text": "\u00e4\U0010ffff\0", "raw": b"\0\xff", "color": "BLUE", "note": "", "inner": inner, "packed": [1, -2],
        "inners": [{"a": 1, "b": "x", "c": None}], "by_name": [("k", {"a": 5, "b": "", "c": None})],
        "by_number": [(-1, "minus")], "left": "", "right": None, "at": datetime(1, 1, 1, 0, 0, 0, 1, tzinfo=UTC),
        "took": {"seconds": -3, "nanos": 0}, "count": 0, "title": "",
        "any": {"type_url": "type.googleapis.com/shop.Inner", "value": b"\x08\x04"},
        "day": {"year": 2024, "month": 0, "day": 0}, "amount": {"value": b"\1", "precision": 0, "scale": 0},
        "times": [datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)], "colors": ["UNKNOWN", "BLUE"],
        "liked": [(True, "RED")], "counts": [Decimal(2**64 - 1), Decimal(0)], OP: "i",
    }  # fmt: skip
    assert str(first["f"]) == "-0.0"
    zero = Decimal(0)
    assert second == {
        "d": 0.0, "f": 0.0, "i32": 0, "i64": 0, "u32": 0, "u64": zero, "s32": 0, "s64": 0, "f32": 0, "f64": zero,
        "sf32": 0, "sf64": 0, "ok": False, "text": "", "raw": b"", "color": "9", "note": None, "inner": None,
        "packed": [], "inners": [], "by_name": [], "by_number": [], "left": None, "right": None, "at": None,
        "took": None, "count": None, "title": None, "any": None, "day": None, "amount": None, "times": [],
        "colors": [], "liked": [], "counts": [], OP: "i",
    }  # fmt: skip


def test_fields_of_proto2(messages: Messages) -> None:
    text = """
    syntax = "proto2";
    message Old {
      required int32 id = 1; optional string name = 2; optional int32 size = 3 [default = -7];
      optional double rate = 4 [default = inf]; optional bytes raw = 5 [default = "ab"];
      enum Kind { LOW = 3; HIGH = 4; } optional Kind kind = 6 [default = HIGH]; optional Kind other = 7;
    }
    """
    messages.schemas = {1: text}
    messages.send(1, "Old", id=5)
    messages.send_bytes(frame(1, b""))
    default = {
        "name": None,
        "size": -7,
        "rate": float("inf"),
        "raw": b"ab",
        "kind": "HIGH",
        "other": None,
        OP: "i",
    }
    assert messages.read(1) == [{"id": 5, **default}, {"id": None, **default}]


def test_operations_metadata_and_tombstones(messages: Messages) -> None:
    messages.schemas = {300: ORDER}
    for at, op in enumerate([None, "c", "u", "d"]):
        messages.send(300, "Order", op=op, id=at)
    messages.send_bytes(None, frame(300, message_class(ORDER, "Key")(id=9).SerializeToString(), 1))
    rows = messages.read(300, tombstone="delete", primary_key="id", include_metadata=True)
    assert [(row["id"], row[OP]) for row in rows] == [(0, "i"), (1, "i"), (2, "u"), (3, "d"), (9, "d")]
    assert rows[-1]["name"] is None
    assert {row["__kafka_partition"] for row in rows} == {0}
    assert [row["__kafka_offset"] for row in rows] == [0, 1, 2, 3, 4]


def test_a_broken_key_of_a_tombstone_is_named(messages: Messages) -> None:
    messages.schemas = {1: ORDER, 2: 'syntax = "proto3"; message Key { string id = 1; }'}
    messages.send(1, "Order", id=1)
    messages.send_bytes(None, frame(1, b"\x08", 1))
    options = {"tombstone": "delete", "primary_key": "id"}
    assert "offset 1: the key is no `Key`: unexpected EOF" in messages.failure(1, **options).message
    messages.sent[1] = (frame(2, b""), None, None)
    assert "offset 1: field `id` of the key is no int64" in messages.failure(1, **options).message
    messages.sent[1] = (frame(1, b"", 2), None, None)
    assert messages.read(1, **options)[1][OP] == "d"
    messages.sent[1] = (None, None, None)
    assert "offset 1: the message has no payload (a tombstone), and" in messages.failure(1, **options).message


def test_an_operation_in_the_payload(messages: Messages) -> None:
    messages.schemas = {1: 'syntax = "proto3"; message M { string _gs_op = 1; int64 id = 2; }'}
    for op in ("i", "u", "d"):
        messages.send(1, "M", _gs_op=op, id=1)
    assert [row[OP] for row in messages.read(1)] == ["i", "u", "d"]
    messages.send(1, "M", _gs_op="no", id=1)
    assert "`_gs_op` says `no`" in messages.failure(1).message


def test_other_schemas(messages: Messages) -> None:
    older = 'syntax = "proto3"; message Order { int32 id = 1; string title = 2; bytes dropped = 9; }'
    messages.schemas = {1: older, 2: ORDER, 3: ORDER.replace("int64 id", "string id", 1)}
    messages.send(1, "Order", id=-4, title="renamed", dropped=b"x")
    messages.send(2, "Order", id=5, name="n", price=0.5)
    messages.send(2, "Order", id=6)
    assert [(row["id"], row["name"], row["price"]) for row in messages.read(2)] == [
        (-4, "renamed", 0.0),
        (5, "n", 0.5),
        (6, "", 0.0),
    ]
    messages.send(3, "Order", id="a")
    result = messages.failure(2)
    assert "topic t, partition 0, offset 3" in result.message
    assert "field `id` (1) is string there, and int64 here" in result.message
    assert messages.read(2, schema_id_overrides=[{"from": 3, "to": 2}])[3]["id"] == 0


def test_messages_of_other_places(messages: Messages) -> None:
    messages.schemas = {1: ORDER}
    messages.send(1, "Order", id=1)
    messages.send(1, "Other.Inside", 2, 0, id=2)
    assert "the message is `Other.Inside`, and the node reads `Order`" in messages.failure(1).message
    del messages.sent[0]
    assert [row["id"] for row in messages.read(1, message_type="Other.Inside")] == [2]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b'{"id": 1}', "the payload does not begin with a 0 and the id of a schema"),
        (b"", "the payload does not begin with a 0"),
        (b"\0\0\0", "the payload does not begin with a 0"),
        (frame(9, b""), "schema 9 is not in the schema registry"),
        (frame(1, b"\x08"), "the payload is no `Order`: unexpected EOF"),
        (frame(1, b"\x12\x01\xff"), "the payload is no `Order`: invalid UTF-8"),
        (frame(1, b"", 7), "schema 1 has no message at [7]"),
        (b"\0\0\0\0\1", "the payload does not have the place of a message in schema 1"),
        (b"\0\0\0\0\1" + b"\xff" * 99, "the payload does not have the place of a message in schema 1"),
        (b"\0\0\0\0\1\x01", "the payload does not have the place of a message in schema 1"),
        (None, "the message has no payload (a tombstone)"),
    ],
)
def test_broken_messages_are_named_or_rejected(spark: SparkSession, value: bytes | None, reason: str) -> None:
    """The driver leaves them to Spark."""
    messages = Messages(spark, "spark")
    messages.schemas = {1: ORDER}
    messages.send(1, "Order", id=1)
    messages.send_bytes(value, b"k")
    messages.send(1, "Order", id=3)
    assert messages.format(1).decode_batch(spark, messages.batch(), "t") is None
    result = messages.failure(1)
    assert "topic t, partition 0, offset 1: " + reason in result.message
    assert result.node == "src"
    rows = messages.read(1, on_error="dead_letter", primary_key="id")
    assert [row[ERROR] is None for row in rows] == [True, False, True]
    rejected = rows[1][ERROR]
    assert reason in rejected["reason"]
    assert (rejected["__kafka_offset"], rejected["__kafka_key"], rejected["__kafka_value"]) == (
        1,
        b"k",
        value,
    )
    assert [rows[0]["id"], rows[2]["id"]] == [1, 3]


def test_a_time_out_of_range_is_refused(messages: Messages) -> None:
    text = """
    syntax = "proto3";
    import "google/protobuf/timestamp.proto";
    message M { repeated google.protobuf.Timestamp at = 1; }
    """
    messages.schemas = {1: text}
    for seconds, nanos in (
        (253_402_300_799, 999_999_999),
        (2**62, 0),
        (-62_135_596_801, 0),
        (0, -1),
        (0, 10**9),
    ):
        messages.send(1, "M", at=[{"seconds": seconds, "nanos": nanos}, {"seconds": 1}])
    rows = messages.read(1, on_error="dead_letter")
    assert [row[ERROR] and row[ERROR]["reason"] for row in rows] == [
        None,
        *["the payload is no `M`: a time is not in the years 1 to 9999"] * 4,
    ]


def test_entries_of_a_map_that_are_sent_twice(messages: Messages) -> None:
    messages.schemas = {
        1: 'syntax = "proto3"; message M { map<string, int32> m = 1; map<int32, M> n = 2; int32 v = 3; }'
    }
    messages.schemas = {
        1: 'syntax = "proto3"; message V { int32 v = 1; } message M { map<string, int32> m = 1; map<int32, V> n = 2; }'
    }
    one, two, other = b"\x0a\x05\x0a\x01a\x10\x01", b"\x0a\x05\x0a\x01a\x10\x02", b"\x0a\x03\x0a\x01b"
    messages.send_bytes(frame(1, one + other + two + b"\x12\x02\x08\x05", 1))
    messages.send_bytes(frame(1, b"", 1))
    messages.send_bytes(frame(1, one, 1))
    rows = messages.read(1, message_type="M")
    assert [sorted(row["m"]) for row in rows] == [[("a", 2), ("b", 0)], [], [("a", 1)]]
    assert rows[0]["n"] == [(5, {"v": 0})]


def test_a_schema_that_was_not_read_is_tried_again(spark: SparkSession) -> None:
    messages = Messages(spark, "spark")
    messages.schemas = {1: ORDER, 2: ORDER + "message More { int32 a = 1; }"}
    messages.send(1, "Order", id=1)
    result = messages.format(1)

    def read() -> list[int]:
        frame = frame_of_table(spark, messages.batch().as_table("t"))
        return sorted(row.id for row in result.decode(frame, is_first=True).collect())

    assert read() == [1]
    messages.send(2, "Order", id=2)
    with pytest.raises(Exception, match="another schema") as raised:
        read()
    assert isinstance(explain_failure(raised.value), TransientError)
    result.decode(frame_of_table(spark, messages.batch().as_table("t")))
    assert read() == [1, 2]


def test_a_large_batch_with_few_broken_messages(spark: SparkSession) -> None:
    messages = Messages(spark, "driver")
    messages.schemas = {1: ORDER}
    kind = message_class(ORDER, "Order")
    for at in range(5_000):
        messages.send_bytes(
            frame(1, kind(id=at, name=f"n{at}").SerializeToString() + b"\xff" * (at % 1_700 == 99))
        )
    rows = messages.read(1, on_error="dead_letter", primary_key="id")
    assert [at for at, row in enumerate(rows) if row[ERROR] is not None] == [99, 1_799, 3_499]
    assert all(
        row["id"] == at and row["name"] == f"n{at}" for at, row in enumerate(rows) if row[ERROR] is None
    )
