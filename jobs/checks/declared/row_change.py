"""The number of rows that a target had some time ago, from the counts in the ledger."""

from __future__ import annotations

from datetime import datetime

from headrace.pipeline.protocol.epochs import WriteCounts
from headrace.pipeline.protocol.ledger import Ledger, PipelineState


class UnknownRowCountError(Exception):
    """The former number of rows cannot be known. The message is the reason."""


def read_former_rows(
    ledger: Ledger, state: PipelineState, sink: str, rows: int, epoch: int, since: datetime
) -> int:
    """Return the number of rows of a target at the time `since`.

    `rows` is the number after `epoch`. The result does not depend on earlier checks: it subtracts what later
    epochs inserted and adds what they deleted. A range of epochs that was rolled up counts as a whole. Raise
    UnknownRowCountError with the reason.
    """
    first, counts = _first_after(ledger, state, since), WriteCounts()
    restart = ledger.restart(state.name, state.lane)
    if restart is not None and restart.first >= first:
        msg = "the pipeline was reset in this period"
        raise UnknownRowCountError(msg)
    for rolled in ledger.rolled_up(state.name, state.lane):
        if rolled.last_at > since and sink in rolled.counts:
            counts += rolled.counts[sink]
    for row in ledger.epochs(state.name, state.lane, first, epoch):
        if sink in row.counts:
            counts += row.counts[sink]
    if counts.inserted is None or counts.deleted is None:
        msg = "the sink does not know how many rows it inserted and deleted"
        raise UnknownRowCountError(msg)
    return rows - counts.inserted + counts.deleted


def _first_after(ledger: Ledger, state: PipelineState, since: datetime) -> int:
    """Return the first epoch with a row of its own that was committed after a time."""
    low, high = state.kept_from, state.committed + 1
    while low < high:
        middle = (low + high) // 2
        result = next(iter(ledger.epochs(state.name, state.lane, middle, middle)), None)
        if result is not None and result.committed_at is not None and result.committed_at <= since:
            low = middle + 1
        else:
            high = middle
    return low
