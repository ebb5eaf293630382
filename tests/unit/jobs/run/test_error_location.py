"""An error names the line of its node in the file, whatever phase of a run raises it."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.jobs.run import history, runner
from headrace.jobs.run.events import Until
from headrace.jobs.run.pipeline_run import PipelineRun
from headrace.jobs.sources.backfill import EpochRange
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import HeadraceError, PipelineStateError, SchemaError, TargetError, UserError
from headrace.pipeline.file.loader import parse_pipeline
from headrace.pipeline.protocol.coordinator import Pending
from headrace.pipeline.protocol.epochs import EpochPlan, Phase

FILE = """version: 1
name: shop
sources:
  src:
    type: hybrid
    bounded_sources: [{source_type: clickhouse, table_name: shop.orders}]
    unbounded_source: {source_type: kafka, topic: orders, schema: {id: int64}}
    offset_table: {}
transforms:
  shaped:
    type: sql
    sql: select id from src
sinks:
  pg: {type: postgres, from: shaped, table: target, primary_key: id}
"""
STEP = EpochRange(Phase.LIVE, {})


class Steps:
    """What the loops of a run call, each with an error to raise."""

    def __init__(self, phase: str, error: HeadraceError) -> None:
        self._phase, self._error = phase, error

    def fail(self, phase: str) -> None:
        if phase == self._phase:
            raise self._error

    def planner(self, phase: str) -> Any:
        def next_range(*_: Any) -> EpochRange | None:
            self.fail(phase)
            return None if phase == "backfill" else STEP

        unchanged: Any = lambda position: position  # noqa: E731
        stream = SimpleNamespace(
            next=next_range, begin=unchanged, end_position=unchanged, backlog=lambda _: None, lags={}
        )
        return lambda *_: stream

    def open(self, run: Any) -> None:
        """Stands in for `PipelineRun._open`: no ledger, no Spark."""
        self.fail("plan")
        plan = EpochPlan(1, Phase.LIVE, {}, {}, "hash", datetime.now(UTC))
        run.coordinator = SimpleNamespace(
            has_open_epoch=False,
            open_plan=None,
            position={},
            committed=0,
            lease=SimpleNamespace(name="shop", lane="main"),
            ledger=SimpleNamespace(events=lambda *_: [], pending_refreshes=lambda *_: []),
            heartbeat=SimpleNamespace(),
            plan=lambda *_, **__: plan,
            begin=lambda: Pending(plan, {}, ("pg",)),
            commit=lambda counts: counts,
            record_failure=lambda *_: 1,
        )
        run._writer = lambda _: SimpleNamespace(
            steps={}, seconds=0.0, write=lambda *_, **__: self.fail("sink")
        )
        run.session = SimpleNamespace(translate_errors=nullcontext, explain_death=lambda _: None)


def failed(monkeypatch: pytest.MonkeyPatch, phase: str, error: HeadraceError) -> HeadraceError:
    """The error as a run raises it."""
    steps = Steps(phase, error)

    def open_run(run: PipelineRun) -> None:
        steps.open(run)

    monkeypatch.setattr(PipelineRun, "_open", open_run)
    monkeypatch.setattr(
        PipelineRun, "assembly", SimpleNamespace(sources={}, planner=SimpleNamespace(spark=None))
    )
    monkeypatch.setattr(history, "BackfillPlanner", steps.planner("backfill"))
    monkeypatch.setattr(runner, "StreamPlanner", steps.planner("stream"))
    monkeypatch.setattr(runner.positions, "history_complete", lambda *_: True)
    monkeypatch.setattr(runner.positions, "completed_partitions", lambda *_: [""])
    with pytest.raises(type(error)) as raised:
        runner.run(
            parse_pipeline(FILE, "shop.yaml"), Settings(), until=Until.CAUGHT_UP, stop=threading.Event()
        )
    return raised.value


@pytest.mark.parametrize(
    ("phase", "error", "place"),
    [
        ("plan", SchemaError("no such column", node="shaped", keys=("sql",)), "shop.yaml:12:"),
        ("plan", UserError("cannot be opened", node="pg"), "shop.yaml:14:"),
        ("backfill", SchemaError("no such table", node="src", keys=("bounded_sources",)), "shop.yaml:6:"),
        ("stream", UserError("no such topic", node="src"), "shop.yaml:4:"),
        ("sink", TargetError("no such column", node="pg", keys=("table",)), "shop.yaml:14:"),
    ],
)
def test_an_error_of_every_phase_has_the_line_of_its_node(
    monkeypatch: pytest.MonkeyPatch, phase: str, error: HeadraceError, place: str
) -> None:
    error.hint = "headrace run FILE"
    raised = failed(monkeypatch, phase, error)
    assert raised is error
    assert str(raised).startswith(f"{place}"), str(raised)
    assert raised.hint == "headrace run shop.yaml"


def test_an_error_that_the_file_has_no_part_in_has_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    assert failed(monkeypatch, "sink", PipelineStateError("replay it", node="pg")).place is None
    assert failed(monkeypatch, "stream", UserError("no node")).place is None
