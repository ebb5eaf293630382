"""What a ledger answers: leases, lane states, epochs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from headrace.pipeline.records import Counts, EpochPlan, Json, Position


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


@dataclass(frozen=True, slots=True)
class SinkRow:
    """A sink as the ledger knows it: `state` is joining, joined, replaying or left; `epoch` the one after which it joined."""

    sink: str
    state: str
    epoch: int


@dataclass(frozen=True, slots=True)
class LaneState:
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
    """Who holds the lease now (host, pid, run id, door), None when nobody does or it has expired."""
    progress: Json
    """What the holder last said with its heartbeat: phase, rows/s, lag, last error."""
    ended: Position = field(default_factory=dict)
    """Where the last committed epoch ended, which is what sinks hold. Differs from `position` only after a rewind."""
    droppable: bool = True
    """False: a former holder that may only be paused knows the open plan and could still write it to a sink that does not fence."""


@dataclass(frozen=True, slots=True)
class EpochRow:
    """One epoch as the ledger keeps it. `error` is the last failure of an epoch that was tried more than once."""

    plan: EpochPlan
    generation: int
    committed_at: datetime | None
    counts: Mapping[str, Counts]
    attempts: int
    error: str | None
