"""A run over partitions of history, next to other runs of the pipeline.

A stream keeps its lease for as long as it runs. It refreshes partitions between two epochs, by a request in
the ledger, for which the run over the partitions waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from headrace.connectors.ledger.factory import open_ledger
from headrace.jobs.run.events import RunResult
from headrace.jobs.run.queued_refresh import QueuedRefresh, describe_no_work, read_refresh_result
from headrace.jobs.run.status import completed_partitions
from headrace.orchestration.pipelines import Pipeline
from headrace.orchestration.turns import find_obstacle, is_paused
from headrace.pipeline.errors import HeadraceError, TransientError
from headrace.pipeline.protocol import positions
from headrace.pipeline.protocol.ledger import Ledger, RefreshState

_POLL_SECONDS = 1.0
StartRun = Callable[[bool], RunResult | None]
"""Runs the pipeline in this process. The argument is whether it reads complete partitions again.

Returns None if another run was faster, or if the pipeline was paused in this moment.
"""


def load_partitions(
    pipeline: Pipeline,
    partitions: Sequence[str],
    start_run: StartRun,
    *,
    refresh: bool,
    by: str,
    is_last_attempt: bool,
    stop: threading.Event,
    report: Callable[[str], None],
) -> RunResult | None:
    """Load partitions of history, all if empty. With `refresh`, read those again that are complete.

    If another run is active, and some partitions are complete now, request the refresh from that run, and
    wait for the result. If it ends before, `start_run` executes the request. Otherwise wait until no run is
    active or the partitions are complete. Return None if `stop` was set.

    `by` is the requester, the same in each attempt. A request that no run has begun is withdrawn if `stop`
    was set, and after an error of the last attempt. `report` gets each new message for people. Raise
    PipelineStateError if the request was refused, and the errors of `start_run`.
    """
    ledger = open_ledger(pipeline.settings())
    try:
        load = _PartitionLoad(ledger, pipeline, partitions, start_run, by, report)
        try:
            return load.wait(stop, refresh=refresh)
        except HeadraceError as error:
            if error.retriable and not is_last_attempt:
                load.keep_request()
            raise
        finally:
            load.withdraw()
    finally:
        ledger.close()


class _PartitionLoad:
    """The load of one Dagster run, and its request in the ledger."""

    def __init__(
        self,
        ledger: Ledger,
        pipeline: Pipeline,
        partitions: Sequence[str],
        start_run: StartRun,
        by: str,
        report: Callable[[str], None],
    ) -> None:
        self._ledger, self._pipeline, self._file = ledger, pipeline, pipeline.file
        self._keys = partitions or positions.windows_of(pipeline.file.model)
        self._start_run, self._by, self._report = start_run, by, report
        self._queued = self._find()  # of an earlier attempt
        self._shown = ""

    def _find(self) -> QueuedRefresh | None:
        return QueuedRefresh.find(self._ledger, self._file, by=self._by)

    def wait(self, stop: threading.Event, *, refresh: bool) -> RunResult | None:
        """Return the result of the run or of the request. None if `stop` was set."""
        state = self._ledger.state(self._file.name)
        complete = positions.refreshable(self._file.model, state.position, self._keys) if state else []
        while not stop.is_set():
            try:
                result, is_free = self._poll(has_request=refresh and bool(complete))
            except TransientError:  # a request is stored; the ledger can be away for a moment
                result, is_free = None, self._queued is None
            if is_free:
                result = self._start(refresh=refresh)
            if result is not None:
                return result
            stop.wait(_POLL_SECONDS)
        return None

    def _poll(self, *, has_request: bool) -> tuple[RunResult | None, bool]:
        """Return the result if nothing is left to do, and whether a run can start now.

        With `has_request`, make the request if another run is active.
        """
        if (result := self._read_result()) is not None:
            return result, False
        state = self._ledger.state(self._file.name)
        obstacle = find_obstacle(self._pipeline, self._ledger, state)
        if state is None or not obstacle:
            return None, True
        if not is_paused(state) and self._queued is None:
            if has_request:
                # Find one that was stored, and whose answer was lost.
                self._queued = self._find() or QueuedRefresh.make(
                    self._ledger, self._file, self._keys, by=self._by
                )
            elif set(self._keys) <= set(completed_partitions(self._file, state)):
                self._show(f"the partitions are complete, and {obstacle}")
                return describe_no_work(self._file, state), False
        what = f" for the refresh of {self._queued.request.describe()}; " if self._queued else ": "
        self._show(f"waiting{what}{obstacle}")
        return None, False

    def _start(self, *, refresh: bool) -> RunResult | None:
        """Run the pipeline here, which also executes the request. Return None if another run was faster."""
        result = self._start_run(refresh and self._queued is None)
        if result is None or self._queued is None:
            return result
        try:
            return self._read_result() or result
        except TransientError:
            return result

    def _read_result(self) -> RunResult | None:
        """Return the result of the request, None if it waits or there is none."""
        if self._queued is None or (request := self._queued.read()).state is not RefreshState.DONE:
            return None
        self._show(f"refreshed {request.subject}, epochs {request.first_epoch} to {request.last_epoch}")
        return read_refresh_result(self._ledger, self._file, request)

    def keep_request(self) -> None:
        """Leave the request to the next attempt."""
        self._queued = None

    def withdraw(self) -> None:
        """Withdraw the request if it waits. The owner of the pipeline finishes one that has begun."""
        if self._queued is None:
            return
        try:
            is_withdrawn = self._queued.withdraw()
            request = self._ledger.refresh_request(self._file.name, self._queued.request.number)
        except TransientError as error:
            self._show(f"the request to refresh {self._queued.request.subject} stays: {error.message}")
            return
        if is_withdrawn:
            self._show(f"the refresh of {self._queued.request.subject} was withdrawn")
        elif request and request.state is RefreshState.REQUESTED:
            self._show(f"the run that owns the pipeline executes the refresh of {request.describe()}")

    def _show(self, message: str) -> None:
        if message != self._shown:
            self._shown = message
            self._report(message)
