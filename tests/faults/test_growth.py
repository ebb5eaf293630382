"""A pipeline that runs for a long time: ledger, records and audit stay small.

`HEADRACE_TEST_FULL=1` runs a month of 5-second epochs.

The lane has read 20,000 history files before. The long run takes six minutes, most of it for the 518,400
epochs.
"""

from __future__ import annotations

import json
import sqlite3
from datetime import UTC, datetime
from pathlib import Path

import pytest
from helpers.depth import FULL

from headrace.jobs.checks.ledger_proof import verify_epochs
from headrace.jobs.run.rollup import RollingUp
from headrace.pipeline.protocol import positions
from headrace.pipeline.protocol.epochs import (
    RECORD_BYTES,
    CommitRecord,
    EpochPlan,
    Json,
    Phase,
    SinkKey,
    WriteCounts,
)
from headrace.pipeline.protocol.ledger import Lease, Ledger, open_sqlite

EPOCHS, KEEP, FILES = (518_400, 20_000, 20_000) if FULL else (1_200, 300, 20_000)
FILES_PER_EPOCH = 100
pytestmark = pytest.mark.timeout(7200 if FULL else 900)
SINKS = ("pg", "lake")
ONE = {sink: WriteCounts(1_000, 990, 10, 0) for sink in SINKS}


def offsets(at: int) -> Json:
    return {
        "topic": "orders",
        "topic_id": "i" * 22,
        "cluster_id": "c" * 22,
        "offsets": {str(part): 10_000_000 + at for part in range(4)},
    }


def position(history: int, stream: int | None = None) -> Json:
    """Where the lane is after so many epochs of history and of the stream."""
    by = {"column": "day", "every": "day", "start": "2024-01-01", "end": "2025-01-01"}
    done = {"by": by, "done": [["2024-01-01", f"2024-{history:04d}"]]}
    here = {"pins": [{"pinned": True, "ref": "f" * 32}], "fence": None, "cursor": None, "history": done}
    return {"src": here | ({"stream": offsets(stream)} if stream is not None else {})}


def splits(epoch: int) -> tuple[Json, ...]:
    """Pieces of `FILES_PER_EPOCH` files."""
    first = epoch * FILES_PER_EPOCH
    scope = {"window": None, "cut": None}
    return tuple(
        {
            "source": "src",
            "phase": 0,
            "split": {"id": f"{at:05d}", "rows": 10_000, "files": [[at, 0, 4]], "scope": scope},
        }
        for at in range(first, first + FILES_PER_EPOCH)
    )


class RollUpOwner:
    """What `RollingUp` needs of a lane."""

    def __init__(self, ledger: Ledger, lease: Lease) -> None:
        self.ledger, self.lease = ledger, lease
        self.committed, self.position = 0, position(0)
        self.record = CommitRecord.for_registration(
            SinkKey(lease.pipeline, "orders", "main", "pg"), lease.generation, 0, position(0), "h" * 16, 0
        )
        self.largest = 0

    def carry(self, phase: Phase, end: Json, pieces: tuple[Json, ...] = ()) -> None:
        window = f"2024-{self.committed:04d}" if pieces else None
        plan = EpochPlan(
            self.committed + 1, phase, self.position, end, "h" * 16, datetime.now(UTC), window, pieces
        )
        self.ledger.plan(self.lease, plan, {"sql": "select 1"})
        self.ledger.commit(self.lease, plan.number, ONE)
        self.record = self.record.after_epoch(plan, self.lease.generation, ONE["pg"])
        self.largest = max(self.largest, len(json.dumps(self.record.to_json())))
        self.committed, self.position = plan.number, end


@pytest.fixture(scope="module")
def month(tmp_path_factory):
    """The ledger's file, the lane and its size after history, once the month is over."""
    path = tmp_path_factory.mktemp("month") / "ledger.db"
    ledger = open_sqlite(path)
    ledger._store._connection.execute("pragma synchronous=off")  # type: ignore[attr-defined]  no disk is measured
    lease = ledger.acquire("orders", "main", {"host": "elsewhere"}, 1e9)
    ledger.begin(lease, lambda: position(0))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(positions, "history_complete", lambda _, at: "stream" in at["src"])
        coordinator, rolling = RollUpOwner(ledger, lease), RollingUp(None, KEEP)  # pyright: ignore[reportArgumentType]
        for epoch in range(FILES // FILES_PER_EPOCH):
            ledger.event(
                lease, "splits", {"source": "src", "window": f"{epoch}", "phase": 0, "splits": splits(epoch)}
            )
            coordinator.carry(Phase.HISTORY, position(epoch + 1), splits(epoch))
            rolling.after_commit(coordinator)  # pyright: ignore[reportArgumentType]
        history = size(path)
        for at in range(EPOCHS):
            coordinator.carry(Phase.LIVE, position(FILES // FILES_PER_EPOCH, at + 1))
            rolling.after_commit(coordinator)  # pyright: ignore[reportArgumentType]
    yield path, coordinator, history
    ledger.close()


def size(path: Path) -> int:
    return sum(one.stat().st_size for one in path.parent.glob(f"{path.name}*") if one.is_file())


def test_the_ledger_stays_small(month):
    path, coordinator, history = month
    print(
        f"{coordinator.committed:,} epochs: {size(path) / 1e6:.1f} MB, after history {history / 1e6:.1f} MB"
    )
    state = coordinator.ledger.state("orders")
    assert coordinator.committed - state.kept_from < KEEP + 64
    assert size(path) < (50e6 if FULL else 8e6)
    with sqlite3.connect(path) as connection:
        ((longest,),) = connection.execute("select max(length(plan)) from headrace_ledger_epoch").fetchall()
    connection.close()
    assert longest < 2_000


def test_records_stay_small(month):
    _, coordinator, _ = month
    print(f"largest record: {coordinator.largest} bytes")
    assert coordinator.largest <= RECORD_BYTES


def test_an_audit_reads_what_is_new(month):
    _, coordinator, _ = month
    state = coordinator.ledger.state("orders")
    full, new = [
        verify_epochs(coordinator.ledger, state, (), all_epochs=all_epochs) for all_epochs in (True, False)
    ]
    assert (full.problems, new.problems) == ([], [])
    assert (full.read + full.rolled_up, new.read) == (coordinator.committed, 0)
    assert full.read < KEEP + 64


def test_an_epoch_reads_no_other_epochs(month):
    """Plan and commit find epochs by number, or by the index of open ones.

    The cost does not grow with the ledger.
    """
    path, coordinator, _ = month
    statements: list[str] = []
    connection = coordinator.ledger._store._connection
    connection.set_trace_callback(statements.append)
    try:
        coordinator.carry(Phase.LIVE, coordinator.position)
    finally:
        connection.set_trace_callback(None)
    with sqlite3.connect(path) as reader:
        steps = [
            how
            for statement in statements
            if "headrace_ledger_epoch" in statement
            for (*_, how) in reader.execute(f"explain query plan {statement}")
        ]
    reader.close()
    lookups = [how for how in steps if "headrace_ledger_epoch" in how]
    assert any("USING INDEX headrace_ledger_open" in how for how in lookups)
    assert [how for how in lookups if "headrace_ledger_open" not in how and "number=?" not in how] == []


def test_windows_of_history_are_still_countable(month):
    _, coordinator, _ = month
    windows = coordinator.ledger.window_counts("orders")
    assert len(windows) == FILES // FILES_PER_EPOCH
    assert all(counts == ONE for counts in windows.values())
    assert not [event for event in coordinator.ledger.events("orders") if event["kind"] == "splits"]
