"""A target belongs to one pipeline, unless all its sinks share it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.clickhouse_sink import clickhouse_sink_maker
from helpers.depth import with_slow
from helpers.file_sink import file_sink_maker
from helpers.kafka_sink import kafka_sink_maker
from helpers.redis_server import redis_server
from helpers.redis_sink import redis_sink_maker
from helpers.sink_makers import KEYED, SinkMaker, frame, plan, position, sink_maker
from pyspark.sql import SparkSession

from headrace.connectors.sink_base import Sink
from headrace.pipeline.errors import FencedError, HeadraceError, SinkStateError
from headrace.pipeline.protocol.claims import Claim
from headrace.pipeline.protocol.epochs import CommitRecord

KINDS = ("postgres", "delta", "iceberg", "kafka", "clickhouse", "file", "redis")


def every_sink_but(*slow: str) -> pytest.MarkDecorator:
    """Run over every sink; only `make test-faults` runs those of `slow`. Each sink has daily tests here."""
    return pytest.mark.parametrize("maker", with_slow(slow, KINDS), indirect=True)


@pytest.fixture(params=KINDS)
def maker(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Iterator[SinkMaker]:
    if request.param == "kafka":
        yield kafka_sink_maker(spark, request.getfixturevalue("services").kafka.brokers, tmp_path)
    elif request.param == "clickhouse":
        services, database = request.getfixturevalue("services"), request.getfixturevalue("ch_db")
        yield clickhouse_sink_maker(spark, services, database, tmp_path)
    elif request.param == "file":
        yield file_sink_maker(spark, tmp_path)
    elif request.param == "redis":
        with redis_server(tmp_path / "redis") as server:
            yield redis_sink_maker(spark, server, tmp_path)
    else:
        pg = request.getfixturevalue("pg") if request.param == "postgres" else ""
        yield sink_maker(request.param, spark, pg, tmp_path)


def second(maker: SinkMaker, *, share: bool = False) -> SinkMaker:
    """Another pipeline on the same target."""
    node = maker.node
    key = replace(maker.key, pipeline=secrets.token_hex(16), name="second")
    return replace(maker, key=key, node=lambda columns: node(columns).model_copy(update={"share": share}))


def join(sink: Sink, maker: SinkMaker, generation: int = 1) -> CommitRecord:
    return sink.register(
        CommitRecord.for_registration(maker.key, generation, 0, position(0), "feedfacecafebeef", None)
    )


@every_sink_but("delta", "iceberg")
def test_two_pipelines_do_not_claim_one_target(maker: SinkMaker) -> None:
    owner = maker.joined(KEYED)
    owner.write(plan(1), frame(maker.spark, KEYED, [{"id": 1, "name": "a"}], "i"))
    other = second(maker)
    sink = other.open(KEYED)
    assert [claim.key for claim in sink.claims()] == [maker.key]
    sink.prepare(KEYED, 1)
    with pytest.raises(SinkStateError, match="is the target of another pipeline") as refused:
        join(sink, other)
    assert "--take-over" in (refused.value.hint or "")
    assert "share: true" in (refused.value.hint or "")
    assert [claim.key for claim in sink.claims()] == [maker.key], "a refused claim is still there"
    owner.write(plan(2), frame(maker.spark, KEYED, [{"id": 2, "name": "b"}], "i"))
    counts_changes = type(owner).capabilities.counts_changes
    if counts_changes:
        assert (owner.read_row_count() or (None, -1))[1] == 2

    # The one that is retired loses the target, and whoever still writes for it is fenced.
    sink.release([claim for claim in sink.claims() if claim.key == maker.key])
    assert join(sink, other).baseline == (2 if counts_changes else None)
    with pytest.raises(HeadraceError):
        owner.write(plan(3), frame(maker.spark, KEYED, [{"id": 3, "name": "late"}], "i"))
    sink.write(plan(1), frame(maker.spark, KEYED, [{"id": 4, "name": "c"}], "i"))
    assert sorted(maker.rows(["id"])) == [(1,), (2,), (4,)]
    again = maker.open(KEYED)
    assert again.claims() == [
        Claim(other.key, share=False, epoch=None if maker.kind in ("delta", "kafka") else 1)
    ]
    # And back again.
    again.prepare(KEYED, 2)
    again.release(again.claims())
    join(again, maker, 2)
    with pytest.raises(FencedError):
        sink.write(plan(2), frame(maker.spark, KEYED, [{"id": 5, "name": "d"}], "i"))
    for one in (owner, sink, again):
        one.close()


@every_sink_but("clickhouse", "kafka")
def test_two_pipelines_share_a_target_where_both_say_so(maker: SinkMaker) -> None:
    owner = maker.joined(KEYED)
    other = second(maker, share=True)
    sink = other.open(KEYED)
    sink.prepare(KEYED, 1)
    with pytest.raises(SinkStateError, match="is the target of another pipeline"):
        join(sink, other)
    owner.close()
    node = maker.node
    shared = replace(maker, node=lambda columns: node(columns).model_copy(update={"share": True}))
    owner = shared.open(KEYED)
    owner.prepare(KEYED, 2)
    join(sink, other)
    owner.write(plan(1), frame(maker.spark, KEYED, [{"id": 1, "name": "a"}], "i"))
    sink.write(plan(1), frame(maker.spark, KEYED, [{"id": 2, "name": "b"}], "i"))
    assert sorted(maker.rows(["id"])) == [(1,), (2,)]
    assert owner.read_row_count() is None, "rows of a shared target cannot be counted for one pipeline"
    owner.close()
    sink.close()


@every_sink_but("clickhouse", "delta", "kafka")
def test_a_renamed_sink_and_a_lost_ledger_keep_the_target(maker: SinkMaker) -> None:
    maker.joined(KEYED).close()
    renamed = replace(maker, key=replace(maker.key, sink="renamed"))
    sink = renamed.joined(KEYED)
    assert [claim.key for claim in sink.claims()] == [renamed.key]
    sink.close()
    lost = replace(renamed, key=replace(renamed.key, pipeline=secrets.token_hex(16)))
    sink = lost.joined(KEYED)
    assert [claim.key for claim in sink.claims()] == [lost.key]
    sink.close()
