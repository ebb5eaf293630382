"""What only the redis sink does: names of entries, formats, servers that it refuses, and epochs of several scripts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from helpers.pipeline_world import until
from helpers.redis_server import RedisServer, redis_server
from helpers.redis_sink import RedisSinkMaker, read_entries, redis_sink_maker
from helpers.sink_makers import KEYED, frame, plan
from helpers.tls_proxy import tls_proxy, write_certificate
from pyspark.sql import SparkSession

from headrace.connectors.redis import encoder, state
from headrace.connectors.sink_base import Sink
from headrace.pipeline.config.sections import RedisConnection
from headrace.pipeline.errors import (
    FencedError,
    HeadraceError,
    SchemaError,
    SettingsError,
    SinkStateError,
    TargetError,
    TransientError,
    UserError,
)
from headrace.pipeline.protocol.epochs import WriteCounts

PAIRS = pa.schema([("a", pa.string()), ("b", pa.string()), ("v", pa.int64())])


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path / "redis") as started:
        yield started


@pytest.fixture
def make(spark: SparkSession, server: RedisServer, tmp_path: Path) -> Callable[..., RedisSinkMaker]:
    def build(**node: Any) -> RedisSinkMaker:
        return redis_sink_maker(spark, server, tmp_path, **node)

    return build


def write(
    maker: RedisSinkMaker, sink: Sink, number: int, rows: list[tuple[int, str]], ops: str = ""
) -> WriteCounts:
    listed = [{"id": key, "name": name} for key, name in rows]
    return sink.write(plan(number), frame(maker.spark, KEYED, listed, ops or "u" * len(rows)))


def test_different_keys_have_different_names(
    make: Callable[..., RedisSinkMaker], server: RedisServer
) -> None:
    maker = make()
    sink = maker.joined(PAIRS, ("a", "b"))
    keys = [("x:y", "z"), ("x", "y:z"), ("x%3Ay", "z"), ("", "x"), ("x", ""), ("%", ":")]
    rows = [{"a": a, "b": b, "v": v} for v, (a, b) in enumerate(keys)]
    sink.write(plan(1), frame(maker.spark, PAIRS, rows, "i" * len(rows), ("a", "b")))
    result = read_entries(server, maker.prefix, PAIRS)
    assert {name: row["v"] for name, row in result.items()} == {
        "x%3Ay:z": 0, "x:y%3Az": 1, "x%253Ay:z": 2, ":x": 3, "x:": 4, "%25:%3A": 5,
    }  # fmt: skip
    sink.close()


def test_a_hash_has_no_field_for_null_and_none_of_its_former_row(
    make: Callable[..., RedisSinkMaker], server: RedisServer
) -> None:
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("at", pa.timestamp("us", tz="UTC"))])
    maker = make(format="hash")
    sink = maker.joined(schema)
    at = datetime(2024, 5, 1, 10, tzinfo=UTC)
    rows = [{"id": 1, "name": "a", "at": at}, {"id": 2, "name": "", "at": None}]
    sink.write(plan(1), frame(maker.spark, schema, rows, "ii"))
    with server.client as client:
        first = {b"id": b"1", b"name": b"a", b"at": b"2024-05-01T10:00:00.000000Z"}
        assert client.hgetall(f"{maker.prefix}:1") == first
        assert client.hgetall(f"{maker.prefix}:2") == {b"id": b"2", b"name": b""}
        sink.write(plan(2), frame(maker.spark, schema, [{"id": 1, "name": None, "at": None}], "u"))
        assert client.hgetall(f"{maker.prefix}:1") == {b"id": b"1"}
    sink.close()


NESTED = pa.schema(
    [
        ("id", pa.int64()),
        ("place", pa.struct([("x", pa.int32()), ("y", pa.string()), ("raw", pa.binary())])),
        ("tags", pa.list_(pa.string())),
        ("counts", pa.map_(pa.int32(), pa.decimal128(20, 2))),
        ("times", pa.list_(pa.struct([("at", pa.timestamp("us", tz="UTC"))]))),
    ]
)


@pytest.mark.parametrize("path", ["arrow", pytest.param("spark", marks=pytest.mark.slow)])
def test_structs_lists_and_maps_are_json(
    make: Callable[..., RedisSinkMaker], server: RedisServer, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Inside of the object of a row, and as the text of a field of a hash. A missing one has no field."""
    if path == "spark":
        monkeypatch.setattr(encoder.RowEncoder, "_is_supported", lambda *_: False)
    full = {
        "id": 1,
        "place": {"x": 1, "y": None, "raw": b"\0\xff"},
        "tags": ["a:b", None, '"'],
        "counts": {1: Decimal("10.50")},
        "times": [{"at": datetime(2024, 5, 1, 10, tzinfo=UTC)}, None],
    }
    empty = {"id": 2, "place": None, "tags": [], "counts": {}, "times": None}
    texts = {
        "place": '{"x":1,"y":null,"raw":"00ff"}',
        "tags": '["a:b",null,"\\""]',
        "counts": '{"1":10.50}',
        "times": '[{"at":"2024-05-01T10:00:00.000000Z"},null]',
    }
    for format_ in ("json", "hash"):
        maker = make(format=format_)
        sink = maker.joined(NESTED)
        sink.write(plan(1), frame(maker.spark, NESTED, [full, empty], "ii"))
        sink.close()
        with server.client as client:
            if format_ == "json":
                inner = ",".join(f'"{name}":{text}' for name, text in texts.items())
                assert client.get(f"{maker.prefix}:1").decode() == f'{{"id":1,{inner}}}'
                lacking = '{"id":2,"place":null,"tags":[],"counts":{},"times":null}'
                assert client.get(f"{maker.prefix}:2").decode() == lacking
            else:
                result = {
                    key.decode(): text.decode() for key, text in client.hgetall(f"{maker.prefix}:1").items()
                }
                assert result == {"id": "1", **texts}
                assert client.hgetall(f"{maker.prefix}:2") == {b"id": b"2", b"tags": b"[]", b"counts": b"{}"}


def test_a_nested_column_cannot_be_in_a_name(make: Callable[..., RedisSinkMaker]) -> None:
    sink = make().open(NESTED, ("id", "tags"))
    with pytest.raises(SchemaError, match="column `tags`: entries of Redis cannot have list"):
        sink.validate_target()
    sink.close()


def test_tls_with_a_certificate_of_the_settings(
    spark: SparkSession, server: RedisServer, tmp_path: Path
) -> None:
    certificate = write_certificate(tmp_path / "right")
    other = write_certificate(tmp_path / "other")
    with tls_proxy(server.port, certificate) as port:

        def make_tls(ca: Path | None, url: str = f"rediss://127.0.0.1:{port}/0") -> RedisSinkMaker:
            maker = redis_sink_maker(spark, server, tmp_path, url=url)
            connection = RedisConnection(ca=ca)
            return replace(maker, settings=maker.settings.model_copy(update={"redis_sink": connection}))

        maker = make_tls(certificate)
        sink = maker.joined(KEYED)
        assert write(maker, sink, 1, [(1, "a"), (2, "b")]).rows == 2
        assert sorted(maker.rows(["id", "name"])) == [(1, "a"), (2, "b")]
        sink.close()
        for ca in (None, other):
            sink = make_tls(ca).open(KEYED)
            with pytest.raises(TargetError, match=r"certificate .* is refused: ") as refused:
                sink.validate_target()
            assert "redis_sink.ca" in refused.value.hint
            sink.close()
        sink = make_tls(tmp_path / "absent.pem").open(KEYED)
        with pytest.raises(
            SettingsError, match=r"redis_sink\.ca `.*absent\.pem` cannot be read: No such file"
        ):
            sink.validate_target()
        sink.close()
        # Plain text to a port with TLS, and TLS to a port without.
        for scheme, wrong in (("redis", port), ("rediss", server.port)):
            sink = make_tls(certificate, f"{scheme}://127.0.0.1:{wrong}/0").open(KEYED)
            with pytest.raises(TransientError, match=f"127.0.0.1:{wrong} cannot be reached"):
                sink.validate_target()
            sink.close()


@pytest.mark.parametrize("format_", ["json", "hash"])
def test_entries_expire_and_are_not_counted(
    make: Callable[..., RedisSinkMaker], server: RedisServer, format_: str
) -> None:
    maker = make(format=format_, ttl="1h")
    sink = maker.joined(KEYED)
    write(maker, sink, 1, [(1, "a")])
    with server.client as client:
        assert 0 < client.pttl(f"{maker.prefix}:1") <= 3_600_000
        assert client.pttl("__headrace:claims") == -1
    assert sink.read_row_count() is None
    sink.close()


@pytest.mark.parametrize(
    ("options", "message", "error", "is_allowed"),
    [
        ({"appendonly": "no"}, "keeps no append-only file", TargetError, True),
        ({"maxmemory-policy": "allkeys-lru"}, "evicts entries when its memory is full", TargetError, True),
        ({"cluster-enabled": "yes"}, "is a node of a cluster", TargetError, False),
        ({"replicaof": "127.0.0.1 1"}, "is read-only: a replica", TransientError, False),
    ],
    ids=["appendonly", "evicting", "cluster", "replica"],
)
def test_a_server_that_cannot_keep_the_guarantee_is_refused(
    spark: SparkSession,
    tmp_path: Path,
    options: dict[str, str],
    message: str,
    error: type[HeadraceError],
    is_allowed: bool,
) -> None:
    with redis_server(tmp_path / "redis", **options) as server:
        sink = redis_sink_maker(spark, server, tmp_path).open(KEYED)
        for action in (sink.validate_target, lambda: sink.prepare(KEYED, 1)):
            with pytest.raises(error, match=message):
                action()
        sink.close()
        weaker = redis_sink_maker(spark, server, tmp_path, delivery="at_least_once").open(KEYED)
        if is_allowed:
            weaker.validate_target()
        else:
            with pytest.raises(error, match=message):
                weaker.validate_target()
        weaker.close()


def test_a_wrong_password_and_a_missing_server_are_named_without_secrets(
    spark: SparkSession, tmp_path: Path
) -> None:
    with redis_server(tmp_path / "redis", requirepass="right-one") as server:
        maker = redis_sink_maker(spark, server, tmp_path)
        for password in ("", "wrong-one"):
            connection = RedisConnection.model_validate({"url": server.url, "password": password})
            maker.settings = maker.settings.model_copy(update={"redis_sink": connection})
            with pytest.raises(
                TargetError, match="refuses the user or the password of redis_sink"
            ) as refused:
                maker.open(KEYED).validate_target()
            assert "-one" not in str(refused.value)
        connection = RedisConnection.model_validate({"url": server.url, "password": "right-one"})
        maker.settings = maker.settings.model_copy(update={"redis_sink": connection})
        maker.joined(KEYED).close()
    with pytest.raises(TransientError, match="cannot be reached"):
        maker.open(KEYED).validate_target()


def test_entries_of_other_programs_and_prefixes_of_other_sinks_are_refused(
    make: Callable[..., RedisSinkMaker], server: RedisServer
) -> None:
    maker = make()
    with server.client as client:
        client.set(f"{maker.prefix}:7", "theirs")
        with pytest.raises(TargetError, match=f"entries of other programs: {maker.prefix}:7"):
            maker.open(KEYED).prepare(KEYED, 1)
        client.delete(f"{maker.prefix}:7")
        maker.joined(KEYED).close()
        client.set(f"{maker.prefix}:7", "theirs")
    maker.open(KEYED).validate_target()
    with pytest.raises(SinkStateError, match="overlaps with the prefix"):
        make(prefix=f"{maker.prefix}:inner").joined(KEYED)
    other = make(prefix=maker.prefix, format="hash")
    with pytest.raises(SchemaError, match="has entries of format `json` by id, and this sink writes `hash`"):
        other.open(KEYED).validate_target()
    with pytest.raises(UserError, match="needs a primary key"):
        make().open(KEYED, ()).validate_target()


def test_emptying_keeps_the_record_and_other_entries(
    make: Callable[..., RedisSinkMaker], server: RedisServer
) -> None:
    maker = make()
    sink = maker.joined(KEYED)
    write(maker, sink, 1, [(key, "a") for key in range(50)])
    with server.client as client:
        client.set(f"{maker.prefix}s:1", "theirs")
        sink.truncate()
        assert client.get(f"{maker.prefix}s:1") == b"theirs"
    assert maker.rows(["id"]) == []
    record = sink.record()
    assert record is not None
    assert record.epoch == 1
    newer = maker.open(KEYED)
    newer.prepare(KEYED, 2)
    with pytest.raises(FencedError):
        sink.truncate()
    for one in (sink, newer):
        one.close()


def interrupt(patch: pytest.MonkeyPatch, after: int, action: Callable[[], None]) -> None:
    """Call `action` once, after this many scripts of an epoch."""
    original, calls = state.RedisState.write, 0

    def write_then(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        result = original(self, *args, **kwargs)
        calls += 1
        if calls == after:
            action()
        return result

    patch.setattr(state.RedisState, "write", write_then)


def test_an_interrupted_large_epoch_is_completed_and_counted_once(
    make: Callable[..., RedisSinkMaker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder, "CHUNK_ROWS", 2)
    maker = make()
    sink = maker.joined(KEYED)
    write(maker, sink, 1, [(1, "a"), (2, "a"), (3, "a")])

    def fail() -> None:
        msg = "interrupted"
        raise TransientError(msg)

    interrupt(monkeypatch, 2, fail)
    rows = [(1, "deleted"), (2, "b"), (4, "b"), (5, "b"), (6, "b"), (7, "b")]
    assert not sink.has_partial_epoch(plan(2))
    with pytest.raises(TransientError, match="interrupted"):
        write(maker, sink, 2, rows, "duuuuu")
    record = sink.record()
    assert record is not None
    assert record.epoch == 1
    sink.close()

    successor = maker.open(KEYED)
    successor.prepare(KEYED, 2)
    assert successor.has_partial_epoch(plan(2))
    assert not successor.has_partial_epoch(plan(3))
    assert write(maker, successor, 2, rows, "duuuuu") == WriteCounts(6, 4, 1, 1)
    assert not successor.has_partial_epoch(plan(2))
    assert sorted(maker.rows(["id", "name"])) == [
        (2, "b"), (3, "a"), (4, "b"), (5, "b"), (6, "b"), (7, "b"),
    ]  # fmt: skip
    record, entries = successor.read_row_count() or (None, -1)
    assert record is not None
    assert entries == (record.baseline or 0) + (record.totals.inserted or 0) - (record.totals.deleted or 0)
    successor.close()


def test_every_script_of_an_older_generation_is_refused(
    make: Callable[..., RedisSinkMaker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder, "CHUNK_ROWS", 1)
    maker = make()
    older, newer = maker.joined(KEYED), maker.open(KEYED)
    interrupt(monkeypatch, 2, lambda: newer.prepare(KEYED, 2))
    with pytest.raises(FencedError, match="generation 2 has taken"):
        write(maker, older, 1, [(key, "old") for key in range(5)])
    assert len(maker.rows(["id"])) == 2, "scripts after the newer generation wrote entries"
    write(maker, newer, 1, [(key, "new") for key in range(5)])
    with pytest.raises(HeadraceError):
        write(maker, older, 1, [(key, "old") for key in range(5)])
    assert sorted(maker.rows(["id", "name"])) == [(key, "new") for key in range(5)]
    for one in (older, newer):
        one.close()


@pytest.mark.parametrize("script", [1, 2, 3])
def test_the_server_is_killed_within_an_epoch(
    make: Callable[..., RedisSinkMaker], server: RedisServer, monkeypatch: pytest.MonkeyPatch, script: int
) -> None:
    """The append-only file has all scripts that were answered. The same run writes the epoch again."""
    monkeypatch.setattr(encoder, "CHUNK_ROWS", 1)
    maker = make()
    sink = maker.joined(KEYED)
    write(maker, sink, 1, [(1, "a"), (2, "a"), (3, "a")])
    interrupt(monkeypatch, script, server.kill)
    rows = [(1, "deleted"), (2, "b"), (4, "b")]
    with suppress(TransientError):  # after the last script the epoch is complete
        write(maker, sink, 2, rows, "duu")
    server.start()
    assert write(maker, sink, 2, rows, "duu") == WriteCounts(3, 1, 1, 1)
    assert sorted(maker.rows(["id", "name"])) == [(2, "b"), (3, "a"), (4, "b")]
    sink.close()


def test_a_server_that_lost_its_entries_is_noticed(
    make: Callable[..., RedisSinkMaker], server: RedisServer
) -> None:
    maker = make()
    sink = maker.joined(KEYED)
    write(maker, sink, 1, [(1, "a")])
    with server.client as client:
        client.flushall()
    with pytest.raises(FencedError, match="no longer has this sink's record"):
        write(maker, sink, 2, [(2, "b")])
    assert maker.rows(["id"]) == []
    sink.close()


def test_an_entry_that_expired_is_inserted_again(make: Callable[..., RedisSinkMaker]) -> None:
    maker = make(ttl="50ms")
    sink = maker.joined(KEYED)
    write(maker, sink, 1, [(1, "a")])
    until(lambda: not maker.rows(["id"]), "the entry to expire")
    assert write(maker, sink, 2, [(1, "b")]).inserted == 1
    sink.close()
