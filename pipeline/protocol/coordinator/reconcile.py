"""Compares the commit record of a sink with the ledger. A missing record never counts as agreement."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from headrace.pipeline.errors import SinkStateError
from headrace.pipeline.protocol.epochs import CommitRecord, digest
from headrace.pipeline.protocol.ledger import EpochRow, PipelineState, SinkRow


class ReconcileStatus(StrEnum):
    """The result of comparing a commit record with the ledger's committed epoch N."""

    LEVEL = "level"
    """The record is of epoch N."""
    AHEAD = "ahead"
    """The record is of N+1, which is planned and open. This sink is skipped."""
    MISSING = "missing"
    OLDER = "older"
    NEWER = "newer"
    FOREIGN = "foreign"
    DIFFERENT = "different"
    """The record is of N or N+1 with other positions or from another pipeline file."""
    UNKNOWN = "unknown"
    """The record is of this pipeline, but the ledger does not know the sink."""


AGREES = (ReconcileStatus.LEVEL, ReconcileStatus.AHEAD)


@dataclass(frozen=True, slots=True)
class ReconcileResult:
    """The status of one sink, with a message for the user if it does not agree with the ledger."""

    sink: str
    status: ReconcileStatus
    record: CommitRecord | None
    message: str = ""
    hint: str = ""


def reconcile_sink(
    state: PipelineState, last: EpochRow | None, row: SinkRow, record: CommitRecord | None, file: str
) -> ReconcileResult:
    """Return the status of a sink that has joined. `last` is the committed epoch N if the ledger has it."""
    committed, plan = state.committed, state.open_plan
    stands = f"the ledger is at epoch {committed}" + (f" with epoch {plan.number} open" if plan else "")

    def finding(verdict: ReconcileStatus, message: str, hint: str) -> ReconcileResult:
        return ReconcileResult(row.sink, verdict, record, f"{message}, but {stands}", hint)

    if record is None:
        return finding(
            ReconcileStatus.MISSING,
            "the target holds no record of this pipeline",
            _repair_hint(state, file, row.sink, row.epoch + 1),
        )
    if record.key.pipeline != state.pipeline:
        return finding(
            ReconcileStatus.FOREIGN,
            f"the record belongs to pipeline {record.key.pipeline}, this one is {state.pipeline}",
            _adopt(file, row.sink),
        )
    if record.generation > state.generation or record.epoch > committed + (plan is not None):
        return finding(
            ReconcileStatus.NEWER,
            f"the sink holds epoch {record.epoch}, written by generation {record.generation}",
            _older_ledger(file),
        )
    stale = is_before_restart(state, record)
    if stale or record.epoch < committed:
        why = "a replay was interrupted: " if row.state == "replaying" else ""
        when = " from before the last reset" if stale else ""
        hint = (
            _restart(state, file, row.sink)
            if stale
            else _repair_hint(state, file, row.sink, record.epoch + 1)
        )
        return finding(ReconcileStatus.OLDER, f"{why}the sink holds epoch {record.epoch}{when}", hint)
    if record.epoch == committed:
        agreed = (
            record.end_digest == digest(state.ended)
            if record.is_registration or last is None
            else record.is_of(last.plan)
        )
    else:
        agreed = plan is not None and record.is_of(plan)
    if not agreed:
        message = (
            f"the sink holds epoch {record.epoch} up to {_spell(record)} by file {record.pipeline_hash[:12]}"
        )
        return finding(ReconcileStatus.DIFFERENT, message, _repair_hint(state, file, row.sink, record.epoch))
    return ReconcileResult(
        row.sink, ReconcileStatus.LEVEL if record.epoch == committed else ReconcileStatus.AHEAD, record
    )


def is_before_restart(state: PipelineState, record: CommitRecord) -> bool:
    """Return whether a record was written before the pipeline was reset.

    The target then has rows of an earlier start.
    """
    again = state.restarted
    if again is None or again.first <= 1 or record.epoch >= again.first:
        return False
    return not (
        record.epoch == again.first - 1
        and record.is_registration
        and record.end_digest == digest(again.start)
    )


def reconcile_new_sink(
    state: PipelineState,
    last: EpochRow | None,
    sink: str,
    row: SinkRow | None,
    record: CommitRecord | None,
    foreign: CommitRecord | None,
    file: str,
) -> ReconcileResult:
    """Return the status of a sink that is about to register. LEVEL if it may.

    A sink that left the file and came back lacks the epochs in between. It is LEVEL only if there were none.
    """
    if foreign is not None:
        message = (
            f"the target holds a record of another pipeline named '{state.name}'"
            f" ({foreign.key.pipeline}, epoch {foreign.epoch})"
        )
        lost = f"If its ledger was lost, `headrace recover {file}` rebuilds it from the records."
        over = f"`headrace reset {file} --empty-targets` starts over with an empty target."
        hint = f"{lost} {_adopt(file, sink) if state.committed else over}"
        return ReconcileResult(sink, ReconcileStatus.FOREIGN, foreign, message, hint)
    if record is not None:
        message = (
            f"the target holds epoch {record.epoch} of this pipeline, but the ledger is at epoch"
            f" {state.committed}"
        )
        if record.epoch > state.committed or record.generation > state.generation:
            return ReconcileResult(sink, ReconcileStatus.NEWER, record, message, _older_ledger(file))
        if row is None:
            return ReconcileResult(
                sink,
                ReconcileStatus.UNKNOWN,
                record,
                f"{message} and does not know the sink",
                _adopt(file, sink),
            )
    if row is not None and row.state == "left":
        return _judge_return(state, last, row, record, file)
    return ReconcileResult(sink, ReconcileStatus.LEVEL, record)


def _judge_return(
    state: PipelineState, last: EpochRow | None, row: SinkRow, record: CommitRecord | None, file: str
) -> ReconcileResult:
    """Return the status of a sink that left the file and is in it again. No epoch is open."""
    finding = reconcile_sink(state, last, row, record, file)
    if finding.status is not ReconcileStatus.OLDER or record is None or is_before_restart(state, record):
        return finding
    first, committed = record.epoch + 1, state.committed
    epochs = f"epoch {first}" if first == committed else f"epochs {first} to {committed}"
    message = (
        f"the sink was not in the file during {epochs}: it holds epoch {record.epoch}, and the ledger"
        f" is at epoch {committed}"
    )
    hint = (
        f"`headrace replay {file} --sink {row.sink} --from {first}` writes {epochs} to it; or,"
        f" {_adopt(file, row.sink, begin=False)}"
    )
    return ReconcileResult(row.sink, ReconcileStatus.OLDER, record, message, hint)


def sink_state_error(findings: list[ReconcileResult]) -> SinkStateError:
    """Return one error for all sinks that disagree."""
    if len(findings) == 1:
        return SinkStateError(findings[0].message, hint=findings[0].hint, node=findings[0].sink)
    return SinkStateError(
        "\n".join(str(SinkStateError(one.message, hint=one.hint, node=one.sink)) for one in findings)
    )


def _spell(record: CommitRecord) -> str:
    text = f"a position with digest {record.end_digest}" if record.end is None else str(dict(record.end))
    return text if len(text) <= 120 else f"{text[:117]}..."


def _restart(state: PipelineState, file: str, sink: str) -> str:
    """Return the hint for a target with rows from before a reset.

    It is emptied, and gets the epochs since then.
    """
    assert state.restarted is not None  # noqa: S101
    first = state.restarted.first
    if state.kept_from > first:
        return (
            f"Epochs before {state.kept_from} are rolled up (setting `ledger.keep_epochs`)."
            f" {_adopt(file, sink)} Else {reset_hint(file)}"
        )
    again = (
        f"headrace replay {file} --sink {sink} --from {first}"
        if first <= state.committed
        else f"headrace accept-target {file} --sink {sink}"
    )
    return f"Remove all rows of the target, then `{again}`: epochs before {first} are from before the reset."


def _repair_hint(state: PipelineState, file: str, sink: str, first: int) -> str:
    if state.restarted is not None and first < state.restarted.first:
        return _restart(state, file, sink)
    if first > state.committed:
        return f"No epoch is missing there: {_adopt(file, sink, begin=False)}"
    if first < state.kept_from:
        kept = (
            f"Epochs before {state.kept_from} are rolled up (setting `ledger.keep_epochs`), so {first}"
            " cannot be replayed."
        )
        return f"{kept} {_adopt(file, sink)} Else {reset_hint(file)}"
    return (
        f"`headrace replay {file} --sink {sink} --from {first}` writes epochs {first} and later again;"
        f" or, {_adopt(file, sink, begin=False)}"
    )


def _adopt(file: str, sink: str, *, begin: bool = True) -> str:
    head = "If" if begin else "if"
    return (
        f"{head} the target is right as it is, `headrace accept-target {file} --sink {sink}` takes it as"
        " the baseline."
    )


def reset_hint(file: str) -> str:
    """Return the hint for a sink that lacks epochs which are no longer in the ledger."""
    return f"`headrace reset {file}` starts the pipeline over with a new snapshot."


def _older_ledger(file: str) -> str:
    return (
        "The ledger is older than the sinks (restored from a backup?). Restore the newest one; or rebuild it"
        f" from the sinks' records with `headrace recover {file}`."
    )
