"""The number of rows some time ago, from a real ledger."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from headrace.jobs.checks.declared.row_change import UnknownRowCountError, read_former_rows
from headrace.pipeline.protocol.epochs import EpochPlan, Phase, WriteCounts
from headrace.pipeline.protocol.ledger.sqlite import open_sqlite

NOW = datetime(2025, 3, 10, tzinfo=UTC)


class CountedLedger:
    """A ledger with an epoch per hour. Epoch n inserts n * 10 rows at `pg` and deletes one."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch, epochs: int = 5) -> None:
        self.ledger = open_sqlite(path)
        self.lease = self.ledger.acquire("p", "main", {"launched_by": "test"}, ttl=60)
        self.ledger.begin(self.lease, lambda: {"n": 0})
        for number in range(1, epochs + 1):
            at = NOW - timedelta(hours=epochs - number, minutes=30)
            monkeypatch.setattr("headrace.pipeline.protocol.ledger.rollup.timestamp", at.isoformat)
            plan = EpochPlan(number, Phase.LIVE, {"n": number - 1}, {"n": number}, "h", at)
            self.ledger.plan(self.lease, plan, {})
            counts = {
                "pg": WriteCounts(number * 10, inserted=number * 10, deleted=1),
                "unknown": WriteCounts(5, inserted=None),
            }
            self.ledger.commit(self.lease, number, counts)

    def read(self, sink: str, hours: float, rows: int = 1000, epoch: int = 5) -> int:
        state = self.ledger.state("p")
        assert state is not None
        return read_former_rows(self.ledger, state, sink, rows, epoch, NOW - timedelta(hours=hours))


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CountedLedger:
    return CountedLedger(tmp_path / "ledger.db", monkeypatch)


@pytest.mark.parametrize(
    ("hours", "rows"), [(0.2, 1000), (1, 1000 - 49), (2, 1000 - 49 - 39), (100, 1000 - 150 + 5)]
)
def test_declared_checks_subtract_later_epochs(counted: CountedLedger, hours: float, rows: int) -> None:
    assert counted.read("pg", hours) == rows


def test_declared_checks_ignore_epochs_that_the_target_lacks(counted: CountedLedger) -> None:
    assert counted.read("pg", 2, epoch=4) == 1000 - 39


def test_declared_checks_need_counts(counted: CountedLedger) -> None:
    with pytest.raises(UnknownRowCountError, match="does not know how many rows"):
        counted.read("unknown", 2)


def test_declared_checks_do_not_compare_across_a_reset(
    counted: CountedLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace.pipeline.protocol.ledger.model import Restart

    monkeypatch.setattr(counted.ledger, "restart", lambda *_: Restart(4, {}))
    with pytest.raises(UnknownRowCountError, match="was reset in this period"):
        counted.read("pg", 4)
    assert counted.read("pg", 1) == 1000 - 49
