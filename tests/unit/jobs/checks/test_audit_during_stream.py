"""The check of epochs during a running stream."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from headrace.jobs.checks import audit
from headrace.jobs.checks.ledger_proof import LedgerProof
from headrace.pipeline.protocol.epochs import CommitRecord, EpochPlan, Phase, SinkKey, WriteCounts, digest
from headrace.pipeline.protocol.ledger.sqlite import open_sqlite


class Moving:
    """Answers with its record; the lane commits `meanwhile` epochs in this moment."""

    def __init__(self, lane, epoch, meanwhile):
        self.lane, self.epoch, self.meanwhile = lane, epoch, meanwhile

    def record(self):
        record = self.lane.record(self.epoch)
        self.lane.commit(self.meanwhile)
        return record


class Lane:
    """A lane in a real ledger."""

    def __init__(self, path):
        self.ledger = open_sqlite(path)
        self.lease = self.ledger.acquire("p", "main", {"launched_by": "test"}, ttl=60)
        self.ledger.begin(self.lease, lambda: {"n": 0})
        self.at = 0

    def plan(self):
        self.ledger.plan(
            self.lease,
            EpochPlan(self.at + 1, Phase.LIVE, {"n": self.at}, {"n": self.at + 1}, "h", datetime.now(UTC)),
            {},
        )

    def commit(self, count):
        for _ in range(count):
            self.plan()
            self.at += 1
            self.ledger.commit(self.lease, self.at, {})

    def record(self, epoch):
        key = SinkKey(self.lease.pipeline, "p", "main", "out")
        joined = CommitRecord.for_registration(
            key, self.lease.generation, epoch - 1, {"n": epoch - 1}, "h", 0
        )
        plan = EpochPlan(epoch, Phase.LIVE, {"n": epoch - 1}, {"n": epoch}, "h", datetime.now(UTC))
        return joined.after_epoch(plan, self.lease.generation, WriteCounts())

    @property
    def state(self):
        return self.ledger.state("p")


def run_check(sink: Any, lane):
    return audit._exactly_once("out", sink, lane.ledger, lane.state, LedgerProof())


@pytest.fixture
def lane(tmp_path):
    result = Lane(tmp_path / "ledger.db")
    result.commit(5)
    yield result
    result.ledger.close()


@pytest.mark.parametrize(
    ("epoch", "meanwhile", "passed"),
    [(5, 0, True), (5, 3, True), (4, 0, False), (4, 3, False), (6, 0, False), (6, 3, True)],
)
def test_epochs_that_are_committed_while_the_sink_is_asked(lane, epoch, meanwhile, passed):
    result = run_check(Moving(lane, epoch, meanwhile), lane)
    assert result.passed is passed, result


def test_the_open_epoch_may_be_held_already(lane):
    lane.plan()
    assert run_check(Moving(lane, 6, 0), lane).passed


def test_another_position_is_found(lane):
    sink = Moving(lane, 5, 0)
    wrong = replace(lane.record(5), end_digest=digest({"n": 77}))
    lane.record = lambda _: wrong
    assert not run_check(sink, lane).passed
