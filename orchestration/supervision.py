"""Whether a stream is to be started now: a decision from what the ledger and the last run say, without Dagster's machinery."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum

from headrace.pipeline.protocol.ledger import PipelineState

MAX_STARTS = 6
"""Failed starts without a committed epoch between them, before the supervisor gives up."""
BLOCKED_STARTS = 3
"""Failed starts after which the supervisor leaves a blocked epoch alone: what blocked it may have passed since."""
FIRST_WAIT, LONGEST_WAIT = 15.0, 600.0
LOST_AFTER = 300.0
"""Seconds that a run may count as running without holding the lane: enough for any start, so it is dead after that."""


class Ended(StrEnum):
    """How a stream's last run stands."""

    RUNNING = "running"
    WELL = "well"
    BADLY = "badly"
    BY_HAND = "by hand"


@dataclass(frozen=True, slots=True)
class LastRun:
    """The newest run of the stream's job. `since` is when it came to stand as it does, in epoch seconds."""

    run_id: str
    ended: Ended
    since: float


@dataclass(frozen=True, slots=True)
class Memory:
    """What the supervisor remembers between ticks, in the sensor's cursor.

    `failures` counts runs that failed one after the other at `committed` epochs; `counted` is the last one of them.
    """

    committed: int = 0
    failures: int = 0
    counted: str = ""
    unheld_since: float = 0.0

    def dump(self) -> str:
        """As the cursor keeps it."""
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, cursor: str | None) -> Memory:
        """The inverse of `dump`; a fresh memory for a cursor that was reset."""
        found = json.loads(cursor) if cursor else {}
        return cls(**{each.name: found[each.name] for each in fields(cls) if each.name in found})


class Act(StrEnum):
    """What the sensor does with a tick."""

    WAIT = "wait"
    START = "start"
    BURY = "bury"
    """Mark the last run as failed: nothing holds the lane any more, so its process is gone."""
    GIVE_UP = "give up"


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do, and why, in a sentence for people."""

    act: Act
    why: str
    memory: Memory


def decide(state: PipelineState | None, *, complete: bool, last: LastRun | None, memory: Memory, now: float, blocked: str = "") -> Decision:
    """Start the stream where history is complete and nobody holds the lane; after failures more and more seldom.

    `complete` is the ledger's word that all history is in every sink. A run that a person ended stays ended. `blocked` is why the
    open epoch is blocked, with the next command; a stream that has failed `BLOCKED_STARTS` times then waits for a person.
    """
    committed = state.committed if state else 0
    if committed > memory.committed:
        memory = Memory(committed=committed)
    if not complete:
        return Decision(Act.WAIT, "the history is not complete", memory)
    if state and state.holder:
        held = replace(memory, unheld_since=0.0)
        return Decision(Act.WAIT, f"running: {_in_words(state)}", held)
    if last is None:
        return Decision(Act.START, "the history is complete, and the stream has not run yet", memory)
    return _after(last, memory, now, blocked)


def _after(last: LastRun, memory: Memory, now: float, blocked: str) -> Decision:
    """What follows on a run that does not hold the lane."""
    match last.ended:
        case Ended.RUNNING:
            return _running(last, memory, now)
        case Ended.BY_HAND:
            why = f"run {last.run_id[:8]} was terminated by hand: launch the job by hand when the stream is to go on"
            return Decision(Act.WAIT, why, replace(memory, unheld_since=0.0))
        case Ended.WELL:
            memory = replace(memory, failures=0, counted="", unheld_since=0.0)
            return Decision(Act.START, f"run {last.run_id[:8]} ended well, the stream goes on", memory)
        case Ended.BADLY:
            return _failed(last, memory, now, blocked)


def _running(last: LastRun, memory: Memory, now: float) -> Decision:
    """A run without the lane is starting, or dead."""
    memory = replace(memory, unheld_since=memory.unheld_since or now)
    unheld = now - max(memory.unheld_since, last.since)
    if unheld < LOST_AFTER:
        return Decision(Act.WAIT, f"run {last.run_id[:8]} has not opened the lane yet", memory)
    why = f"run {last.run_id[:8]} counts as running, but has not held the lane for {unheld:.0f} s: its process is gone"
    return Decision(Act.BURY, why, replace(memory, unheld_since=0.0))


def _failed(last: LastRun, memory: Memory, now: float, blocked: str) -> Decision:
    if memory.counted != last.run_id:
        memory = replace(memory, failures=memory.failures + 1, counted=last.run_id, unheld_since=0.0)
    if blocked and memory.failures >= BLOCKED_STARTS:
        why = f"gave up: {memory.failures} runs failed, the last one is {last.run_id[:8]}. {blocked}"
        return Decision(Act.GIVE_UP, why, memory)
    if memory.failures >= MAX_STARTS:
        why = (
            f"gave up: {memory.failures} runs failed without an epoch between them, the last one is {last.run_id[:8]}."
            " See its error, correct the cause, then launch the job by hand or reset this sensor's cursor"
        )
        return Decision(Act.GIVE_UP, why, memory)
    wait = min(FIRST_WAIT * 2 ** (memory.failures - 1), LONGEST_WAIT)
    left = last.since + wait - now
    if left > 0:
        return Decision(
            Act.WAIT, f"run {last.run_id[:8]} failed (failure {memory.failures} of {MAX_STARTS}); next start in {left:.0f} s", memory
        )
    return Decision(Act.START, f"again after run {last.run_id[:8]} failed (failure {memory.failures} of {MAX_STARTS})", memory)


def _in_words(state: PipelineState) -> str:
    holder = state.holder or {}
    shown = ", ".join(f"{key} {holder[key]}" for key in ("launched_by", "host", "pid") if holder.get(key))
    phase = state.progress.get("phase")
    return f"epoch {state.committed}" + (f", {phase}" if phase else "") + (f" ({shown})" if shown else "")
