"""What the ledger says about a pipeline's lane, asked without a lease."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

from headrace.connectors.ledger_factory import open_ledger
from headrace.orchestration.pipelines import Pipeline
from headrace.pipeline.protocol.coordinator.blocking import find_block
from headrace.pipeline.protocol.epochs import WriteCounts
from headrace.pipeline.protocol.ledger import Ledger, PipelineState

WindowRows = Mapping[str, Mapping[str, int]]
"""Rows by window and sink."""


def lane_state(pipeline: Pipeline) -> PipelineState | None:
    """Where the lane stands; None, and no file made, where there is no ledger yet."""
    with _ledger(pipeline) as ledger:
        return ledger.state(pipeline.file.name) if ledger else None


def blocked_epoch(pipeline: Pipeline, state: PipelineState | None) -> str:
    """Why the open epoch is blocked, and what to do; empty where the next run may try it."""
    if state is None or state.open_plan is None:
        return ""
    file = pipeline.file
    with _ledger(pipeline) as ledger:
        found = find_block(ledger, state, file.model.epoch.max_attempts, file.path) if ledger else None
    return f"{found} To go on in Dagster, launch the stream's job by hand." if found else ""


def window_rows(pipeline: Pipeline, windows: Collection[str]) -> WindowRows:
    """Rows that history brought into each window at each sink, over all runs that had a part in it."""
    with _ledger(pipeline) as ledger:
        counts = ledger.window_counts(pipeline.file.name) if ledger else {}
    return {window: {sink: _net(one) for sink, one in by_sink.items()} for window, by_sink in counts.items() if window in windows}


def _net(counts: WriteCounts) -> int:
    """Rows more than before, where the sink knows that; else rows written."""
    return counts.rows if counts.inserted is None or counts.deleted is None else counts.inserted - counts.deleted


@contextmanager
def _ledger(pipeline: Pipeline) -> Iterator[Ledger | None]:
    settings = pipeline.settings()
    backend = settings.state_backend
    if backend.backend_type == "sqlite" and not backend.sqlite.path.exists():
        yield None
        return
    ledger = open_ledger(settings)
    try:
        yield ledger
    finally:
        ledger.close()
