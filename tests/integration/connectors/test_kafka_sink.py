"""A topic as a sink, on a real broker: messages, transactions, fences, claims and refusals."""

from __future__ import annotations

import json
import math
import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import confluent_kafka
import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from helpers.depth import FULL, with_slow
from helpers.kafka_sink import KafkaSinkMaker, SentMessage, kafka_sink_maker, read_back, read_messages
from helpers.nested_rows import NESTED, ROWS, from_json, same_as
from helpers.sink_makers import KEYED, TYPES, frame, plan, position
from pyarrow import types as kinds
from pyspark.sql import SparkSession

from headrace.connectors.frame import EpochFrame
from headrace.connectors.kafka import commit_log, encoder
from headrace.connectors.kafka.commit_log import COMMIT_TOPIC, CommitLog, TopicSinkState
from headrace.connectors.kafka.config import KafkaSourceConfig
from headrace.connectors.kafka.encoder import JsonMessageEncoder
from headrace.connectors.kafka.producer import TransactionalProducer
from headrace.connectors.sink_base import Sink
from headrace.pipeline.errors import (
    DataError,
    FencedError,
    GuaranteeError,
    HeadraceError,
    SchemaError,
    SinkStateError,
    TargetError,
    TransientError,
    UserError,
)
from headrace.pipeline.protocol.epochs import CommitRecord
from headrace.pipeline.sql.system_columns import OP

Make = Callable[..., KafkaSinkMaker]


@pytest.fixture
def brokers(services: Any) -> str:
    return services.kafka.brokers


@pytest.fixture
def make(spark: SparkSession, brokers: str, tmp_path: Path) -> Make:
    """`make(**node)` returns the maker of sinks into a topic of its own."""
    return lambda topic="", **node: kafka_sink_maker(spark, brokers, tmp_path, topic, **node)


# The contract of the sinks has daily tests of `driver`.
@pytest.fixture(params=with_slow({"driver"}, ("driver", "streamed", "arrow")))
def load_path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Small epochs pass through one Arrow table, large ones partition by partition.

    Rows that are in the driver already are encoded by Arrow.
    """
    if request.param == "streamed":
        monkeypatch.setattr(encoder, "collect_small_rows", lambda *_: None)
    if request.param == "arrow":
        encode = JsonMessageEncoder.encode

        def encode_local_rows(self: JsonMessageEncoder, frame: EpochFrame) -> Any:
            assert self.writes_arrow
            return encode(self, replace(frame, table=frame.rows.toArrow()))

        monkeypatch.setattr(JsonMessageEncoder, "encode", encode_local_rows)
        monkeypatch.setattr(JsonMessageEncoder, "encode_by_spark", None)
    return request.param


def messages(maker: KafkaSinkMaker, *, committed: bool = True) -> list[SentMessage]:
    return read_messages(maker.brokers, maker.topic, committed=committed)


def names(maker: KafkaSinkMaker) -> list[str]:
    """The column `name` of all committed messages, sorted."""
    return sorted(json.loads(one.value or b"{}")["name"] for one in messages(maker))


def write(
    sink: Sink, maker: KafkaSinkMaker, number: int, rows: Sequence[tuple[int | None, str]], ops: str
) -> Any:
    listed = [{"id": key, "name": name} for key, name in rows]
    return sink.write(plan(number), frame(maker.spark, KEYED, listed, ops, maker.last["key"]))


# --- messages


TEXTS = ['"', "\\", "\n", "\0", "é", "漢", "🛫", "\u2028", "a", "{", "[", "1.50", "u00d", "</", "NaN"]


def random_whole(kind: Any, dice: Random) -> int:
    top = 2 ** (kind.bit_width - 1)
    return dice.choice([0, -1, top - 1, -top, dice.randrange(-top, top)])


def random_decimal(kind: Any, dice: Random) -> Decimal:
    digits = dice.choice([1, kind.precision // 2, kind.precision])
    unscaled = dice.choice([0, 10**digits - 1, dice.randrange(10**digits)])
    return Decimal((dice.randrange(2), tuple(map(int, str(unscaled))), -kind.scale))


def random_float(kind: Any, dice: Random) -> float:
    result = dice.choice([0.0, -0.0, math.inf, -math.inf, dice.gauss(0, 1), dice.gauss(0, 1e30), 5e-324])
    return float(pa.scalar(result, pa.float64()).cast(kind).as_py())


def random_day(_: Any, dice: Random) -> date:
    return date(1, 1, 1) + timedelta(days=dice.choice([0, 3_652_058, dice.randrange(3_652_059)]))


def random_time(kind: Any, dice: Random) -> datetime:
    low, span = datetime(1900, 1, 1, tzinfo=kind.tz and UTC), 8_099 * 365 * 86_400 * 10**6
    return low + timedelta(microseconds=dice.choice([0, 1, 10**6, dice.randrange(span)]))


RANDOM: tuple[tuple[Callable[[Any], bool], Callable[[Any, Random], Any]], ...] = (
    (kinds.is_boolean, lambda _, dice: dice.random() < 0.5),
    (kinds.is_integer, random_whole),
    (kinds.is_decimal, random_decimal),
    (kinds.is_floating, random_float),
    (kinds.is_date, random_day),
    (kinds.is_timestamp, random_time),
    (kinds.is_binary, lambda _, dice: dice.randbytes(dice.choice([0, 1, 40]))),
    (kinds.is_string, lambda _, dice: "".join(dice.choices(TEXTS, k=dice.randrange(9)))),
)


def random_value(kind: Any, dice: Random) -> Any:
    """A value of a type, often an extreme one. None one time in eight."""
    if dice.random() < 0.125:
        return None
    return next(create for fits, create in RANDOM if fits(kind))(kind, dice)


FINE = TYPES.insert(1, pa.field("fine", pa.decimal128(38, 38)))
READ_BY_DRIVER = pa.schema(
    [one for one in FINE if one.name not in ("single", "double", "bytes", "day", "text")]
)
"""Columns whose values the source decodes without Spark."""


def load_paths_with(streamed: Any, arrow: Any) -> list[Any]:
    """Return each load path with both values. Daily are those of the arguments."""
    daily = {("streamed", streamed), ("arrow", arrow)}
    return [
        pytest.param(*cell, marks=() if cell in daily else pytest.mark.slow)
        for cell in product(("driver", "streamed", "arrow"), (streamed, arrow))
    ]


@pytest.mark.parametrize(
    ("load_path", "by"), load_paths_with(streamed="driver", arrow="spark"), indirect=["load_path"]
)
def test_a_kafka_source_reads_back_the_rows_that_were_written(make: Make, load_path: str, by: str) -> None:
    dice, schema = Random(f"{load_path}{by}"), FINE if by == "spark" else READ_BY_DRIVER
    if load_path == "arrow":
        schema = pa.schema([one for one in schema if not kinds.is_floating(one.type)])
    rows = [
        {one.name: random_value(one.type, dice) for one in schema} | {"id": number} for number in range(400)
    ]
    ops = "".join(dice.choices("iud", k=len(rows)))
    maker = make(topic_partitions=1)
    sink = maker.joined(schema)
    sink.write(plan(1), frame(maker.spark, schema, rows, ops))
    sink.close()
    result = read_back(maker.spark, maker.brokers, maker.topic, schema, by=by)
    assert [same_as(row, pa.struct(list(schema))) for row in sorted(result, key=lambda row: row["id"])] == [
        same_as(row, pa.struct(list(schema))) for row in rows
    ]
    assert "".join(row[OP] for row in sorted(result, key=lambda row: row["id"])) == ops


def test_lists_structs_and_maps_are_json(make: Make) -> None:
    maker = make()
    sink = maker.joined(NESTED)
    sink.write(plan(1), frame(maker.spark, NESTED, ROWS, "iiii"))
    sink.close()
    result = sorted(
        (json.loads(one.value or b"", parse_float=Decimal) for one in messages(maker)),
        key=lambda row: row["id"],
    )
    assert [
        {one.name: same_as(from_json(row[one.name], one.type, hexadecimal=True), one.type) for one in NESTED}
        for row in result
    ] == [{one.name: same_as(row[one.name], one.type) for one in NESTED} for row in ROWS]


def murmur2(data: bytes) -> int:
    """The hash of Java's default partitioner, as an unsigned number."""
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    h = (0x9747B28C ^ len(data)) & mask
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & mask
        k = (k ^ (k >> 24)) * m & mask
        h = (h * m & mask) ^ k
    if rest := data[whole:]:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ (h >> 13)) * m & mask
    return h ^ (h >> 15)


@pytest.mark.parametrize(
    ("text", "signed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"abc", 479470107),
    ],
)
def test_the_hash_of_this_test_is_that_of_java(text: bytes, signed: int) -> None:
    assert murmur2(text) == signed & 0xFFFFFFFF


def test_changes_of_a_key_are_in_order_in_the_partition_that_java_would_choose(
    make: Make, load_path: str
) -> None:
    dice, maker = Random(3), make(topic_partitions=5)
    sink = maker.joined(KEYED)
    expected: dict[int, list[str]] = {}
    for number in (1, 2):
        rows = [(dice.randrange(40), f"{number}-{place}") for place in range(500)]
        for key, name in rows:
            expected.setdefault(key, []).append(name)
        assert write(sink, maker, number, rows, "u" * len(rows)).rows == len(rows)
    sink.close()
    result: dict[int, list[str]] = {}
    for one in messages(maker):
        key = json.loads(one.key or b"")
        assert one.key is not None
        assert one.key == json.dumps({"id": key["id"]}, separators=(",", ":")).encode()
        assert one.partition == (murmur2(one.key) & 0x7FFFFFFF) % 5
        result.setdefault(key["id"], []).append(json.loads(one.value or b"")["name"])
    assert result == expected


def test_a_key_has_its_columns_in_the_order_of_the_file(make: Make) -> None:
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("price", pa.decimal128(20, 2))])
    maker = make()
    sink = maker.joined(schema, ("name", "price"))
    row = {"id": 1, "name": 'a"', "price": Decimal("1.50")}
    sink.write(plan(1), frame(maker.spark, schema, [row], "i", ("name", "price")))
    sink.close()
    (one,) = messages(maker)
    assert (one.key, one.value) == (b'{"name":"a\\"","price":1.50}', b'{"id":1,"name":"a\\"","price":1.50}')


@pytest.mark.parametrize(
    ("load_path", "tombstones"), load_paths_with(streamed=True, arrow=False), indirect=["load_path"]
)
def test_operations_are_headers_and_deletes_can_be_tombstones(
    make: Make, load_path: str, *, tombstones: bool
) -> None:
    maker = make(tombstones=tombstones, topic_partitions=1)
    sink = maker.joined(KEYED)
    write(sink, maker, 1, [(1, "a"), (1, "b"), (1, "c")], "iud")
    sink.close()
    result = [(one.operation, one.value) for one in messages(maker)]
    deleted = None if tombstones else b'{"id":1,"name":"c"}'
    assert result == [("c", b'{"id":1,"name":"a"}'), ("u", b'{"id":1,"name":"b"}'), ("d", deleted)]


def test_deduplicate_keeps_the_last_change_of_a_key_in_an_epoch(make: Make, load_path: str) -> None:
    maker = make(deduplicate=True)
    sink = maker.joined(KEYED)
    assert write(sink, maker, 1, [(1, "a"), (2, "b"), (1, "c")], "iiu").rows == 2
    assert write(sink, maker, 2, [(1, "d"), (1, "e")], "du").rows == 1
    sink.close()
    assert names(maker) == ["b", "c", "e"]


def test_rows_without_a_key_have_messages_without_a_key(make: Make, load_path: str) -> None:
    maker = make()
    sink = maker.joined(KEYED, ())
    write(sink, maker, 1, [(1, "a"), (1, "a")], "ii")
    assert [one.key for one in messages(maker)] == [None, None]
    with pytest.raises(DataError, match="a delete reached a sink without primary_key"):
        write(sink, maker, 2, [(1, "b"), (1, "c")], "id")
    write(sink, maker, 2, [(1, "d")], "i")
    sink.close()
    assert names(maker) == ["a", "a", "d"]


# --- transactions


class LostAnswers(Producer):
    """A producer whose commits succeed, while the answer does not arrive."""

    lost = 0

    def commit_transaction(self, timeout: float = -1) -> None:
        """Commit, then raise what a broken connection raises."""
        super().commit_transaction(timeout)
        type(self).lost += 1
        raise KafkaException(KafkaError(KafkaError._TRANSPORT, "the answer was lost"))


def test_an_epoch_whose_answer_was_lost_is_not_written_again(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker = make()
    maker.joined(KEYED).close()
    monkeypatch.setattr(confluent_kafka, "Producer", LostAnswers)
    sink = maker.open(KEYED)
    for _ in range(2):  # the generation is in the log after the first attempt
        try:
            sink.prepare(KEYED, 2)
        except TransientError:
            continue
    assert LostAnswers.lost == 1
    with pytest.raises(TransientError, match="the answer was lost"):
        write(sink, maker, 1, [(1, "a"), (2, "b")], "ii")
    assert LostAnswers.lost == 2
    assert write(sink, maker, 1, [(1, "a"), (2, "b")], "ii").rows == 2
    assert LostAnswers.lost == 2
    sink.close()
    assert names(maker) == ["a", "b"]


def test_a_takeover_aborts_the_transaction_of_the_older_run(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker = make()
    zombie = maker.joined(KEYED)
    commit, successors = TransactionalProducer._commit, list[Sink]()

    def taken_over(self: TransactionalProducer) -> None:
        if not successors:
            self._open_producer.flush(30)
            successors.append(maker.open(KEYED))
            successors[0].prepare(KEYED, 2)
        commit(self)

    monkeypatch.setattr(TransactionalProducer, "_commit", taken_over)
    with pytest.raises(FencedError, match="generation 2 has taken"):
        write(zombie, maker, 1, [(1, "zombie")], "i")
    assert [json.loads(one.value or b"")["name"] for one in messages(maker, committed=False)] == ["zombie"]
    assert messages(maker) == []
    write(successors[0], maker, 1, [(1, "a")], "i")
    for _ in range(2):
        with pytest.raises(FencedError):
            write(zombie, maker, 1, [(1, "zombie")], "i")
    write(successors[0], maker, 2, [(2, "b")], "i")
    assert names(maker) == ["a", "b"]
    with pytest.raises(FencedError):
        maker.open(KEYED).prepare(KEYED, 1)
    write(successors[0], maker, 3, [(3, "c")], "i")
    for one in (zombie, successors[0]):
        one.close()
    assert names(maker) == ["a", "b", "c"]


def test_a_run_that_is_only_disturbed_goes_on(make: Make) -> None:
    """A zombie between its check and its fence takes the transactional id for a moment."""
    maker = make()
    sink = maker.joined(KEYED, generation=7)
    other = Producer(
        {"bootstrap.servers": maker.brokers, "transactional.id": f"headrace/{maker.key.text}", "log_level": 0}
    )
    other.init_transactions(30)
    with pytest.raises(TransientError, match="the brokers ended the transaction"):
        write(sink, maker, 1, [(1, "a")], "i")
    write(sink, maker, 1, [(1, "a")], "i")
    sink.close()
    assert names(maker) == ["a"]


def test_an_epoch_that_fails_leaves_nothing_and_can_be_written_again(make: Make, load_path: str) -> None:
    maker = make()
    sink = maker.joined(KEYED)
    with pytest.raises(DataError, match="key column `id` is null"):
        write(sink, maker, 1, [(1, "a"), (None, "b")], "ii")
    write(sink, maker, 1, [(1, "c")], "i")
    sink.close()
    assert names(maker) == ["c"]


@pytest.mark.parametrize("by", with_slow({"client"}, ("client", "broker")))
def test_a_message_that_is_too_large_is_named(make: Make, topic: Callable[..., str], by: str) -> None:
    limits = {"message_max_bytes": 2_000} if by == "client" else {}
    maker = make(topic(1, max_message_bytes="2000"), compression="none", **limits)
    sink = maker.joined(KEYED)
    with pytest.raises(DataError, match="larger than topic") as caught:
        write(sink, maker, 1, [(1, "a"), (2, "b" * 5_000)], "ii")
    assert "message_max_bytes" in caught.value.hint
    assert by == "broker" or 'key {"id":2}' in caught.value.message
    write(sink, maker, 1, [(1, "a")], "i")
    sink.close()
    assert names(maker) == ["a"]


def test_a_topic_that_was_made_again_has_no_record(make: Make) -> None:
    maker = make()
    sink = maker.joined(KEYED)
    write(sink, maker, 1, [(1, "a")], "i")
    admin = AdminClient({"bootstrap.servers": maker.brokers})
    admin.delete_topics([maker.topic])[maker.topic].result(30)
    again = maker.open(KEYED)
    again.prepare(KEYED, 2)
    assert again.record() is None
    assert again.claims() == []
    with pytest.raises(HeadraceError):
        write(sink, maker, 2, [(2, "b")], "i")
    assert messages(maker) == []
    again.close()
    sink.close()


def test_a_topic_that_is_made_again_while_a_run_writes_is_refused(make: Make) -> None:
    maker = make()
    sink = maker.joined(KEYED)
    admin = AdminClient({"bootstrap.servers": maker.brokers})
    admin.delete_topics([maker.topic])[maker.topic].result(30)
    admin.create_topics([NewTopic(maker.topic, 1, 1)])[maker.topic].result(30)
    with pytest.raises(
        SinkStateError, match=r"was replaced after it was prepared|holds no record of this sink"
    ):
        write(sink, maker, 1, [(1, "a")], "i")
    sink.close()


def test_what_is_created_has_the_options_of_the_file(make: Make) -> None:
    from confluent_kafka.admin import ConfigResource, ResourceType  # pyright: ignore[reportPrivateImportUsage]

    maker = make(topic_partitions=3, cleanup_policy="compact,delete", retention="2d", message_max_bytes=3_000)
    maker.joined(KEYED).close()
    admin = AdminClient({"bootstrap.servers": maker.brokers})
    resource = ConfigResource(ResourceType.TOPIC, maker.topic)
    result = {
        name: one.value for name, one in admin.describe_configs([resource])[resource].result(30).items()
    }
    assert len(admin.list_topics(maker.topic, timeout=300).topics[maker.topic].partitions) == 3
    assert set(result["cleanup.policy"].split(",")) == {"compact", "delete"}
    assert (result["retention.ms"], result["max.message.bytes"]) == ("172800000", "3000")


# --- the log of commit records


def test_an_open_transaction_in_the_log_is_waited_for(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    maker = make()
    sink = maker.joined(KEYED)
    log = CommitLog("s", maker.topic, maker.settings.kafka_sink)
    place = log.state_entry(maker.key.text, TopicSinkState(1, "", None)).partition
    other = Producer(
        {"bootstrap.servers": maker.brokers, "transactional.id": secrets.token_hex(8), "log_level": 0}
    )
    other.init_transactions(30)
    other.begin_transaction()
    other.produce(COMMIT_TOPIC, key=b'["claim","elsewhere","x"]', value=None, partition=place)
    other.flush(30)
    write(sink, maker, 1, [(1, "a")], "i")  # behind the open transaction
    monkeypatch.setattr(commit_log, "_PATIENCE_S", 0.3)
    with pytest.raises(TransientError, match="an open transaction holds back partition"):
        log.read_state(maker.key.text)
    before = log.read_state(maker.key.text, waits=False)
    assert before is not None
    assert before.record is not None
    assert before.record.epoch == 0
    monkeypatch.undo()
    result = list[Any]()
    reader = threading.Thread(target=lambda: result.append(log.read_state(maker.key.text)))
    reader.start()
    other.commit_transaction(30)
    reader.join(60)
    assert result[0].record.epoch == 1
    log.close()
    sink.close()


def test_a_topic_that_would_lose_commit_records_is_refused(
    make: Make, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for partitions, policy in ((1, "compact"), (32, "delete")):
        monkeypatch.setattr(commit_log, "COMMIT_TOPIC", topic(partitions, cleanup_policy=policy))
        with pytest.raises(TargetError, match="cannot keep commit records"):
            make().open(KEYED).prepare(KEYED, 1)


@pytest.mark.sampled
def test_one_of_two_claimers_of_one_moment_gets_the_topic(make: Make) -> None:
    def join(
        sink: Sink, maker: KafkaSinkMaker, start: threading.Barrier, refused: list[HeadraceError]
    ) -> None:
        record = CommitRecord.for_registration(maker.key, 1, 0, position(0), "feedfacecafebeef", None)
        start.wait()
        try:
            sink.register(record)
        except HeadraceError as error:
            refused.append(error)

    for _ in range(5 if FULL else 1):
        first = make()
        rivals = [
            first,
            replace(first, key=replace(first.key, pipeline=secrets.token_hex(16), name="second")),
        ]
        sinks = [maker.open(KEYED) for maker in rivals]
        for sink in sinks:
            sink.prepare(KEYED, 1)
        start, refused = threading.Barrier(2), list[HeadraceError]()

        threads = [
            threading.Thread(target=join, args=(sink, maker, start, refused))
            for sink, maker in zip(sinks, rivals, strict=True)
        ]
        for one in threads:
            one.start()
        for one in threads:
            one.join(120)
        assert [type(error) for error in refused] == [SinkStateError]
        assert len(sinks[0].claims()) == 1
        for sink in sinks:
            sink.close()


def test_the_row_count_is_only_known_to_be_zero(make: Make) -> None:
    maker = make()
    sink = maker.joined(KEYED)
    assert sink.read_row_count() == (sink.record(), 0)
    write(sink, maker, 1, [(1, "a")], "i")
    record, offsets = sink.read_row_count() or (None, 0)
    assert offsets >= 1
    assert record is not None
    assert record.totals.inserted is None
    sink.close()


# --- mistakes


def refused(maker: KafkaSinkMaker, columns: tuple[str, ...] = (), schema: pa.Schema = KEYED) -> UserError:
    """The error of both the check without a run and the run."""
    result = list[UserError]()
    for ask in (lambda sink: sink.validate_target(), lambda sink: sink.prepare(schema, 1)):
        sink = maker.open(schema, columns)
        with pytest.raises(UserError) as caught:
            ask(sink)
        sink.close()
        result.append(caught.value)
    assert result[0].message == result[1].message
    assert result[0].node == maker.key.sink
    assert result[0].hint
    return result[0]


def test_options_that_need_a_key_are_refused_without_one(make: Make, topic: Callable[..., str]) -> None:
    error = refused(make(tombstones=True))
    assert error.message == "`tombstones` needs a key: a message without key and value ends nothing"
    assert error.keys == ("tombstones",)
    error = refused(make(cleanup_policy="compact"))
    assert error.message.startswith("cleanup_policy `compact` needs a key")
    error = refused(make(topic(1, cleanup_policy="compact")))
    assert "is compacted, and the sink has no primary key" in error.message


def test_columns_that_json_cannot_carry_are_refused(make: Make) -> None:
    schema = pa.schema([("id", pa.int64()), ("took", pa.duration("us"))])
    error = refused(make(), ("id",), schema)
    assert isinstance(error, SchemaError)
    assert "column `took`: JSON messages cannot carry duration[us]" in error.message


def test_a_topic_that_the_pipeline_reads_is_refused(make: Make, topic: Callable[..., str]) -> None:
    maker = make(topic())
    context = maker.open(KEYED)._context
    source = KafkaSourceConfig.model_validate({"topic": maker.topic, "schema": {"id": "int64"}})
    other = KafkaSourceConfig.model_validate({"topic": "elsewhere", "schema": {"id": "int64"}})
    for streams, loops in (((other, source), True), ((other,), False)):
        sink = type(maker.open(KEYED))(replace(context, extra={**context.extra, "streams": streams}))
        if loops:
            with pytest.raises(GuaranteeError, match="is a source of this pipeline too"):
                sink.validate_target()
        else:
            sink.validate_target()
        sink.close()


def test_a_timeout_that_the_brokers_refuse_is_named(make: Make) -> None:
    maker = make(transaction_timeout="2h")
    sink = maker.open(KEYED)
    with pytest.raises(UserError, match="refuse a transaction_timeout of 2h") as caught:
        sink.prepare(KEYED, 1)
    assert caught.value.keys == ("transaction_timeout",)
    sink.close()


def test_brokers_that_do_not_answer_are_named(make: Make) -> None:
    maker = make()
    wrong = maker.settings.model_copy(
        update={"kafka_sink": maker.settings.kafka_sink.model_copy(update={"brokers": "127.0.0.1:1"})}
    )
    sink = replace(maker, settings=wrong).open(KEYED)
    with pytest.raises(TransientError, match=r"127\.0\.0\.1:1 cannot be reached") as caught:
        sink.validate_target()
    assert "kafka_sink.brokers" in caught.value.hint
    sink.close()
