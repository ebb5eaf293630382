"""The ledger's own proof: epochs are continuous in number, position and hash chain.

No epoch reads rows twice. An audit without problems stores its last verified epoch in the ledger; the next
audit continues there.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from headrace.pipeline.errors import TransientError
from headrace.pipeline.protocol import positions
from headrace.pipeline.protocol.epochs import Position
from headrace.pipeline.protocol.ledger import Ledger, PipelineState
from headrace.pipeline.protocol.ledger.chain import START
from headrace.pipeline.protocol.ledger.model import AuditProgress, RolledUp, StoredEpoch
from headrace.pipeline.protocol.partitions import WHOLE

log = logging.getLogger(__name__)

_TRIES = 5


@dataclass(slots=True)
class LedgerProof:
    """What a walk over the epochs has seen. `last`, `end` and `link` are those of the newest epoch so far."""

    problems: list[str] = field(default_factory=list)
    last: int = 0
    end: Position | None = None
    link: str = START
    read: int = 0
    """Rows of epochs that were read."""
    rolled_up: int = 0
    """Epochs that have no row of their own any more."""


class _NeedsAll(Exception):  # noqa: N818  no error
    """The verified point is of no use; every row has to be read.

    Its arguments are problems that are known already.
    """


def verify_epochs(
    ledger: Ledger, state: PipelineState, restarts: Collection[int], *, all_epochs: bool = False
) -> LedgerProof:
    """Check the epochs after the verified point, or all of them with `all_epochs`, and move the point.

    `restarts` are epochs that may start at another position than the one before ended at.
    """
    result = LedgerProof()
    for _ in range(_TRIES):
        ranges = ledger.rolled_up(state.name, state.lane)
        try:
            result = _walk(
                ledger,
                state,
                ranges,
                restarts,
                None if all_epochs else ledger.read_audit_progress(state.name, state.lane),
            )
        except _NeedsAll as known:
            result = _walk(ledger, state, ranges, restarts, None)
            result.problems[:0] = known.args
        # A running lane may have rolled up rows that were about to be read.
        if not result.problems or ledger.rolled_up(state.name, state.lane) == ranges:
            break
    if not result.problems and result.last:
        try:
            ledger.store_audit_progress(state.pipeline, state.lane, AuditProgress(result.last, result.link))
        except TransientError as error:
            log.info("event=verified_point_not_stored pipeline=%s error=%s", state.name, error.message)
    return result


def _walk(
    ledger: Ledger,
    state: PipelineState,
    ranges: list[RolledUp],
    restarts: Collection[int],
    point: AuditProgress | None,
) -> LedgerProof:
    seen = LedgerProof(last=_rebuilt_at(ledger, state))
    for one in ranges:
        _add_range(seen, one, restarts)
    rows = _rows(ledger, state, seen, point if point is not None and point.number > seen.last else None)
    splits: set[tuple[str, str | None, int, str]] = set()
    for row in rows:
        if point is not None and row.plan["splits"]:
            raise _NeedsAll  # whether an earlier epoch has read them is known from its row only
        _add_row(seen, row, restarts)
        if refreshed := _refreshed_sources(row):
            splits = {mark for mark in splits if mark[0] not in refreshed or mark[1] != row.window}
        for piece in row.plan["splits"]:
            mark = (piece["source"], row.window, piece["phase"], positions.fingerprint([piece["split"]]))
            if mark in splits and not restarts:
                seen.problems.append(
                    f"epoch {row.number} reads a split of window {row.window or 'all'} that an earlier"
                    " epoch has read"
                )
            splits.add(mark)
    if seen.last < state.committed:
        seen.problems.append(f"the ledger says {state.committed} epochs, and holds {seen.last}")
    return seen


def _refreshed_sources(row: StoredEpoch) -> set[str]:
    """Return the sources whose rows an epoch of a refresh reads again."""
    key = row.window or WHOLE
    return {
        source
        for source, position in row.plan["start"].items()
        for start, end in position.get("history", {}).get("refresh", ())
        if start <= key < end or key == start
    }


def _rebuilt_at(ledger: Ledger, state: PipelineState) -> int:
    """Return the epoch up to which a rebuilt ledger only has the sinks' commit records; 0 if not rebuilt."""
    rebuilt = [
        event["data"].get("committed", 0)
        for event in ledger.events(state.name, state.lane)
        if event["kind"] == "rebuilt"
    ]
    return rebuilt[-1] if rebuilt else 0


def _rows(
    ledger: Ledger, state: PipelineState, seen: LedgerProof, point: AuditProgress | None
) -> Iterator[StoredEpoch]:
    """Yield the rows to check: all, or those after the verified point.

    Raises _NeedsAll if the point or rows before it have changed.
    """
    if point is None:
        yield from ledger.stored_epochs(state.name, state.lane, seen.last, seen.link)
        return
    if ledger.count_epochs(state.name, state.lane, point.number) != point.number - seen.last:
        raise _NeedsAll
    rows = ledger.stored_epochs(state.name, state.lane, point.number - 1)
    first = next(rows, None)
    if first is None or first.number != point.number:
        raise _NeedsAll
    if first.link != point.link:
        msg = f"epoch {point.number} is not the one that an earlier audit verified"
        raise _NeedsAll(msg)
    seen.last, seen.end, seen.link = first.number, first.plan["end"], first.link
    yield from rows


def _add_range(seen: LedgerProof, one: RolledUp, restarts: Collection[int]) -> None:
    _joins(seen, one.first, one.start, restarts)
    if one.link_before != seen.link:
        seen.problems.append(
            f"the summary of epochs {one.first} to {one.last} does not continue the ledger's hash chain"
        )
    seen.rolled_up += one.last - one.first + 1
    seen.last, seen.end, seen.link = one.last, one.end, one.link


def _add_row(seen: LedgerProof, row: StoredEpoch, restarts: Collection[int]) -> None:
    _joins(seen, row.number, row.plan["start"], restarts)
    if not row.linked:
        seen.problems.append(
            f"epoch {row.number} or the one before was changed after its commit: the ledger's hash chain"
            " breaks there"
        )
    seen.read += 1
    seen.last, seen.end, seen.link = row.number, row.plan["end"], row.link


def _joins(seen: LedgerProof, number: int, start: Position, restarts: Collection[int]) -> None:
    if number != seen.last + 1:
        seen.problems.append(f"epochs {seen.last + 1} to {number - 1} are missing from the ledger")
    elif seen.end is not None and start != seen.end and number not in restarts:
        between = _spell_skipped(seen.end, start)
        seen.problems.append(
            f"epoch {number} starts at another position than epoch {number - 1} ended at{between}"
        )


def _spell_skipped(end: Position, start: Position) -> str:
    """Return the offsets that are between two epochs that do not join."""
    result = []
    for source, position in start.items():
        had, has = (positions.offsets(one.get("stream")) for one in (end.get(source, {}), position))
        result += [
            f"{source} partition {part}: {had.get(part)} to {offset}"
            for part, offset in has.items()
            if had.get(part) != offset
        ]
    return f" ({', '.join(result)})" if result else ""
