"""Detects that the open epoch of a pipeline is blocked, and makes the error message for it."""

from __future__ import annotations

import re

from headrace.pipeline import errors
from headrace.pipeline.errors import BlockedError, HeadraceError
from headrace.pipeline.protocol.ledger.model import PipelineState
from headrace.pipeline.protocol.ledger.reader import LedgerReader

_STORED = re.compile(r"(?P<node>.*?): (?P<text>(?P<kind>\w+): .*)", re.DOTALL)
"""A failure in the ledger: node, class of the error, message."""


def failure_text(error: BaseException) -> str:
    """Return the text that the ledger stores for a failure of an epoch."""
    return f"{type(error).__name__}: {error}"


def is_blocking(error: BaseException) -> bool:
    """Return whether equal failures of this type block their epoch. Errors that pass by themselves do not."""
    return not isinstance(error, HeadraceError) or error.blocks


def blocked_error(number: int, node: str, attempts: int, text: str, file: str) -> BlockedError:
    """Return the error of an epoch that failed `attempts` times in the same way, with the next commands."""
    return BlockedError(
        f"blocked at epoch {number}, node '{node}', after {attempts} equal failures: {text}",
        hint=f"Correct the cause; `headrace run {file}` goes on with this epoch. `headrace replay {file}"
        " --skip-open` goes on without it.",
        node=node,
    )


def find_block(
    ledger: LedgerReader, state: PipelineState, max_attempts: int, file: str
) -> BlockedError | None:
    """Return the error of a pipeline whose open epoch has failed too often in the same way.

    None if the epoch may be tried again.
    """
    if state.open_plan is None:
        return None
    number = state.open_plan.number
    for row in ledger.epochs(state.name, state.lane, first=number, last=number):
        stored = _STORED.fullmatch(row.error or "")
        if stored is None or row.repeats < max_attempts:
            return None
        kind = getattr(errors, stored["kind"], None)
        passes = isinstance(kind, type) and issubclass(kind, HeadraceError) and not kind.blocks
        return None if passes else blocked_error(number, stored["node"], row.repeats, stored["text"], file)
    return None
