"""A run plans, writes and commits an epoch in one order, whatever fails."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.connectors.frame import EpochFrame
from headrace.jobs.run.epoch_writer import EpochWriter
from headrace.jobs.run.events import Event
from headrace.jobs.run.pipeline_run import PipelineRun
from headrace.jobs.run.reporter import RunReporter
from headrace.jobs.run.subscribers import EventStream, forward_to_listener
from headrace.jobs.sources.backfill import EpochRange
from headrace.pipeline.errors import DataError, FencedError, HeadraceError, TransientError
from headrace.pipeline.file.loader import parse_pipeline
from headrace.pipeline.protocol.coordinator import Pending
from headrace.pipeline.protocol.epochs import EpochPlan, Phase, WriteCounts

FILE = """
version: 1
name: shop
sources:
  src: {type: clickhouse, table_name: shop.orders}
sinks:
  a: {type: blackhole, from: src}
  b: {type: blackhole, from: src}
"""
STEP = EpochRange(Phase.LIVE, {"src": {"stream": {"t": {"0": 5}}}})


class Epochs:
    """A run whose coordinator and writer only note their calls.

    `failures` are raised by the first attempts to write.
    """

    def __init__(self, sinks: tuple[str, ...] = ("a", "b"), failures: tuple[HeadraceError, ...] = ()) -> None:
        self.calls: list[str] = []
        self.failures = list(failures)
        self.counts = {name: WriteCounts(5) for name in sinks}
        run: Any = object.__new__(PipelineRun)
        run._stop = threading.Event()
        run.session, run.settings = SimpleNamespace(explain_death=lambda _: None), None
        run.reporter = SimpleNamespace(publish=lambda _: None)
        run.wait = lambda _: self.calls.append("wait")
        run._writer = self._writer
        run._after_commit = lambda _, counts, steps, __: self.calls.append(
            f"after commit of {sorted(counts)}, {sorted(steps)}"
        )
        work = Pending(EpochPlan(1, Phase.LIVE, {}, {}, "hash", datetime.now(UTC)), {}, sinks)
        run.coordinator = SimpleNamespace(
            committed=0,
            plan=lambda *_, **__: self.calls.append("plan"),
            begin=lambda: self.calls.append("begin") or work,
            commit=self._commit,
            record_failure=lambda node, _: self.calls.append(f"failure at {node}") or 1,
        )
        self.run = run

    def _writer(self, _: Pending) -> Any:
        self.calls.append("lease")
        return SimpleNamespace(steps={"read": 1.0}, seconds=0.0, write=self._write)

    def _write(self, _: Any, sinks: tuple[str, ...]) -> dict[str, WriteCounts]:
        self.calls.append(f"write {sinks}")
        if self.failures:
            raise self.failures.pop(0)
        return self.counts

    def _commit(self, counts: dict[str, WriteCounts]) -> dict[str, WriteCounts]:
        self.calls.append(f"commit {sorted(counts)}")
        return {"a": WriteCounts(5), "b": WriteCounts(5)}


WRITTEN = ["commit ['a', 'b']", "after commit of ['a', 'b'], ['ledger', 'read', 'total']"]


def test_an_epoch_is_planned_then_written_then_committed() -> None:
    epochs = Epochs()
    epochs.run.run_epoch(STEP)
    assert epochs.calls == ["plan", "begin", "lease", "write ('a', 'b')", *WRITTEN]


def test_six_calls_lead_from_the_loop_over_epochs_to_the_sink() -> None:
    epochs, calls = Epochs(sinks=("a",)), list[str]()

    class CountingSink:
        def write(self, plan: EpochPlan, frame: EpochFrame) -> WriteCounts:
            del plan, frame
            calls.extend(call.name for call in traceback.extract_stack() if call.name != "<dictcomp>")
            return WriteCounts(5)

    @contextmanager
    def frames(*_: Any) -> Iterator[dict[str, Any]]:
        yield {"a": None}

    planner: Any = SimpleNamespace(
        file=parse_pipeline(FILE, "shop.yaml"), frames=frames, spark=None, texts={}
    )
    sinks: Any = {"a": CountingSink()}
    epochs.run._writer = lambda _: EpochWriter(planner, {}, sinks)
    epochs.run.run_epoch(STEP)
    loop = calls.index("test_six_calls_lead_from_the_loop_over_epochs_to_the_sink")
    assert calls[loop + 1 :] == [
        "run_epoch",
        "_finish_epoch",
        "write",
        "_write_concurrently",
        "_write_sink",
        "write",
    ]


def test_a_listener_that_fails_does_not_fail_the_epoch() -> None:
    def fail(_: Event) -> None:
        msg = "the terminal is closed"
        raise OSError(msg)

    epochs = Epochs()
    epochs.run.reporter = RunReporter(
        parse_pipeline(FILE, "shop.yaml"), EventStream(forward_to_listener(fail))
    )
    del epochs.run._after_commit
    epochs.run._stages = epochs.run._rolling = SimpleNamespace(
        sweep=lambda _: None, after_commit=lambda _: None
    )
    epochs.run.run_epoch(STEP)
    assert epochs.calls == ["plan", "begin", "lease", "write ('a', 'b')", "commit ['a', 'b']"]
    assert epochs.run.reporter.epochs == 1


def test_an_epoch_that_every_sink_has_is_only_committed() -> None:
    epochs = Epochs(sinks=())
    epochs.run.run_epoch(STEP)
    assert epochs.calls == ["plan", "begin", "commit []", "after commit of ['a', 'b'], ['ledger', 'total']"]


def test_a_failed_write_is_recorded_and_begun_again_before_the_commit() -> None:
    epochs = Epochs(failures=(TransientError("the server is away", node="a"),))
    epochs.run.run_epoch(STEP)
    begun = ["begin", "lease", "write ('a', 'b')"]
    assert epochs.calls == ["plan", *begun, "failure at a", "wait", *begun, *WRITTEN]


@pytest.mark.parametrize(
    "failure", [DataError("value 17 does not fit", node="a"), FencedError("another run owns the pipeline")]
)
def test_a_write_that_fails_for_good_is_never_committed(failure: HeadraceError) -> None:
    epochs = Epochs(failures=(failure,))
    with pytest.raises(type(failure)):
        epochs.run.run_epoch(STEP)
    recorded = ["failure at a"] if isinstance(failure, DataError) else []
    assert epochs.calls == ["plan", "begin", "lease", "write ('a', 'b')", *recorded]


def test_a_stop_leaves_a_failed_epoch_to_the_next_run() -> None:
    epochs = Epochs(failures=(TransientError("the server is away", node="a"),))
    epochs.run._stop.set()
    epochs.run.run_epoch(STEP)
    assert epochs.calls == ["plan", "begin", "lease", "write ('a', 'b')"]
