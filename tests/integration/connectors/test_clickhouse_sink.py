"""A ClickHouse table as a sink, on a real server: tables, values, lost answers, fences and refusals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from helpers.clickhouse_sink import ClickHouseSinkMaker, clickhouse_sink_maker
from helpers.depth import with_slow
from helpers.nested_rows import NESTED, ROWS, same_as
from helpers.sink_makers import KEYED, frame, plan
from pyarrow import types as kinds
from pyspark.sql import SparkSession

from headrace.connectors.clickhouse import loader
from headrace.connectors.clickhouse.commit_table import CommitTable
from headrace.connectors.clickhouse.loader import StageLoad
from headrace.connectors.clickhouse.stage import GenerationStage
from headrace.connectors.sink_base import Sink
from headrace.pipeline.errors import (
    DataError,
    FencedError,
    HeadraceError,
    SchemaError,
    SinkStateError,
    TargetError,
    TransientError,
    UserError,
)
from headrace.pipeline.types.int256 import INT256, UINT256
from headrace.services import Services

Make = Callable[..., ClickHouseSinkMaker]
KEYLESS_TABLE = (
    "CREATE TABLE target (id Int64, name String, _headrace_epoch UInt64, _headrace_attempt UInt64)"
    " ENGINE = MergeTree PARTITION BY id % 3 ORDER BY tuple()"
)
KEYED_TABLE = (
    "CREATE TABLE target (id Int64, name Nullable(String), insert_time DateTime64(6, 'UTC'), is_deleted UInt8)"
    " ENGINE = ReplacingMergeTree(insert_time, is_deleted) ORDER BY id"
)


@pytest.fixture
def make(spark: SparkSession, services: Services, ch_db: str, tmp_path: Path) -> Make:
    """`make(**node)` returns the maker of sinks into the table `target` of a database of its own."""
    return lambda **node: clickhouse_sink_maker(spark, services, ch_db, tmp_path, **node)


KINDS = ("keyed", "without-key")
keyed_is_daily = pytest.mark.parametrize("maker", with_slow({"without-key"}, KINDS), indirect=True)
"""For tests in which the kind of the table matters little."""


def cross(keyless: str, keyed: str) -> list[Any]:
    """Return both tables with both values. Daily are `keyless` without a key, and `keyed` with one."""
    return [
        pytest.param(kind, value, marks=() if (kind == "keyed") == (value == keyed) else pytest.mark.slow)
        for kind in KINDS
        for value in (keyless, keyed)
    ]


@pytest.fixture(params=KINDS)
def maker(request: pytest.FixtureRequest, make: Make) -> ClickHouseSinkMaker:
    """A maker for a table with a key, or for one without, which has partitions."""
    made = make()
    made.last["columns"] = ("id",) if request.param == "keyed" else ()
    if request.param != "keyed":
        made.client.command(KEYLESS_TABLE)
    return made


def columns(maker: ClickHouseSinkMaker) -> tuple[str, ...]:
    return maker.last["columns"]


def people(*keys: int, name: str = "a") -> list[dict[str, Any]]:
    return [{"id": key, "name": name} for key in keys]


def write(
    sink: Sink, maker: ClickHouseSinkMaker, number: int, rows: list[dict[str, Any]], ops: str = ""
) -> Any:
    key = maker.last["key"]
    return sink.write(
        plan(number), frame(maker.spark, maker.last["schema"], rows, ops or "i" * len(rows), key)
    )


def stored(maker: ClickHouseSinkMaker) -> list[tuple[Any, ...]]:
    return sorted(maker.rows(["id", "name"]))


def count_stored_rows(maker: ClickHouseSinkMaker) -> int:
    """How many rows the table has, deletes and replaced rows included."""
    return maker.client.query("SELECT count() FROM target").result_rows[0][0]


# --- tables


def test_a_table_is_created_with_the_columns_of_the_sink(make: Make) -> None:
    maker = make(schema_override={"name": "LowCardinality(String) CODEC(ZSTD(3))"})
    maker.joined(KEYED).close()
    text = maker.client.command("SHOW CREATE TABLE target").replace("\\'", "'")
    for part in (
        "`id` Int64",
        "`name` LowCardinality(String) CODEC(ZSTD(3))",
        "`insert_time` DateTime64(6, 'UTC')",
        "`is_deleted` UInt8",
        "`_headrace_epoch` UInt64",
        "`_headrace_attempt` UInt64",
        "ENGINE = ReplacingMergeTree(insert_time, is_deleted)",
    ):
        assert part in text, text
    assert "ORDER BY id" in text or "ORDER BY (id)" in text, text


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd", "gzip"])
def test_rows_arrive_with_every_compression(
    make: Make, compression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "PIECE_BYTES", 100)  # several frames
    maker = make(compression=compression, compression_level=1)
    sink = maker.joined(KEYED)
    write(sink, maker, 1, people(*range(500)))
    sink.close()
    assert len(stored(maker)) == 500


def test_rows_tell_their_epoch_and_later_epochs_have_a_later_time(make: Make) -> None:
    maker = make()
    sink = maker.joined(KEYED)
    write(sink, maker, 1, people(1, 2))
    write(sink, maker, 2, people(2), "d")
    sink.close()
    result = maker.client.query(
        "SELECT id, is_deleted, _headrace_epoch FROM target ORDER BY insert_time, id"
    ).result_rows
    assert [tuple(row) for row in result] == [(1, 0, 1), (2, 0, 1), (2, 1, 2)]
    assert stored(maker) == [(1, "a")]


def test_without_append_only_mode_a_deleted_key_leaves_no_row(make: Make) -> None:
    maker = make(append_only_mode=False)
    sink = maker.joined(KEYED)
    write(sink, maker, 1, people(1, 2, 3))
    write(sink, maker, 2, people(2, 3, name="b"), "uu")
    write(sink, maker, 3, people(2, 1), "du")
    left = maker.client.query("SELECT DISTINCT id, is_deleted FROM target ORDER BY id").result_rows
    assert [tuple(row) for row in left] == [(1, 0), (3, 0)]
    write(sink, maker, 4, people(2, name="back"))
    sink.close()
    assert stored(maker) == [(1, "a"), (2, "back"), (3, "b")]


VERSIONED = pa.schema([("id", pa.int64()), ("name", pa.string()), ("at", pa.int64())])


def test_the_highest_version_wins_and_a_delete_keeps_its_version(make: Make) -> None:
    maker = make(version_column_name="at")
    sink = maker.joined(VERSIONED)

    def versions(number: int, *changes: tuple[str, int, str, int | None]) -> None:
        rows = [{"id": key, "name": name, "at": at} for _, key, name, at in changes]
        write(sink, maker, number, rows, "".join(op for op, *_ in changes))

    versions(1, ("i", 1, "a", 5), ("u", 1, "late", 3), ("i", 2, "a", 5), ("i", 3, "a", 5))
    versions(2, ("u", 1, "late", 4), ("u", 2, "equal", 5), ("d", 3, "", 6))
    versions(3, ("u", 3, "late", 5), ("d", 1, "", 4))
    assert stored(maker) == [(1, "a"), (2, "equal")]
    with pytest.raises(DataError, match="`at` is null in a delete"):
        versions(4, ("d", 1, "", None))
    sink.close()


@keyed_is_daily
def test_the_target_is_emptied(maker: ClickHouseSinkMaker) -> None:
    sink = maker.joined(KEYED, columns(maker))
    write(sink, maker, 1, people(1, 2, 3))
    record = sink.record()
    sink.truncate()
    assert count_stored_rows(maker) == 0
    assert sink.record() == record
    assert sink.read_row_count() == (record, 0)
    write(sink, maker, 2, people(4))
    assert stored(maker) == [(4, "a")]
    successor = maker.open(KEYED, columns(maker))
    successor.prepare(KEYED, 2)
    with pytest.raises(FencedError):
        sink.truncate()
    assert stored(maker) == [(4, "a")]
    sink.close()
    successor.close()


@keyed_is_daily
def test_a_table_that_was_made_again_has_no_record(maker: ClickHouseSinkMaker) -> None:
    sink = maker.joined(KEYED, columns(maker))
    write(sink, maker, 1, people(1))
    text = maker.client.command("SHOW CREATE TABLE target").replace("\\n", "\n").replace("\\'", "'")
    maker.client.command("DROP TABLE target SYNC")
    maker.client.command(text)
    assert sink.record() is None
    with pytest.raises(SinkStateError):
        write(sink, maker, 2, people(2))
    sink.close()


# --- values


def without_null(value: Any, kind: Any) -> Any:
    """The value with an empty list, map or struct for each one that is null."""
    if kinds.is_struct(kind):
        return {one.name: without_null((value or {}).get(one.name), one.type) for one in kind}
    if kinds.is_map(kind):
        return [(without_null(k, kind.key_type), without_null(v, kind.item_type)) for k, v in value or []]
    if kinds.is_list(kind):
        return [without_null(item, kind.value_type) for item in value or []]
    return value


def test_lists_structs_and_maps_come_back(make: Make) -> None:
    maker = make()
    filled = [{one.name: without_null(row[one.name], one.type) for one in NESTED} for row in ROWS]
    sink = maker.joined(NESTED)
    write(sink, maker, 1, filled)
    sink.close()
    result = [
        dict(zip(NESTED.names, row, strict=True))
        for row in sorted(maker.rows(NESTED.names), key=lambda row: row[0])
    ]

    def comparable(value: Any, kind: Any) -> Any:
        """As `same_as`. Inside of others the server returns text as bytes and every time in UTC."""
        if kinds.is_list(kind):
            return [comparable(item, kind.value_type) for item in value]
        if kinds.is_struct(kind):
            return {one.name: comparable(value[one.name], one.type) for one in kind}
        if kinds.is_map(kind):
            pairs = [(comparable(k, kind.key_type), comparable(v, kind.item_type)) for k, v in value]
            return sorted(pairs, key=repr)
        if isinstance(value, bytes) and kinds.is_string(kind):
            return value.decode()
        return value.replace(tzinfo=UTC) if isinstance(value, datetime) else same_as(value, kind)

    for row, wanted in zip(result, filled, strict=True):
        for one in NESTED:
            assert comparable(row[one.name], one.type) == comparable(wanted[one.name], one.type), one.name


WIDE = pa.schema([("id", pa.int64()), ("i", INT256), ("u", UINT256), ("d", pa.decimal256(60, 20))])


@pytest.mark.parametrize(
    ("row", "fits"),
    [
        ({"i": str(-(2**255)), "u": str(2**256 - 1), "d": "9" * 40 + "." + "9" * 20}, True),
        pytest.param({"i": str(2**255 - 1), "u": "0", "d": "-0.5"}, True, marks=pytest.mark.slow),
        ({"i": str(2**255), "u": "0", "d": "0"}, False),
        pytest.param({"i": str(-(2**255) - 1), "u": "0", "d": "0"}, False, marks=pytest.mark.slow),
        ({"i": "0", "u": str(2**256), "d": "0"}, False),
        pytest.param({"i": "0", "u": "-1", "d": "0"}, False, marks=pytest.mark.slow),
        ({"i": "0", "u": "0", "d": "9" * 41}, False),
        ({"i": None, "u": None, "d": None}, True),
    ],
)
def test_a_wide_number_comes_back_or_is_refused(make: Make, row: dict[str, Any], fits: bool) -> None:
    maker = make()
    sink = maker.joined(WIDE)
    text = pa.schema([field if field.name == "id" else pa.field(field.name, pa.string()) for field in WIDE])
    rows = replace(frame(maker.spark, text, [row | {"id": 1}], "i"), schema=WIDE)
    if not fits:
        with pytest.raises(DataError, match=r"column `[iud]` holds"):
            sink.write(plan(1), rows)
        sink.close()
        return
    sink.write(plan(1), rows)
    sink.close()
    ((i, u, d),) = maker.client.query("SELECT toString(i), toString(u), d FROM target").result_rows
    assert (i, u) == (row["i"], row["u"])
    assert d == (None if row["d"] is None else Decimal(row["d"]))


@pytest.mark.parametrize(
    ("kind", "declared", "value"),
    [
        (pa.list_(pa.int64()), "", None),
        pytest.param(pa.map_(pa.string(), pa.int64()), "", None, marks=pytest.mark.slow),
        pytest.param(pa.struct([("x", pa.list_(pa.int64()))]), "", {"x": None}, marks=pytest.mark.slow),
        (pa.list_(pa.list_(pa.int64())), "", [[1], None]),
        (pa.int64(), "UInt8", 256),
        pytest.param(pa.int64(), "UInt64", -1, marks=pytest.mark.slow),
        pytest.param(pa.decimal128(20, 0), "UInt64", Decimal(2**64), marks=pytest.mark.slow),
        (pa.date32(), "Date", date(1969, 12, 31)),
        (pa.timestamp("us", tz="UTC"), "DateTime64(9, 'UTC')", datetime(2300, 1, 1, tzinfo=UTC)),
        (pa.string(), "String", None),
        (pa.string(), "UUID", "no uuid"),
    ],
)
def test_a_value_without_room_is_refused(make: Make, kind: Any, declared: str, value: Any) -> None:
    maker = make(**({"schema_override": {"v": declared}} if declared else {}))
    schema = pa.schema([("id", pa.int64()), ("v", kind)])
    sink = maker.joined(schema)
    with pytest.raises(DataError, match="v"):
        write(sink, maker, 1, [{"id": 1, "v": value}])
    assert count_stored_rows(maker) == 0
    sink.close()


# --- lost answers, other attempts, zombies


@pytest.fixture
def fail_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """`fail_once(owner, method, nth, does)`: the nth call does its work, or not, and then its answer is lost."""

    def install(owner: type, name: str, nth: int = 1, *, does: bool = True) -> None:
        method, calls = getattr(owner, name), 0

        def failing(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls != nth:
                return method(*args, **kwargs)
            if does:
                method(*args, **kwargs)
            msg = "the answer is lost"
            raise TransientError(msg)

        monkeypatch.setattr(owner, name, failing)

    yield install
    monkeypatch.undo()


LOST = [
    (StageLoad, "load", 1),
    (CommitTable, "write_state", 1),
    (GenerationStage, "attach", 1),
    (CommitTable, "write_state", 2),
    (GenerationStage, "clear", 1),
    (GenerationStage, "count", 2),
]
"""The steps of an epoch: class, method, and which call."""


def lost_answers() -> Iterator[Any]:
    """Yield every case. Daily is one of each step, with the other way to try again than the step before.

    What is done twice can double rows only in a table without a key.
    """
    for place, (owner, name, nth) in enumerate(LOST):
        for kind, again, does in product(KINDS, ("same-run", "next-run"), (True, False)):
            retry = "same-run" if place % 2 else "next-run"
            daily = does and (kind, again) == ("without-key", retry)
            yield pytest.param(
                *(kind, again, owner, name, nth, does),
                id=f"{kind}-{again}-{owner.__name__}-{name}-{nth}-{'done' if does else 'not-done'}",
                marks=() if daily else pytest.mark.slow,
            )


@pytest.mark.parametrize(
    ("maker", "again", "owner", "name", "nth", "does"), list(lost_answers()), indirect=["maker"]
)
def test_an_answer_is_lost(
    maker: ClickHouseSinkMaker,
    fail_once: Callable[..., None],
    owner: type,
    name: str,
    nth: int,
    does: bool,
    again: str,
) -> None:
    sink = maker.joined(KEYED, columns(maker))
    write(sink, maker, 1, people(1, 2, 3, 4))
    fail_once(owner, name, nth, does=does)
    with pytest.raises(TransientError, match="the answer is lost"):
        write(sink, maker, 2, people(4, 5, 6, name="b"))
    if again == "next-run":
        sink.close()
        sink = maker.open(KEYED, columns(maker))
        sink.prepare(KEYED, 2)
    assert write(sink, maker, 2, people(4, 5, 6, name="b")).rows == 3
    write(sink, maker, 3, people(7, name="c"))
    assert sink.record() is not None
    sink.close()
    replaced = [] if columns(maker) else [(4, "a")]
    assert stored(maker) == sorted(
        [(1, "a"), (2, "a"), (3, "a"), *replaced, *((i, "b") for i in (4, 5, 6)), (7, "c")]
    )


@pytest.mark.parametrize(("maker", "again"), cross("same-run", "next-run"), indirect=["maker"])
def test_an_attach_stops_halfway(
    maker: ClickHouseSinkMaker, monkeypatch: pytest.MonkeyPatch, again: str
) -> None:
    """As after a crash of the server: some parts are in the table."""
    sink = maker.joined(KEYED, columns(maker))
    write(sink, maker, 1, people(1, 2, 3))

    def attach_some(self: GenerationStage) -> None:
        rest = "id % 3 = 0" if not columns(maker) else "id > 4"
        self._client.command(f"ALTER TABLE {self.name} DELETE WHERE {rest} SETTINGS mutations_sync = 1")
        attach(self)
        msg = "the server was killed"
        raise TransientError(msg)

    attach = GenerationStage.attach
    monkeypatch.setattr(GenerationStage, "attach", attach_some)
    with pytest.raises(TransientError, match="killed"):
        write(sink, maker, 2, people(3, 4, 5, 6, name="b"))
    monkeypatch.undo()
    if again == "next-run":
        sink.close()
        sink = maker.open(KEYED, columns(maker))
        sink.prepare(KEYED, 2)
        assert sink.has_partial_epoch(plan(2)) == bool(columns(maker))
    record = sink.record()
    assert record is not None
    assert record.epoch == 1
    write(sink, maker, 2, people(3, 4, 5, 6, name="b"))
    sink.close()
    replaced = [] if columns(maker) else [(3, "a")]
    assert stored(maker) == sorted([(1, "a"), (2, "a"), *replaced, *((i, "b") for i in (3, 4, 5, 6))])


@pytest.mark.parametrize(("maker", "moment"), cross("after", "before"), indirect=["maker"])
def test_a_task_that_ran_twice_is_noticed(
    maker: ClickHouseSinkMaker, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Its rows come before or after the rows of the staging table were counted."""
    sink = maker.joined(KEYED, columns(maker))
    name, method = (
        ("count", GenerationStage.count) if moment == "before" else ("attach", GenerationStage.attach)
    )

    def late(self: GenerationStage) -> Any:
        monkeypatch.undo()
        self._client.command(f"INSERT INTO {self.name} SELECT * FROM {self.name} WHERE id = 2")
        return method(self)

    monkeypatch.setattr(GenerationStage, name, late)
    with pytest.raises(TransientError, match="4 rows are staged"):
        write(sink, maker, 1, people(1, 2, 3))
    write(sink, maker, 1, people(1, 2, 3))
    sink.close()
    assert stored(maker) == [(1, "a"), (2, "a"), (3, "a")]


ZOMBIES = [(StageLoad, "load"), (CommitTable, "write_state"), (GenerationStage, "attach")]
"""The steps of the older run: class and method. Its rows would be doubled only in a table without a key."""


@pytest.mark.parametrize(
    ("maker", "owner", "name"),
    [
        pytest.param(kind, *step, marks=pytest.mark.slow if kind == "keyed" else ())
        for kind in KINDS
        for step in ZOMBIES
    ],
    indirect=["maker"],
)
def test_an_older_run_wakes_up_at_every_step(
    maker: ClickHouseSinkMaker, monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    """The newer run writes another content of the epoch: the older one must not add to it."""
    zombie = maker.joined(KEYED, columns(maker))
    write(zombie, maker, 1, people(1))
    method = getattr(owner, name)

    def take_over(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.undo()
        newer = maker.open(KEYED, columns(maker))
        newer.prepare(KEYED, 2)
        write(newer, maker, 2, people(2, name="newer"))
        newer.close()
        return method(*args, **kwargs)

    monkeypatch.setattr(owner, name, take_over)
    with pytest.raises(FencedError):
        write(zombie, maker, 2, people(2, 3, name="older"))
    assert stored(maker) == [(1, "a"), (2, "newer")]
    with pytest.raises(FencedError):
        write(zombie, maker, 3, [])
    zombie.close()
    newest = maker.open(KEYED, columns(maker))
    newest.prepare(KEYED, 3)
    record = newest.record()
    assert record is not None
    assert (record.epoch, record.generation) == (2, 2)
    newest.close()


@keyed_is_daily
def test_an_older_run_that_wakes_up_in_its_preparation_is_refused(
    maker: ClickHouseSinkMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker.joined(KEYED, columns(maker)).close()
    zombie, newer = maker.open(KEYED, columns(maker)), maker.open(KEYED, columns(maker))
    method = GenerationStage.open

    def take_over(self: GenerationStage, generation: int) -> None:
        monkeypatch.undo()
        newer.prepare(KEYED, 3)
        method(self, generation)

    monkeypatch.setattr(GenerationStage, "open", take_over)
    with pytest.raises(FencedError):
        zombie.prepare(KEYED, 2)
    write(newer, maker, 1, people(1))
    assert stored(maker) == [(1, "a")]
    zombie.close()
    newer.close()


# --- refusals


@pytest.mark.parametrize(
    ("table", "key", "problem"),
    [
        (
            KEYED_TABLE.replace("(insert_time, is_deleted)", ""),
            ("id",),
            "does not replace rows by `insert_time`",
        ),
        (
            KEYED_TABLE.replace("ORDER BY id", "ORDER BY (id, name) SETTINGS allow_nullable_key = 1"),
            ("id",),
            "is sorted by",
        ),
        (KEYED_TABLE, (), "has the engine ReplacingMergeTree; a sink without a primary_key"),
        (KEYLESS_TABLE, ("id",), "has the engine MergeTree; a sink with a primary_key"),
        (KEYLESS_TABLE.replace(", _headrace_attempt UInt64", ""), (), "has no column _headrace_attempt"),
        (KEYED_TABLE.replace("name Nullable(String), ", ""), ("id",), "`name`.*is missing"),
        (KEYED_TABLE.replace("id Int64", "id String"), ("id",), "`id` is String, the rows need"),
        (KEYED_TABLE.replace("Nullable(String)", "String MATERIALIZED 'x'"), ("id",), "`name`.*computed"),
        ("CREATE TABLE target (id Int64, name String) ENGINE = Memory", (), "has the engine Memory"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(
    make: Make, table: str, key: tuple[str, ...], problem: str
) -> None:
    maker = make()
    maker.client.command(table)
    sink = maker.open(KEYED, key)
    with pytest.raises(HeadraceError, match=problem) as refused:
        sink.validate_target()
    assert isinstance(refused.value, TargetError | SchemaError)
    assert refused.value.hint
    with pytest.raises(HeadraceError, match=problem):
        sink.prepare(KEYED, 1)
    sink.close()


def test_a_table_without_the_columns_of_attempts_is_filled(make: Make) -> None:
    maker = make()
    maker.client.command(KEYED_TABLE)
    sink = maker.joined(KEYED)
    write(sink, maker, 1, people(1, 2))
    write(sink, maker, 2, people(2), "d")
    sink.close()
    assert stored(maker) == [(1, "a")]


@pytest.mark.parametrize(
    ("node", "problem"),
    [
        ({"schema_override": {"other": "String"}}, "names `other`, which is no column"),
        ({"schema_override": {"name": "Strin"}}, "`Strin` is no type of ClickHouse"),
        ({"schema_overrides": {"id": "Whole"}}, "is no type of ClickHouse"),
        ({"version_column": "id", "append_only_mode": False}, "needs `append_only_mode`"),
    ],
)
def test_wrong_options_are_refused(make: Make, node: dict[str, Any], problem: str) -> None:
    sink = make(**node).open(KEYED)
    with pytest.raises(UserError, match=problem) as refused:
        sink.validate_target()
    assert refused.value.keys
    sink.close()


def test_columns_with_the_names_of_the_sink_are_refused(make: Make) -> None:
    schema = pa.schema([("id", pa.int64()), ("is_deleted", pa.int8())])
    sink = make().open(schema)
    with pytest.raises(SchemaError, match="`is_deleted` is a name that the sink adds itself"):
        sink.prepare(schema, 1)
    sink.close()


def test_a_server_that_does_not_answer_and_a_wrong_password(make: Make) -> None:
    maker = make()
    good = maker.settings.clickhouse_sink
    for change, error, text in (
        ({"url": "http://127.0.0.1:1"}, TransientError, "clickhouse_sink.url"),
        ({"password": "wrong-word"}, TargetError, "clickhouse_sink"),
    ):
        settings = maker.settings.model_copy(
            update={"clickhouse_sink": type(good).model_validate(good.model_dump() | change)}
        )
        sink = replace(maker, settings=settings).open(KEYED)
        with pytest.raises(error) as refused:
            sink.validate_target()
        message = f"{refused.value.message} {refused.value.hint}"
        assert text in message
        assert "wrong-word" not in message
        sink.close()


def test_the_content_is_read_with_its_record(make: Make, tmp_path: Path) -> None:
    maker = make()
    sink = maker.joined(KEYED)
    write(sink, maker, 1, people(1, 2))
    write(sink, maker, 2, people(2), "d")
    result = sink.content(KEYED, tmp_path)
    assert result is not None
    assert result.record == sink.record()
    assert result.table is not None
    assert result.table.to_pylist() == people(1)
    few = sink.content(KEYED, tmp_path, limit=0)
    assert few is not None
    assert not few.is_whole
    sink.close()
