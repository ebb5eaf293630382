"""A server does what a sink requests, and its answer is lost: a proxy drops the connection.

Each test loses the answer of every request of an epoch in turn, and writes the epoch again. Most targets
have no key, so a row that was written twice is seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from helpers.aggregate_sink import aggregate_sink_maker, compare_totals
from helpers.clickhouse_sink import clickhouse_sink_maker
from helpers.kafka_sink import kafka_sink_maker
from helpers.lossy_proxy import (
    LossyProxy,
    is_commit,
    is_http_request,
    is_kafka_commit,
    is_redis_script,
    lossy_proxy,
)
from helpers.redis_server import redis_server
from helpers.redis_sink import redis_sink_maker
from helpers.sink_makers import KEYED, SinkMaker, frame, plan, sink_maker
from helpers.web_server import served
from helpers.webhook_sink import Receiver, webhook_sink
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pyspark.sql import SparkSession

from headrace.connectors.redis import encoder as redis_encoder
from headrace.pipeline.errors import TransientError
from headrace.services import Services

ROWS = 3
KEYLESS_TABLE = (
    "CREATE TABLE target (id Int64, name String, _headrace_epoch UInt64, _headrace_attempt UInt64)"
    " ENGINE = MergeTree PARTITION BY id % 2 ORDER BY tuple()"
)
Opened = tuple[SinkMaker, LossyProxy, Callable[[bytes], bool]]


@pytest.fixture
def place(
    request: pytest.FixtureRequest,
    services: Services,
    spark: SparkSession,
    pg: str,
    ch_db: str,
    tmp_path: Path,
) -> Iterator[Opened]:
    """The maker of one kind of sink behind a proxy, and what a commit looks like there."""
    kind: str = request.param
    with ExitStack() as stack:
        if kind.startswith("postgres"):
            proxy = stack.enter_context(lossy_proxy(int(str(conninfo_to_dict(pg)["port"]))))
            conninfo = make_conninfo(pg, host="127.0.0.1", port=str(proxy.port))
            if kind == "postgres_aggregate":
                yield aggregate_sink_maker(spark, conninfo, tmp_path), proxy, is_commit
            else:
                yield sink_maker(kind, spark, conninfo, tmp_path), proxy, is_commit
        elif kind.startswith("redis"):
            if kind == "redis-chunks":
                request.getfixturevalue("monkeypatch").setattr(redis_encoder, "CHUNK_ROWS", 1)
            server = stack.enter_context(redis_server(tmp_path / "redis"))
            proxy = stack.enter_context(lossy_proxy(server.port))
            yield redis_sink_maker(spark, server, tmp_path, proxy.port), proxy, is_redis_script
        elif kind == "kafka":
            proxy = stack.enter_context(lossy_proxy(int(services.kafka.brokers.rsplit(":", 1)[1])))
            maker = kafka_sink_maker(spark, services.kafka.brokers, tmp_path)
            cluster = maker.settings.kafka_sink.model_copy(update={"brokers": f"127.0.0.1:{proxy.port}"})
            yield (
                replace(maker, settings=maker.settings.model_copy(update={"kafka_sink": cluster})),
                proxy,
                is_kafka_commit,
            )
        else:
            url = services.clickhouse.url
            proxy = stack.enter_context(lossy_proxy(int(url.rsplit(":", 1)[1].strip("/"))))
            maker = clickhouse_sink_maker(spark, services, ch_db, tmp_path)
            maker.client.command(KEYLESS_TABLE)
            target = maker.settings.clickhouse_sink.model_copy(
                update={"url": f"http://127.0.0.1:{proxy.port}"}
            )
            yield (
                replace(maker, settings=maker.settings.model_copy(update={"clickhouse_sink": target})),
                proxy,
                is_http_request,
            )


OTHERS = {"postgres-staged", "postgres_aggregate", "clickhouse"}
"""Daily tests: test_a_connection_lost_at_the_commit_does_not_double, `postgres`, and test_an_answer_is_lost."""


@pytest.mark.parametrize(
    ("place", "again"),
    [
        pytest.param(kind, again, marks=pytest.mark.slow if again == "next-run" or kind in OTHERS else ())
        for kind in (
            "postgres",
            "postgres-staged",
            "postgres_aggregate",
            "kafka",
            "clickhouse",
            "redis",
            "redis-chunks",
        )
        for again in ("same-run", "next-run")
    ],
    indirect=["place"],
)
def test_an_epoch_whose_answers_are_lost_is_there_once(place: Opened, pg: str, again: str) -> None:
    maker, proxy, is_request = place
    key = ("id",) if maker.kind in ("aggregate", "redis") else ()
    sink = maker.joined(KEYED, key)
    estimate = 1_000_000 if maker.kind == "postgres-staged" else ROWS
    wanted, number = list[int](), 0
    for number in count(1):
        keys = [number * 10 + at for at in range(ROWS)]
        rows = frame(
            maker.spark, KEYED, [{"id": key, "name": "a"} for key in keys], "i" * ROWS, key, estimate
        )
        proxy.lose(is_request, number)
        with suppress(TransientError):
            sink.write(plan(number), rows)
        lost = proxy.lost
        proxy.lose(lambda _: False)
        if again == "next-run":
            sink.close()
            sink = maker.open(KEYED, key)
            sink.prepare(KEYED, number + 1)
        assert sink.write(plan(number), rows).rows == ROWS
        wanted += keys
        assert sorted(key for (key,) in maker.rows(["id"])) == wanted, f"request {number} of an epoch"
        if not lost:
            break
    assert number > 1, "no answer was lost"
    if maker.kind == "redis":
        record = sink.record()
        assert record is not None
        assert record.totals.inserted == len(wanted), "rows that were written twice are counted twice"
    sink.close()
    if maker.kind == "aggregate":
        compare_totals(pg, "name, rows", "SELECT name, count(*) FROM target GROUP BY name")


def test_a_webhook_repeats_the_key_of_a_request_whose_answer_was_lost(
    spark: SparkSession, tmp_path: Path
) -> None:
    receiver = Receiver()
    with served(receiver) as service, lossy_proxy(int(service.url.split(":")[2].split("/")[0])) as proxy:
        sink = webhook_sink(spark, f"http://127.0.0.1:{proxy.port}/rows", tmp_path, KEYED, batch_size=1)
        sink.prepare(KEYED, 1)
        rows = [{"id": key, "name": "a"} for key in range(ROWS)]
        proxy.lose(is_http_request, 2)
        assert sink.write(plan(1), frame(spark, KEYED, rows, "i" * ROWS, ())).rows == ROWS
        assert proxy.lost == 1
        assert receiver.repeated == 1
        assert sorted(row["id"] for row in receiver.rows()) == list(range(ROWS))
        sink.close()
