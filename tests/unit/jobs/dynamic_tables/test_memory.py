"""Tables in memory: their files by epoch, and the errors if files and ledger disagree."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pyarrow as pa
import pytest

from headrace.jobs.dynamic_tables.base import checker
from headrace.jobs.dynamic_tables.broadcast import TAIL, ValueSegment, ValueSet
from headrace.jobs.dynamic_tables.memory import CommittedTables, MemoryTable
from headrace.jobs.dynamic_tables.sqlite_store import ValueStore
from headrace.pipeline.errors import FencedError, SinkStateError, TargetError
from headrace.pipeline.protocol.epochs import EpochPlan, Phase

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class LocalBroadcast:
    """A broadcast, as far as this process is concerned."""

    def __init__(self, value: ValueSegment) -> None:
        self.value = value
        self.live = True

    def unpersist(self) -> None:
        assert self.live
        self.live = False


class Context:
    """A session that sends to nobody."""

    def __init__(self) -> None:
        self.sparkContext = self
        self.sent: list[LocalBroadcast] = []

    def broadcast(self, value: ValueSegment) -> LocalBroadcast:
        self.sent.append(LocalBroadcast(value))
        return self.sent[-1]


def no_spark() -> SparkSession:
    return cast("SparkSession", Context())


def plan(number: int, end: int | None = None) -> EpochPlan:
    return EpochPlan(
        number, Phase.LIVE, {"s": number}, {"s": end or number + 1}, "hash", datetime(2025, 1, 1, tzinfo=UTC)
    )


class Lane:
    """What the ledger remembers between runs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.committed = 0
        self.generation = 0
        self.joined: set[str] = set()

    def open(self, entity: str = "known", *, former: bool = False) -> MemoryTable:
        self.generation += 1
        known = CommittedTables(
            self.committed, frozenset(self.joined), lambda name, _: self.joined.add(name), former=former
        )
        table = MemoryTable("t", entity, ValueStore(self.path, self.generation), no_spark(), known)
        table.prepare()
        return table


def contains_values(table: MemoryTable, number: int, *values: str) -> list[bool]:
    return table.lookup(plan(number)).contains(list(values))


def fill(table: MemoryTable, number: int, *values: str) -> None:
    assert table.needs_values(plan(number))
    table.fill(plan(number), pa.array(values, pa.string()))


@pytest.fixture
def lane(tmp_path: Path) -> Lane:
    return Lane(tmp_path / "tables" / "main.db")


def test_an_epoch_asks_what_came_up_to_it_whenever_it_is_written(lane: Lane) -> None:
    table = lane.open()
    fill(table, 1, "a")
    assert contains_values(table, 1, "a", "b", "c") == [True, False, False]
    fill(table, 2, "a", "b")
    assert contains_values(table, 2, "a", "b", "c") == [True, True, False]
    fill(table, 3)
    lane.committed = 3
    table.close()
    again = lane.open()
    assert contains_values(again, 3, "a", "b", "c") == [True, True, False]
    assert not any(again.needs_values(plan(number)) for number in (1, 2, 3))
    assert contains_values(again, 1, "a", "b", "c") == [True, False, False], "a replay sees the future"
    assert contains_values(again, 2, "a", "b", "c") == [True, True, False]
    fill(again, 4, "c")
    assert contains_values(again, 4, "a", "b", "c") == [True, True, True]


def test_dying_at_any_moment_of_an_epoch(lane: Lane) -> None:
    table = lane.open()
    fill(table, 1, "a")
    lane.committed = 1
    del table  # before the next epoch's values are kept
    table = lane.open()
    fill(table, 2, "b")
    del table  # behind them, before the commit
    table = lane.open()
    assert not table.needs_values(plan(2))
    assert [
        table.has_values(plan(2)),
        table.has_values(plan(2, end=9)),
        table.has_values(plan(1)),
        table.has_values(plan(3)),
    ] == [
        True,
        False,
        False,
        False,
    ]
    assert contains_values(table, 2, "a", "b") == [True, True]
    lane.committed = 2
    assert lane.open().needs_values(plan(3))


def test_dying_before_the_ledger_knows_of_the_table(lane: Lane) -> None:
    lane.committed = 7
    store = ValueStore(lane.path)
    store.add("known", 8, "digest", pa.array(["a"]))
    assert lane.open().needs_values(plan(8)), "another plan of the same epoch brings other values"
    store.close()
    assert "known" in lane.joined


def test_a_plan_that_was_dropped_leaves_no_values(lane: Lane) -> None:
    table = lane.open()
    fill(table, 1, "a")
    lane.committed = 1
    table.fill(plan(2, end=9), pa.array(["a", "of the dropped plan"]))
    table.close()
    again = lane.open()
    fill(again, 2, "b")
    assert contains_values(again, 2, "a", "b", "of the dropped plan") == [True, True, False]


def test_a_process_that_was_overtaken_adds_nothing(lane: Lane) -> None:
    slow = lane.open()
    fill(slow, 1, "a")
    lane.committed = 1
    assert slow.needs_values(plan(2))
    overtaking = lane.open()
    for number in (2, 3):
        fill(overtaking, number, f"v{number}")
    lane.committed = 3
    overtaking.close()
    with pytest.raises(FencedError, match="belong to generation 2, and this run is generation 1"):
        slow.fill(plan(2, end=9), pa.array(["late"]))
    assert contains_values(lane.open(), 3, "a", "v2", "v3", "late") == [True, True, True, False]


def test_a_replay_takes_nothing_into_a_table(lane: Lane) -> None:
    lane.committed = 7
    new = lane.open()
    assert not new.needs_values(plan(3)), (
        "a table that came later takes values of an epoch that is written again"
    )
    assert contains_values(new, 3, "a") == [False]
    fill(new, 8, "a")
    lane.committed = 8
    new.close()
    assert not lane.open().needs_values(plan(3))


def test_a_former_table_is_held_against_the_epoch_that_is_written_again(lane: Lane) -> None:
    table = lane.open()
    fill(table, 1, "a")
    fill(table, 2, "b")
    lane.committed = 9
    former = lane.open(former=True)
    assert not former.needs_values(plan(2))
    assert contains_values(former, 1, "a", "b") == [True, False]
    with pytest.raises(SinkStateError, match="it is at epoch 2; epoch 3 is to be written again"):
        former.needs_values(plan(3))


def test_values_that_are_gone_are_no_empty_table(lane: Lane) -> None:
    table = lane.open()
    fill(table, 1, "a")
    lane.committed = 1
    table.close()
    lane.path.unlink()
    for other in lane.path.parent.glob("main.db-*"):
        other.unlink()
    with pytest.raises(SinkStateError, match="and the file has none; the ledger is at epoch 1") as caught:
        lane.open()
    assert caught.value.node == "t"
    assert "another backend_entity_name" in caught.value.hint
    assert lane.open("fresh").needs_values(plan(2))


def test_values_that_are_older_or_newer_than_the_ledger(lane: Lane) -> None:
    table = lane.open()
    fill(table, 1, "a")
    fill(table, 2, "b")
    lane.committed = 5
    with pytest.raises(SinkStateError, match="it is at epoch 2; the ledger is at epoch 5"):
        lane.open()
    lane.committed = 0
    with pytest.raises(SinkStateError, match=r"are at epoch 2, ahead of the ledger at epoch 0"):
        lane.open()


def test_a_damaged_file_is_told(lane: Lane) -> None:
    lane.path.parent.mkdir(parents=True)
    lane.path.write_bytes(b"no database at all " * 100)
    with pytest.raises(TargetError, match="cannot be read") as caught:
        lane.open()
    assert caught.value.node == "t"


def test_two_tables_and_two_pipelines_with_the_same_name(tmp_path: Path) -> None:
    one, other = Lane(tmp_path / "uuid-1" / "main.db"), Lane(tmp_path / "uuid-2" / "main.db")
    here, there, second = one.open(), other.open(), one.open("second")
    fill(here, 1, "a")
    fill(there, 1, "b")
    fill(second, 1, "c")
    assert contains_values(here, 1, "a", "b", "c") == [True, False, False]
    assert contains_values(there, 1, "a", "b", "c") == [False, True, False]
    assert contains_values(second, 1, "a", "b", "c") == [False, False, True]


def test_segments_hold_what_a_python_set_holds() -> None:
    dice = random.Random(5)
    context = Context()
    values, model = ValueSet(cast("SparkSession", context)), set[str]()
    for _ in range(120):
        new = {f"v{dice.randrange(60_000)}" for _ in range(dice.choice([0, 1, 50, 900]))} - model
        values.add(pa.array(sorted(new), pa.string()))
        model |= new
        requests = [f"v{dice.randrange(70_000)}" for _ in range(200)]
        assert values.lookup.contains(requests) == [value in model for value in requests]
    live = [sent for sent in context.sent if sent.live]
    assert len(model) > 3 * TAIL
    assert len(live) <= 6
    assert sum(len(sent.value.values) for sent in live) <= len(model)
    before = values.lookup
    values.add(pa.array([], pa.string()))
    assert values.lookup is before, "nothing new, and yet the function would be made again"
    values.clear()
    assert values.lookup.contains(["v1"]) == [False]
    assert not any(sent.live for sent in context.sent)


def test_the_function_over_arrow() -> None:
    values = ValueSet(no_spark())
    values.add(pa.array(["a", ""]))
    check = checker({"t": values.lookup})

    def ask(array: pa.Array) -> list[bool | None]:
        return check(pa.array(["t"] * len(array)), array).to_pylist()

    assert ask(pa.array(["a", "b", None, "", "a"])) == [True, False, None, True, True]
    lists = [["b", "a"], ["b"], [], None, [None], [None, "a"]]
    assert ask(pa.array(lists, pa.list_(pa.string()))) == [True, False, False, None, False, True]
    assert ask(pa.array(lists, pa.list_(pa.string())).slice(1)) == [False, False, None, False, True]
    assert ask(pa.nulls(2)) == [None, None]
    assert ask(pa.array([], pa.string())) == []
