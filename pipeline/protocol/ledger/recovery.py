"""The state to which a lost ledger can be rebuilt: the one that the sinks' records agree on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.pipeline.errors import SinkStateError
from headrace.pipeline.protocol.epochs import CommitRecord, EpochPlan, Position

_HINT = (
    "Restore the ledger from a backup; or start over with empty targets: `headrace reset FILE"
    " --empty-targets`."
)


@dataclass(frozen=True, slots=True)
class RecoveredState:
    """The state of a pipeline according to its sinks. `plan` is the open epoch if only some sinks have it."""

    pipeline: str
    committed: int
    position: Position
    generation: int
    pipeline_hash: str
    plan: EpochPlan | None


def from_records(
    name: str, lane: str, records: Mapping[str, CommitRecord], pipeline_hash: str
) -> RecoveredState:
    """Return the one state that fits all records.

    `pipeline_hash` is the hash of the current file. An open epoch can be finished only by the file that
    planned it. Raise SinkStateError if there is no record, if the records belong to several pipelines, or if
    they do not lead to one state.
    """
    if not records:
        msg = (
            f"no sink of pipeline '{name}' has a commit record, so there is nothing to rebuild a ledger from"
        )
        raise SinkStateError(msg, hint=_HINT)
    for sink, record in records.items():
        if (record.key.name, record.key.lane, record.key.sink) != (name, lane, sink):
            msg = f"its record is that of sink '{record.key.sink}' of pipeline '{record.key.name}'"
            raise SinkStateError(msg, hint=_HINT, node=sink)
    if len(uuids := sorted({record.key.pipeline for record in records.values()})) > 1:
        msg = f"the sinks' records belong to different pipelines named '{name}': {', '.join(uuids)}"
        raise SinkStateError(msg, hint=_HINT)
    newest = max(record.epoch for record in records.values())
    ahead = {sink: record for sink, record in records.items() if record.epoch == newest}
    behind = {sink: record for sink, record in records.items() if record.epoch != newest}
    head = _common_record(ahead)
    generation = max(record.generation for record in records.values())
    if not behind:
        return RecoveredState(
            head.key.pipeline, newest, _whole_end(head), generation, head.pipeline_hash, None
        )
    tail = _common_record(behind)
    stands = ", ".join(f"'{sink}' at {record.epoch}" for sink, record in sorted(records.items()))
    if head.is_registration or tail.epoch != newest - 1 or tail.end_digest != head.start_digest:
        msg = f"the sinks are at different epochs that are not consecutive: {stands}"
        raise SinkStateError(msg, hint=_HINT)
    position = _whole_end(tail)
    plan = head.plan_from(position)
    if plan is None:
        msg = (
            f"epoch {newest} is at some sinks only ({stands}), and its splits of history are too many for"
            " the records"
        )
        raise SinkStateError(msg, hint=_HINT)
    if plan.pipeline_hash != pipeline_hash:
        msg = f"epoch {newest} is at some sinks only ({stands}), and another version of the file planned it"
        raise SinkStateError(
            msg,
            hint=f"Put the file back as it was (its hash was {plan.pipeline_hash}), rebuild, run, then"
            " change it.",
        )
    return RecoveredState(head.key.pipeline, tail.epoch, position, generation, tail.pipeline_hash, plan)


def _whole_end(record: CommitRecord) -> Position:
    """Return the complete position at which the record's epoch ended."""
    if record.end is None:
        msg = (
            f"the record of epoch {record.epoch} has only the digest of its position, which is too large"
            " for a record during history"
        )
        raise SinkStateError(msg, hint=_HINT, node=record.key.sink)
    for source, here in record.end.items():
        if isinstance(here, Mapping) and isinstance(here.get("pins"), Mapping):
            msg = (
                f"the history of source `{source}` was being read, and the handles of its snapshot were"
                " in the lost ledger only"
            )
            raise SinkStateError(msg, hint=_HINT, node=record.key.sink)
    return record.end


def _common_record(records: Mapping[str, CommitRecord]) -> CommitRecord:
    """Return the record that all sinks have in common for one epoch. Raise SinkStateError if they differ."""
    first = next(
        (record for record in records.values() if not record.is_registration), next(iter(records.values()))
    )
    for sink, record in records.items():
        # A sink that registered after the epoch knows only its end.
        same = (
            record.end_digest == first.end_digest
            if record.is_registration
            else _values_of(record) == _values_of(first)
        )
        if not same:
            msg = (
                f"two sinks hold epoch {record.epoch} with different contents: '{first.key.sink}' and"
                f" '{sink}'"
            )
            raise SinkStateError(msg, hint=_HINT, node=sink)
    return first


def _values_of(record: CommitRecord) -> tuple[object, ...]:
    return (
        record.start_digest,
        record.end_digest,
        record.pipeline_hash,
        record.planned_at,
        record.phase,
        record.window,
    )
