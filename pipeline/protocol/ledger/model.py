"""The values that a ledger returns: leases, pipeline states, epochs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

from headrace.pipeline.protocol.epochs import EpochPlan, Json, Position, WriteCounts

_KEYS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to write a pipeline.

    `clean` means that the previous owner released it, or that there was none. `settled` means that no write
    of an earlier owner can still land. Either the lease was released with no write in progress, or the owner
    and its JVM are proven dead. If it is not settled, the run waits before it reads the records of a sink
    that does not fence.
    """

    pipeline: str
    name: str
    lane: str
    generation: int
    clean: bool
    settled: bool = True
    former: int = 0
    """The generation that this lease replaces."""


@dataclass(frozen=True, slots=True)
class SinkRow:
    """A sink in the ledger. `state` is joining, joined, replaying or left.

    `epoch` is the one after which it registered.
    """

    sink: str
    state: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Restart:
    """The point where a pipeline started over. Epochs before `first` belong to an earlier start.

    Their rows must not be mixed with those of later epochs.
    """

    first: int
    start: Position
    """The position at which `first` starts. Empty until a new position is taken."""


class LeaseStatus(StrEnum):
    """The status of a lease that a run acquired."""

    ACTIVE = "active"
    RELEASED = "released"
    """Also if a newer run has acquired it."""
    DEAD = "dead"
    """The owner's process is proven dead."""
    EXPIRED = "expired"
    """The owner sent no heartbeat. Its process has died, or is suspended and can continue."""


class StopAction(StrEnum):
    """What a request asks for."""

    STOP = "stop"
    """The present run ends."""
    PAUSE = "pause"
    """The present run ends, and no further run starts until the pause ends."""


@dataclass(frozen=True, slots=True)
class StopRequest:
    """A request. The owner with this generation ends at its next epoch boundary."""

    action: StopAction
    generation: int
    at: datetime
    by: str
    reason: str = ""

    @property
    def is_pause(self) -> bool:
        """Whether the request keeps further runs from starting."""
        return self.action is StopAction.PAUSE

    def __str__(self) -> str:
        at = self.at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        return f"by {self.by}, {at}" + (f": {self.reason}" if self.reason else "")


class RefreshState(StrEnum):
    """The state of a request to refresh partitions."""

    REQUESTED = "requested"
    """The owner of the lease executes it between two epochs."""
    DONE = "done"
    REFUSED = "refused"
    WITHDRAWN = "withdrawn"
    """The requester ended before the owner began."""


@dataclass(frozen=True, slots=True)
class RefreshRequest:
    """A request to read partitions of history again.

    `first_epoch` is None until the owner has created the new snapshots. `message` and `hint` are the reason
    of a refusal.
    """

    number: int
    partitions: tuple[str, ...]
    at: datetime
    by: str
    state: RefreshState
    first_epoch: int | None = None
    last_epoch: int | None = None
    message: str = ""
    hint: str = ""

    @property
    def subject(self) -> str:
        """The partitions as text, for messages."""
        if len(self.partitions) > _KEYS_SHOWN:
            return f"{len(self.partitions)} partitions, {self.partitions[0]} to {self.partitions[-1]},"
        return ", ".join(self.partitions) or "the whole history"

    def describe(self) -> str:
        """Return the request and what happens with it, for messages."""
        if self.state is not RefreshState.REQUESTED:
            return f"{self}: {self.state}"
        return f"{self}: " + (
            "queued" if self.first_epoch is None else f"begun with epoch {self.first_epoch}"
        )

    def __str__(self) -> str:
        at = self.at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        return f"{self.subject} by {self.by}, {at}"


@dataclass(frozen=True, slots=True)
class PipelineState:
    """The state of a pipeline. `committed` is 0 before the first epoch.

    `open_plan` is planned and not committed.
    """

    pipeline: str
    name: str
    lane: str
    generation: int
    committed: int
    position: Position
    open_plan: EpochPlan | None
    sinks: Mapping[str, SinkRow]
    pipeline_hash: str | None
    holder: Json | None
    """The owner of the lease (host, pid, run id, launched_by). None if there is none or it has expired."""
    progress: Json
    """The progress of the owner's last heartbeat: phase, rows/s, lag, last error."""
    ended: Position = field(default_factory=dict)
    """The end of the last committed epoch, which the sinks have.

    Differs from `position` only after a rewind.
    """
    kept_from: int = 1
    """The first epoch with a row, or `committed` + 1 if there is none. Earlier epochs are rolled up."""
    restarted: Restart | None = None
    """The last reset. Set when a pipeline is opened, audited or repaired (`LedgerReader.restart`)."""
    droppable: bool = True
    """False if a paused former owner could still write the open plan to a sink that does not fence."""
    request: StopRequest | None = None
    """The newest request to stop or pause. A stop counts only for its generation."""


@dataclass(frozen=True, slots=True)
class EpochRow:
    """One epoch in the ledger. `error` is the last failure of an epoch that was tried more than once."""

    plan: EpochPlan
    generation: int
    committed_at: datetime | None
    counts: Mapping[str, WriteCounts]
    attempts: int
    error: str | None
    repeats: int = 0
    """The number of equal failures in a row."""


@dataclass(frozen=True, slots=True)
class RolledUp:
    """A range of epochs without rows of their own.

    `windows` sums the counts of history by partition and sink.
    """

    first: int
    last: int
    start: Position
    end: Position
    first_at: datetime
    last_at: datetime
    link_before: str
    link: str
    counts: Mapping[str, WriteCounts]
    windows: Mapping[str, Mapping[str, WriteCounts]]


@dataclass(frozen=True, slots=True)
class StoredEpoch:
    """A committed epoch as it is stored. `linked` is true if its hash chain link is correct."""

    number: int
    window: str | None
    plan: Json
    link: str
    linked: bool


@dataclass(frozen=True, slots=True)
class AuditProgress:
    """The last epoch that an audit of the pipeline has checked."""

    number: int
    link: str
