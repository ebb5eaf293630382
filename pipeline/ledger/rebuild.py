"""What a lost ledger can be rebuilt to: the state that the sinks' records agree on, or a refusal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.pipeline.errors import RecordError
from headrace.pipeline.records import EpochPlan, Position, Record

_HINT = "Restore the ledger from a backup, or begin anew: an empty target, a new pipeline name, and history from the start."


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A lane as its sinks know it. `plan` is the open epoch, where only some sinks hold it."""

    pipeline: str
    committed: int
    position: Position
    generation: int
    pipeline_hash: str
    plan: EpochPlan | None


def from_records(name: str, lane: str, records: Mapping[str, Record], pipeline_hash: str) -> Rebuilt:
    """The one state that all records fit. `pipeline_hash` is the file's; an open epoch can be finished only by its own.

    Raises RecordError where the records are none, belong to several pipelines, or cannot be brought level.
    """
    if not records:
        msg = f"no sink of lane '{lane}' of pipeline '{name}' holds a record, so there is nothing to rebuild a ledger from"
        raise RecordError(msg, hint=_HINT)
    for sink, record in records.items():
        if (record.key.name, record.key.lane, record.key.sink) != (name, lane, sink):
            msg = f"its record is that of sink '{record.key.sink}', lane '{record.key.lane}', pipeline '{record.key.name}'"
            raise RecordError(msg, hint=_HINT, node=sink)
    if len(uuids := sorted({record.key.pipeline for record in records.values()})) > 1:
        msg = f"the sinks' records belong to different pipelines named '{name}': {', '.join(uuids)}"
        raise RecordError(msg, hint=_HINT)
    newest = max(record.epoch for record in records.values())
    ahead = {sink: record for sink, record in records.items() if record.epoch == newest}
    behind = {sink: record for sink, record in records.items() if record.epoch != newest}
    head = _one(ahead)
    generation = max(record.generation for record in records.values())
    if not behind:
        return Rebuilt(head.key.pipeline, newest, head.end, generation, head.pipeline_hash, None)
    tail, plan = _one(behind), head.plan
    stands = ", ".join(f"'{sink}' at {record.epoch}" for sink, record in sorted(records.items()))
    if plan is None or tail.epoch != newest - 1 or tail.end != head.start:
        msg = f"the sinks stand at different epochs that do not follow on each other: {stands}"
        raise RecordError(msg, hint=_HINT)
    if plan.pipeline_hash != pipeline_hash:
        msg = f"epoch {newest} is at some sinks only ({stands}), and another version of the file planned it"
        raise RecordError(msg, hint=f"Put the file back as it was (its hash was {plan.pipeline_hash}), rebuild, run, then change it.")
    return Rebuilt(head.key.pipeline, tail.epoch, tail.end, generation, tail.pipeline_hash, plan)


def _one(records: Mapping[str, Record]) -> Record:
    """The records' common statement about one epoch."""
    written = [record for record in records.values() if record.plan is not None]
    first = next(iter(written or records.values()))
    for sink, record in records.items():
        # A sink that joined after the epoch knows its end only.
        same = record.end == first.end if record.plan is None else record.plan == first.plan
        if not same:
            msg = f"two sinks hold epoch {record.epoch} with different contents: '{first.key.sink}' and '{sink}'"
            raise RecordError(msg, hint=_HINT, node=sink)
    return first
