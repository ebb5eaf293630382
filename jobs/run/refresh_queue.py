"""Requests for a refresh in the ledger: the run that owns the pipeline executes them between two epochs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from headrace.jobs.planning.refresh import find_refresh_obstacle, is_refresh_epoch
from headrace.jobs.run.events import RunMessage
from headrace.jobs.run.history import HistoryLoad
from headrace.jobs.run.snapshots import drop_unused_snapshots
from headrace.pipeline.errors import (
    FencedError,
    HeadraceError,
    PipelineStateError,
    SparkJvmError,
    TransientError,
)
from headrace.pipeline.file.partitions import select_partitions
from headrace.pipeline.protocol import positions
from headrace.pipeline.protocol.coordinator.blocking import find_block
from headrace.pipeline.protocol.epochs import Phase
from headrace.pipeline.protocol.ledger import RefreshRequest
from headrace.pipeline.protocol.partitions import WHOLE

if TYPE_CHECKING:
    from headrace.jobs.run.pipeline_run import PipelineRun

log = logging.getLogger(__name__)


class _RefusedError(Exception):
    """A request was refused, and the run goes on."""


class RefreshQueue:
    """Executes the requests of one run's pipeline. The heartbeat reports that requests wait.

    A request stays in the ledger until all its rows are in the sinks. If the process dies before, the next
    run executes it. A refresh whose snapshots an epoch refers to is finished from them, unless it fails:
    then the request is refused, and the sinks keep the rows of the partitions that were not read again.
    """

    def __init__(self, pipeline_run: PipelineRun) -> None:
        self._run, self._coordinator = pipeline_run, pipeline_run.coordinator
        self._waiting = threading.Event()
        self._waiting.set()  # requests from before this run
        pipeline_run.coordinator.heartbeat.on_refresh = self._waiting.set

    def drop_failed_epoch(self) -> None:
        """Drop an open epoch of a request that failed in an earlier run, and refuse the request.

        Without this every run would fail as the earlier one, and no stream would go on. An epoch that a sink
        has stays.
        """
        coordinator, model = self._coordinator, self._run.file.model
        lane = coordinator.lease.lane
        state = coordinator.ledger.state(model.name, lane) if coordinator.has_open_epoch else None
        plan = state.open_plan if state else None
        if state is None or plan is None or plan.pipeline_hash != self._run.file.hash:
            return
        if not is_refresh_epoch(model, plan):
            return
        window, number = plan.window or WHOLE, plan.number
        request = next((one for one in self._read_begun() if window in one.partitions), None)
        (row,) = coordinator.ledger.epochs(model.name, lane, number, number)
        attempts = model.epoch.max_attempts
        is_blocked = find_block(coordinator.ledger, state, 1, "") or row.attempts >= attempts
        if request and is_blocked and coordinator.drop_open_epoch("the refresh failed, and no sink has it"):
            windows = [key for key in positions.windows_of(model) if key in request.partitions]
            self._cancel(HistoryLoad(self._run, windows, refresh=False))
            hint = "Correct the cause and request the refresh again. The sinks keep the rows that they have."
            self._refuse(request, PipelineStateError(f"epoch {number} failed: {row.error}", hint=hint))

    def finish_begun(self) -> None:
        """Finish the requests that an earlier run has begun."""
        for request in self._read_begun():
            if not self._run.stopping and self._has_begun(request):
                self._execute(request)

    def execute(self) -> bool:
        """Execute the requests that wait. Return whether epochs were written.

        A request that cannot be executed is refused. Raise the error of an epoch that fails, as other epochs
        of the run do.
        """
        if not self._waiting.is_set():
            return False
        self._waiting.clear()
        before = self._coordinator.committed
        for request in self._read_pending():
            if self._run.stopping:
                break
            self._execute(request)
        return self._coordinator.committed != before

    def _read_pending(self) -> list[RefreshRequest]:
        lease = self._coordinator.lease
        with _postpone_on_error():
            return self._coordinator.ledger.pending_refreshes(lease.name, lease.lane)
        return []

    def _read_begun(self) -> list[RefreshRequest]:
        return [request for request in self._read_pending() if request.first_epoch is not None]

    def _execute(self, request: RefreshRequest) -> None:
        with suppress(_RefusedError):
            if self._refresh(request):
                self._end(request)

    def _refresh(self, request: RefreshRequest) -> bool:
        """Read the partitions from new snapshots. Return False if the request has not begun."""
        with self._refuse_on_error(request):
            windows = select_partitions(self._run.file, request.partitions)
            has_begun = self._has_begun(request)
            load = HistoryLoad(self._run, windows, refresh=not has_begun)
            if not has_begun:
                if obstacle := find_refresh_obstacle(self._run.file):
                    raise obstacle
                load.check()
        if not has_begun and not self._begin(request, load):
            return False
        load.report_start()
        while not self._run.stopping:
            with self._refuse_on_error(request, load):
                step = load.next_epoch()
            if step is None:
                break
            self._run.run_epoch(step)
        self._drop_snapshots()
        return True

    def _begin(self, request: RefreshRequest, load: HistoryLoad) -> bool:
        """Create new snapshots and commit the epoch that refers to them. Return False if the run must stop.

        Also return False if the request was withdrawn.
        """
        self._run.reporter.publish(RunMessage(f"refreshing {request}"))
        if load.needs_snapshots:
            load.finish_partly_read()
        if self._run.stopping:
            return False
        with self._refuse_on_error(request):
            step = load.create_snapshots() if load.needs_snapshots else None
            is_ours = self._coordinator.ledger.begin_refresh(
                self._coordinator.lease, request.number, self._coordinator.committed + 1
            )
        if not is_ours:
            self._run.reporter.publish(RunMessage(f"the refresh of {request} was withdrawn"))
            self._drop_snapshots()
        elif step is not None:
            self._run.run_epoch(step)
        return is_ours

    @contextmanager
    def _refuse_on_error(self, request: RefreshRequest, load: HistoryLoad | None = None) -> Iterator[None]:
        """Refuse the request on an error in the block, which writes no epoch. The sinks keep their rows.

        `load` is the refresh if it has begun.
        """
        try:
            with self._run.session.translate_errors():
                yield
        except (FencedError, SparkJvmError):
            raise
        except HeadraceError as error:
            if self._run.stopping:
                raise
            if load is not None:
                self._cancel(load)
            self._refuse(request, error)
            raise _RefusedError from error

    def _cancel(self, load: HistoryLoad) -> None:
        load.cancel_refresh()
        self._drop_snapshots()

    def _drop_snapshots(self) -> None:
        if not self._coordinator.has_open_epoch:
            drop_unused_snapshots(self._run.assembly, self._coordinator, self._run.reporter)

    def _has_begun(self, request: RefreshRequest) -> bool:
        """Return whether an epoch of this request refers to new snapshots and marks its partitions.

        The ledger has the epoch's number from before it was planned. Another epoch can have the number. The
        refresh may have been cancelled since.
        """
        first, model, lease = request.first_epoch, self._run.file.model, self._coordinator.lease
        if first is None or first > self._coordinator.committed:
            return False
        if not set(request.partitions) <= set(positions.windows_of(model)):
            return False
        row = next(self._coordinator.ledger.epochs(lease.name, lease.lane, first, first), None)
        if row is None or row.plan.phase is not Phase.HISTORY:
            return False
        source = next(iter(model.sources))
        start, end = (position.get(source, {}) for position in (row.plan.start, row.plan.end))
        here = self._coordinator.position[source]
        if "history" not in start or "history" not in end:
            return False
        return positions.pins_ref(start) != positions.pins_ref(end) and all(
            positions.is_refresh(model, end, key)
            and (positions.is_refresh(model, here, key) or positions.is_from_snapshot(model, here, key))
            for key in request.partitions
        )

    def _end(self, request: RefreshRequest) -> None:
        """Record that the sinks have the partitions, unless the run stops before."""
        coordinator = self._coordinator
        done = positions.completed_partitions(self._run.file.model, coordinator.position)
        if coordinator.has_open_epoch or not set(request.partitions) <= set(done):
            return
        with _postpone_on_error():
            coordinator.ledger.end_refresh(coordinator.lease, request.number, coordinator.committed)
            self._run.reporter.publish(RunMessage(f"refreshed {request}"))

    def _refuse(self, request: RefreshRequest, error: HeadraceError) -> None:
        self._run.file.locate(error)
        node = f"node '{error.node}': " if error.node else ""
        with _postpone_on_error():
            self._coordinator.ledger.refuse_refresh(
                self._coordinator.lease, request.number, f"{node}{error.message}", error.hint
            )
            message = f"refused to refresh {request}: {node}{error.message}"
            self._run.reporter.publish(RunMessage(message, "warning"))


@contextmanager
def _postpone_on_error() -> Iterator[None]:
    """Leave a request in the ledger as it is while the ledger cannot be reached. The heartbeat reports it."""
    try:
        yield
    except TransientError as error:
        log.warning("event=refresh_postponed error=%s", error.message)
