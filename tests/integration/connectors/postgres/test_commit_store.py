"""The commit record: compare-and-set, generations, rewinds, other pipelines."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from helpers.postgres_epochs import SCHEMA, STAGED, Bench, plan

from headrace.pipeline.errors import FencedError, SinkStateError, TransientError
from headrace.pipeline.protocol.epochs import CommitRecord, WriteCounts

PATHS = pytest.mark.parametrize("estimate", [0, STAGED], ids=["driver", "staged"])


def epoch_of(sink: Any) -> int | None:
    record = sink.record()
    return record and record.epoch


def test_a_fresh_target_has_no_record_and_is_made(bench: Bench) -> None:
    sink = bench.sink()
    assert sink.record() is None
    assert sink.read_row_count() is None
    sink.prepare(SCHEMA, 1)
    assert sink.record() is None
    assert bench.rows() == []


def test_join_takes_the_baseline(bench: Bench) -> None:
    sink = bench.joined()
    sink.write(plan(1), bench.frame([("i", 1, "a"), ("i", 2, "b")]))
    other = bench.sink(pipeline="another")
    other.prepare(SCHEMA, 1)
    written = other.register(CommitRecord.for_registration(other._context.key, 1, 0, {}, "hash", None))
    assert written.baseline == 2
    assert other.record() == written


@PATHS
def test_an_epoch_that_is_held_is_not_written_again(bench: Bench, estimate: int) -> None:
    sink = bench.joined(key=())
    frame = bench.frame([("i", 1, "a")], key=(), estimate=estimate)
    first = sink.write(plan(1), frame)
    assert sink.write(plan(1), frame) == first == WriteCounts(1, 1, 0, 0)
    assert bench.rows() == [(1, "a")]


@PATHS
@pytest.mark.parametrize("number", [2, 3, 7])
def test_only_the_next_epoch_is_taken(bench: Bench, number: int, estimate: int) -> None:
    sink = bench.joined()
    sink.write(plan(1), bench.frame([("i", 1, "a")]))
    if number == 2:
        sink.write(plan(2), bench.frame([("i", 2, "a")], estimate=estimate))
        number = 1
    with pytest.raises(SinkStateError, match=f"epoch {number} can only follow"):
        sink.write(plan(number), bench.frame([("i", 99, "x")], estimate=estimate))
    assert (99, "x") not in bench.rows()


def test_without_a_record_nothing_is_written(bench: Bench) -> None:
    sink = bench.sink()
    sink.prepare(SCHEMA, 1)
    with pytest.raises(SinkStateError, match="no record"):
        sink.write(plan(1), bench.frame([("i", 1, "a")]))
    assert bench.rows() == []


@PATHS
def test_a_zombie_of_an_older_generation_is_fenced(bench: Bench, estimate: int) -> None:
    old = bench.joined(generation=1)
    old.write(plan(1), bench.frame([("i", 1, "a")]))
    bench.sink().prepare(SCHEMA, 2)
    with pytest.raises(FencedError, match="generation 2 has taken"):
        old.write(plan(2), bench.frame([("i", 2, "zombie")], estimate=estimate))
    assert bench.rows() == [(1, "a")]


def test_an_older_generation_cannot_prepare(bench: Bench) -> None:
    bench.joined(generation=3)
    with pytest.raises(FencedError):
        bench.sink().prepare(SCHEMA, 2)


def test_prepare_ends_the_transaction_of_a_zombie(bench: Bench) -> None:
    """A driver that was stopped in the middle of a transaction holds the record's row.

    The newcomer ends its backend.
    """
    old = bench.joined(generation=1)

    def woken() -> None:
        with old._connections.loader.transaction() as session:
            old._store.lock(session, 1)
            bench.sink().prepare(SCHEMA, 2)
            session.run("SELECT 1")

    with pytest.raises(TransientError):
        woken()
    assert bench.run("SELECT generation FROM headrace.records WHERE pipeline = %s", bench.pipeline) == [(2,)]


def test_prepare_leaves_other_sinks_alone(bench: Bench) -> None:
    other = bench.joined(name="out2", generation=1)
    with other._connections.control.transaction() as session:
        bench.sink().prepare(SCHEMA, 2)
        assert session.run("SELECT 1") == [(1,)]


def test_rewind_overwrites_the_row(bench: Bench) -> None:
    sink = bench.joined()
    for number in (1, 2, 3):
        sink.write(plan(number), bench.frame([("i", number, "a")]))
    sink.register(CommitRecord.for_registration(sink._context.key, 1, 1, {"src": 1}, "hash", None))
    assert epoch_of(sink) == 1
    sink.write(plan(2), bench.frame([("i", 2, "again")]))
    assert bench.rows() == [(1, "a"), (2, "again"), (3, "a")]
    result = sink.read_row_count()
    assert result is not None
    assert result[1] == 3


def test_a_table_made_anew_does_not_hold_the_record(bench: Bench) -> None:
    sink = bench.joined()
    sink.write(plan(1), bench.frame([("i", 1, "a")]))
    bench.run("DROP TABLE {t}")
    again = bench.sink()
    again.prepare(SCHEMA, 2)
    assert again.record() is None
    again.register(CommitRecord.for_registration(again._context.key, 2, 0, {}, "hash", None))
    assert epoch_of(again) == 0


def test_another_table_does_not_hold_the_record(bench: Bench) -> None:
    bench.joined().write(plan(1), bench.frame([("i", 1, "a")]))
    moved = bench.sink(table="elsewhere")
    moved.prepare(SCHEMA, 2)
    assert moved.record() is None


def test_a_pipeline_that_lost_its_ledger_sees_its_record_and_takes_over(bench: Bench) -> None:
    first = bench.joined()
    first.write(plan(1), bench.frame([("i", 1, "a")]))
    lost = bench.sink(pipeline="a new uuid after the ledger was lost")
    lost.prepare(SCHEMA, 1)
    foreign = lost.find_conflicting_record()
    assert foreign is not None
    assert (foreign.epoch, foreign.key.pipeline) == (1, bench.pipeline)
    assert first.find_conflicting_record() is None
    lost.register(CommitRecord.for_registration(lost._context.key, 1, 0, {}, "hash", None))
    result = lost.read_row_count()
    assert result is not None
    assert result[1] == 1
    with pytest.raises(FencedError):
        first.write(plan(2), bench.frame([("i", 2, "b")]))


def test_a_table_that_two_pipelines_write_is_not_counted(bench: Bench) -> None:
    one = bench.joined(share=True)
    two = bench.joined(name="another sink", pipeline="another pipeline", share=True)
    assert one.read_row_count() is None
    assert two.read_row_count() is None
    assert one.find_conflicting_record() is None


def test_an_audit_reads_without_preparing(bench: Bench) -> None:
    bench.joined().write(plan(1), bench.frame([("i", 1, "a")]))
    audit = bench.sink()
    result = audit.read_row_count()
    assert result is not None
    assert (epoch_of(audit), result[1]) == (1, 1)
    assert bench.run("SELECT generation FROM headrace.records WHERE pipeline = %s", bench.pipeline) == [(1,)]


def test_many_create_at_once(bench: Bench) -> None:
    with bench.connect() as connection:
        connection.execute("DROP SCHEMA IF EXISTS headrace CASCADE")
    sinks = [bench.sink(name=f"out{number}") for number in range(8)]
    with ThreadPoolExecutor(len(sinks)) as pool:
        list(pool.map(lambda sink: sink.prepare(SCHEMA, 1), sinks))
    assert bench.run("SELECT count(*) FROM headrace.records WHERE pipeline = %s", bench.pipeline) == [(8,)]


def test_two_of_one_generation_write_an_epoch_once(bench: Bench) -> None:
    """Two processes that both believe.

    The row's compare-and-set lets one through, and both learn the same counts.
    """
    one = bench.joined(key=())
    two = bench.sink(key=())
    two.prepare(SCHEMA, 1)
    frame = bench.frame([("i", at, "a") for at in range(50)], key=())
    with ThreadPoolExecutor(2) as pool:
        counts = list(pool.map(lambda sink: sink.write(plan(1), frame), (one, two)))
    assert counts == [WriteCounts(50, 50, 0, 0)] * 2
    assert len(bench.rows()) == 50
