"""What a failed Delta commit means."""

from __future__ import annotations

import re

from headrace.connectors.row_errors import explain_failure
from headrace.pipeline.errors import DataError, TransientError

_SAME_IDENTIFIER = re.compile(r"DELTA_CONCURRENT_TRANSACTION|\bConcurrentTransactionException")
_CONFLICT = re.compile(
    r"DELTA_CONCURRENT_|DELTA_METADATA_CHANGED|DELTA_PROTOCOL_CHANGED"
    r"|\b(Concurrent(Append|DeleteRead|DeleteDelete|Transaction|Write)|MetadataChanged|ProtocolChanged)Exception"
)
_REFUSALS = (
    (re.compile(r"CHECK constraint (\S+) (\(.*\)) violated by row"), "it violates CHECK constraint `{}` {}"),
    (
        re.compile(r"NOT NULL constraint violated for column: (.+?)\.?\s*$", re.MULTILINE),
        "column `{}` is null",
    ),
    (
        re.compile(r"DELTA_EXCEED_CHAR_VARCHAR_LIMIT.*Failed check: (.*?)\.?$", re.MULTILINE),
        "a text is too long: {}",
    ),
    (re.compile(r"(DELTA_VIOLATE_CONSTRAINT\w*|DELTA_NOT_NULL_CONSTRAINT\w*)"), "{}"),
)
"""What Delta says about a refused row, and the reason to show: without values, which may be secret."""


def is_duplicate_transaction(error: Exception) -> bool:
    """Return whether Delta rejected a commit because its transaction identifier was committed before."""
    return bool(_SAME_IDENTIFIER.search(_text(error)))


def is_conflict(error: Exception) -> bool:
    """Return whether Delta rejected a commit because of a concurrent commit."""
    return bool(_CONFLICT.search(_text(error)))


def explain(error: Exception, path: str, sink: str) -> Exception:
    """Return the Headrace error of a failed write, or the error itself if there is none."""
    if result := explain_failure(error):
        return result
    if isinstance(error, OSError):
        msg = f"the Delta table `{path}` cannot be read or written: {error.strerror or error}"
        return TransientError(msg, node=sink)
    text, first = _text(error), str(error).split("\n", maxsplit=1)[0]
    if _CONFLICT.search(text):
        msg = f"another writer changed the Delta table `{path}` at the same moment: {first}"
        return TransientError(msg, node=sink)
    for pattern, reason in _REFUSALS:
        if result := pattern.search(text):
            msg = f"the Delta table `{path}` refuses a row: {reason.format(*result.groups())}"
            return DataError(msg, hint="Filter such rows out, or drop the table's constraint.", node=sink)
    return error


def _text(error: Exception) -> str:
    return f"{getattr(error, '_desc', '')} {error} {getattr(error, '_stackTrace', '')}"
