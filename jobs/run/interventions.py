"""Interventions: rewind to an earlier epoch, skip an open epoch, reset a pipeline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from headrace.connectors import registry
from headrace.connectors.ledger.factory import open_ledger
from headrace.jobs.planning.compiled_pipeline import PipelineSink
from headrace.jobs.planning.resolution import resolve_file
from headrace.jobs.run.pipeline_run import LANE, PipelineRun
from headrace.jobs.sources.pipeline_source import create_pipeline_sources
from headrace.jobs.sources.retention import RetentionCheck
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import GuaranteeError, PipelineStateError, UserError
from headrace.pipeline.file.loader import PipelineFile
from headrace.pipeline.model import graph
from headrace.pipeline.model.capabilities import Delivery
from headrace.pipeline.protocol import positions
from headrace.pipeline.protocol.epochs import Json, Position
from headrace.pipeline.protocol.ledger import Lease, Ledger, PipelineState, describe_launcher
from headrace.pipeline.protocol.ledger.interventions import skipped_ranges

TTL = 60.0


class TargetHandling(StrEnum):
    """What a reset does with the target of a sink."""

    KEPT = "kept"
    EMPTIED = "emptied"
    EMPTY = "empty"
    """It must have no rows of this pipeline: it cannot be emptied, or is kept and has no key."""


_TARGET_TEXTS = {
    TargetHandling.KEPT: "its target is kept",
    TargetHandling.EMPTIED: "all rows of its target are removed",
    TargetHandling.EMPTY: "its target must have no rows of this pipeline; Headrace removes none there",
}


@dataclass(frozen=True, slots=True)
class Exit:
    """What an intervention changes, or would change, in sentences."""

    changes: tuple[str, ...]


def rewind(file: PipelineFile, settings: Settings, *, to: str, dry_run: bool = False) -> Exit:
    """Let the next epoch start where an earlier one ended: stream rows after it are read and written again.

    `to` is an epoch or an ISO time (UTC without an offset): the last epoch committed by then. Raise
    PipelineStateError for a position in the history, GuaranteeError for sinks without a key, RetentionError
    where the topic no longer has the rows, TargetError where it was deleted and created again.
    """
    file = resolve_file(file, settings)
    with _ledger(file, settings) as ledger:
        _state(ledger, file)  # before the lease, which would register a pipeline that never ran
        _check_keyed(file)
        with nullcontext() if dry_run else hold_lease(ledger, file, "rewind") as lease:
            state = _state(ledger, file)
            number, position = _target(ledger, file, state, to)
            check_offsets_kept(file, settings, position)
            if lease is not None:
                ledger.rewind(lease, position, after=number)
            return Exit(_rewound(state, number, position))


def skip_open(file: PipelineFile, settings: Settings, *, dry_run: bool = False) -> Exit:
    """Close an open epoch that can never be written.

    Sinks that have it keep it; the others continue without it.
    """
    with _ledger(file, settings) as ledger:
        plan = _state(ledger, file).open_plan
    if plan is None:
        msg = f"pipeline `{file.name}` has no open epoch"
        raise PipelineStateError(
            msg,
            hint=f"`headrace run {file.path}` continues; `headrace reset {file.path}` starts over with a"
            " new snapshot.",
        )
    ranges = skipped_ranges({"data": plan.to_json()})
    if dry_run:
        return Exit((f"Epoch {plan.number} would be closed. Sinks that do not have it would lack {ranges}.",))
    run = PipelineRun(
        file,
        settings,
        listener=None,
        stop=None,
        max_run_time=None,
        launched_by="skip-open",
        run_id="",
        spark=None,
    )
    with run as pipeline_run:
        number, lacking = pipeline_run.coordinator.skip_open()
    return Exit(
        (
            f"Epoch {number} is closed. It was skipped at: {', '.join(lacking)}.",
            f"They lack {ranges}; every audit shows it.",
        )
    )


def reset(file: PipelineFile, settings: Settings, *, empty: bool, dry_run: bool = False) -> Exit:
    """Start a pipeline over: a new snapshot, a new handoff.

    Targets are emptied, or kept if all sinks have a key.

    Targets are checked first, and refused if rows would be lost or duplicated. Then the ledger records the
    reset. Every later run finishes what is left: it takes the new position, empties targets, registers sinks.
    """
    file = resolve_file(file, settings)
    sinks = _reset_sinks(file, empty=empty)
    changes = ["The pipeline starts over: a new snapshot of the history, a new handoff."]
    changes += [f"Sink {name}: {_TARGET_TEXTS[what]}." for name, what in sinks.items()]
    if not empty:
        changes.append("Keys that were deleted in the sources meanwhile stay in targets that are kept.")
    with _ledger(file, settings) as ledger:
        state = _state(ledger, file)
        if state.open_plan is not None:
            changes.append(f"Epoch {state.open_plan.number} is open; it is closed.")
        if dry_run:
            return Exit(tuple(changes))
        run = PipelineRun(
            file,
            settings,
            listener=None,
            stop=None,
            max_run_time=None,
            launched_by="reset",
            run_id="",
            spark=None,
        )
        with run.open_target_sinks(ledger, state.pipeline) as opened:
            for name, what in sinks.items():
                _check_target(
                    file, opened[name], name, what, "--empty-targets" if empty else "--keep-targets"
                )
        with hold_lease(ledger, file, "reset") as lease:
            ledger.reset(lease, {name: what is TargetHandling.EMPTIED for name, what in sinks.items()})
    with run:
        pass  # opening takes the position, empties and joins
    return Exit(tuple(changes))


# --- parts


@contextmanager
def _ledger(file: PipelineFile, settings: Settings) -> Iterator[Ledger]:
    ledger = open_ledger(settings)
    try:
        with file.locate_errors():
            yield ledger
    finally:
        ledger.close()


@contextmanager
def hold_lease(ledger: Ledger, file: PipelineFile, launched_by: str) -> Iterator[Lease]:
    """Hold the lease. No sink is touched meanwhile."""
    lease = ledger.acquire(file.name, LANE, describe_launcher(launched_by, file.path), TTL)
    try:
        yield lease
    finally:
        ledger.release(lease)


def _state(ledger: Ledger, file: PipelineFile) -> PipelineState:
    state = ledger.state(file.name, LANE)
    if state is None:
        msg = f"pipeline `{file.name}` never ran with this ledger"
        raise PipelineStateError(msg, hint=f"Start it: headrace run {file.path}")
    return state


def _check_keyed(file: PipelineFile) -> None:
    for name, node in file.model.sinks.items():
        if registry.sink_class(node).capabilities.delivery is Delivery.EXACTLY_ONCE and not _is_keyed(
            file, name
        ):
            msg = "it has no key, so rows that are read again would be there twice"
            hint = f"`headrace reset {file.path} --empty-targets` starts over with empty targets."
            raise GuaranteeError(msg, hint=hint, node=name)


def _is_keyed(file: PipelineFile, sink: str) -> bool:
    return registry.sink_class(file.model.sinks[sink]).capabilities.upsert and bool(
        graph.key_of(file.model, sink)
    )


def _target(ledger: Ledger, file: PipelineFile, state: PipelineState, to: str) -> tuple[int, Position]:
    """Return the epoch to go back to, and its position. Only streams move; history stays."""
    if state.open_plan is not None:
        msg = f"epoch {state.open_plan.number} is open; it must be finished first"
        raise PipelineStateError(
            msg,
            hint=f"`headrace run {file.path}` finishes it, `headrace replay {file.path} --skip-open` skips"
            " it.",
        )
    number = _number(ledger, file, state, to)
    row = next(ledger.epochs(file.name, LANE, number, number), None)
    if row is None or row.committed_at is None:
        msg = f"the ledger has no epoch {number}; it has epochs {state.kept_from} to {state.committed}"
        raise PipelineStateError(msg, hint=f"Choose one of them, or start over: headrace reset {file.path}")
    position: dict[str, Json] = {name: dict(place) for name, place in state.position.items()}
    for name, place in position.items():
        before = row.plan.end.get(name, {})
        if "stream" not in place or "stream" not in before:
            if place == before:
                continue
            msg = f"epoch {number} is in the history of source '{name}'; only a stream can be read again"
            raise PipelineStateError(
                msg, hint=f"`headrace reset {file.path}` starts over with a new snapshot."
            )
        position[name] = positions.with_overlap(place, before) | {"stream": before["stream"]}
    return number, position


def _number(ledger: Ledger, file: PipelineFile, state: PipelineState, to: str) -> int:
    if to.isdecimal():
        return int(to)
    try:
        moment = datetime.fromisoformat(to)
    except ValueError as error:
        msg = f"`{to}` is neither an epoch nor a time"
        raise UserError(msg, hint="For example `--to 42`, or `--to 2026-03-01T12:00:00+00:00`.") from error
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    number = 0
    for row in ledger.epochs(file.name, LANE, state.kept_from, state.committed):
        if row.committed_at is None or row.committed_at > moment:
            break
        number = row.plan.number
    if not number:
        msg = f"no epoch that the ledger has was committed by {moment.isoformat()}"
        raise PipelineStateError(
            msg,
            hint=f"It has epochs {state.kept_from} to {state.committed}. `headrace reset {file.path}`"
            " starts over.",
        )
    return number


def check_offsets_kept(file: PipelineFile, settings: Settings, position: Position) -> None:
    """Raise RetentionError or TargetError where a topic no longer has the rows that are to be read again."""
    sources = create_pipeline_sources(file.model.sources, settings)
    hint = f"Choose a later epoch, or start over with a new snapshot: headrace reset {file.path}"
    try:
        RetentionCheck(sources, "the rewind", hint).check(position)
    finally:
        for source in sources.values():
            source.close()


def _rewound(state: PipelineState, number: int, position: Position) -> tuple[str, ...]:
    rows = sum(
        positions.offset_lag(place["stream"], state.position[name]["stream"])
        for name, place in position.items()
        if "stream" in place
    )
    return (
        f"Epoch {state.committed + 1} starts where epoch {number} ended.",
        f"{rows} offsets are read and written again. Until then, keys can show older values.",
    )


def _reset_sinks(file: PipelineFile, *, empty: bool) -> Mapping[str, TargetHandling]:
    """Return what a reset does with each sink's target."""
    result: dict[str, TargetHandling] = {}
    for name, node in file.model.sinks.items():
        can = registry.sink_class(node).capabilities
        if can.delivery is not Delivery.EXACTLY_ONCE:
            result[name] = TargetHandling.KEPT
        elif empty:
            result[name] = TargetHandling.EMPTIED if can.can_truncate else TargetHandling.EMPTY
        else:
            result[name] = TargetHandling.KEPT if _is_keyed(file, name) else TargetHandling.EMPTY
    return result


def _check_target(
    file: PipelineFile, sink: PipelineSink, name: str, what: TargetHandling, option: str
) -> None:
    """Raise UserError for a target that must not be emptied, GuaranteeError for one that must be empty."""
    if what is TargetHandling.KEPT:
        return
    keyed = _is_keyed(file, name)
    if others := sorted({claim.key.name for claim in sink.others()}):
        if what is TargetHandling.EMPTIED or keyed:
            msg = f"pipeline {', '.join(others)} writes the target too, and all its rows would be removed"
            hint = (
                f"Delete the rows of this pipeline yourself, then: headrace reset {file.path} --keep-targets"
            )
            raise UserError(msg, hint=hint, node=name)
        return
    if what is TargetHandling.EMPTIED:
        return
    counted, empties = (
        sink.read_row_count(),
        registry.sink_class(file.model.sinks[name]).capabilities.can_truncate,
    )
    if counted is None and option == "--empty-targets":
        msg = f"Headrace cannot empty a target of type `{file.model.sinks[name].type}`"
        raise UserError(
            msg, hint=f"Drop it yourself, then: headrace reset {file.path} --keep-targets", node=name
        )
    if rows := counted[1] if counted else 0:
        why = (
            "Headrace cannot remove them"
            if keyed
            else "it has no key: rows of the new snapshot would be there twice"
        )
        hint = (
            f"headrace reset {file.path} --empty-targets"
            if empties
            else f"Drop it yourself, then: headrace reset {file.path} {option}"
        )
        msg = f"its target has {rows} rows, and {why}"
        raise GuaranteeError(msg, hint=hint, node=name)
