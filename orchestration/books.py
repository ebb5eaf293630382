"""What the ledger says about a pipeline's lane, asked without a lease."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

from headrace.connectors.ledgers import open_ledger
from headrace.orchestration.pipelines import Pipeline
from headrace.pipeline.ledger import LaneState, Ledger
from headrace.pipeline.records import Counts

WindowRows = Mapping[str, Mapping[str, int]]
"""Rows by window and sink."""


def lane_state(pipeline: Pipeline) -> LaneState | None:
    """Where the lane stands; None, and no file made, where there is no ledger yet."""
    with _ledger(pipeline) as ledger:
        return ledger.state(pipeline.file.name) if ledger else None


def window_rows(pipeline: Pipeline, windows: Collection[str]) -> WindowRows:
    """Rows that history brought into each window at each sink, over all runs that had a part in it."""
    found: dict[str, dict[str, int]] = {}
    with _ledger(pipeline) as ledger:
        for row in ledger.epochs(pipeline.file.name) if ledger else ():
            window = row.plan.window
            if window in windows and window and row.committed_at:
                of_window = found.setdefault(window, {})
                for sink, counts in row.counts.items():
                    of_window[sink] = of_window.get(sink, 0) + _net(counts)
    return found


def _net(counts: Counts) -> int:
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
