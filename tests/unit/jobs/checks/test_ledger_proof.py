"""The check of the ledger's epochs: from the verified point, and never beyond a change."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime
from pathlib import Path

import pytest

from headrace.jobs.checks import ledger_proof
from headrace.pipeline.protocol.epochs import CommitRecord, EpochPlan, Json, Phase, SinkKey, WriteCounts
from headrace.pipeline.protocol.ledger import open_sqlite


class Lane:
    """A lane in a real ledger; sources are plain counters."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ledger = open_sqlite(path)
        self.lease = self.ledger.acquire("p", "main", {"host": "elsewhere"}, 30)
        self.ledger.begin(self.lease, lambda: position(0))
        self.at = 0

    def commit(self, count: int, splits: tuple[Json, ...] = ()) -> None:
        for _ in range(count):
            at = self.at
            phase = Phase.HISTORY if splits else Phase.LIVE
            plan = EpochPlan(
                at + 1, phase, position(at), position(at + 1), "h", datetime.now(UTC), splits=splits
            )
            self.ledger.plan(self.lease, plan, {})
            self.ledger.commit(self.lease, at + 1, {"a": WriteCounts(1, 1, 0, 0)})
            self.at += 1

    def walk(self, restarts: tuple[int, ...] = (), *, all_epochs: bool = False) -> ledger_proof.LedgerProof:
        state = self.ledger.state("p")
        assert state is not None
        return ledger_proof.verify_epochs(self.ledger, state, restarts, all_epochs=all_epochs)

    def sql(self, statement: str) -> None:
        with sqlite3.connect(self.path) as connection:
            connection.execute(statement)
        connection.close()


def position(at: int) -> Json:
    return {"src": {"stream": {"topic": "t", "offsets": {"0": at}}}}


@pytest.fixture
def lane(tmp_path):
    result = Lane(tmp_path / "ledger.db")
    result.commit(10)
    yield result
    result.ledger.close()


def test_the_next_walk_reads_only_what_is_new(lane):
    assert (lane.walk().read, lane.walk().read) == (10, 0)
    lane.commit(3)
    result = lane.walk()
    assert (result.read, result.last, result.problems) == (3, 13, [])
    assert lane.walk(all_epochs=True).read == 13


def test_rolled_up_epochs_are_known_by_their_summaries(lane):
    lane.walk()
    lane.ledger.roll_up(lane.lease, 4, history=True)
    result = lane.walk()
    assert (result.read, result.rolled_up, result.problems) == (0, 6, [])
    lane.commit(1)
    lane.ledger.roll_up(lane.lease, 0, history=True)
    result = lane.walk(all_epochs=True)
    assert (result.read, result.rolled_up, result.last, result.problems) == (0, 11, 11, [])


@pytest.mark.parametrize(
    ("tamper", "says"),
    [
        ("delete from headrace_ledger_epoch where number = 3", "epochs 3 to 3 are missing"),
        ("delete from headrace_ledger_epoch where number = 10", "holds 9"),
        (
            "update headrace_ledger_epoch set link = 'x' where number = 10",
            "not the one that an earlier audit verified",
        ),
    ],
)
@pytest.mark.parametrize("verified", [True, False])
def test_a_change_is_found_with_and_without_a_verified_point(lane, tamper, says, verified):
    if verified:
        lane.walk()
    lane.sql(tamper)
    result = lane.walk()
    assert any(says in problem for problem in result.problems) or (
        not verified and "chain breaks" in result.problems[0]
    ), result
    assert lane.walk().problems, "a walk that found problems moves no point"


def test_a_change_before_the_verified_point_is_found_by_all_epochs(lane):
    lane.walk()
    lane.sql("update headrace_ledger_epoch set counts = '{}' where number = 3")
    assert lane.walk(all_epochs=True).problems == [
        "epoch 3 or the one before was changed after its commit: the ledger's hash chain breaks there"
    ]


def test_a_change_after_the_verified_point_is_found(lane):
    lane.walk()
    lane.commit(3)
    lane.sql(
        """update headrace_ledger_epoch set plan = replace(plan, '"0":11', '"0":12') where number = 12"""
    )
    assert any("src partition 0: 11 to 12" in problem for problem in lane.walk().problems)


def test_a_summary_that_was_changed_is_found(lane):
    lane.ledger.roll_up(lane.lease, 4, history=True)
    lane.sql("update headrace_ledger_rolled set last = 5")
    assert lane.walk().problems


def test_epochs_that_do_not_join_are_found_also_between_summaries(lane):
    lane.ledger.rewind(lane.lease, position(7), after=1)
    lane.at = 10
    lane.ledger.plan(
        lane.lease, EpochPlan(11, Phase.LIVE, position(7), position(11), "h", datetime.now(UTC)), {}
    )
    lane.ledger.commit(lane.lease, 11, {})
    assert "src partition 0: 10 to 7" in lane.walk().problems[0]
    assert not lane.walk(restarts=(11,)).problems
    while lane.ledger.roll_up(lane.lease, 0, history=True):
        pass
    assert "src partition 0: 10 to 7" in lane.walk().problems[0]
    assert not lane.walk(restarts=(11,)).problems


def test_a_split_read_again_after_the_verified_point_is_found(lane):
    piece = {"source": "src", "phase": 0, "split": {"id": 1}}
    lane.commit(1, (piece,))
    assert not lane.walk().problems
    lane.commit(1, (piece,))
    assert "epoch 12 reads a split" in lane.walk().problems[0]


def test_rows_rolled_up_while_they_are_read_are_no_hole(lane, monkeypatch):
    real, rolled = lane.ledger.rolled_up, []

    def roll_in_between(name: str, at: str):
        result = real(name, at)
        if not rolled:
            rolled.append(lane.ledger.roll_up(lane.lease, 4, history=True))
        return result

    monkeypatch.setattr(lane.ledger, "rolled_up", roll_in_between)
    assert lane.walk().problems == []
    assert rolled == [6]


def test_a_rebuilt_ledger_knows_the_lane_from_there_on(tmp_path):
    lane = Lane(tmp_path / "ledger.db")
    key = SinkKey("lost", "p", "main", "a")
    lane.lease = lane.ledger.rebuild(
        lane.lease, {"a": CommitRecord.for_registration(key, 4, 7, position(7), "h", 0)}, {}, "h"
    )
    lane.at = 7
    lane.commit(3)
    result = lane.walk()
    assert (result.read, result.last, result.problems) == (3, 10, [])
    lane.ledger.roll_up(lane.lease, 1, history=True)
    assert lane.walk(all_epochs=True).problems == []
    lane.sql("delete from headrace_ledger_rolled")
    assert lane.walk().problems
    lane.ledger.close()
