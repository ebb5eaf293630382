"""The storage under a ledger: transactions over one SQL dialect, and the proof that an owner has died.

The SQL is plain SQL that both SQLite and Postgres accept, with values bound as `:name`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

from headrace.pipeline.errors import InternalError

SCHEMA_VERSION = 5

_REQUESTS = """create table headrace_ledger_request (
        name text not null, lane text not null, action text not null, generation bigint not null,
        requested_at text not null, requested_by text not null, reason text not null,
        primary key (name, lane))"""

_REFRESHES = """create table headrace_ledger_refresh (
        name text not null, lane text not null, number bigint not null, partitions text not null,
        requested_at text not null, requested_by text not null, state text not null,
        first_epoch bigint, last_epoch bigint, message text not null, hint text not null,
        primary key (name, lane, number))"""

SCHEMA = (
    """create table headrace_ledger_pipeline (
        name text primary key, uuid text not null unique, created_at text not null)""",
    """create table headrace_ledger_lane (
        uuid text not null, lane text not null, generation bigint not null, committed bigint not null,
        position text, ended text, pipeline_hash text,
        holder text, expires_at double precision not null, progress text not null, unsettled integer not null,
        primary key (uuid, lane))""",
    """create table headrace_ledger_sink (
        uuid text not null, lane text not null, sink text not null, state text not null,
        epoch bigint not null,
        primary key (uuid, lane, sink))""",
    """create table headrace_ledger_epoch (
        uuid text not null, lane text not null, number bigint not null, phase text not null, time_window text,
        pipeline_hash text not null, generation bigint not null, committed_at text, counts text not null,
        attempts integer not null, repeats integer not null, error text, paused_holder integer not null,
        link text,
        plan text not null,
        primary key (uuid, lane, number))""",
    # The open epoch is looked up in every transaction.
    "create index headrace_ledger_open on headrace_ledger_epoch (uuid, lane) where committed_at is null",
    """create table headrace_ledger_rolled (
        uuid text not null, lane text not null, first bigint not null, last bigint not null,
        history integer not null,
        first_at text not null, last_at text not null, link_before text not null, link text not null,
        counts text not null, windows text not null, start_position text not null, end_position text not null,
        primary key (uuid, lane, first))""",
    """create table headrace_ledger_verified (
        uuid text not null, lane text not null, number bigint not null, link text not null,
        checked_at text not null,
        primary key (uuid, lane))""",
    """create table headrace_ledger_compiled (
        hash text primary key, body text not null)""",
    """create table headrace_ledger_content (
        hash text primary key, body text not null)""",
    """create table headrace_ledger_event (
        uuid text not null, lane text not null, seq bigint not null, at text not null,
        generation bigint not null,
        kind text not null, data text not null,
        primary key (uuid, lane, seq))""",
    _REQUESTS,
    _REFRESHES,
)

_UPGRADES = {3: (_REQUESTS,), 4: (_REFRESHES,)}
"""What leads from a schema version to the next one."""


class Tx(Protocol):
    """One transaction. `now` is the store's clock in seconds, which all owners of a ledger share."""

    @property
    def now(self) -> float:
        """Seconds since 1970 on the clock that expiry is measured with."""
        ...

    def all(self, sql: str, /, **values: Any) -> list[tuple[Any, ...]]:
        """Return every row."""
        ...

    def one(self, sql: str, /, **values: Any) -> tuple[Any, ...] | None:
        """Return the first row, or None."""
        ...

    def run(self, sql: str, /, **values: Any) -> int:
        """Execute a change. Return the number of rows that it changed."""
        ...


class Presence(Protocol):
    """Proof that an owner is alive. The operating system removes it when the process dies."""

    def release(self) -> None:
        """Release the proof. May be called twice."""
        ...


class Store(Protocol):
    """A database with ledgers. Safe to use from several threads.

    Raises TransientError when it cannot be reached.
    """

    def write(self) -> AbstractContextManager[Tx]:
        """Open a transaction that writes.

        It is durable when the block ends, and is rolled back when the block raises.
        """
        ...

    def read(self) -> AbstractContextManager[Tx]:
        """Open a transaction that sees one snapshot."""
        ...

    def trim(self) -> None:
        """Return freed space, a little at a time, if the database does not do that by itself."""
        ...

    def present(self, pipeline: str, lane: str, generation: int) -> Presence:
        """Prove that the owner of this generation is alive, for as long as this process lives."""
        ...

    def is_owner_dead(self, pipeline: str, lane: str, generation: int) -> bool:
        """Return whether the owner of this generation is proven dead. False if that cannot be known."""
        ...

    def close(self) -> None:
        """Close the connection and release every presence."""
        ...


def upgrade_statements(stored: int, where: str) -> list[str]:
    """Return the statements that upgrade a ledger from schema version `stored`. Empty if it is up to date.

    Raise InternalError for a version that this Headrace cannot upgrade.
    """
    missing = range(stored, SCHEMA_VERSION)
    if stored > SCHEMA_VERSION or any(version not in _UPGRADES for version in missing):
        msg = f"the ledger {where} has schema version {stored}, this Headrace knows {SCHEMA_VERSION}"
        raise InternalError(msg, hint="Run the Headrace version that wrote it, or a newer one.")
    return [statement for version in missing for statement in _UPGRADES[version]]
