"""A pipeline that this process owns: its lease, its sinks, and what is known of their records."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from headrace.pipeline.errors import FencedError, PipelineStateError, TransientError
from headrace.pipeline.protocol.coordinator.heartbeat import Heartbeat
from headrace.pipeline.protocol.coordinator.reconcile import AGREES, ReconcileResult, ReconcileStatus
from headrace.pipeline.protocol.coordinator.sinks import CheckFile, CoordinatedSink, OpenSinks
from headrace.pipeline.protocol.epochs import CommitRecord, Json, SinkKey
from headrace.pipeline.protocol.ledger import Lease, Ledger, PipelineState, StopRequest

log = logging.getLogger(__name__)


class OwnedPipeline:
    """The lease of a pipeline and its open sinks. Every write is under the lease."""

    def __init__(
        self,
        ledger: Ledger,
        lease: Lease,
        sinks: OpenSinks,
        compiled: Json,
        pipeline_hash: str,
        *,
        holder: Json,
        ttl: float,
        commit_timeout: float,
        max_attempts: int,
        repair: Collection[str],
        take_over: Collection[str],
        vouched: bool,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
        threaded: bool,
        check_file: CheckFile,
        on_request: Callable[[StopRequest], None],
    ) -> None:
        self.ledger = ledger
        self.lease = lease
        self.compiled = compiled
        self.pipeline_hash = pipeline_hash
        self.max_attempts = max_attempts
        self.sinks: dict[str, CoordinatedSink] = {}
        self.heartbeat = Heartbeat(ledger, lease, ttl, clock, threaded=threaded, on_request=on_request)
        self._open_sinks = sinks
        self._check_file = check_file
        self._file = str(holder.get("file", "FILE"))
        self._commit_timeout = commit_timeout
        self._repair = frozenset(repair)
        self._take_over = frozenset(take_over)
        self._released: dict[str, list[str]] = {}
        self._vouched = vouched
        self._sleep = sleep
        self._clock = clock
        self._acquired = clock()
        self._body, self._body_hash = compiled, pipeline_hash
        self._state: PipelineState = self._load_state()
        self._findings: dict[str, ReconcileResult] = {}
        self._agreed = False
        self._doubtful = True
        self._writing = False

    def check(self) -> None:
        """Raise FencedError if this process no longer has the lease. Call it right before any write."""
        self.heartbeat.check()

    def _assert_lease(self) -> None:
        """Raise FencedError if a newer owner has the lease.

        Then only this process is late, and no state is wrong.
        """
        self.heartbeat.beat()
        self.check()

    def _load_state(self) -> PipelineState:
        state = self.ledger.state(self.lease.name, self.lease.lane)
        if state is None or state.pipeline != self.lease.pipeline:
            msg = f"the ledger no longer knows pipeline '{self.lease.name}'"
            raise FencedError(msg, hint="Was the ledger removed while the pipeline ran?")
        return state

    def _key(self, sink: str) -> SinkKey:
        return SinkKey(self.lease.pipeline, self.lease.name, self.lease.lane, sink)

    def _newcomers(self) -> list[str]:
        known = self._state.sinks
        return [
            name
            for name in self.sinks
            if name not in known or known[name].state not in ("joined", "replaying")
        ]

    def _problems(self) -> list[ReconcileResult]:
        return [one for one in self._findings.values() if one.status not in AGREES]

    def _open_epoch_records(self) -> dict[str, CommitRecord]:
        """Return the records of the sinks that have the open epoch."""
        return {
            one.sink: one.record
            for one in self._findings.values()
            if one.status is ReconcileStatus.AHEAD and one.record is not None
        }

    def _ensure_writable(self) -> None:
        self.check()
        if problems := self._problems():
            names = ", ".join(f"'{one.sink}'" for one in problems)
            msg = f"sink {names} must be replayed or adopted first"
            raise PipelineStateError(msg, hint="; ".join(one.message for one in problems))

    def _close_sinks(self) -> None:
        while self.sinks:
            name, sink = self.sinks.popitem()
            try:
                sink.close()
            except Exception as error:  # noqa: BLE001 - closing must not hide what went before
                log.warning("event=sink_not_closed node=%s error=%s", name, error)

    def _let_go(self, *, clean: bool) -> None:
        self.heartbeat.stop()
        self._close_sinks()
        try:
            self.ledger.release(self.lease, clean=clean)
        except FencedError:
            log.info("event=lease_lost_before_release generation=%s", self.lease.generation)
        except TransientError as error:
            # This must not hide the earlier error. The lease expires by itself.
            log.warning("event=lease_not_released error=%s", error.message)
