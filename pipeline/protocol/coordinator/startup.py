"""The start of a pipeline: lease, fencing, reconciliation, and the open epoch of an earlier run."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Self

from headrace.pipeline.errors import (
    DataError,
    FencedError,
    HeadraceError,
    InternalError,
    PipelineStateError,
    SinkStateError,
    TargetError,
)
from headrace.pipeline.protocol.claims import claim_names
from headrace.pipeline.protocol.coordinator.owned_pipeline import OwnedPipeline
from headrace.pipeline.protocol.coordinator.reconcile import (
    ReconcileResult,
    ReconcileStatus,
    reconcile_new_sink,
    reconcile_sink,
    sink_state_error,
)
from headrace.pipeline.protocol.coordinator.sinks import CheckFile, OpenSinks
from headrace.pipeline.protocol.epochs import CommitRecord, EpochPlan, Json, Position
from headrace.pipeline.protocol.ledger import EpochRow, Ledger, PipelineState, SinkRow, StopRequest

log = logging.getLogger(__name__)


class CoordinatorStartup(OwnedPipeline):
    """An owned pipeline, up to the point where all sinks agree with the ledger."""

    @classmethod
    def open(
        cls,
        ledger: Ledger,
        name: str,
        lane: str,
        holder: Json,
        sinks: OpenSinks,
        compiled: Json,
        pipeline_hash: str,
        *,
        initial: Position | Callable[[], Position],
        ttl: float = 15.0,
        commit_timeout: float = 30.0,
        max_attempts: int = 3,
        repair: Collection[str] = (),
        take_over: Collection[str] = (),
        vouched: bool = False,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        threaded: bool = True,
        check_file: CheckFile = lambda _: None,
        refuse_if_paused: bool = False,
        on_request: Callable[[StopRequest], None] = lambda _: None,
    ) -> Self:
        """Acquire the lease and reconcile ledger and sinks.

        An open epoch of an earlier run is then `pending`. `initial` is the first position of a new pipeline;
        a callable is called only then. `commit_timeout` is the number of seconds in which the commit of a
        sink that does not fence may still land after its process was stopped. `repair` names sinks whose
        record may disagree, for `replay` and `accept-target`. `take_over` names sinks whose target is taken
        from other pipelines. `vouched` means that the user confirms that no earlier process of this pipeline
        is alive. `check_file` is called before any sink is opened, and again when an open epoch of an earlier
        file has ended. `on_request` is called in another thread when a request to stop is for this lease.
        Raise LeaseHeldError, PausedError with `refuse_if_paused`, SinkStateError, FencedError, and the errors
        of the sinks' `prepare`.
        """
        lease = ledger.acquire(name, lane, holder, ttl, refuse_if_paused=refuse_if_paused)
        self = cls(
            ledger,
            lease,
            sinks,
            compiled,
            pipeline_hash,
            holder=holder,
            ttl=ttl,
            commit_timeout=commit_timeout,
            max_attempts=max_attempts,
            repair=repair,
            take_over=take_over,
            vouched=vouched,
            clock=clock,
            sleep=sleep,
            threaded=threaded,
            check_file=check_file,
            on_request=on_request,
        )
        try:
            self.heartbeat.start()
            self._start(initial if callable(initial) else lambda: initial)
        except BaseException:
            self._let_go(clean=not self._writing)
            raise
        return self

    def _start(self, initial: Callable[[], Position]) -> None:
        self.ledger.begin(self.lease, initial)
        state = self._load_state()
        self._check_file(state)
        plan = state.open_plan
        if plan is None:
            self._open_version(self.compiled, self.pipeline_hash)
        else:
            self._enter_open(plan)
        self._apply_sink_changes()

    def _enter_open(self, plan: EpochPlan) -> None:
        """Open the sinks by the file of the open epoch.

        If a sink can no longer be opened, the pipeline cannot continue. Add the way out to the error.
        """
        same = plan.pipeline_hash == self.pipeline_hash
        try:
            self._open_version(
                self.compiled if same else self.ledger.compiled(plan.pipeline_hash), plan.pipeline_hash
            )
        except (PipelineStateError, FencedError):
            raise
        except HeadraceError as error:
            if error.node:
                error.hint += (
                    f" Epoch {plan.number} is open and needs this node. If it is lost for good,"
                    " take it out of the file, then"
                )
                error.hint += f" `headrace reset {self._file}` starts over without it."
            raise

    def _open_version(self, compiled: Json, pipeline_hash: str) -> None:
        """Open the sinks of a compiled pipeline and fence them. Read their records only after that."""
        self._close_sinks()
        self._agreed = False
        self._body, self._body_hash = compiled, pipeline_hash
        self.sinks = dict(self._open_sinks(self.lease.pipeline, compiled))
        for name, sink in self.sinks.items():
            if name not in self._take_over:
                sink.refuse_rivals()
        self._prepare()
        self._release()
        self._wait_out()
        self._reconcile_sinks()

    def _prepare(self) -> None:
        self.check()
        for name, sink in self.sinks.items():
            try:
                sink.prepare(self.lease.generation)
            except FencedError as error:
                self._assert_lease()
                msg = (
                    f"a generation newer than {self.lease.generation}, the newest that the ledger ever"
                    " gave, has been here"
                )
                hint = (
                    "The ledger is older than the sink (restored from a backup?). Restore the newest"
                    " one, or move it away and rebuild it."
                )
                raise SinkStateError(msg, hint=hint, node=name) from error

    def _release(self) -> None:
        """End the claims of other pipelines on the targets that are taken over."""
        for name, sink in self.sinks.items():
            if name not in self._take_over:
                continue
            self.check()
            if ended := claim_names(sink.release_rivals()):
                log.warning("event=claims_released node=%s pipelines=%s", name, ", ".join(ended))
                self._released[name] = ended

    def _wait_out(self) -> None:
        """Wait until commits that a former owner began have landed, if a sink cannot refuse them."""
        if self.lease.settled:
            return
        if not all(sink.supports_fencing for sink in self.sinks.values()):
            left = self._acquired + self._commit_timeout - self._clock()
            log.info("event=waiting_for_former_commits seconds=%.1f", left)
            self._sleep(max(0.0, left))
        self.lease = self.ledger.settle(self.lease)

    def _reconcile_sinks(self) -> None:
        """Reconcile every sink's record.

        Raise SinkStateError for those that disagree and are not in `repair`.
        """
        state = self._unregister_unwritten(self._load_state())
        self._state = state = replace(state, restarted=self.ledger.restart(state.name, state.lane))
        last = next(self.ledger.epochs(state.name, state.lane, state.committed, state.committed), None)
        self._findings = {}
        for name, row in state.sinks.items():
            if row.state not in ("joined", "replaying"):
                continue
            if name in self.sinks:
                self._findings[name] = self._reconcile_joined(state, last, row)
            elif state.open_plan is not None:
                self._assert_lease()
                msg = (
                    f"epoch {state.open_plan.number} is open and was planned with sink '{name}', which"
                    " was not opened"
                )
                raise InternalError(msg, node=name)
        if state.open_plan is None:
            for name in self._newcomers():
                sink, row = self.sinks[name], state.sinks.get(name)
                if row is not None and row.state == "emptying":
                    # A reset ignores the target's record: all rows are deleted before the sink registers.
                    self._findings[name] = ReconcileResult(name, ReconcileStatus.LEVEL, None)
                    continue
                self._findings[name] = reconcile_new_sink(
                    state, last, name, row, sink.record(), sink.find_conflicting_record(), self._file
                )
        if refused := [one for one in self._problems() if one.sink not in self._repair]:
            self._assert_lease()
            raise sink_state_error(refused)

    def _unregister_unwritten(self, state: PipelineState) -> PipelineState:
        """Let registered sinks without a record register again, if no epoch was ever committed or is open.

        The file may name another target since then. No row can be missing there.
        """
        if state.committed or state.open_plan is not None:
            return state
        for name, row in state.sinks.items():
            if row.state == "joined" and name in self.sinks and self.sinks[name].record() is None:
                self.check()
                self.ledger.set_sink(self.lease, name, "joining", row.epoch)
        return self._load_state()

    def _reconcile_joined(self, state: PipelineState, last: EpochRow | None, row: SinkRow) -> ReconcileResult:
        """Return the status of a registered sink. A record that the target lost is missing."""
        try:
            record = self.sinks[row.sink].record()
        except SinkStateError as error:
            missing = reconcile_sink(state, last, row, None, self._file)
            return replace(missing, message=error.message)
        return reconcile_sink(state, last, row, record, self._file)

    def _apply_sink_changes(self) -> None:
        """Drop an open epoch of an old file that no sink has. With none open, remove and register sinks."""
        if self._problems():
            return
        plan = self._state.open_plan
        if (
            plan is not None
            and plan.pipeline_hash != self.pipeline_hash
            and not self._open_epoch_records()
            and self._may_drop()
        ):
            self._drop_plan(plan, "the file changed and no sink held the epoch")
            plan = None
        if plan is None and not self._problems():
            self._leave()
            for name in self._newcomers():
                if (row := self._state.sinks.get(name)) is not None and row.state == "left":
                    # It missed no epoch. It keeps its record and its baseline.
                    self.ledger.set_sink(self.lease, name, "joined", row.epoch)
                else:
                    if row is not None and row.state == "emptying":
                        self._empty(name)
                    self._join(name, self._state.committed, self._state.ended)
            self._state = self._load_state()
        self._agreed = not self._problems()

    def _empty(self, name: str) -> None:
        self.check()
        try:
            self.sinks[name].truncate()
        except (DataError, TargetError) as error:
            error.message = f"the target cannot be emptied: {error.message}"
            error.hint = (
                "Delete its rows yourself and run again; or keep them: `headrace reset"
                f" {self._file} --keep-targets`."
            )
            raise

    def drop_open_epoch(self, why: str) -> bool:
        """Drop the open epoch of an earlier run if no target can have rows of it. Return whether it did.

        Call it before this run writes the epoch.
        """
        plan = self._state.open_plan
        if plan is None or self._writing or self._problems() or self._open_epoch_records():
            return False
        if not self._may_drop():
            return False
        self._drop_plan(plan, why)
        self._apply_sink_changes()
        return True

    def _drop_plan(self, plan: EpochPlan, why: str) -> None:
        self.ledger.drop_plan(self.lease, plan.number, why)
        self._check_file(self._load_state())
        self._open_version(self.compiled, self.pipeline_hash)

    def _may_drop(self) -> bool:
        """Return whether the open epoch can be dropped.

        It cannot if a target may have rows of it. That is the case after a replay of a sink whose record was
        lost, and while a paused process could write it to a sink that does not compare generations.
        """
        if any(row.state == "replaying" for row in self._state.sinks.values()):
            return False
        return (
            self._vouched
            or self._state.droppable
            or all(sink.supports_fencing for sink in self.sinks.values())
        )

    def _leave(self) -> None:
        for name, row in self._state.sinks.items():
            if name not in self.sinks and row.state != "left":
                self.ledger.set_sink(self.lease, name, "left", row.epoch)
            elif row.state == "replaying":
                self.ledger.set_sink(self.lease, name, "joined", row.epoch)

    def _join(self, name: str, epoch: int, position: Position, data: Json | None = None) -> None:
        """Register a sink after `epoch`.

        The process may die at any point, because the sink then registers again.
        """
        self.check()
        self.ledger.set_sink(self.lease, name, "joining", epoch, data)
        written = self._write_join(name, epoch, position)
        released = {"released": self._released[name]} if name in self._released else {}
        self.ledger.set_sink(self.lease, name, "joined", epoch, {"baseline": written.baseline, **released})

    def _write_join(self, name: str, epoch: int, position: Position) -> CommitRecord:
        before, self._writing = self._writing, True
        written = self.sinks[name].register(
            CommitRecord.for_registration(
                self._key(name), self.lease.generation, epoch, position, self._body_hash, None
            )
        )
        self._writing = before
        return written
