"""The contract of every source."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from helpers.depth import with_slow
from helpers.source_makers import (
    NODE,
    ORDINAL,
    PIECE,
    ClickHouseWorld,
    DeltaWorld,
    FileWorld,
    IcebergWorld,
    KafkaWorld,
    SourceWorld,
    refused,
    until,
)
from helpers.staged_sources import HttpWorld, PostgresWorld, PythonWorld
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from headrace.connectors.source_base import Snapshot
from headrace.pipeline.config.sections import ClickHouseConnection, IcebergSettings, KafkaConnection
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import PipelineStateError, TargetError
from headrace.pipeline.model.connectors import source_entries
from headrace.pipeline.protocol.partitions import HistoryPartition
from headrace.pipeline.sql.system_columns import HIDDEN, OP, POS, POS_TYPE
from headrace.services import Services

WITHOUT_WORLD = {"rate"}
"""It has no outside system: tests/spark/connectors/test_rate.py runs `headrace.testing.sources` over it."""
WORLDS = {
    one.kind: one
    for one in (
        ClickHouseWorld,
        DeltaWorld,
        FileWorld,
        HttpWorld,
        IcebergWorld,
        KafkaWorld,
        PostgresWorld,
        PythonWorld,
    )
}


@pytest.fixture
def make(
    spark: SparkSession,
    services: Services,
    topic: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Iterator[Callable[[str], SourceWorld]]:
    made: list[SourceWorld] = []

    def of(kind: str) -> SourceWorld:
        if kind == "clickhouse":
            made.append(ClickHouseWorld(spark, services, request.getfixturevalue("ch_db")))
        elif kind == "postgres":
            conninfo = request.getfixturevalue("pg")
            made.append(PostgresWorld(spark, services, tmp_path, monkeypatch, conninfo))
        elif kind in ("delta", "file", "http", "iceberg", "python"):
            in_folder: Any = WORLDS[kind]
            made.append(in_folder(spark, services, tmp_path, monkeypatch))
        else:
            made.append(KafkaWorld(spark, services, topic))
        return made[-1]

    yield of
    for one in made:
        one.close()


BOUNDED = sorted(kind for kind, one in WORLDS.items() if one.bounded)


def every_world_but(*slow: str) -> pytest.MarkDecorator:
    """Run over every source; only `make test-faults` runs those of `slow`.

    The rows of a service (`http`) and of Postgres are stored and read in the code of `python`, which is their
    daily sample.
    Other daily tests of the same promises are in test_clickhouse.py, test_kafka.py, test_delta_source.py,
    test_iceberg_source.py and test_files_source.py.
    """
    return pytest.mark.parametrize("world", with_slow(slow, sorted(WORLDS)), indirect=True)


def every_bounded_but(*slow: str) -> pytest.MarkDecorator:
    """Run over every bounded source, as `every_world_but`."""
    return pytest.mark.parametrize("bounded", with_slow(slow, BOUNDED), indirect=True)


@pytest.fixture(params=sorted(WORLDS))
def world(request: pytest.FixtureRequest, make: Callable[[str], SourceWorld]) -> SourceWorld:
    return make(request.param)


@pytest.fixture(params=BOUNDED)
def bounded(request: pytest.FixtureRequest, make: Callable[[str], SourceWorld]) -> SourceWorld:
    return make(request.param)


def numbered(first: int, end: int, value: str = "old") -> list[tuple[int, str | None]]:
    return [(number, None if number % 7 == 0 else value) for number in range(first, end)]


def filled(world: SourceWorld, count: int = 35) -> SourceWorld:
    for first in range(0, count, PIECE):
        world.add(numbered(first, min(first + PIECE, count)))
    return world


def content(world: SourceWorld, source: Any, fixed: Any, pieces: Any) -> list[tuple[Any, ...]]:
    """Everything about the rows, positions included, sorted."""
    rows = world.read(source, fixed, pieces).collect()
    return sorted((tuple(row[POS]), row[OP], row.id, row.v or "") for row in rows)


def test_every_registered_source_is_here() -> None:
    assert {kind: one.bounded for kind, one in WORLDS.items()} == {
        kind: entry.capabilities.bounded
        for kind, entry in source_entries().items()
        if kind not in WITHOUT_WORLD
    }


def test_describe_opens_nothing_and_tells_no_secret(world: SourceWorld) -> None:
    nowhere = Settings(
        clickhouse_source=ClickHouseConnection.model_validate(
            {"url": "http://localhost:1", "user": "u", "password": "hunter2"}
        ),
        kafka_source=KafkaConnection.model_validate(
            {"brokers": "localhost:1", "options": {"sasl.password": "hunter2"}}
        ),
        iceberg=IcebergSettings(warehouse="/nowhere"),
    )
    absent = "n.absent" if world.kind != "python" else "n:absent"
    source = world.open(absent, nowhere)
    description = source.describe()
    source.close()
    here = world.open(absent).describe()
    if world.has_scope:
        assert description.pop("scope") != here.pop("scope"), "the server or the folder"
    if world.kind == "postgres":  # also the server and its database, as for a sink
        for key in ("table_name", "location"):
            assert description.pop(key) != here.pop(key)
    assert description == here | ({"location": "/nowhere"} if world.kind == "iceberg" else {})
    assert description["kind"] == world.kind
    assert description["asset_key"][0] == world.kind
    assert "hunter2" not in json.dumps(description)
    assert type(source).capabilities.bounded is world.bounded


@every_world_but("http", "postgres", "kafka")
def test_rows_have_the_announced_schema_and_the_hidden_columns(world: SourceWorld) -> None:
    source = filled(world).open()
    fixed = world.fixed(source)
    frame = world.read(source, fixed, world.pieces(source, fixed))
    assert world.schema(source).names == list(world.columns)
    assert frame.columns == [*world.columns, *HIDDEN]
    assert to_arrow_schema(
        StructType([field for field in frame.schema if field.name not in HIDDEN])
    ) == world.schema(source)
    assert frame.schema[OP].dataType.simpleString() == "string"
    assert frame.schema[POS].dataType.simpleString() == POS_TYPE.replace(": ", ":").replace(", ", ",")
    assert (
        frame.where(f"{OP} IS NULL OR {POS} IS NULL OR {POS}.off IS NULL OR {POS}.part IS NULL").count() == 0
    )


@every_world_but("clickhouse", "delta", "file", "http", "postgres", "iceberg", "kafka")
def test_reading_again_gives_the_same_rows_in_spite_of_new_ones(world: SourceWorld) -> None:
    source = filled(world).open()
    fixed = world.fixed(source)
    pieces = world.pieces(source, fixed)
    before = content(world, source, fixed, pieces)
    assert sorted(row[2] for row in before) == list(range(35))
    world.add(numbered(0, 50, "new"))
    assert content(world, source, fixed, pieces) == before
    assert content(world, world.open(), fixed, pieces[::-1]) == before


@every_world_but("clickhouse", "delta", "http", "postgres", "iceberg")
def test_pieces_neither_overlap_nor_leave_a_hole_also_in_another_process(world: SourceWorld) -> None:
    """What is kept of them survives JSON, and another process goes on in the middle. No piece is no row."""
    source = filled(world).open()
    fixed = world.fixed(source)
    pieces = world.pieces(source, fixed)
    each = [world.ids(source, fixed, [piece]) for piece in pieces]
    assert len(pieces) > 2
    assert all(each)
    assert sorted(number for part in each for number in part) == list(range(35))
    assert world.ids(source, fixed, pieces) == list(range(35))
    nothing = world.read(source, fixed, [])
    assert nothing.columns == [*world.columns, *HIDDEN]
    assert nothing.collect() == []
    stored = json.loads(json.dumps([fixed, pieces]))
    assert stored == [fixed, pieces]
    source.close()
    world.add(numbered(35, 40))
    rest = world.ids(world.open(), stored[0], stored[1][2:])
    assert sorted(each[0] + each[1] + rest) == list(range(35))
    assert rest


@every_world_but("delta", "http", "postgres", "iceberg")
def test_nothing_there_is_no_error(world: SourceWorld) -> None:
    source = world.open()
    fixed = world.fixed(source)
    assert world.pieces(source, fixed) == []
    frame = world.read(source, fixed, [])
    assert frame.columns == [*world.columns, *HIDDEN]
    assert frame.collect() == []
    world.add(numbered(0, 3))
    assert world.pieces(world.open(), fixed) == []
    again = world.open()
    later = world.fixed(again)
    assert world.ids(again, later, world.pieces(again, later)) == [0, 1, 2]


@every_world_but("delta", "iceberg")
def test_rows_that_the_outside_no_longer_holds_are_an_error(world: SourceWorld) -> None:
    source = filled(world).open()
    fixed = world.fixed(source)
    pieces = world.pieces(source, fixed)
    world.lose(fixed)
    fresh = world.open()
    error = refused(lambda: world.read(fresh, fixed, pieces).collect(), NODE)
    assert isinstance(error, PipelineStateError)
    assert error.hint
    assert isinstance(refused(lambda: world.pieces(world.open(), fixed), NODE), PipelineStateError)


def test_rows_that_never_were_are_an_error(world: SourceWorld) -> None:
    source = filled(world).open()
    fixed = world.fixed(source)
    wrong = world.never_was(fixed)
    pieces = world.pieces(source, fixed) if world.bounded else [wrong]
    error = refused(lambda: world.read(world.open(), wrong, pieces), NODE)
    assert isinstance(error, PipelineStateError | TargetError)
    assert error.hint


def test_a_stream_brings_its_operations(make: Callable[[str], SourceWorld]) -> None:
    world = make("kafka")
    assert isinstance(world, KafkaWorld)
    for number, op in enumerate(("r", "c", "u", "d")):
        world.add([(number, "x")], headers=[("dbz.op", op.encode())])
    world.add([(4, "x")])
    source = world.open()
    fixed = world.fixed(source)
    result = content(world, source, fixed, world.pieces(source, fixed))
    assert sorted((row[2], row[1]) for row in result) == [(0, "i"), (1, "i"), (2, "u"), (3, "d"), (4, "i")]


@every_world_but("delta", "iceberg", "python")
def test_places_are_unique_and_the_later_row_of_a_key_comes_last(world: SourceWorld) -> None:
    """Twelve rounds, because names that are numbers end up in the order of text at the tenth."""
    for round_ in range(12):
        world.add([(number, f"round {round_:02d}") for number in range(6)])
    source = world.open()
    fixed = world.fixed(source)
    result = content(world, source, fixed, world.pieces(source, fixed))
    assert len({row[0] for row in result}) == len(result) == 72
    assert {row[0][0] for row in result} == {ORDINAL}
    assert not world.bounded or {row[1] for row in result} == {"i"}, "history is inserts"
    for number in range(6):
        values = [row[3] for row in result if row[2] == number]
        assert values == sorted(values)


@every_bounded_but("delta", "http", "postgres", "iceberg")
def test_pieces_are_the_same_at_every_planning(bounded: SourceWorld) -> None:
    source = filled(bounded).open()
    fixed = bounded.fixed(source)
    pieces = bounded.pieces(source, fixed)
    bounded.add(numbered(0, 60, "new"))
    assert bounded.pieces(bounded.open(), fixed) == pieces
    assert len({piece["id"] for piece in pieces}) == len(pieces)
    assert [piece["rows"] for piece in pieces] == [
        len(bounded.ids(source, fixed, [piece])) for piece in pieces
    ]


@every_bounded_but("clickhouse", "delta", "file", "http", "postgres", "iceberg")
def test_windows_share_out_the_history(bounded: SourceWorld) -> None:
    source = filled(bounded).open()
    fixed = bounded.fixed(source)
    snapshot = Snapshot(fixed, fixed["pinned"])
    borders = ["-1000", "0", "13", "14", "1000"]
    result = []
    for low, high in pairwise(borders):
        splits = source.splits(bounded.spark, snapshot, HistoryPartition(low, "id", low, high), None)
        result.append(bounded.ids(source, fixed, splits))
    assert result == [[], list(range(13)), [13], list(range(14, 35))]


@every_bounded_but("delta", "http", "postgres", "iceberg")
def test_columns_are_what_the_node_and_the_reader_ask_for(bounded: SourceWorld) -> None:
    source = filled(bounded).open(columns="v, id")
    assert bounded.schema(source).names == ["v", "id"]
    fixed = bounded.fixed(source)
    pieces = bounded.pieces(source, fixed)
    assert bounded.read(source, fixed, pieces).columns == ["v", "id", *HIDDEN]
    narrow = source.read(bounded.spark, Snapshot(fixed, fixed["pinned"]), pieces, ["v"])
    assert narrow.columns == ["v", *HIDDEN]
    assert narrow.count() == 35


@every_bounded_but("delta", "http", "postgres", "iceberg")
def test_unpinning_twice_does_no_harm(bounded: SourceWorld) -> None:
    source = filled(bounded).open()
    fixed = bounded.fixed(source)
    for _ in range(2):
        source.release_snapshot(Snapshot(fixed, fixed["pinned"]))
    again = bounded.fixed(source)
    assert bounded.ids(source, again, bounded.pieces(source, again)) == list(range(35))


@every_bounded_but("delta", "http", "postgres", "iceberg")
def test_the_direct_way_gives_the_rows_of_the_other(bounded: SourceWorld) -> None:
    source = filled(bounded).open()
    fixed = bounded.fixed(source)
    pieces = bounded.pieces(source, fixed)
    fetch = source.create_split_reader(Snapshot(fixed, fixed["pinned"]), pieces, None)
    assert (fetch is not None) is type(source).capabilities.direct
    if fetch is not None:
        each = [[row["id"] for batch in fetch.fetch(piece) for row in batch.to_pylist()] for piece in pieces]
        assert [sorted(part) for part in each] == [bounded.ids(source, fixed, [piece]) for piece in pieces]


def test_a_table_or_topic_that_is_not_there_is_named(world: SourceWorld) -> None:
    if world.kind in ("http", "python"):
        named = refused(lambda: world.fixed(world.open(world.name + "z")), "rowsz")
        assert named.hint
        return
    near = world.name[:-1] + ("z" if world.name[-1] != "z" else "y")
    absent = world.open(near)
    error = refused(lambda: world.fixed(absent), near)
    assert isinstance(error, TargetError)
    assert world.name in error.hint + error.message


def test_a_column_that_is_not_there_is_named(world: SourceWorld) -> None:
    filled(world, 3)
    source = world.open(filter="nope = 1")

    def ask() -> None:
        fixed = world.fixed(source)
        world.read(source, fixed, world.pieces(source, fixed)).collect()

    refused(ask, "nope")
    if world.bounded:
        named = refused(lambda: world.schema(world.open(columns="id, nope")), "nope")
        assert "id" in named.hint


def test_closing_lets_go(world: SourceWorld) -> None:
    filled(world, 12)
    before = world.open_resources()
    source = world.open()
    fixed = world.fixed(source)
    frame = world.read(source, fixed, world.pieces(source, fixed))
    opened = world.open_resources() - before
    assert opened
    assert frame.count() == 12
    source.close()
    del source, frame
    world.opened.clear()
    until(lambda: not world.open_resources() & opened)


@every_world_but("delta", "http", "postgres", "iceberg", "kafka")
def test_a_filter_of_the_node_holds_in_every_piece(world: SourceWorld) -> None:
    source = filled(world).open(filter="id % 5 = 0 OR id = 33")
    fixed = world.fixed(source)
    assert world.ids(source, fixed, world.pieces(source, fixed)) == [0, 5, 10, 15, 20, 25, 30, 33]


@every_bounded_but("http", "postgres")
def test_a_look_foresees_the_pieces_of_a_pin_and_makes_nothing(
    bounded: SourceWorld, spark: SparkSession
) -> None:
    if not bounded.foresees:
        seen = filled(bounded).open().describe_snapshot(spark)
        assert len(bounded.open().splits(spark, seen, None, None)) == 1
        assert not (bounded.settings().staging_folder / "snapshots").exists()
        return
    source = filled(bounded).open()
    session = None if type(source).capabilities.without_spark else spark
    before = source.schema(session)
    foreseen = list(source.splits(session, source.describe_snapshot(session), None, None))
    pieces = bounded.pieces(source, bounded.fixed(source))
    assert [(piece["id"], piece["rows"]) for piece in foreseen] == [
        (piece["id"], piece["rows"]) for piece in pieces
    ]
    assert sum(piece["rows"] for piece in foreseen) == 35
    assert before == bounded.schema(source)
