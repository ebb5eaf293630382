"""The base of sinks that commit rows and record in one atomic step: exactly once.

A target keeps one `SinkState` per sink: the generation that prepared it and the record of the last epoch.
Every change of it is a compare-and-set by `commit`. This base decides the rest: which generation may write,
which epoch may follow, what a repeated epoch returns, and when a commit is tried again.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from headrace.connectors.fencing import check_generation
from headrace.connectors.frame import EpochFrame
from headrace.connectors.sink_base import Sink, SinkContext
from headrace.pipeline.errors import HeadraceError, InternalError, SinkStateError, TransientError, UserError
from headrace.pipeline.protocol.epochs import CommitRecord, EpochPlan, SinkKey, WriteCounts

if TYPE_CHECKING:
    import pyarrow as pa

_ATTEMPTS = 5
_REPAIR = "Use `headrace replay --from` or `accept-target`."


@dataclass(frozen=True, slots=True)
class SinkState:
    """What a target has of one sink."""

    generation: int | None = None
    """The newest generation that prepared the target for this sink; None before the first."""
    record: CommitRecord | None = None
    """None if the sink is not registered, or if the target no longer has the record."""
    version: Any = None
    """What `commit` compares with. Its type is the sink's own."""
    lost: str = ""
    """Why the target no longer has the record of a registered sink."""


class CommitKind(StrEnum):
    """What a commit does."""

    FENCE = "fence"
    """Set the generation and keep the record."""
    REGISTER = "register"
    """Set the first record, with `baseline` counted in the same step."""
    TRUNCATE = "truncate"
    """Remove all rows and keep the record."""
    EPOCH = "epoch"
    """Write the rows of an epoch, and its record with their counts."""


@dataclass(frozen=True, slots=True)
class SinkCommit:
    """One change of a target, made by `generation`."""

    kind: CommitKind
    generation: int
    record: CommitRecord | None
    """The record to register; for any other kind the one that the target has."""
    plan: EpochPlan | None = None
    """The epoch; only for `EPOCH`, like `frame` and `files`."""
    frame: EpochFrame | None = None
    files: Any = None
    """Files with the rows of the epoch, in place of `frame`. Their type is the sink's own."""

    def complete(self, counts: WriteCounts) -> CommitRecord:
        """Return the record after the epoch. `write` has checked that the target has a record."""
        assert self.record is not None  # noqa: S101
        assert self.plan is not None  # noqa: S101
        return self.record.after_epoch(self.plan, self.generation, counts)


class TransactionalSink(Sink):
    """A sink whose target compares and sets a state together with rows."""

    def __init__(self, context: SinkContext) -> None:
        """Store the context without opening a connection."""
        super().__init__(context)
        self._name: str = context.key.sink
        self._generation = -1

    @property
    @abstractmethod
    def target(self) -> str:
        """The target as messages name it, such as "the Delta table `s3://lake/orders`"."""

    @abstractmethod
    def prepare_target(self, schema: pa.Schema) -> None:
        """Create a missing target if the sink can, and check that the target takes rows of `schema`.

        Called once per run, before the generation is set, so that an unfit target leaves a running older
        generation alone. Raise TargetError or SchemaError if the target does not fit, and TransientError if
        it cannot be reached.
        """

    @abstractmethod
    def read_state(self) -> SinkState | None:
        """Return the target's state of this sink, or None if there is no target.

        Called before each commit, and by audits without `prepare`. It changes nothing.
        """

    @abstractmethod
    def commit(self, expected: SinkState, change: SinkCommit) -> SinkState | None:
        """Change the target in one atomic step if its state still is `expected`. Return the new state.

        Called at most five times per change. Return None, with nothing changed, if another writer changed the
        target: this base then reads the state again and decides whether the change still applies. Raise
        FencedError if the target itself refuses the generation.
        """

    def claim_target(self) -> None:
        """Add this sink's claim where the target stores claims apart from records.

        Called in `prepare` if the target has a record, and before `REGISTER`. Raise SinkStateError for a
        rival's claim.
        """

    def remove_stale_attempts(self) -> None:
        """Remove what crashed attempts of older generations left. Called in `prepare`, after the fence."""

    def prepare(self, schema: pa.Schema, generation: int) -> None:
        """Prepare the target, then fence older generations. See `Sink.prepare`."""
        self._generation = generation
        self.prepare_target(schema)

        def fence(state: SinkState) -> SinkCommit | None:
            return None if state.generation == generation else self._change(CommitKind.FENCE, state.record)

        state = self._commit_change(self._read_checked_state, fence)
        if state.record is not None:
            self.claim_target()
        self.remove_stale_attempts()

    def record(self) -> CommitRecord | None:
        """See `Sink.record`. Raise SinkStateError if the target lost the record."""
        state = self.read_state()
        if state is not None and state.lost:
            raise SinkStateError(state.lost, hint=_REPAIR, node=self._name)
        return state.record if state else None

    def register(self, record: CommitRecord) -> CommitRecord:
        """Claim the target and write the first record. See `Sink.register`."""
        if record.generation != self._generation:
            msg = (
                f"a record of generation {record.generation} is registered under generation"
                f" {self._generation}"
            )
            raise InternalError(msg, node=self._name)
        self._read_own_state()
        self.claim_target()
        change = self._change(CommitKind.REGISTER, record)
        return _record_of(self._commit_change(self._read_own_state, lambda _: change))

    def write(self, plan: EpochPlan, frame: EpochFrame) -> WriteCounts:
        """Commit rows and record from epoch N-1 to N. An epoch that the target has is not rewritten."""
        return self._advance_epoch(plan, lambda change: replace(change, frame=frame))

    def _advance_epoch(self, plan: EpochPlan, complete: Callable[[SinkCommit], SinkCommit]) -> WriteCounts:
        """Commit the epoch. `complete` adds the rows; it is not called for an epoch that the target has."""

        def advance(state: SinkState) -> SinkCommit | None:
            if state.lost:
                raise SinkStateError(state.lost, hint=_REPAIR, node=self._name)
            if find_committed_record(state.record, plan, target=self.target, sink=self._name):
                return None
            return complete(replace(self._change(CommitKind.EPOCH, state.record), plan=plan))

        return _record_of(self._commit_change(self._read_own_state, advance)).counts

    def find_conflicting_key(self) -> SinkKey | None:
        """Return a claimant of the same pipeline name, `lane` and sink under another UUID, or None."""
        mine = self._context.key
        keys = (claim.key for claim in self.claims())
        same = (key for key in keys if (key.name, key.lane, key.sink) == (mine.name, mine.lane, mine.sink))
        return next((key for key in same if key != mine), None)

    def truncate(self) -> None:
        """Remove all rows in one commit that keeps the record.

        Raise UserError if other sinks write the target.
        """
        if not self.capabilities.can_truncate:
            super().truncate()
        if self._context.owner.others(self.claims()):
            msg = f"other sinks write to {self.target} too"
            hint = "Delete the rows of this sink yourself, then `headrace reset FILE --keep-targets`."
            raise UserError(msg, hint=hint, node=self._name)
        self._commit_change(
            self._read_own_state, lambda state: self._change(CommitKind.TRUNCATE, state.record)
        )

    def _commit_change(
        self, read: Callable[[], SinkState], build: Callable[[SinkState], SinkCommit | None]
    ) -> SinkState:
        """Commit the change that `build` returns for the state; again if another writer changed the target.

        Return the new state, or the state for which `build` returns None. Raise TransientError if others
        write without pause.
        """
        for _ in range(_ATTEMPTS):
            state = read()
            change = build(state)
            if change is None:
                return state
            if (done := self.commit(state, change)) is not None:
                return done
        raise self._busy_error()

    def _change(self, kind: CommitKind, record: CommitRecord | None) -> SinkCommit:
        return SinkCommit(kind, self._generation, record)

    def _read_checked_state(self) -> SinkState:
        """Return the state. Raise FencedError if a newer generation prepared the target."""
        if self._generation < 0:
            msg = f"{self.target} is written before `prepare`"
            raise InternalError(msg, node=self._name)
        state = self.read_state() or SinkState()
        check_generation(state.generation, self._generation, target=self.target, sink=self._name)
        return state

    def _read_own_state(self) -> SinkState:
        """Return the state if this generation may write."""
        state = self._read_checked_state()
        if state.generation != self._generation:
            raise self._lost_state_error()
        return state

    def _lost_state_error(self) -> HeadraceError:
        """Return the error for a target that lost this sink's state after `prepare`."""
        return SinkStateError(
            f"{self.target} was replaced after it was prepared", hint=_REPAIR, node=self._name
        )

    def _busy_error(self) -> TransientError:
        return TransientError(f"others write to {self.target} without pause", node=self._name)


def _record_of(state: SinkState) -> CommitRecord:
    """Return the record of a state after `REGISTER` or `EPOCH`, which always has one."""
    assert state.record is not None  # noqa: S101
    return state.record


def find_committed_record(
    record: CommitRecord | None, plan: EpochPlan, *, target: str, sink: str
) -> CommitRecord | None:
    """Return the record if it is of the epoch of `plan`; return None if `plan` is the next epoch.

    Raise SinkStateError if the epoch cannot follow the record of the target.
    """
    if record is None:
        msg = f"{target} holds no record of this sink"
        raise SinkStateError(msg, hint=_REPAIR, node=sink)
    if record.epoch == plan.number and record.is_of(plan):
        return record
    if record.epoch != plan.number - 1:
        other = " from other positions" if record.epoch == plan.number else ""
        msg = (
            f"{target} holds epoch {record.epoch}{other}, epoch {plan.number} can only follow"
            f" {plan.number - 1}"
        )
        raise SinkStateError(msg, hint=_REPAIR, node=sink)
    return None
