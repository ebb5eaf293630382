"""The asset checks: compare the ledger with the external systems.

Each check returns a result for one sink. The result is None, never passed, if it cannot be known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from headrace.connectors import registry
from headrace.connectors.lazy_session import LazySession
from headrace.connectors.ledger.factory import open_ledger
from headrace.connectors.sink_base import Sink, SinkContext
from headrace.jobs.checks.declared.evaluate import DeclaredChecks
from headrace.jobs.checks.ledger_proof import LedgerProof
from headrace.jobs.checks.ledger_proof import verify_epochs as walk_epochs
from headrace.jobs.planning.compiled_pipeline import node_types
from headrace.jobs.planning.resolution import try_resolving
from headrace.jobs.run.events import CheckResult
from headrace.jobs.run.status import history_complete
from headrace.jobs.spark.session import start_session, stop_session
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import PipelineStateError
from headrace.pipeline.file.loader import PipelineFile
from headrace.pipeline.model import graph
from headrace.pipeline.model.capabilities import Delivery
from headrace.pipeline.protocol import positions
from headrace.pipeline.protocol.epochs import CommitRecord, Json, Phase, SinkKey, digest
from headrace.pipeline.protocol.ledger import Ledger, PipelineState
from headrace.pipeline.protocol.ledger.interventions import skipped_epochs, skipped_ranges

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LANE = "main"


@dataclass(frozen=True, slots=True)
class ContentAuditOptions:
    """How much `content_matches` reads for one sink.

    At most `rows` of its sources, by default those of the setting `audit.sample_rows`, and as many of its
    target; with `seconds` samples of growing size for about so long; with `full` all rows.
    """

    rows: int | None = None
    full: bool = False
    raises: bool = True
    """Raise internal errors. Otherwise they are logged, and the check is not applicable."""
    seconds: float | None = None


def audit(
    file: PipelineFile,
    settings: Settings,
    *,
    sinks: Sequence[str] | None = None,
    spark: SparkSession | None = None,
    all_epochs: bool = False,
    content: ContentAuditOptions | None = None,
) -> list[CheckResult]:
    """Run every check of the named sinks (all if None) against the real systems.

    `content` adds `content_matches`. Takes no lease, so it may run during a stream. It writes only how far it
    has verified the ledger's epochs: the next audit reads those after that point. `all_epochs` reads every
    epoch that has a row. Raises PipelineStateError for a pipeline that never ran.
    """
    file, _ = try_resolving(file, settings)
    ledger = open_ledger(settings)
    state = ledger.state(file.name, LANE)
    if state is None or not state.position:
        msg = f"pipeline `{file.name}` has no epochs in this ledger yet"
        raise PipelineStateError(msg, hint="Start it first: headrace run FILE.")
    names = [name for name in file.model.sinks if sinks is None or name in sinks]
    own = LazySession(lambda: start_session(settings, node_types(file)))
    spark = spark or cast("SparkSession", own)
    try:
        declared = DeclaredChecks(file, ledger, state)
        walk = walk_epochs(ledger, state, _restarts(ledger, state), all_epochs=all_epochs)
        outcome = [
            result
            for name in names
            for result in _sink_checks(file, settings, ledger, state, name, walk, spark, declared)
        ]
        if content is not None:
            outcome += _content(file, settings, ledger, state, names, spark, content)
        return outcome
    finally:
        ledger.close()
        if own.started_session is not None:
            stop_session(own.started_session)


def _content(
    file: PipelineFile,
    settings: Settings,
    ledger: Ledger,
    state: PipelineState,
    names: Sequence[str],
    spark: SparkSession,
    content: ContentAuditOptions,
) -> list[CheckResult]:
    from headrace.jobs.checks.content.audit import ContentAudit

    rows = None if content.full else content.rows or settings.audit.sample_rows
    audit = ContentAudit(file, settings, ledger, state, spark, rows, raises=content.raises)
    try:
        exact = [name for name in names if _is_exact(file, name)]
        return [
            audit.check(name) if content.seconds is None else audit.check_within(name, content.seconds)
            for name in exact
        ]
    finally:
        audit.close()


def _is_exact(file: PipelineFile, name: str) -> bool:
    return registry.sink_class(file.model.sinks[name]).capabilities.delivery is Delivery.EXACTLY_ONCE


def _sink_checks(
    file: PipelineFile,
    settings: Settings,
    ledger: Ledger,
    state: PipelineState,
    name: str,
    walk: LedgerProof,
    spark: SparkSession,
    declared: DeclaredChecks,
) -> Iterator[CheckResult]:
    import pyarrow as pa

    node = file.model.sinks[name]
    if registry.sink_class(node).capabilities.delivery is not Delivery.EXACTLY_ONCE:
        for check in ("exactly_once_epochs", "row_count_matches", "handoff_has_no_gap"):
            yield CheckResult(check, name, None, f"not applicable: a {node.type} sink keeps no record")
        return
    key = SinkKey(state.pipeline, file.name, LANE, name)
    sink = registry.open_sink(
        SinkContext(key, node, settings, pa.schema([]), spark, {"key": graph.key_of(file.model, name)})
    )
    try:
        yield _exactly_once(name, sink, ledger, state, walk)
        yield _count(name, sink)
        yield _handoff(file, state, name)
        yield from declared.evaluate(name, sink)
    finally:
        sink.close()


def _restarts(ledger: Ledger, state: PipelineState) -> set[int]:
    """Return the epochs that may start elsewhere than the previous one ended, after a rewind or a reset."""
    return {
        event["data"].get("epoch")
        for event in ledger.events(state.name, state.lane)
        if event["kind"] in ("rewound", "reset")
    }


def _exactly_once(
    name: str, sink: Sink, ledger: Ledger, state: PipelineState, walk: LedgerProof
) -> CheckResult:
    record = sink.record()
    problems = list(walk.problems)
    problems += [
        (
            f"epoch {event['data']['epoch']} was skipped at this sink on {event['at'][:10]}, so it lacks"
            f" {skipped_ranges(event)}"
        )
        for event in skipped_epochs(ledger.events(state.name, LANE), name)
    ]
    is_empty = record is None and not state.committed and state.open_plan is None
    if record is None and not is_empty:
        problems.append("the sink has no commit record of this pipeline")
    elif record is not None:
        before, state = state.committed, ledger.state(state.name, LANE) or state
        problems += _record_problems(record, state, _allowed_positions(ledger, state, record, before))
    numbers: Json = {
        "ledger_epochs": state.committed,
        "record_epoch": record.epoch if record else None,
        "record_generation": record.generation if record else None,
        "generation": state.generation,
        "open_epoch": state.open_plan.number if state.open_plan else None,
        "problems": len(problems),
        "epochs_read": walk.read,
        "epochs_rolled_up": walk.rolled_up,
    }
    message = f"{state.committed} epochs, gapless, none twice; the sink's record agrees"
    if is_empty:
        message = "no epoch is committed, and the sink has no commit record"
    return CheckResult("exactly_once_epochs", name, not problems, "; ".join(problems[:5]) or message, numbers)


def _allowed_positions(
    ledger: Ledger, state: PipelineState, record: CommitRecord, before: int
) -> dict[int, Json]:
    """Return the end positions that the sink may contain, by epoch.

    These are the last epoch, the open one, and those that a running pipeline committed meanwhile. `before`
    was the last epoch before the commit record was read. `state` is from after it: no sink is written before
    its plan is in the ledger.
    """
    allowed = {state.committed: dict(state.ended)}
    if state.open_plan is not None:
        allowed[state.open_plan.number] = dict(state.open_plan.end)
    if before <= record.epoch < state.committed:
        allowed |= {
            row.plan.number: dict(row.plan.end)
            for row in ledger.epochs(state.name, LANE, record.epoch, record.epoch)
        }
    return allowed


def _record_problems(
    record: CommitRecord, state: PipelineState, allowed: Mapping[int, Json]
) -> Iterator[str]:
    if record.epoch not in allowed:
        yield f"the sink's record is at epoch {record.epoch}, the ledger at {state.committed}"
    elif record.end_digest != digest(allowed[record.epoch]):
        yield f"epoch {record.epoch} ends at another position in the sink's record than in the ledger"
    if record.generation > state.generation:
        yield f"the sink's record has generation {record.generation}, the ledger only {state.generation}"


def _count(name: str, sink: Sink) -> CheckResult:
    result = sink.read_row_count()
    record, rows = result or (None, 0)
    if record is None:
        return CheckResult(
            "row_count_matches", name, None, "not applicable: the sink cannot tell its own rows from others"
        )
    totals, baseline = record.totals, record.baseline
    if baseline is None or totals.inserted is None or totals.deleted is None:
        return CheckResult(
            "row_count_matches",
            name,
            None,
            "not applicable: the sink does not know what it changed",
            {"rows": rows},
        )
    expected = baseline + totals.inserted - totals.deleted
    numbers: Json = {
        "rows": rows,
        "expected": expected,
        "baseline": baseline,
        "inserted": totals.inserted,
        "updated": totals.updated,
        "deleted": totals.deleted,
        "lost": max(0, expected - rows),
        "doubled": max(0, rows - expected),
        "epoch": record.epoch,
    }
    message = (
        f"{rows:,} rows = {baseline:,} at first + {totals.inserted:,} inserted - {totals.deleted:,} deleted"
    )
    if rows != expected:
        difference = "missing" if rows < expected else "too many"
        message = (
            f"{rows:,} rows in the target, {expected:,} acknowledged: {abs(rows - expected):,} {difference}"
        )
    return CheckResult("row_count_matches", name, rows == expected, message, numbers)


def _handoff(file: PipelineFile, state: PipelineState, name: str) -> CheckResult:
    hybrids = [
        source
        for source in graph.upstream_sources(file.model, name)
        if file.model.sources[source].type == "hybrid"
    ]
    if not hybrids:
        return CheckResult("handoff_has_no_gap", name, None, "not applicable: no hybrid source")
    if not history_complete(file, state):
        done = positions.completed_partitions(file.model, state.position)
        return CheckResult(
            "handoff_has_no_gap",
            name,
            None,
            f"not applicable yet: {len(done)} of {len(positions.windows_of(file.model))} windows are in",
        )
    problems: list[str] = []
    numbers: Json = {}
    for source in hybrids:
        position = state.position[source]
        fence, now = (positions.offsets(position.get(part)) for part in ("fence", "stream"))
        first = positions.offsets(position.get("began", position.get("fence")))
        numbers[f"{source}_fence"] = sum(fence.values())
        numbers[f"{source}_offset"] = sum(now.values()) if now else None
        for part, offset in fence.items():
            if now and now.get(part, -1) < offset:
                problems.append(
                    f"{source} partition {part}: the stream is at {now.get(part)}, before the fence {offset}"
                )
            if now and first.get(part, offset) != offset:
                problems.append(
                    f"{source} partition {part}: history holds up to {offset}, the stream began at"
                    f" {first.get(part)}"
                )
    phase = (
        Phase.CATCHING_UP
        if positions.is_catching_up(state.position[source] for source in hybrids)
        else Phase.LIVE
    )
    numbers["phase"] = str(phase)
    message = (
        "; ".join(problems)
        if problems
        else "the stream began exactly where history ends"
        + ("" if phase is Phase.LIVE else "; still catching up")
    )
    return CheckResult("handoff_has_no_gap", name, not problems, message, numbers)
