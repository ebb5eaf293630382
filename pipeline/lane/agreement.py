"""Whether a sink's record and the ledger agree. Absence is never a go-ahead."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from headrace.pipeline.errors import RecordError
from headrace.pipeline.ledger import EpochRow, LaneState, SinkRow
from headrace.pipeline.records import EpochPlan, Position, Record


class Verdict(StrEnum):
    """What a record says beside the ledger's committed epoch N."""

    LEVEL = "level"
    """It holds N."""
    AHEAD = "ahead"
    """It holds N+1, which is planned and open: this sink is skipped."""
    MISSING = "missing"
    OLDER = "older"
    NEWER = "newer"
    FOREIGN = "foreign"
    DIFFERENT = "different"
    """It holds N or N+1 with other positions or from another pipeline file."""
    UNKNOWN = "unknown"
    """It holds a record of this pipeline, and the ledger never heard of the sink."""


AGREES = (Verdict.LEVEL, Verdict.AHEAD)


@dataclass(frozen=True, slots=True)
class Finding:
    """One sink's verdict, with what to tell the user where it is not an agreement."""

    sink: str
    verdict: Verdict
    record: Record | None
    message: str = ""
    hint: str = ""


def judge(state: LaneState, last: EpochRow | None, row: SinkRow, record: Record | None, file: str) -> Finding:
    """The verdict on a sink that the ledger calls joined. `last` is the committed epoch N, where the ledger has it."""
    committed, plan = state.committed, state.open_plan
    stands = f"the ledger stands at epoch {committed}" + (f" with epoch {plan.number} open" if plan else "")

    def finding(verdict: Verdict, message: str, hint: str) -> Finding:
        return Finding(row.sink, verdict, record, f"{message}, but {stands}", hint)

    if record is None:
        return finding(Verdict.MISSING, "the target holds no record of this pipeline", _mend(file, row.sink, row.epoch + 1))
    if record.key.pipeline != state.pipeline:
        return finding(
            Verdict.FOREIGN, f"the record belongs to pipeline {record.key.pipeline}, this one is {state.pipeline}", _adopt(file, row.sink)
        )
    if record.generation > state.generation or record.epoch > committed + (plan is not None):
        return finding(
            Verdict.NEWER, f"the sink holds epoch {record.epoch}, written by generation {record.generation}", _older_ledger(file)
        )
    if record.epoch < committed:
        why = "a replay was interrupted: " if row.state == "replaying" else ""
        return finding(Verdict.OLDER, f"{why}the sink holds epoch {record.epoch}", _mend(file, row.sink, record.epoch + 1))
    if record.epoch == committed:
        agreed = record.end == state.ended if record.plan is None or last is None else same(record, last.plan)
    else:
        agreed = plan is not None and same(record, plan)
    if not agreed:
        message = (
            f"the sink holds epoch {record.epoch} from {_spell(record.start)} to {_spell(record.end)} by file {record.pipeline_hash[:12]}"
        )
        return finding(Verdict.DIFFERENT, message, _mend(file, row.sink, record.epoch))
    return Finding(row.sink, Verdict.LEVEL if record.epoch == committed else Verdict.AHEAD, record)


def judge_newcomer(state: LaneState, sink: str, row: SinkRow | None, record: Record | None, foreign: Record | None, file: str) -> Finding:
    """The verdict on a sink that is about to join: LEVEL where it may."""
    if foreign is not None:
        message = f"the target holds a record of another pipeline named '{state.name}' ({foreign.key.pipeline}, epoch {foreign.epoch})"
        hint = f"If its ledger was lost, `headrace adopt {file} --rebuild` rebuilds it from the records. {_adopt(file, sink)}"
        return Finding(sink, Verdict.FOREIGN, foreign, message, hint)
    if record is not None:
        message = f"the target holds epoch {record.epoch} of this pipeline, but the ledger stands at epoch {state.committed}"
        if record.epoch > state.committed or record.generation > state.generation:
            return Finding(sink, Verdict.NEWER, record, message, _older_ledger(file))
        if row is None:
            return Finding(sink, Verdict.UNKNOWN, record, f"{message} and does not know the sink", _adopt(file, sink))
    return Finding(sink, Verdict.LEVEL, record)


def complaint(findings: list[Finding]) -> RecordError:
    """One error for all that disagree."""
    if len(findings) == 1:
        return RecordError(findings[0].message, hint=findings[0].hint, node=findings[0].sink)
    return RecordError("\n".join(str(RecordError(one.message, hint=one.hint, node=one.sink)) for one in findings))


def same(record: Record, plan: EpochPlan) -> bool:
    """Whether the record is of this very epoch."""
    return (record.start, record.end, record.pipeline_hash) == (plan.start, plan.end, plan.pipeline_hash)


def _spell(position: Position) -> str:
    text = str(dict(position))
    return text if len(text) <= 120 else f"{text[:117]}..."


def _mend(file: str, sink: str, first: int) -> str:
    return f"`headrace replay {file} --from {first} --sink {sink}` writes epochs {first} and later again; or, {_adopt(file, sink, begin=False)}"


def _adopt(file: str, sink: str, *, begin: bool = True) -> str:
    head = "If" if begin else "if"
    return f"{head} the target is right as it is, `headrace adopt {file} --sink {sink}` takes it as the baseline."


def _older_ledger(file: str) -> str:
    return (
        "The ledger is older than the sinks (restored from a backup?). Restore the newest one; or move it away and"
        f" rebuild it from the sinks' records with `headrace adopt {file} --rebuild`."
    )
