"""The events of a run reach every subscriber, in order, and no subscriber can fail the run."""

from __future__ import annotations

import json
import logging
import time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.jobs.monitoring.monitor import NullMonitor
from headrace.jobs.run.events import (
    AttemptFailed,
    CallsPending,
    EpochCommitted,
    EpochStarted,
    LagMeasured,
    PartitionCompleted,
    PhaseChanged,
    RunEvent,
    RunFailed,
    RunMessage,
    StreamIdle,
    StreamStalled,
)
from headrace.jobs.run.reporter import RunReporter
from headrace.jobs.run.subscribers import (
    EventStream,
    HeartbeatDetails,
    forward_to_listener,
    forward_to_monitor,
    log_event,
)
from headrace.jobs.staging.pending_calls import PendingCall
from headrace.pipeline.errors import TargetError, TransientError
from headrace.pipeline.file.loader import parse_pipeline
from headrace.pipeline.protocol.epochs import EpochPlan, Phase, WriteCounts

FILE = """
version: 1
name: shop
sources:
  src: {type: clickhouse, table_name: shop.orders}
sinks:
  hole: {type: blackhole, from: src}
  more: {type: blackhole, from: src}
"""


def plan(number: int, phase: Phase = Phase.LIVE) -> EpochPlan:
    return EpochPlan(number, phase, {}, {}, "hash", datetime.now(UTC))


def committed(number: int, rows: int = 5, backlog: int | None = None) -> EpochCommitted:
    return EpochCommitted(
        plan(number), {"hole": WriteCounts(rows), "more": WriteCounts(1)}, {"total": 0.5}, backlog
    )


def test_a_failing_subscriber_keeps_no_event_from_the_others(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[RunEvent] = []

    def fail(_: RunEvent) -> None:
        msg = "the terminal is closed"
        raise OSError(msg)

    events: list[RunEvent] = [
        EpochStarted(plan(1)),
        committed(1),
        PhaseChanged(Phase.LIVE),
        RunMessage("one"),
        RunMessage("two"),
    ]
    stream = EventStream(fail, seen.append, fail)
    for event in events:
        stream.publish(event)
    assert seen == events
    failures = [
        record for record in caplog.records if "error=OSError: the terminal is closed" in record.getMessage()
    ]
    assert [record.getMessage().split()[1] for record in failures[::2]] == [
        f"run_event={type(event).__name__}" for event in events
    ]
    assert all(record.exc_info for record in failures)


def test_a_stop_raised_in_a_subscriber_still_ends_the_run() -> None:
    def interrupt(_: RunEvent) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        EventStream(interrupt).publish(RunMessage("one"))


def test_the_listener_receives_the_events_of_a_run_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.jobs.run.reporter.positions.is_partition_done", lambda *_: True)
    seen: list[Any] = []
    reporter = RunReporter(parse_pipeline(FILE, "shop.yaml"), EventStream(forward_to_listener(seen.append)))
    reporter.publish(EpochStarted(plan(1)))
    reporter.enter(Phase.HISTORY, {"windows": 1})
    done = EpochCommitted(plan(1, Phase.HISTORY), {"hole": WriteCounts(7)}, {"total": 1.0})
    reporter.record_commit(done)
    reporter.idle(3, ["src"])
    reporter.enter(Phase.LIVE)
    reporter.enter(Phase.LIVE)
    assert seen == [
        PhaseChanged(Phase.HISTORY, {"windows": 1}),
        done,
        PartitionCompleted("", {"hole": 7}),
        PhaseChanged(Phase.LIVE),
    ]
    assert (reporter.epochs, reporter.last_seconds) == (1, 1.0)


def test_rejected_rows_are_those_of_the_sinks_that_read_them() -> None:
    """Two sinks read the same rows."""
    text = """
    sources:
      a: {type: kafka, topic: a, schema: {id: int64}, primary_key: id, on_error: dead_letter}
      b: {type: kafka, topic: b, schema: {id: int64}, primary_key: id, on_error: dead_letter}
    transforms:
      both: {type: sql, sql: SELECT * FROM a UNION ALL SELECT * FROM b}
    sinks:
      pg: {type: postgres, from: both, table: t}
      bad: {type: postgres, from: a.errors, table: bad}
      worse: {type: blackhole, from: a.errors}
      other: {type: blackhole, from: b.errors}
    """
    seen: list[Any] = []
    reporter = RunReporter(parse_pipeline(text, "shop.yaml"), EventStream(seen.append))
    for bad in (3, 0, 4):
        rows = {"pg": 5, "bad": bad, "worse": bad, "other": 1}
        counts = {name: WriteCounts(number) for name, number in rows.items()}
        reporter.record_commit(EpochCommitted(plan(1), counts, {"total": 1.0}))
    assert [event.rejected for event in seen] == [{"a": bad, "b": 1} for bad in (3, 0, 4)]
    coordinator: Any = SimpleNamespace(lease=SimpleNamespace(pipeline="id"), committed=3, position={})
    assert reporter.result(coordinator, "completed", caught_up=True).rejected == {"a": 7, "b": 3}


def test_messages_and_new_calls_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="headrace")
    for event in (
        RunMessage("fine"),
        RunMessage("look", "warning"),
        CallsPending("a: x; b: y", {"b": "y"}),
        PartitionCompleted("", {}),
    ):
        log_event(event)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "event=run_message message=fine"),
        ("WARNING", "event=run_message message=look"),
        ("WARNING", "event=calls_pending node=b message=y"),
    ]


def test_every_event_reaches_the_monitor() -> None:
    class Monitor(NullMonitor):
        def __init__(self) -> None:
            self.calls: list[tuple] = []

        def record_plan(self, plan: EpochPlan, *, again: bool = False) -> None:
            self.calls.append(("plan", plan.number, again))

        def record_commit(
            self, plan: EpochPlan, counts: Any, steps: Any, backlog: int | None, rejected: Any = None
        ) -> None:
            self.calls.append(("commit", plan.number, counts["hole"].rows, steps["total"], backlog, rejected))

        def record_failure(self, error: BaseException) -> None:
            self.calls.append(("failure", str(error)))

        def phase(self, phase: Phase) -> None:
            self.calls.append(("phase", phase))

        def lags(self, lags: Any) -> None:
            self.calls.append(("lags", lags))

    monitor, lags = Monitor(), {"src": {"0": 4}}
    record = forward_to_monitor(monitor)
    for event in (
        EpochStarted(plan(1)),
        EpochStarted(plan(2), again=True),
        AttemptFailed(TransientError("away")),
        committed(2, backlog=9),
        PhaseChanged(Phase.LIVE),
        LagMeasured(lags),
        RunMessage("nothing to record"),
        RunFailed(RuntimeError("broken")),
    ):
        record(event)
    assert monitor.calls == [
        ("plan", 1, False),
        ("plan", 2, True),
        ("failure", "away"),
        ("commit", 2, 5, 0.5, 9, {}),
        ("phase", Phase.LIVE),
        ("lags", lags),
        ("failure", "broken"),
    ]
    record(CallsPending("a service", {}))
    assert monitor.waiting == "a service"


def test_the_heartbeat_stores_the_last_commit_and_what_came_after(tmp_path: Path) -> None:
    details, seen = HeartbeatDetails(), list[CallsPending]()
    read = lambda: details.read(tmp_path / "waits", seen.append)  # noqa: E731
    assert read() == {}
    details(StreamIdle(3))
    assert read() == {"backlog": 3}, "a run that is idle from its start reports its backlog"
    details(AttemptFailed(TargetError("no such table\nin pg")))
    assert read() == {"backlog": 3, "error": "no such table"}
    details(committed(7, rows=50, backlog=100))
    progress = {"phase": "live", "epoch": 7, "rows": 50, "rows_per_s": 100, "backlog": 100}
    assert read() == progress
    details(StreamIdle(2))
    details(AttemptFailed(TargetError("away")))
    assert read() == progress | {"backlog": 2, "error": "away"}
    assert seen == []


def test_the_heartbeat_stores_what_the_run_waits_for(tmp_path: Path) -> None:
    details, seen = HeartbeatDetails(), list[CallsPending]()
    PendingCall(tmp_path, "scored").note("tried 3 times", 60)
    PendingCall(tmp_path, "old").note("tried 9 times", -1)
    assert details.read(tmp_path, seen.append) == {"waiting": "scored: tried 3 times"}
    details.read(tmp_path, seen.append)
    details(StreamStalled("src: an open transaction"))
    assert details.read(tmp_path, seen.append) == {
        "waiting": "scored: tried 3 times; src: an open transaction"
    }
    for path in tmp_path.glob("*.json"):
        path.write_text(
            json.dumps({"node": "scored", "message": "tried 4 times", "until": time.time() + 60}),
            encoding="utf-8",
        )
    details(StreamStalled(""))
    details.read(tmp_path, seen.append)
    for path in tmp_path.glob("*.json"):
        path.unlink()
    assert details.read(tmp_path, seen.append) == {}
    assert seen == [
        CallsPending("scored: tried 3 times", {"scored": "tried 3 times"}),
        CallsPending("scored: tried 3 times; src: an open transaction", {}),
        CallsPending("scored: tried 4 times", {}),
        CallsPending("", {}),
    ]
