"""A ledger in Postgres, for lanes that may run on any host. A holder is followed when its lease has expired."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from headrace.pipeline.errors import TransientError
from headrace.pipeline.ledger.ledger import Ledger
from headrace.pipeline.ledger.store import SCHEMA, SCHEMA_VERSION, Presence, check_version

if TYPE_CHECKING:
    import psycopg

_STALLED = "10s"
"""How long a process that stopped inside a transaction may keep others waiting; the server then ends its session."""
_SCHEMA_LOCK = 0x6865_6164  # an advisory lock of our own: only one process makes the tables


def open_postgres(conninfo: str) -> Ledger:
    """Opens the ledger in the database that `conninfo` names, making its tables where they are not.

    The role needs to create tables in the first schema of its search path, or to find them there. Raises TransientError
    when the server cannot be reached.
    """
    return Ledger(PostgresStore(conninfo))


class PostgresStore:
    """Store over one connection, shared by the threads of a process and opened anew when it was lost."""

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo
        self._lock = threading.RLock()
        self._connection: psycopg.Connection | None = None
        with self.write() as tx:
            tx.run("select pg_advisory_xact_lock(:key)", key=_SCHEMA_LOCK)
            tx.run("create table if not exists headrace_ledger_version (version integer not null)")
            found = tx.one("select version from headrace_ledger_version")
            if found is None:
                for statement in SCHEMA:
                    tx.run(statement)
                tx.run("insert into headrace_ledger_version values (:version)", version=SCHEMA_VERSION)
            else:
                check_version(found[0], "in Postgres")

    def _connected(self) -> psycopg.Connection:
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
                connection = self._connected()
                with connection.transaction():
                    if snapshot:
                        connection.execute("set transaction isolation level repeatable read, read only")
                    else:
                        connection.execute(
                            "select set_config('idle_in_transaction_session_timeout', %(t)s, true), set_config('lock_timeout', %(t)s, true)",
                            {"t": _STALLED},
                        )
                    yield _PostgresTx(connection)
            except (psycopg.OperationalError, psycopg.InterfaceError, psycopg.errors.IdleInTransactionSessionTimeout) as error:
                # libpq's own text names host and database, never the password.
                msg = f"the Postgres ledger cannot be used just now: {str(error).strip()}"
                raise TransientError(msg) from error

    def write(self) -> Any:
        """See Store."""
        return self._transaction(snapshot=False)

    def read(self) -> Any:
        """See Store."""
        return self._transaction(snapshot=True)

    def present(self, pipeline: str, lane: str, generation: int) -> Presence:
        """See Store. There is no proof of life over a network."""
        del pipeline, lane, generation
        return _NoPresence()

    def gone(self, pipeline: str, lane: str, generation: int) -> bool:
        """See Store. Never known: only an expired lease is taken over."""
        del pipeline, lane, generation
        return False

    def close(self) -> None:
        """See Store."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()


class _NoPresence:
    def release(self) -> None:
        """Nothing to give up."""


@cache
def _bound(sql: str) -> str:
    """The common text with psycopg's placeholders."""
    return re.sub(r":(\w+)", r"%(\1)s", sql)


class _PostgresTx:
    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection

    @property
    def now(self) -> float:
        row = self.one("select extract(epoch from clock_timestamp())")
        return float(row[0]) if row else 0.0

    def _execute(self, sql: str, values: dict[str, Any]) -> psycopg.Cursor[Any]:
        return self._connection.execute(_bound(sql).encode(), values)

    def all(self, sql: str, /, **values: Any) -> list[tuple[Any, ...]]:
        return self._execute(sql, values).fetchall()

    def one(self, sql: str, /, **values: Any) -> tuple[Any, ...] | None:
        return self._execute(sql, values).fetchone()

    def run(self, sql: str, /, **values: Any) -> int:
        return self._execute(sql, values).rowcount
