"""The coordinator of one pipeline. It plans, writes and commits, always in this order."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

from headrace.pipeline.errors import InternalError
from headrace.pipeline.protocol.coordinator.blocking import blocked_error, failure_text, is_blocking
from headrace.pipeline.protocol.coordinator.repair import CoordinatorRepairs
from headrace.pipeline.protocol.coordinator.sinks import Pending
from headrace.pipeline.protocol.epochs import EpochPlan, Json, Phase, Position, WriteCounts
from headrace.pipeline.protocol.ledger.reader import normalize_position


class EpochCoordinator(CoordinatorRepairs):
    """The coordinator of one pipeline, which this process owns by a lease.

    Create it with `EpochCoordinator.open`.

        with EpochCoordinator.open(
            ledger, name, "main", owner, open_sinks, compiled, hash, initial=start
        ) as coordinator:
            while coordinator.has_open_epoch or (step := next_step(coordinator.position)):
                try:
                    if not coordinator.has_open_epoch:
                        coordinator.plan(step.end, step.phase)
                    if pending := coordinator.begin():
                        coordinator.commit(write(pending))
                except SomeError as error:  # not FencedError
                    coordinator.record_failure(node, error)

    `begin` returns the open epoch, even one that an earlier run planned with an earlier version of the file.
    The caller writes it only to `pending.sinks`, the sinks that do not have it. `coordinator.sinks` are the
    open sinks of that epoch. One thread uses the coordinator. Only `check` may be called from several
    threads.
    """

    @property
    def position(self) -> Position:
        """The position at which the next epoch starts."""
        return self._state.open_plan.end if self._state.open_plan else self._state.position

    @property
    def committed(self) -> int:
        """The last epoch that every sink has."""
        return self._state.committed

    @property
    def has_open_epoch(self) -> bool:
        """Whether an epoch is open, so that `begin` returns it."""
        return self._state.open_plan is not None

    @property
    def open_plan(self) -> EpochPlan | None:
        """The plan of the open epoch."""
        return self._state.open_plan

    @property
    def generation(self) -> int:
        """The generation that fences the sinks."""
        return self.lease.generation

    def pending(self) -> Pending | None:
        """Return the open epoch and the sinks that do not have it. None if no epoch is open.

        Read the sinks' records again after an act whose outcome is unknown. Raise SinkStateError when a
        record no longer agrees with the ledger.
        """
        self._ensure_writable()
        if self._doubtful:
            self._reconcile_sinks()
            self._doubtful = False
        if self._state.open_plan is None:
            self._switch_to_current_version()
            return None
        records = self._open_epoch_records()
        return Pending(
            self._state.open_plan, self._body, tuple(name for name in self.sinks if name not in records)
        )

    def _draft(
        self, end: Position, phase: Phase, *, window: str | None = None, splits: tuple[Json, ...] = ()
    ) -> EpochPlan:
        """Return the plan of the next epoch, up to `end`. Nothing is stored."""
        if self._body_hash != self.pipeline_hash:
            msg = "an epoch of an earlier version of the file is open; finish it before the next is planned"
            raise InternalError(msg)
        plan = EpochPlan(
            self._state.committed + 1,
            phase,
            self.position,
            normalize_position(end),
            self.pipeline_hash,
            datetime.now(UTC),
            window=window,
            splits=tuple(splits),
        )
        return EpochPlan.from_json(normalize_position(plan.to_json()))

    def plan(
        self, end: Position, phase: Phase, *, window: str | None = None, splits: tuple[Json, ...] = ()
    ) -> EpochPlan:
        """Store the next epoch in the ledger. Raise InternalError while another epoch is open."""
        self._ensure_writable()
        if self.has_open_epoch:
            msg = f"epoch {self._state.committed + 1} is still open"
            raise InternalError(msg)
        self._switch_to_current_version()
        plan = self._draft(end, phase, window=window, splits=splits)
        self._doubtful = True
        self.ledger.plan(self.lease, plan, self.compiled)
        self._refresh_state()
        return plan

    def begin(self) -> Pending | None:
        """Return the open epoch for the caller to write. None if no epoch is open.

        From here until `commit`, closing the coordinator marks the lease as not released cleanly. This raises
        the same errors as `pending`.
        """
        work = self.pending()
        if work is not None:
            self._writing = True
        return work

    def commit(self, counts: Mapping[str, WriteCounts]) -> Mapping[str, WriteCounts]:
        """Commit the open epoch after every pending sink has returned its counts.

        Return the counts of all sinks. Counts of sinks that already had the epoch come from their commit
        records. Raise InternalError if a sink has no counts.
        """
        self._ensure_writable()
        plan = self._state.open_plan
        full = {name: record.counts for name, record in self._open_epoch_records().items()} | dict(counts)
        if plan is None or full.keys() != self.sinks.keys():
            msg = (
                f"epoch {plan.number if plan else '?'} cannot be committed: counts of {sorted(full)},"
                f" sinks are {sorted(self.sinks)}"
            )
            raise InternalError(msg)
        self._doubtful = True
        self.ledger.commit(self.lease, plan.number, full)
        self._writing = False
        self._refresh_state()
        self._switch_to_current_version()
        return full

    def record_failure(self, node: str, error: BaseException) -> int:
        """Record that the open epoch failed at `node`. Return the number of equal failures in a row.

        Raise BlockedError after `max_attempts` equal failures, including those of earlier runs. An error that
        passes by itself (not `blocks`) is excepted: the caller waits, and decides for how long.
        """
        self._doubtful = True
        self.check()
        self._state = self._load_state()
        if (plan := self._state.open_plan) is None:
            self._switch_to_current_version()
            return 0
        text = failure_text(error)
        attempts = self.ledger.record_failure(self.lease, plan.number, node, text)
        if attempts >= self.max_attempts and is_blocking(error):
            raise blocked_error(plan.number, node, attempts, text, self._file) from error
        return attempts

    def close(self, *, clean: bool | None = None) -> None:
        """Release the lease. By default it is clean unless a write began and did not end in a commit."""
        self._let_go(clean=not self._writing if clean is None else clean)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _refresh_state(self) -> None:
        """Load the state after a plan or commit of this process.

        No sink has the open epoch then, so none is read.
        """
        self._state = self._load_state()
        self._findings = {}
        self._doubtful = False

    def _switch_to_current_version(self) -> None:
        """Switch to the current file if no epoch is open. Nothing is being written then.

        A switch that failed before is tried again.
        """
        if self.has_open_epoch:
            return
        self._writing = False
        if self._body_hash != self.pipeline_hash or not self._agreed:
            self._check_file(self._load_state())
            self._open_version(self.compiled, self.pipeline_hash)
            self._apply_sink_changes()
