"""The contract of every exactly-once sink."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from helpers.aggregate_sink import aggregate_sink_maker, compare_totals
from helpers.clickhouse_sink import clickhouse_sink_maker
from helpers.depth import with_slow
from helpers.file_sink import file_sink_maker
from helpers.kafka_sink import kafka_sink_maker
from helpers.redis_server import redis_server
from helpers.redis_sink import redis_sink_maker
from helpers.sink_makers import (
    KEYED,
    TYPES,
    VALUES,
    SinkMaker,
    frame,
    plan,
    position,
    sink_maker,
    sqlite_connector,
    sqlite_sink_maker,
)
from pyspark.sql import SparkSession

from headrace.connectors.clickhouse import sink as clickhouse_sink
from headrace.connectors.files import sink as file_sink
from headrace.connectors.kafka import encoder
from headrace.connectors.redis import encoder as redis_encoder
from headrace.connectors.sink_base import Sink
from headrace.pipeline.errors import DataError, FencedError, HeadraceError, SchemaError
from headrace.pipeline.protocol.epochs import CommitRecord, WriteCounts

TABLES = ["postgres", "postgres-staged", "delta", "iceberg"]
TOPICS = ["kafka", "kafka-large"]
"""A topic; `kafka-large` streams every epoch from Spark's partitions."""
CLICKHOUSE = ["clickhouse", "clickhouse-tasks"]
"""A table; the rows of `clickhouse-tasks` are inserted by Spark's tasks."""
FILES = ["file-parquet", "file-csv", "file-json", "file-tasks"]
"""A folder; the files of `file-tasks` (parquet) are written by Spark's tasks."""
APPENDING = [*TABLES, *TOPICS, *CLICKHOUSE, *FILES]
REDIS = ["redis", "redis-hash", "redis-chunks"]
"""Entries by key; `redis-chunks` streams every epoch from Spark's partitions, and each script has one row."""
BUILT_IN = [*APPENDING, *REDIS]
ROUTES = {"postgres-staged", "kafka-large", "clickhouse-tasks", "file-tasks", "redis-chunks"}
"""The second route of a sink to its target; its records are those of the first one."""
FORMATS = {"file-csv", "file-json", "redis-hash"}
"""They differ from `file-parquet` and `redis` in values only."""
LAKES = {"delta", "iceberg"}
"""Daily tests of the same promises are in tests/spark/connectors/test_delta_sink.py and test_iceberg_sink.py."""
SERVERS = {"kafka", "clickhouse"}
"""Daily tests of fences, repeated epochs and rows without a key are in test_kafka_sink.py and test_clickhouse_sink.py."""


EVERY = [*BUILT_IN, "sqlite", "aggregate"]
records_only = pytest.mark.parametrize("maker", with_slow(ROUTES | FORMATS | LAKES, EVERY), indirect=True)
"""For tests of the record: the route of the rows, if there are any, does not matter."""
fences_only = pytest.mark.parametrize(
    "maker", with_slow(ROUTES | FORMATS | LAKES | SERVERS, EVERY), indirect=True
)
TESTED_ROUTES = {"postgres-staged", "kafka-large"}
"""Daily tests of these routes are in test_merge.py and test_target.py (`staged`) and test_kafka_sink.py (`streamed`)."""
rows_in_any_form = pytest.mark.parametrize(
    "maker", with_slow(FORMATS | LAKES | TESTED_ROUTES, EVERY), indirect=True
)


@pytest.fixture(params=EVERY)
def maker(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Iterator[SinkMaker]:
    """A target of each type of sink; `sqlite` is a connector that the test adds from a temporary folder."""
    if request.param in TOPICS:
        if request.param == "kafka-large":
            request.getfixturevalue("monkeypatch").setattr(encoder, "collect_small_rows", lambda *_: None)
        yield kafka_sink_maker(spark, request.getfixturevalue("services").kafka.brokers, tmp_path)
    elif request.param in CLICKHOUSE:
        if request.param == "clickhouse-tasks":
            patch = request.getfixturevalue("monkeypatch")
            patch.setattr(clickhouse_sink, "collect_last_rows", lambda *_: None)
            patch.setattr(clickhouse_sink, "collect_append_rows", lambda *_: None)
        services, database = request.getfixturevalue("services"), request.getfixturevalue("ch_db")
        yield clickhouse_sink_maker(spark, services, database, tmp_path)
    elif request.param in FILES:
        kind = request.param.removeprefix("file-")
        if kind == "tasks":
            patch = request.getfixturevalue("monkeypatch")
            patch.setattr(file_sink, "collect_last_rows", lambda *_: None)
            patch.setattr(file_sink, "collect_small_rows", lambda *_: None)
        yield file_sink_maker(spark, tmp_path, "parquet" if kind == "tasks" else kind)
    elif request.param in REDIS:
        if request.param == "redis-chunks":
            patch = request.getfixturevalue("monkeypatch")
            patch.setattr(redis_encoder, "collect_last_rows", lambda *_: None)
            patch.setattr(redis_encoder, "CHUNK_ROWS", 1)
        format_ = "hash" if request.param == "redis-hash" else "json"
        with redis_server(tmp_path / "redis") as server:
            yield redis_sink_maker(spark, server, tmp_path, format=format_)
    elif request.param == "aggregate":
        pg = request.getfixturevalue("pg")
        yield aggregate_sink_maker(spark, pg, tmp_path)
        compare_totals(pg, "name, rows", "SELECT name, count(*) FROM target GROUP BY name")
    elif request.param == "sqlite":
        with sqlite_connector(tmp_path) as package:
            yield sqlite_sink_maker(spark, tmp_path, package)
    else:
        pg = "" if request.param in LAKES else request.getfixturevalue("pg")
        yield sink_maker(request.param, spark, pg, tmp_path)


def counted(sink: Sink, counts: WriteCounts, sent: int) -> WriteCounts:
    """What a sink counts: changes, the messages that it sends, or the rows that it writes."""
    can = type(sink).capabilities
    if can.appends_changes and can.counts_changes:
        return WriteCounts(counts.rows, counts.rows, 0, 0)
    return (
        counts
        if can.counts_changes
        else WriteCounts(sent if can.appends_changes else counts.rows, None, None, None)
    )


def people(*pairs: tuple[int, str | None]) -> list[dict[str, object]]:
    return [{"id": key, "name": name} for key, name in pairs]


@records_only
def test_a_new_target_has_no_record_and_joins_with_its_rows_as_baseline(maker: SinkMaker) -> None:
    sink = maker.open(KEYED)
    sink.prepare(KEYED, 1)
    assert sink.record() is None
    sink.register(CommitRecord.for_registration(maker.key, 1, 0, position(0), "feedfacecafebeef", None))
    record = sink.record()
    assert record is not None
    assert (record.epoch, record.generation, record.end) == (0, 1, position(0))
    assert record.baseline == (0 if type(sink).capabilities.counts_changes else None)
    sink.close()


@rows_in_any_form
def test_the_last_of_a_key_wins_in_an_epoch_and_over_epochs(maker: SinkMaker) -> None:
    sink = maker.joined(KEYED)
    first = sink.write(
        plan(1), frame(maker.spark, KEYED, people((1, "a"), (2, "b"), (1, "c"), (3, "d")), "iiui")
    )
    assert first == counted(sink, WriteCounts(3, 3, 0, 0), sent=4)
    second = sink.write(
        plan(2),
        frame(
            maker.spark,
            KEYED,
            people((1, None), (2, "e"), (4, "f"), (4, None), (5, "g"), (5, None), (5, "h")),
            "duididi",
        ),
    )
    assert sorted(maker.rows(["id", "name"])) == [(2, "e"), (3, "d"), (5, "h")]
    changed = counted(sink, WriteCounts(second.rows, 1, 1, 1), sent=7)
    assert second == changed
    record = sink.record()
    assert record is not None
    assert (record.epoch, record.is_of(plan(2)), record.end) == (2, True, position(2))
    assert sink.read_row_count() is not None
    if type(sink).capabilities.counts_changes:
        total = (record.baseline or 0) + (record.totals.inserted or 0) - (record.totals.deleted or 0)
        assert total == (sink.read_row_count() or (None, -1))[1]
    sink.close()


@fences_only
def test_an_epoch_that_is_held_is_not_written_again(maker: SinkMaker) -> None:
    sink = maker.joined(KEYED)
    sink.write(plan(1), frame(maker.spark, KEYED, people((1, "a")), "i"))
    with suppress(HeadraceError):  # refused, or answered with what it holds
        sink.write(plan(1), frame(maker.spark, KEYED, people((1, "other"), (2, "b")), "ii"))
    assert maker.rows(["id", "name"]) == [(1, "a")]
    sink.close()


@records_only
def test_an_epoch_that_does_not_follow_is_refused(maker: SinkMaker) -> None:
    sink = maker.joined(KEYED)
    with pytest.raises(HeadraceError):
        sink.write(plan(2), frame(maker.spark, KEYED, people((1, "a")), "i"))
    assert maker.rows(["id", "name"]) == []
    sink.close()


@records_only
def test_an_empty_epoch_moves_the_record(maker: SinkMaker) -> None:
    sink = maker.joined(KEYED)
    nothing = counted(sink, WriteCounts(0, 0, 0, 0), sent=0)
    assert sink.write(plan(1), frame(maker.spark, KEYED, [], "")) == nothing
    record = sink.record()
    assert record is not None
    assert record.epoch == 1
    sink.close()


@fences_only
def test_an_older_generation_cannot_write(maker: SinkMaker) -> None:
    zombie = maker.joined(KEYED)
    successor = maker.open(KEYED)
    successor.prepare(KEYED, 2)
    if type(successor).capabilities.fences:
        with pytest.raises(FencedError):
            zombie.write(plan(1), frame(maker.spark, KEYED, people((1, "zombie")), "i"))
    successor.write(plan(1), frame(maker.spark, KEYED, people((1, "a")), "i"))
    with suppress(HeadraceError):
        zombie.write(plan(1), frame(maker.spark, KEYED, people((1, "zombie")), "u"))
    assert maker.rows(["id", "name"]) == [(1, "a")]
    zombie.close()
    successor.close()


@records_only
def test_a_record_of_another_ledger_is_found(maker: SinkMaker) -> None:
    maker.joined(KEYED).close()
    other = replace(maker, key=replace(maker.key, pipeline="0" * 32))
    sink = other.open(KEYED)
    sink.prepare(KEYED, 1)
    result = sink.find_conflicting_record()
    assert result is not None
    assert result.key.pipeline == maker.key.pipeline
    sink.close()


# SQLite has neither the types nor versions: these tests run over the connectors that ship. test_types_come_back_as_
# they_went_in is the daily sample of Delta, test_arrow_writes_what_spark_writes of messages that Spark writes.
@pytest.mark.parametrize(
    "maker", with_slow(TESTED_ROUTES | {"delta", "clickhouse-tasks"}, BUILT_IN), indirect=True
)
def test_values_come_back_as_they_went_in(maker: SinkMaker) -> None:
    sink = maker.joined(TYPES)
    sink.write(plan(1), frame(maker.spark, TYPES, VALUES, "iiii"))
    result = {row[0]: dict(zip(TYPES.names, row, strict=True)) for row in maker.rows(TYPES.names)}
    assert result == {row["id"]: row for row in VALUES}
    sink.close()


# test_not_a_number_comes_back_from_inside is the daily sample of Delta.
@pytest.mark.parametrize("maker", with_slow(ROUTES | {"delta"}, BUILT_IN), indirect=True)
def test_not_a_number_comes_back(maker: SinkMaker) -> None:
    schema = TYPES.empty_table().select(["id", "single", "double"]).schema
    sink = maker.joined(schema)
    sink.write(plan(1), frame(maker.spark, schema, [{"id": 1, "single": math.nan, "double": math.nan}], "i"))
    (row,) = maker.rows(schema.names)
    assert math.isnan(row[1])
    assert math.isnan(row[2])
    sink.close()


@rows_in_any_form
def test_a_null_in_the_key_is_an_error_that_names_it(maker: SinkMaker) -> None:
    sink = maker.joined(KEYED)
    with pytest.raises(DataError, match="id"):
        sink.write(plan(1), frame(maker.spark, KEYED, [{"id": None, "name": "a"}], "i"))
    assert maker.rows(["id", "name"]) == []
    sink.close()


@pytest.mark.parametrize(
    "maker",
    with_slow(FORMATS | LAKES | SERVERS | TESTED_ROUTES | {"clickhouse-tasks"}, [*APPENDING, "sqlite"]),
    indirect=True,
)
def test_rows_without_a_key_are_appended(maker: SinkMaker) -> None:
    sink = maker.joined(KEYED, ())
    sink.write(plan(1), frame(maker.spark, KEYED, people((1, "a"), (1, "a")), "ii", ()))
    sink.write(plan(2), frame(maker.spark, KEYED, people((1, "a")), "u", ()))
    assert maker.rows(["id", "name"]) == [(1, "a")] * 3
    with pytest.raises(HeadraceError, match="key"):
        sink.write(plan(3), frame(maker.spark, KEYED, people((1, "a")), "d", ()))
    assert len(maker.rows(["id"])) == 3
    sink.close()


SAME_ROWS = {*ROUTES, *FORMATS, "delta", "kafka"}


# Without a key, the values go the same way: test_rows_without_a_key_are_appended is the daily sample. The driver
# writes these rows for both routes of a sink, and test_values_come_back_as_they_went_in has every format. Iceberg
# is the daily sample of both lakes; test_kafka_sink.py has daily tests of messages that Arrow encodes.
@pytest.mark.parametrize(
    ("maker", "key"),
    [
        *(
            pytest.param(kind, ("id",), marks=[pytest.mark.slow] if kind in SAME_ROWS else [])
            for kind in BUILT_IN
        ),
        *(pytest.param(kind, (), marks=pytest.mark.slow) for kind in APPENDING),
    ],
    indirect=["maker"],
)
def test_rows_of_the_driver_are_written_like_those_of_a_frame(maker: SinkMaker, key: tuple[str, ...]) -> None:
    sink = maker.joined(TYPES, key)
    inputs = frame(maker.spark, TYPES, VALUES, "iiii", key)
    inputs = replace(inputs, table=inputs.rows.toArrow())
    assert sink.write(plan(1), inputs) == counted(sink, WriteCounts(4, 4, 0, 0), sent=4)
    result = {row[0]: dict(zip(TYPES.names, row, strict=True)) for row in maker.rows(TYPES.names)}
    assert result == {row["id"]: row for row in VALUES}
    nulls = frame(maker.spark, TYPES, [VALUES[0] | {"id": None}], "i", key)
    if key:
        with pytest.raises(DataError, match="id"):
            sink.write(plan(2), replace(nulls, table=nulls.rows.toArrow()))
        deletes = frame(maker.spark, TYPES, VALUES[:2], "du", key)
        counts = sink.write(plan(2), replace(deletes, table=deletes.rows.toArrow()))
        assert counts == counted(sink, WriteCounts(counts.rows, 0, 1, 1), sent=2)
    sink.close()


VERSIONED = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", tz="UTC")), ("name", pa.string())])
START = datetime(2024, 5, 1, tzinfo=UTC)
Change = tuple[str, int, int | None, str]
"""Operation, key, version in seconds after `START`, name."""


def versioned(maker: SinkMaker, number: int, changes: list[Change], sink: Sink, *, large: bool) -> None:
    """Writes the changes as one epoch, through the driver or, where `large`, through Spark's tasks."""
    rows = [
        {"id": key, "at": None if at is None else START + timedelta(seconds=at), "name": name}
        for _, key, at, name in changes
    ]
    made = frame(
        maker.spark, VERSIONED, rows, "".join(op for op, *_ in changes), estimate=10**9 if large else None
    )
    sink.write(plan(number), made)


def applied(rows: dict[int, tuple[int, str]], changes: list[Change]) -> dict[int, tuple[int, str]]:
    """What an epoch makes of the rows that are there, key by key, without a database."""
    result = dict(rows)
    for key in {key for _, key, *_ in changes}:
        best: tuple[str, int, str] | None = ("u", rows[key][0], rows[key][1]) if key in rows else None
        for op, _, at, name in (change for change in changes if change[1] == key):
            if at is None:
                best = None
            elif best is None or at >= best[1]:
                best = (op, at, name)
        result.pop(key, None)
        if best and best[0] != "d":
            result[key] = best[1:]
    return result


def random_changes(dice: random.Random, epoch: int) -> list[Change]:
    ops: list[Change] = []
    for number in range(60):
        op = dice.choices("iud", [3, 3, 2])[0]
        ops.append(
            (
                op,
                dice.randrange(12),
                None if op == "d" and dice.random() < 0.4 else dice.randrange(9),
                f"{epoch}-{number}",
            )
        )
    return ops


# It takes both routes itself. test_rows_and_counts_are_those_of_spark is the daily sample of Delta.
@pytest.mark.parametrize("maker", with_slow(ROUTES | {"delta"}, TABLES), indirect=True)
def test_the_highest_version_wins_in_an_epoch_and_over_epochs(maker: SinkMaker) -> None:
    maker = replace(
        maker, node=lambda columns, node=maker.node: node(columns).model_copy(update={"version_column": "at"})
    )
    sink = maker.joined(VERSIONED)
    epochs: list[list[Change]] = [
        [
            ("i", 1, 5, "a"),
            ("u", 1, 3, "late"),
            ("i", 2, 5, "a"),
            ("u", 2, 5, "equal"),
            ("i", 3, 5, "a"),
            ("d", 3, 4, ""),
            ("i", 4, 5, "a"),
        ],
        [
            ("u", 1, 4, "late"),
            ("u", 2, 5, "again"),
            ("d", 3, 4, ""),
            ("d", 4, None, ""),
            ("u", 4, 1, "back"),
            ("u", 5, 7, "x"),
            ("d", 5, 8, ""),
        ],
        random_changes(random.Random(1), 3),
    ]
    expected: dict[int, tuple[int, str]] = {}
    for number, changes in enumerate(epochs, 1):
        versioned(maker, number, changes, sink, large=number == 2)
        expected = applied(expected, changes)
        result = {
            key: (int((at - START).total_seconds()), name)
            for key, at, name in maker.rows(["id", "at", "name"])
        }
        assert result == expected, number
    record, row_count = sink.record(), sink.read_row_count()
    assert record is not None
    assert row_count is not None
    assert (record.baseline or 0) + (record.totals.inserted or 0) - (record.totals.deleted or 0) == row_count[
        1
    ]
    with pytest.raises(DataError, match="version_column `at` is null"):
        versioned(maker, len(epochs) + 1, [("u", 1, None, "x")], sink, large=False)
    sink.close()


# It takes both routes itself. Iceberg is the daily sample of both lakes, file-json and redis are those of keys as
# text.
@pytest.mark.parametrize("maker", with_slow(ROUTES | {"delta", "kafka", "file-csv"}, BUILT_IN), indirect=True)
def test_zero_has_no_sign_in_a_key_and_nan_is_one(maker: SinkMaker) -> None:
    schema = pa.schema([("id", pa.float64()), ("name", pa.string())])
    sink = maker.joined(schema)
    keys = [0.0, -0.0, math.nan, 1.5]
    for number, estimate in ((1, None), (2, 10**9)):
        rows = [{"id": key, "name": f"{number}-{place}"} for place, key in enumerate(keys)]
        sink.write(plan(number), frame(maker.spark, schema, rows, "iiii", estimate=estimate))
        result = sorted((repr(key), name) for key, name in maker.rows(["id", "name"]))
        assert result == [("0.0", f"{number}-1"), ("1.5", f"{number}-3"), ("nan", f"{number}-2")]
    sink.close()


WIDER = pa.schema([*KEYED, ("score", pa.int64()), ("note", pa.string())])


# Iceberg is the daily sample of both lakes, test_columns_of_the_key_and_the_version_are_never_added one of Delta.
@pytest.mark.parametrize(
    "maker", with_slow(ROUTES | {"delta"}, [*TABLES, *CLICKHOUSE, "aggregate"]), indirect=True
)
def test_new_columns_are_refused_or_added(maker: SinkMaker) -> None:
    """`maker` is the strict sink, `evolving` the one that adds columns."""
    evolving = replace(
        maker,
        node=lambda columns, node=maker.node: node(columns).model_copy(
            update={"schema_evolution": "add_columns"}
        ),
    )
    sink = maker.joined(KEYED)
    sink.write(plan(1), frame(maker.spark, KEYED, people((1, "a"), (2, "b")), "ii"))
    sink.close()

    sink = maker.open(WIDER)
    for action in (sink.validate_target, lambda: sink.prepare(WIDER, 2)):
        with pytest.raises(SchemaError, match="score") as caught:
            action()
        assert "schema_evolution: add_columns" in (caught.value.hint or "")
    sink.close()

    sink = evolving.open(WIDER)
    sink.validate_target()
    with pytest.raises(Exception, match="score"):
        maker.rows(["score"])
    for generation in (3, 4):
        sink.prepare(WIDER, generation)
    rows = [{"id": 1, "name": "c", "score": 7, "note": "x"}, {"id": 3, "name": "d", "score": 8, "note": None}]
    sink.write(plan(2), frame(maker.spark, WIDER, rows, "ui"))
    assert sorted(maker.rows(WIDER.names)) == [(1, "c", 7, "x"), (2, "b", None, None), (3, "d", 8, None)]
    sink.close()

    sink = maker.open(KEYED)
    sink.prepare(KEYED, 5)
    sink.write(plan(3), frame(maker.spark, KEYED, people((4, "e")), "i"))
    assert sorted(maker.rows(["id", "name"])) == [(1, "c"), (2, "b"), (3, "d"), (4, "e")]
    record = sink.record()
    assert record is not None
    assert record.epoch == 3
    sink.close()


@pytest.mark.parametrize("maker", ["postgres", "delta", "clickhouse"], indirect=True)
def test_columns_of_the_key_and_the_version_are_never_added(maker: SinkMaker) -> None:
    changed = {"schema_evolution": "add_columns", "version_column": "score"}
    evolving = replace(maker, node=lambda columns, node=maker.node: node(columns).model_copy(update=changed))
    maker.joined(KEYED).close()
    for columns in (("id",), ("id", "note")):
        sink = evolving.open(WIDER, columns)
        with pytest.raises(HeadraceError, match=r"score|note"):
            sink.prepare(WIDER, 2)
        sink.close()
    with pytest.raises(Exception, match="score"):
        maker.rows(["score"])
