"""What a ledger answers: leases, lane states, epochs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from headrace.pipeline.protocol.epochs import EpochPlan, Json, Position, WriteCounts


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to write a lane. `clean` says that the holder before gave it back by itself (or there was none).

    `settled` says that nothing an earlier holder began can still land: it was given back with no write under way, or the
    holder and its JVM are proven dead. Where not, a sink that does not fence must be waited out.
    """

    pipeline: str
    name: str
    lane: str
    generation: int
    clean: bool
    settled: bool = True
    former: int = 0
    """The generation that this one replaces."""


@dataclass(frozen=True, slots=True)
class SinkRow:
    """A sink as the ledger knows it: `state` is joining, joined, replaying or left; `epoch` the one after which it joined."""

    sink: str
    state: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Restart:
    """Where a lane started over. Epochs before `first` are of an earlier start: their rows must not meet those of later epochs."""

    first: int
    start: Position
    """Where `first` starts; empty as long as no new position was taken."""


@dataclass(frozen=True, slots=True)
class PipelineState:
    """Where a lane stands. `committed` is 0 before the first epoch; `open_plan` is planned and not committed."""

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
    """Who holds the lease now (host, pid, run id, launched_by), None when nobody does or it has expired."""
    progress: Json
    """What the holder last said with its heartbeat: phase, rows/s, lag, last error."""
    ended: Position = field(default_factory=dict)
    """Where the last committed epoch ended, which is what sinks hold. Differs from `position` only after a rewind."""
    kept_from: int = 1
    """The first epoch whose row the ledger still has; `committed` + 1 where it has none. Earlier ones are rolled up."""
    restarted: Restart | None = None
    """The last reset; known where a lane is opened, audited or repaired (`LedgerReader.restart`)."""
    droppable: bool = True
    """False: a former holder that may only be paused knows the open plan and could still write it to a sink that does not fence."""


@dataclass(frozen=True, slots=True)
class EpochRow:
    """One epoch as the ledger keeps it. `error` is the last failure of an epoch that was tried more than once."""

    plan: EpochPlan
    generation: int
    committed_at: datetime | None
    counts: Mapping[str, WriteCounts]
    attempts: int
    error: str | None
    repeats: int = 0
    """How many times in a row it failed in the same way."""


@dataclass(frozen=True, slots=True)
class RolledUp:
    """A range of epochs without rows of their own. `windows` sums the counts of history by window and sink."""

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
    """A committed epoch as it is stored, with what its hash chain covers. `linked` says whether that holds."""

    number: int
    window: str | None
    plan: Json
    link: str
    linked: bool


@dataclass(frozen=True, slots=True)
class AuditProgress:
    """How far an audit has checked the lane."""

    number: int
    link: str
