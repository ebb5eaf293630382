"""Roll-up of old epochs.

Small batches under the lease, summaries that join, and what must never be rolled up.
"""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from headrace.pipeline.errors import FencedError, InternalError
from headrace.pipeline.protocol.epochs import EpochPlan, Phase, WriteCounts
from headrace.pipeline.protocol.ledger import Lease, Ledger, open_sqlite
from headrace.pipeline.protocol.ledger import rollup as rolled_module
from headrace.pipeline.protocol.ledger.chain import START

HOLDER = {"host": "elsewhere", "pid": 1}
ONE = {"a": WriteCounts(1, 1, 0, 0)}


def begun(ledger: Ledger) -> Lease:
    lease = ledger.acquire("orders", "main", HOLDER, 30)
    ledger.begin(lease, lambda: {"k": 0})
    return lease


def carry(ledger: Ledger, lease: Lease, first: int, last: int, *, history: int = 0, hash: str = "h1") -> None:  # noqa: A002
    for number in range(first, last + 1):
        past = number <= history
        plan = EpochPlan(
            number,
            Phase.HISTORY if past else Phase.LIVE,
            {"k": number - 1},
            {"k": number},
            hash,
            datetime.now(UTC),
            window=f"w{number % 2}" if past else None,
            splits=({"id": number},) if past else (),
        )
        ledger.plan(lease, plan, {"hash": hash})
        ledger.commit(lease, number, ONE)


def ranges(ledger: Ledger) -> list[tuple[int, int, int, int]]:
    return [(one.first, one.last, one.start["k"], one.end["k"]) for one in ledger.rolled_up("orders")]


def ledger_epochs(ledger: Ledger) -> list[int]:
    return [row.plan.number for row in ledger.epochs("orders")]


def test_summaries_join_and_grow(open_ledger, monkeypatch):
    monkeypatch.setattr(rolled_module, "BATCH", 3)
    monkeypatch.setattr(rolled_module, "SPAN", 6)
    ledger = open_ledger()
    lease = begun(ledger)
    carry(ledger, lease, 1, 12)
    assert [ledger.roll_up(lease, 2, history=True) for _ in range(5)] == [3, 3, 3, 1, 0]
    assert ranges(ledger) == [(1, 6, 0, 6), (7, 10, 6, 10)]
    assert ledger_epochs(ledger) == [11, 12]
    first, second = ledger.rolled_up("orders")
    assert (first.link_before, second.link_before) == (START, first.link)
    assert first.counts == {"a": WriteCounts(6, 6, 0, 0)}
    assert first.first_at <= first.last_at <= second.first_at
    assert [row.linked for row in ledger.stored_epochs("orders", "main", 10, second.link)] == [True, True]
    state = ledger.state("orders")
    assert state is not None
    assert (state.committed, state.kept_from, state.position) == (12, 11, {"k": 12})
    carry(ledger, lease, 13, 14)
    assert [row.linked for row in open_ledger().stored_epochs("orders", "main", 10, second.link)] == [
        True
    ] * 4


def test_the_chain_goes_on_after_everything_was_rolled_up(open_ledger):
    ledger = open_ledger()
    lease = begun(ledger)
    carry(ledger, lease, 1, 3)
    ledger.roll_up(lease, 0, history=True)
    state = ledger.state("orders")
    assert state is not None
    assert (ledger_epochs(ledger), state.kept_from) == ([], 4)
    carry(ledger, lease, 4, 5)
    (one,) = ledger.rolled_up("orders")
    assert all(row.linked for row in ledger.stored_epochs("orders", "main", 3, one.link))


def test_history_goes_when_it_is_complete_and_its_windows_stay_countable(open_ledger):
    ledger = open_ledger()
    lease = begun(ledger)
    ledger.event(lease, "splits", {"source": "s", "window": "w0", "phase": 0, "splits": []})
    ledger.event(lease, "skipped", {"epoch": 1})
    carry(ledger, lease, 1, 8, history=5)
    before = ledger.window_counts("orders")
    assert ledger.roll_up(lease, 1, history=False) == 0
    assert ledger.roll_up(lease, 4, history=True) == 4
    assert any(event["kind"] == "splits" for event in ledger.events("orders")), (
        "one epoch of history is left, a rewind may need them"
    )
    assert ledger.roll_up(lease, 1, history=True) == 1
    assert ledger.roll_up(lease, 1, history=True) == 2
    assert ranges(ledger) == [(1, 5, 0, 5), (6, 7, 5, 7)]
    assert (
        before
        == ledger.window_counts("orders")
        == {"w0": {"a": WriteCounts(2, 2, 0, 0)}, "w1": {"a": WriteCounts(3, 3, 0, 0)}}
    )
    assert [event["kind"] for event in ledger.events("orders")] == ["opened", "began", "skipped"]


def test_a_rewind_begins_another_summary(open_ledger):
    ledger = open_ledger()
    lease = begun(ledger)
    carry(ledger, lease, 1, 3)
    ledger.rewind(lease, {"k": 1}, after=1)
    ledger.plan(lease, EpochPlan(4, Phase.LIVE, {"k": 1}, {"k": 4}, "h1", datetime.now(UTC)), {})
    ledger.commit(lease, 4, ONE)
    assert [ledger.roll_up(lease, 0, history=True) for _ in range(3)] == [3, 1, 0]
    assert ranges(ledger) == [(1, 3, 0, 3), (4, 4, 1, 4)]


def test_compiled_pipelines_go_with_their_last_epoch(open_ledger):
    ledger = open_ledger()
    lease = begun(ledger)
    carry(ledger, lease, 1, 2, hash="old")
    carry(ledger, lease, 3, 4, hash="new")
    ledger.roll_up(lease, 3, history=True)
    assert ledger.compiled("old")
    ledger.roll_up(lease, 0, history=True)
    with pytest.raises(InternalError, match="old"):
        ledger.compiled("old")
    assert ledger.compiled("new"), "the last committed epoch's"


def test_events_of_everyday_work_are_bounded_and_the_others_stay(open_ledger, monkeypatch):
    monkeypatch.setattr(rolled_module, "KEPT_EVENTS", 4)
    ledger = open_ledger()
    lease = begun(ledger)
    ledger.event(lease, "skipped", {"epoch": 1})
    carry(ledger, lease, 1, 1)
    for _ in range(5):
        ledger.release(lease)
        lease = ledger.acquire("orders", "main", HOLDER, 30)
    ledger.roll_up(lease, 0, history=True)
    kinds = [event["kind"] for event in ledger.events("orders")]
    assert kinds == ["began", "skipped", "released", "opened", "released", "opened"]


@pytest.mark.parametrize("state", ["joining", "replaying"])
def test_nothing_is_rolled_up_while_a_sink_is_not_level(open_ledger, state):
    ledger = open_ledger()
    lease = begun(ledger)
    carry(ledger, lease, 1, 3)
    ledger.set_sink(lease, "a", state, 0)
    assert ledger.roll_up(lease, 0, history=True) == 0
    ledger.set_sink(lease, "a", "joined", 0)
    assert ledger.roll_up(lease, 0, history=True) == 3


def test_the_open_epoch_stays(open_ledger):
    ledger = open_ledger()
    lease = begun(ledger)
    carry(ledger, lease, 1, 2)
    third = EpochPlan(3, Phase.LIVE, {"k": 2}, {"k": 3}, "h1", datetime.now(UTC))
    ledger.plan(lease, third, {})
    assert ledger.roll_up(lease, 0, history=True) == 2
    state = ledger.state("orders")
    assert state is not None
    assert (state.open_plan, state.kept_from) == (third, 3)
    ledger.commit(lease, 3, ONE)


def test_only_the_holder_rolls_up(open_ledger):
    ledger = open_ledger()
    lease = begun(ledger)
    carry(ledger, lease, 1, 3)
    with pytest.raises(FencedError):
        ledger.roll_up(replace(lease, generation=lease.generation - 1), 0, history=True)
    assert ledger_epochs(ledger) == [1, 2, 3]


def test_a_death_in_the_middle_changes_nothing(open_ledger, monkeypatch):
    ledger = open_ledger()
    lease = begun(ledger)
    carry(ledger, lease, 1, 3)
    with monkeypatch.context() as broken:
        broken.delattr("headrace.pipeline.protocol.ledger.rollup.ROUTINE_EVENTS")
        with pytest.raises(NameError):
            ledger.roll_up(lease, 0, history=True)
    assert (ledger_epochs(ledger), ranges(ledger)) == ([1, 2, 3], [])


@pytest.mark.parametrize(
    "tamper",
    [
        "delete from headrace_ledger_epoch where number = 2",
        "update headrace_ledger_epoch set plan = replace(plan, '\"h1\"', '\"h2\"') where number = 2",
        "update headrace_ledger_epoch set counts = '{}' where number = 2",
    ],
)
def test_a_row_that_was_tampered_with_is_kept_for_the_audit(tmp_path, tamper):
    ledger = open_sqlite(tmp_path / "ledger.db")
    lease = begun(ledger)
    carry(ledger, lease, 1, 4)
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        connection.execute(tamper)
    connection.close()
    assert [ledger.roll_up(lease, 0, history=True) for _ in range(2)] == [1, 0]
    assert 3 in ledger_epochs(ledger)
    ledger.close()


def test_the_file_gives_pages_back(tmp_path, monkeypatch):
    monkeypatch.setattr("headrace.pipeline.protocol.ledger.sqlite._FREE_PAGES", 4)
    path = tmp_path / "ledger.db"
    ledger = open_sqlite(path)
    lease = begun(ledger)
    page = {"source": "s", "window": "w", "phase": 0, "splits": ["x" * 1000] * 2000}
    ledger.event(lease, "splits", page)
    carry(ledger, lease, 1, 40, history=1)

    def pages() -> int:
        with sqlite3.connect(path) as connection:
            result = connection.execute("pragma page_count").fetchone()[0]
        connection.close()
        return result

    before = pages()
    while ledger.roll_up(lease, 1, history=True):
        pass
    carry(ledger, lease, 41, 43)
    for number in range(44, 48):
        carry(ledger, lease, number, number)
        ledger.roll_up(lease, 1, history=True)
    assert pages() < before / 4
    ledger.close()
