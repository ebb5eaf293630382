"""Translates errors of the server and of its two drivers into errors of Headrace."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.pipeline.errors import DataError, HeadraceError, TargetError, TransientError

TRANSIENT_CLASSES = ("08", "40", "53", "55", "57", "58")
"""SQLSTATE classes of temporary errors: connection, rollback, resources, locks, operator, system error."""
DROPPED = "57P04"
"""The exception to them: the database does not exist."""
INTEGRITY_AT_COMMIT = "40002"
READ_ONLY = "25006"
UNIQUE = "23505"
DATA_CLASSES = ("22", "23")

_REFUSED = re.compile(
    r"authentication failed|no password supplied|pg_hba\.conf|does not exist|permission denied|not permitted"
    r"|not currently accepting|does not support SSL"
)
"""What the server refuses a connection for, and retrying does not help."""


class ConnectionLostError(TransientError):
    """The connection to Postgres was lost. A commit that was in progress may have succeeded."""

    code = "HR302"
    action = (
        "Nothing, if the run recovers: it reads the commit record before it writes again. Otherwise"
        " check the server."
    )


class UniqueError(DataError):
    """A row violates a unique constraint of the target table."""

    code = "HR109"
    action = "Correct the duplicate in the source, or make the constraint the key of the sink."


@contextmanager
def translate_errors(node: str) -> Iterator[None]:
    """Translate psycopg and ADBC errors to DataError, TargetError or TransientError.

    The message contains the server's message.
    """
    import adbc_driver_manager
    import psycopg

    try:
        yield
    except HeadraceError:
        raise
    except (psycopg.Error, adbc_driver_manager.Error) as error:
        raise translate(error, node) from error


def translate(error: Exception, node: str) -> HeadraceError:
    """Return the error to raise for a driver's error.

    Only connection failures, conflicts and resource shortages are retriable.
    """
    state: str = getattr(error, "sqlstate", None) or ""
    text = _message(error)
    if not state:
        return _without_state(text, node)
    msg = f"Postgres says: {text} (SQLSTATE {state})"
    if state == READ_ONLY:
        return TransientError(msg, node=node, hint="The server is read-only: a standby, or failing over.")
    if state[:2] in DATA_CLASSES or state == INTEGRITY_AT_COMMIT:
        kind = UniqueError if state == UNIQUE else DataError
        return kind(
            msg,
            node=node,
            hint="A value does not fit its column. Convert it in a transform, or widen the column.",
        )
    if state[:2] in TRANSIENT_CLASSES and state != DROPPED:
        lost = state.startswith("08") or state in {"57P01", "57P02", "57P03"}
        return (ConnectionLostError if lost else TransientError)(msg, node=node)
    return TargetError(
        msg, node=node, hint="Correct the table or the rights of the role in Postgres, then run again."
    )


def translate_stream(error: Exception, node: str) -> HeadraceError:
    """Return the error to raise for one in the middle of a result, which has no SQLSTATE."""
    text = _message(error)
    kind = DataError if text.startswith("ERROR:") else ConnectionLostError
    return kind(f"Postgres says: {text}", node=node)


def _without_state(text: str, node: str) -> HeadraceError:
    """Return the error for a failure of the connection itself.

    libpq gives no code for it; only the server's FATAL line has details.
    """
    msg = f"Postgres says: {text}"
    if _REFUSED.search(text):
        return TargetError(
            msg,
            node=node,
            hint="Check host, port, user, password and database in the settings: `postgres_sink`, or"
            " `postgres_source` of a source.",
        )
    return ConnectionLostError(msg, node=node)


def _message(error: Exception) -> str:
    """Return the server's message on one line, without ADBC's prefixes and the repeated statement."""
    lines = [
        line.strip()
        for line in str(error).splitlines()
        if line.strip() and not line.startswith(("LINE ", " "))
    ]
    text = "; ".join(lines)
    cut = re.search(r"(ERROR|FATAL|PANIC):\s.*", text)
    text = cut[0] if cut else text
    return re.sub(r";?\s*\.?\s*(Query was: .*|SQLSTATE: \w+)$", "", text).rstrip("; .")
