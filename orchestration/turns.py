"""A run's turn: a run of a pipeline that is active elsewhere, or paused, waits instead of failing."""

from __future__ import annotations

import threading
from collections.abc import Callable

from headrace.orchestration.pipelines import Pipeline
from headrace.orchestration.state import open_pipeline_ledger
from headrace.pipeline.errors import TransientError
from headrace.pipeline.protocol.ledger import LeaseStatus, Ledger, PipelineState
from headrace.pipeline.protocol.ledger.owner import format_owner

_POLL_SECONDS = 2.0


def wait_for_turn(pipeline: Pipeline, stop: threading.Event, report: Callable[[str], None]) -> bool:
    """Wait until no run has the lease and the pipeline is not paused. `report` gets each new reason.

    Return False if `stop` was set before. A ledger that cannot be reached ends the wait: the run itself
    reports that.
    """
    shown = ""
    while not stop.is_set():
        try:
            with open_pipeline_ledger(pipeline) as ledger:
                state = ledger.state(pipeline.file.name) if ledger else None
                reason = find_obstacle(pipeline, ledger, state) if ledger else ""
        except TransientError:
            return True
        if not reason:
            return True
        if reason != shown:
            report(f"waiting: {reason}")
            shown = reason
        stop.wait(_POLL_SECONDS)
    return False


def find_obstacle(pipeline: Pipeline, ledger: Ledger, state: PipelineState | None) -> str:
    """Return why no run of the pipeline can start now. Empty if one can."""
    if state is None:
        return ""
    if is_paused(state):
        return f"the pipeline is paused {state.request}. Continue with: headrace resume {pipeline.file.path}"
    if ledger.lease_status(state.name, state.generation) is LeaseStatus.ACTIVE:
        return f"another run of the pipeline is active ({format_owner(state.holder or {})})"
    return ""


def is_paused(state: PipelineState) -> bool:
    """Return whether no run may start."""
    return state.request is not None and state.request.is_pause
