"""A request to refresh partitions in the ledger, as its requester sees it: made, awaited, withdrawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Self

from headrace.jobs.run.events import PhaseFigures, RunResult
from headrace.jobs.run.status import history_complete
from headrace.pipeline.errors import PipelineStateError
from headrace.pipeline.file.loader import PipelineFile
from headrace.pipeline.protocol import positions
from headrace.pipeline.protocol.epochs import Phase, WriteCounts, largest_row_count
from headrace.pipeline.protocol.ledger import Ledger, PipelineState, RefreshRequest, RefreshState


class QueuedRefresh:
    """A request for the run that owns the pipeline, by the requester `by`.

    Requests with equal partitions that no run has begun are one, so another requester can have made it.
    """

    def __init__(self, ledger: Ledger, file: PipelineFile, request: RefreshRequest, by: str) -> None:
        self._ledger, self._file, self._by = ledger, file, by
        self.request = request

    @classmethod
    def make(cls, ledger: Ledger, file: PipelineFile, partitions: Sequence[str], *, by: str) -> Self:
        """Make a request for these partitions, all of history if empty."""
        keys = partitions or positions.windows_of(file.model)
        return cls(ledger, file, ledger.request_refresh(file.name, keys, by=by), by)

    @classmethod
    def find(cls, ledger: Ledger, file: PipelineFile, *, by: str) -> Self | None:
        """Return the newest request of a requester that it has not withdrawn. None if there is none."""
        request = ledger.requested_refresh(file.name, by)
        if request is None or request.state is RefreshState.WITHDRAWN:
            return None
        return cls(ledger, file, request, by)

    def read(self) -> RefreshRequest:
        """Return the request as it is now: it waits, has begun, or was executed.

        If another process had made it and withdrew it, make it again. Raise PipelineStateError if the owner
        refused it.
        """
        stored = self._ledger.refresh_request(self._file.name, self.request.number)
        if stored is None:
            msg = (
                f"the ledger no longer has request {self.request.number} to refresh partitions of"
                f" `{self._file.name}`"
            )
            raise PipelineStateError(msg, hint="Request the refresh again.")
        if stored.state is RefreshState.REFUSED:
            msg = f"the refresh of {stored.subject} was refused: {stored.message}"
            raise PipelineStateError(msg, hint=stored.hint)
        if stored.state is RefreshState.WITHDRAWN:
            stored = self._ledger.request_refresh(self._file.name, stored.partitions, by=self._by)
        self.request = stored
        return stored

    def withdraw(self) -> bool:
        """End the request. Return False if another requester made it, or if the owner has begun it."""
        return self._ledger.withdraw_refresh(self._file.name, self.request.number, by=self._by)


def read_refresh_result(ledger: Ledger, file: PipelineFile, request: RefreshRequest) -> RunResult:
    """Return what the epochs of an executed request did, in whichever run."""
    last = request.last_epoch or 0
    rows = [
        row
        for row in ledger.epochs(file.name, first=request.first_epoch or last + 1, last=last)
        if row.plan.phase is Phase.HISTORY
        and (row.plan.window is None or row.plan.window in request.partitions)
    ]
    counts: dict[str, WriteCounts] = {}
    for row in rows:
        for sink, count in row.counts.items():
            counts[sink] = counts.get(sink, WriteCounts()) + count
    seconds = sum(
        (row.committed_at - row.plan.planned_at).total_seconds() for row in rows if row.committed_at
    )
    figures = PhaseFigures(len(rows), sum(largest_row_count(row.counts) for row in rows), seconds)
    return replace(
        describe_no_work(file, ledger.state(file.name)),
        epochs=len(rows),
        first_epoch=request.first_epoch,
        last_epoch=last,
        counts=counts,
        phases={Phase.HISTORY: figures},
    )


def describe_no_work(file: PipelineFile, state: PipelineState | None) -> RunResult:
    """Return the result of a run that has nothing to do."""
    return RunResult(
        name=file.name,
        pipeline=state.pipeline if state else "",
        stop_reason="completed",
        epochs=0,
        first_epoch=None,
        last_epoch=state.committed if state else 0,
        counts={},
        phases={},
        history_complete=history_complete(file, state),
        caught_up=False,
    )
