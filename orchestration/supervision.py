"""Decides whether to start a stream, from the ledger and the last run, without Dagster's API."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum

from headrace.pipeline.protocol.ledger import PipelineState

MAX_STARTS = 6
"""Failed starts without a committed epoch between them, after which the supervisor gives up."""
BLOCKED_STARTS = 3
"""Failed starts after which the supervisor gives up a blocked epoch.

Before that, the cause may pass by itself.
"""
FIRST_WAIT, LONGEST_WAIT = 15.0, 600.0
LOST_AFTER = 300.0
"""Seconds that a run can be active without the lease.

Any start takes less, so after that its process is dead.
"""


class LastRunStatus(StrEnum):
    """The status of a stream's last run."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "well"
    FAILED = "badly"
    CANCELED = "by hand"


@dataclass(frozen=True, slots=True)
class LastRun:
    """The newest run of the stream's job. `since` is when it got its status, in epoch seconds."""

    run_id: str
    status: LastRunStatus
    since: float


@dataclass(frozen=True, slots=True)
class SupervisorMemory:
    """State of the supervisor between ticks, stored in the sensor's cursor.

    `failures` counts consecutive failed runs since epoch `committed`. `counted` is the last of them.
    """

    committed: int = 0
    failures: int = 0
    counted: str = ""
    unheld_since: float = 0.0

    def dump(self) -> str:
        """Return the state as a cursor."""
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, cursor: str | None) -> SupervisorMemory:
        """Return the state in a cursor. A cursor that was reset gives an empty state."""
        values = json.loads(cursor) if cursor else {}
        return cls(**{entry.name: values[entry.name] for entry in fields(cls) if entry.name in values})


class SupervisorAction(StrEnum):
    """The action of the sensor in a tick."""

    WAIT = "wait"
    START = "start"
    MARK_FAILED = "bury"
    """Mark the last run as failed: it lost its lease, so its process has ended."""
    GIVE_UP = "give up"


@dataclass(frozen=True, slots=True)
class SupervisorDecision:
    """The action, and its reason as a sentence for people."""

    action: SupervisorAction
    reason: str
    memory: SupervisorMemory


def decide_action(
    state: PipelineState | None,
    *,
    complete: bool,
    last: LastRun | None,
    memory: SupervisorMemory,
    now: float,
    blocked: str = "",
) -> SupervisorDecision:
    """Start the stream if history is complete and no run has the lease. Wait longer after each failure.

    `complete` means that all history is in every sink, by the ledger. A run that a person ended is not
    restarted. `blocked` is why the open epoch is blocked, with the next command. A stream that has failed
    `BLOCKED_STARTS` times then waits for a person.
    """
    committed = state.committed if state else 0
    if committed > memory.committed:
        memory = SupervisorMemory(committed=committed)
    if state and state.request and state.request.is_pause:
        reason = f"paused {state.request}. `headrace resume` ends the pause"
        return SupervisorDecision(SupervisorAction.WAIT, reason, replace(memory, unheld_since=0.0))
    if not complete:
        return SupervisorDecision(SupervisorAction.WAIT, "the history is not complete", memory)
    if state and state.holder:
        updated = replace(memory, unheld_since=0.0)
        return SupervisorDecision(SupervisorAction.WAIT, f"running: {_describe_state(state)}", updated)
    if last is None:
        return SupervisorDecision(
            SupervisorAction.START, "the history is complete, and the stream has not run yet", memory
        )
    return _decide_after_run(last, memory, now, blocked)


def _decide_after_run(
    last: LastRun, memory: SupervisorMemory, now: float, blocked: str
) -> SupervisorDecision:
    """Decide after a run that does not have the lease."""
    match last.status:
        case LastRunStatus.QUEUED:
            reason = (
                f"run {last.run_id[:8]} is queued: it starts when the pipeline's pool and the limits of the"
                " instance admit it"
            )
            return SupervisorDecision(SupervisorAction.WAIT, reason, replace(memory, unheld_since=0.0))
        case LastRunStatus.RUNNING:
            return _decide_while_running(last, memory, now)
        case LastRunStatus.CANCELED:
            reason = (
                f"run {last.run_id[:8]} was terminated by hand: launch the job by hand to continue the stream"
            )
            return SupervisorDecision(SupervisorAction.WAIT, reason, replace(memory, unheld_since=0.0))
        case LastRunStatus.SUCCEEDED:
            memory = replace(memory, failures=0, counted="", unheld_since=0.0)
            return SupervisorDecision(
                SupervisorAction.START, f"run {last.run_id[:8]} succeeded, the stream goes on", memory
            )
        case LastRunStatus.FAILED:
            return _decide_after_failure(last, memory, now, blocked)


def _decide_while_running(last: LastRun, memory: SupervisorMemory, now: float) -> SupervisorDecision:
    """Decide about a running run without the lease. It is starting, or dead."""
    memory = replace(memory, unheld_since=memory.unheld_since or now)
    unheld = now - max(memory.unheld_since, last.since)
    if unheld < LOST_AFTER:
        return SupervisorDecision(
            SupervisorAction.WAIT, f"run {last.run_id[:8]} has not acquired the lease yet", memory
        )
    reason = (
        f"run {last.run_id[:8]} counts as running, but has not had the lease for {unheld:.0f} s: its"
        " process has ended"
    )
    return SupervisorDecision(SupervisorAction.MARK_FAILED, reason, replace(memory, unheld_since=0.0))


def _decide_after_failure(
    last: LastRun, memory: SupervisorMemory, now: float, blocked: str
) -> SupervisorDecision:
    if memory.counted != last.run_id:
        memory = replace(memory, failures=memory.failures + 1, counted=last.run_id, unheld_since=0.0)
    if blocked and memory.failures >= BLOCKED_STARTS:
        reason = f"gave up: {memory.failures} runs failed, the last one is {last.run_id[:8]}. {blocked}"
        return SupervisorDecision(SupervisorAction.GIVE_UP, reason, memory)
    if memory.failures >= MAX_STARTS:
        reason = (
            f"gave up: {memory.failures} runs failed without an epoch between them, the last one is"
            f" {last.run_id[:8]}."
            " See its error, correct the cause, then launch the job by hand or reset this sensor's cursor"
        )
        return SupervisorDecision(SupervisorAction.GIVE_UP, reason, memory)
    wait = min(FIRST_WAIT * 2 ** (memory.failures - 1), LONGEST_WAIT)
    remaining = last.since + wait - now
    if remaining > 0:
        return SupervisorDecision(
            SupervisorAction.WAIT,
            f"run {last.run_id[:8]} failed (failure {memory.failures} of {MAX_STARTS}); next start in"
            f" {remaining:.0f} s",
            memory,
        )
    return SupervisorDecision(
        SupervisorAction.START,
        f"again after run {last.run_id[:8]} failed (failure {memory.failures} of {MAX_STARTS})",
        memory,
    )


def _describe_state(state: PipelineState) -> str:
    owner = state.holder or {}
    details = ", ".join(f"{key} {owner[key]}" for key in ("launched_by", "host", "pid") if owner.get(key))
    phase = state.progress.get("phase")
    return f"epoch {state.committed}" + (f", {phase}" if phase else "") + (f" ({details})" if details else "")
