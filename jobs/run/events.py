"""Events that a run publishes, and its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from headrace.pipeline.errors import HeadraceError
from headrace.pipeline.protocol.epochs import EpochPlan, Json, Phase, WriteCounts, largest_row_count


class Until(StrEnum):
    """When a run ends by itself."""

    HISTORY = "history"
    """The history (or the selected partitions) is complete. The unbounded source is never read."""
    CAUGHT_UP = "caught-up"
    """History is complete and the stream has reached the end that the unbounded source had at some look."""
    FOREVER = "forever"
    """Only when stopped."""


@dataclass(frozen=True, slots=True)
class EpochCommitted:
    """An epoch is committed. `steps` are seconds by step; `backlog` are unread offsets, None if unknown."""

    plan: EpochPlan
    counts: Mapping[str, WriteCounts]
    steps: Mapping[str, float]
    backlog: int | None = None
    rejected: Mapping[str, int] = field(default_factory=dict)
    """Rejected rows by node with dead letters."""

    @property
    def largest_rows(self) -> int:
        """Rows of the sink that received most."""
        return largest_row_count(self.counts)


@dataclass(frozen=True, slots=True)
class PhaseChanged:
    """The pipeline enters a phase. `detail` has figures for people, such as the handoff position."""

    phase: Phase
    detail: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PartitionCompleted:
    """A partition of history is complete at every sink. `rows` by sink, of the epochs of this run."""

    window: str
    rows: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class RunMessage:
    """A message for people, such as a retry with its reason."""

    message: str
    level: str = "info"


@dataclass(frozen=True, slots=True)
class EpochStarted:
    """An epoch is in the ledger, or is tried `again`, in this run or after an earlier one."""

    plan: EpochPlan
    again: bool = False


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """An attempt to write the open epoch failed."""

    error: HeadraceError


@dataclass(frozen=True, slots=True)
class RunFailed:
    """The run ends with an error."""

    error: Exception


@dataclass(frozen=True, slots=True)
class LagMeasured:
    """How many offsets of the stream are unread, by source and partition."""

    lags: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class StreamIdle:
    """The stream has no new rows that can be read. `backlog` is None if unknown."""

    backlog: int | None


@dataclass(frozen=True, slots=True)
class StreamStalled:
    """An open transaction keeps the stream from being read. An empty message: no longer."""

    message: str


@dataclass(frozen=True, slots=True)
class CallsPending:
    """What the run waits for outside changed. `started` are new external calls of tasks, by node."""

    message: str
    started: Mapping[str, str]


Event = EpochCommitted | PhaseChanged | PartitionCompleted | RunMessage
"""What the caller's listener receives."""
Listener = Callable[[Event], None]
RunEvent = (
    Event | EpochStarted | AttemptFailed | RunFailed | LagMeasured | StreamIdle | StreamStalled | CallsPending
)
"""What the subscribers inside a run receive."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run did. `stop_reason` is completed, signal, max_run_time, or the stop or pause requested."""

    name: str
    pipeline: str
    stop_reason: str
    epochs: int
    first_epoch: int | None
    last_epoch: int
    counts: Mapping[str, WriteCounts]
    phases: Mapping[Phase, PhaseFigures]
    history_complete: bool
    caught_up: bool
    rejected: Mapping[str, int] = field(default_factory=dict)
    """Rejected rows by node with dead letters."""


@dataclass(frozen=True, slots=True)
class PhaseFigures:
    """Epochs, rows read into sinks (largest sink), and seconds of one phase in one run."""

    epochs: int
    rows: int
    seconds: float


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One asset check of one sink.

    `passed` is None if the check does not apply. `numbers` are shown to people. A failed check of severity
    `warning` fails nothing else.
    """

    name: str
    sink: str
    passed: bool | None
    message: str
    numbers: Json = field(default_factory=dict)
    severity: Literal["error", "warning"] = "error"

    @property
    def is_error(self) -> bool:
        """Whether the check failed and is not only a warning."""
        return self.passed is False and self.severity == "error"
