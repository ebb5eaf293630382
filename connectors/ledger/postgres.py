"""A ledger in Postgres, for lanes that may run on any host.

A holder is followed when its lease has expired.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from headrace.pipeline.errors import SettingsError, TransientError
from headrace.pipeline.protocol.ledger.store import SCHEMA, SCHEMA_VERSION, Presence, upgrade_statements
from headrace.pipeline.protocol.ledger.writer import Ledger

if TYPE_CHECKING:
    import psycopg

_STALLED = "10s"
"""How long a process that stopped in a transaction can block others. The server then ends its session."""
_SCHEMA_LOCK = 0x6865_6164  # Headrace's own advisory lock: only one process creates the tables


def open_postgres(conninfo: str) -> Ledger:
    """Open the ledger in the database that `conninfo` names, and create missing tables.

    The role needs the right to create tables in the first schema of its search path, unless a schema of the
    path already has them. Raise TransientError if the server cannot be reached, and SettingsError if two
    schemas have a ledger.
    """
    return Ledger(PostgresStore(conninfo))


class PostgresStore:
    """Store over one connection, shared by the threads of a process and opened again when it was lost."""

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo
        self._lock = threading.RLock()
        self._connection: psycopg.Connection | None = None
        self._path: str | None = None
        with self.write() as tx:
            tx.run("select pg_advisory_xact_lock(:key)", key=_SCHEMA_LOCK)
            self._path = _schema_of(tx)
            tx.run("select set_config('search_path', :path, true)", path=self._path)
            tx.run("create table if not exists headrace_ledger_version (version integer not null)")
            result = tx.one("select version from headrace_ledger_version")
            if result is None:
                for statement in SCHEMA:
                    tx.run(statement)
                tx.run("insert into headrace_ledger_version values (:version)", version=SCHEMA_VERSION)
            elif statements := upgrade_statements(result[0], "in Postgres"):
                for statement in statements:
                    tx.run(statement)
                tx.run("update headrace_ledger_version set version = :version", version=SCHEMA_VERSION)

    def _connect(self) -> psycopg.Connection:
        import psycopg

        if self._connection is None or self._connection.closed or self._connection.broken:
            self._connection = psycopg.connect(
                self._conninfo,
                autocommit=True,
                application_name="headrace ledger",
                connect_timeout=10,
                tcp_user_timeout=20_000,
                prepare_threshold=None,
            )
        return self._connection

    @contextmanager
    def _transaction(self, *, snapshot: bool) -> Iterator[_PostgresTx]:
        import psycopg

        with self._lock:
            try:
                connection = self._connect()
                with connection.transaction():
                    if snapshot:
                        connection.execute("set transaction isolation level repeatable read, read only")
                    if self._path is not None:
                        connection.execute("select set_config('search_path', %s, true)", (self._path,))
                    if not snapshot:
                        connection.execute(
                            "select set_config('idle_in_transaction_session_timeout', %(t)s, true),"
                            " set_config('lock_timeout', %(t)s, true)",
                            {"t": _STALLED},
                        )
                    yield _PostgresTx(connection)
            except (
                psycopg.OperationalError,
                psycopg.InterfaceError,
                psycopg.errors.IdleInTransactionSessionTimeout,
            ) as error:
                # libpq's own message names the host and the database, never the password.
                msg = f"the Postgres ledger cannot be used just now: {str(error).strip()}"
                raise TransientError(msg) from error

    def write(self) -> Any:
        """See `Store.write`."""
        return self._transaction(snapshot=False)

    def read(self) -> Any:
        """See `Store.read`."""
        return self._transaction(snapshot=True)

    def trim(self) -> None:
        """See `Store.trim`. Autovacuum does this."""

    def present(self, pipeline: str, lane: str, generation: int) -> Presence:
        """See `Store.present`. A network connection does not prove that a process is alive."""
        del pipeline, lane, generation
        return _NoPresence()

    def is_owner_dead(self, pipeline: str, lane: str, generation: int) -> bool:
        """See `Store.is_owner_dead`. The result is always False: only an expired lease is taken over."""
        del pipeline, lane, generation
        return False

    def close(self) -> None:
        """See `Store.close`."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()


def _schema_of(tx: _PostgresTx) -> str:
    """Return the schema of the ledger's tables as a search path, else the first schema that exists.

    The meaning of a search path can change: a sink creates the schema `headrace`, which is the first schema
    for a user of this name.
    """
    result = tx.all(
        "select n.nspname, quote_ident(n.nspname) from pg_class c join pg_namespace n on n.oid ="
        " c.relnamespace"
        " where c.relname = 'headrace_ledger_version' and n.nspname = any(current_schemas(false)) order by 1"
    )
    if len(result) > 1:
        names = " and ".join(name for name, _ in result)
        msg = f"the database has two ledgers, in the schemas {names}"
        hint = (
            "Drop the tables headrace_ledger_* in the schema of the one that is not wanted. Sinks that"
            " are refused then name the command."
        )
        raise SettingsError(msg, hint=hint)
    if result:
        return result[0][1]
    schema = tx.one("select quote_ident(current_schema())")
    if schema is None or schema[0] is None:
        msg = "the search path of the ledger's user names no schema that exists"
        raise SettingsError(
            msg, hint="Create one, or name one in the search path: ALTER ROLE … SET search_path."
        )
    return schema[0]


class _NoPresence:
    def release(self) -> None:
        """Do nothing: there is no presence to release."""


@cache
def _bind_placeholders(sql: str) -> str:
    """Return the shared SQL with psycopg's placeholders."""
    return re.sub(r":(\w+)", r"%(\1)s", sql)


class _PostgresTx:
    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection

    @property
    def now(self) -> float:
        row = self.one("select extract(epoch from clock_timestamp())")
        return float(row[0]) if row else 0.0

    def _execute(self, sql: str, values: dict[str, Any]) -> psycopg.Cursor[Any]:
        return self._connection.execute(_bind_placeholders(sql).encode(), values)

    def all(self, sql: str, /, **values: Any) -> list[tuple[Any, ...]]:
        return self._execute(sql, values).fetchall()

    def one(self, sql: str, /, **values: Any) -> tuple[Any, ...] | None:
        return self._execute(sql, values).fetchone()

    def run(self, sql: str, /, **values: Any) -> int:
        return self._execute(sql, values).rowcount
