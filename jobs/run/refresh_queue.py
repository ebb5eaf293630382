"""Requests for a refresh in the ledger: the run that owns the pipeline executes them between two epochs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headrace.jobs.planning.refresh import find_refresh_obstacle
from headrace.jobs.run.events import RunMessage
from headrace.jobs.run.history import HistoryLoad, select_partitions
from headrace.jobs.run.snapshots import drop_unused_snapshots
from headrace.pipeline.errors import FencedError, HeadraceError, SparkJvmError, TransientError
from headrace.pipeline.protocol import positions
from headrace.pipeline.protocol.epochs import Phase
from headrace.pipeline.protocol.ledger import RefreshRequest

if TYPE_CHECKING:
    from headrace.jobs.run.pipeline_run import PipelineRun

log = logging.getLogger(__name__)


class RefreshQueue:
    """Executes the requests of one run's pipeline. The heartbeat reports that requests wait.

    A request stays in the ledger until all its rows are in the sinks. If the process dies before, the next
    run executes it. A refresh whose snapshots an epoch refers to is finished from them.
    """

    def __init__(self, pipeline_run: PipelineRun) -> None:
        self._run, self._coordinator = pipeline_run, pipeline_run.coordinator
        self._waiting = threading.Event()
        self._waiting.set()  # requests from before this run
        pipeline_run.coordinator.heartbeat.on_refresh = self._waiting.set

    def execute(self) -> bool:
        """Execute the requests that wait. Return whether epochs were written.

        A request that cannot be executed is refused. Raise the error of an epoch that fails, as other epochs
        of the run do.
        """
        if not self._waiting.is_set():
            return False
        self._waiting.clear()
        before, pending = self._coordinator.committed, list[RefreshRequest]()
        lease = self._coordinator.lease
        with _postponed():
            pending = self._coordinator.ledger.pending_refreshes(lease.name, lease.lane)
        for request in pending:
            if self._run.stopping:
                break
            self._execute(request)
        return self._coordinator.committed != before

    def _execute(self, request: RefreshRequest) -> None:
        refresh = None
        try:
            with self._run.session.translate_errors():
                windows = select_partitions(self._run.file, request.partitions)
                if not self._has_begun(request):
                    refresh = self._check(windows)
        except (FencedError, SparkJvmError):
            raise
        except HeadraceError as error:
            self._refuse(request, error)
            return
        if refresh is None:
            HistoryLoad(self._run, windows, refresh=False).run()
            if not self._coordinator.has_open_epoch:
                drop_unused_snapshots(self._run.assembly, self._coordinator, self._run.reporter)
        elif not self._replace_snapshots(request, refresh):
            return
        self._end(request)

    def _has_begun(self, request: RefreshRequest) -> bool:
        """Return whether an epoch of this request refers to new snapshots and marks its partitions.

        The ledger has the epoch's number from before it was planned. Another epoch can have the number.
        """
        first, model, lease = request.first_epoch, self._run.file.model, self._coordinator.lease
        if first is None or first > self._coordinator.committed:
            return False
        row = next(self._coordinator.ledger.epochs(lease.name, lease.lane, first, first), None)
        if row is None or row.plan.phase is not Phase.HISTORY:
            return False
        source = next(iter(model.sources))
        start, end = (position.get(source, {}) for position in (row.plan.start, row.plan.end))
        if "history" not in start or "history" not in end:
            return False
        return positions.pins_ref(start) != positions.pins_ref(end) and all(
            positions.is_refresh(model, end, key) for key in request.partitions
        )

    def _check(self, windows: Sequence[str]) -> HistoryLoad:
        """Return the refresh of these partitions. Raise why it is refused."""
        if obstacle := find_refresh_obstacle(self._run.file):
            raise obstacle
        refresh = HistoryLoad(self._run, windows, refresh=True)
        refresh.check()
        return refresh

    def _replace_snapshots(self, request: RefreshRequest, refresh: HistoryLoad) -> bool:
        """Read the partitions from new snapshots. Return False if it was refused, or has not begun."""
        self._run.reporter.publish(RunMessage(f"refreshing {request}"))
        if refresh.needs_snapshots:
            refresh.finish_partly_read()
            if self._run.stopping:
                return False
            try:
                with self._run.session.translate_errors():
                    step = refresh.create_snapshots()
                    self._coordinator.ledger.begin_refresh(
                        self._coordinator.lease, request.number, self._coordinator.committed + 1
                    )
            except (FencedError, SparkJvmError):
                raise
            except HeadraceError as error:
                self._refuse(request, error)
                return False
            self._run.run_epoch(step)
        refresh.load()
        return True

    def _end(self, request: RefreshRequest) -> None:
        """Record that the sinks have the partitions, unless the run stops before."""
        coordinator = self._coordinator
        done = positions.completed_partitions(self._run.file.model, coordinator.position)
        if coordinator.has_open_epoch or not set(request.partitions) <= set(done):
            return
        with _postponed():
            coordinator.ledger.end_refresh(coordinator.lease, request.number, coordinator.committed)
            self._run.reporter.publish(RunMessage(f"refreshed {request}"))

    def _refuse(self, request: RefreshRequest, error: HeadraceError) -> None:
        self._run.file.locate(error)
        node = f"node '{error.node}': " if error.node else ""
        with _postponed():
            self._coordinator.ledger.refuse_refresh(
                self._coordinator.lease, request.number, f"{node}{error.message}", error.hint
            )
            message = f"refused to refresh {request}: {node}{error.message}"
            self._run.reporter.publish(RunMessage(message, "warning"))


@contextmanager
def _postponed() -> Iterator[None]:
    """Leave a request in the ledger as it is while the ledger cannot be reached. The heartbeat reports it."""
    try:
        yield
    except TransientError as error:
        log.warning("event=refresh_postponed error=%s", error.message)
