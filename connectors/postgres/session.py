"""Connections: psycopg for control and merges, ADBC where Arrow goes in by COPY. Both speak `$1` here.

All state is local to a transaction (time zone, timeouts, temporary tables), so that a pooler in transaction mode between
does no harm.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, LiteralString, Protocol, cast

import stamina

from headrace.connectors.postgres.errors import translate_errors
from headrace.pipeline.config.settings import PostgresConnection
from headrace.pipeline.errors import TransientError
from headrace.pipeline.protocol.epochs import SinkKey

if TYPE_CHECKING:
    import psycopg
    import pyarrow as pa
    from psycopg.sql import SQL, Composable

log = logging.getLogger(__name__)

NAME_BYTES = 63
"""Postgres cuts application names and identifiers there."""
CONNECT_SECONDS = 10.0

_LOCAL = (
    "SELECT set_config('timezone', 'UTC', true), set_config('statement_timeout', $1::text, true),"
    " set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on'"
    " ELSE current_setting('synchronous_commit') END, true)"
)
"""Per transaction. A record that a crash may take back would stand behind the ledger, hence never synchronous_commit=off."""


class Session(Protocol):
    """One connection. Statements take `$1`, `$2`, … and rows come back as tuples."""

    def run(self, query: Composable | str, *values: Any) -> list[tuple[Any, ...]]:
        """Runs one statement; [] where it returns no rows."""
        ...


def trusted(text: str) -> SQL:
    """A fragment of our own constants, or one that the server rendered (types); never of the user's text."""
    from psycopg.sql import SQL

    return SQL(cast("LiteralString", text))


def digest(key: SinkKey) -> str:
    """Twelve characters for a sink key, for names of tables."""
    return hashlib.sha256(key.text.encode()).hexdigest()[:12]


def application_prefix(key: SinkKey) -> str:
    """What the application names of all generations of one sink start with; short enough for the generation behind it."""
    prefix = f"headrace {key.pipeline[:8]}/{key.lane}/{key.sink} g"
    return prefix if len(prefix.encode()) <= NAME_BYTES - 12 else f"headrace {key.pipeline[:8]}/{digest(key)} g"


def application_name(key: SinkKey, generation: int | None) -> str:
    """What the server shows for our connections; without a generation for those that only ask."""
    return f"{application_prefix(key)}{'' if generation is None else generation}"


@dataclass(frozen=True, slots=True)
class Address:
    """How to reach the server, picklable for tasks. Holds the password: never logged."""

    connection: PostgresConnection
    application: str
    node: str

    def parameters(self) -> dict[str, str]:
        """Keyword arguments for libpq."""
        return self.connection.conninfo() | {"application_name": self.application, "connect_timeout": "10"}

    @property
    def statement_timeout(self) -> str:
        """In milliseconds, as the server's setting takes it."""
        return str(self.connection.statement_timeout_secs * 1000)


class ControlConnection:
    """A psycopg connection that comes back by itself between transactions."""

    def __init__(self, address: Address, *, patient: bool = True) -> None:
        """`patient`: tries for some seconds to connect before it gives up."""
        self._address = address
        self._attempts = 12 if patient else 1
        self._connection: psycopg.Connection | None = None

    @contextmanager
    def transaction(self, *, snapshot: bool = False) -> Iterator[Session]:
        """One transaction: committed at the end, rolled back after an error. `snapshot`: one REPEATABLE READ view of the data.

        A connection found dead at the start is made anew; one that dies inside raises ConnectionLostError.
        """
        with translate_errors(self._address.node):
            connection = self._ready(snapshot=snapshot)
            try:
                yield _PsycopgSession(connection)
                connection.commit()
            except BaseException:
                self._give_up(connection)
                raise

    def close(self) -> None:
        """Closes the connection, if there is one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _ready(self, *, snapshot: bool) -> psycopg.Connection:
        """A connection with its transaction begun."""
        for attempt in stamina.retry_context(
            on=TransientError, attempts=self._attempts, timeout=CONNECT_SECONDS, wait_initial=0.1, wait_max=3.0
        ):
            with attempt, translate_errors(self._address.node):
                self._connection = self._connection or self._connect()
                try:
                    begin = "BEGIN ISOLATION LEVEL REPEATABLE READ" if snapshot else "BEGIN"
                    self._connection.execute(begin)
                    _PsycopgSession(self._connection).run(_LOCAL, self._address.statement_timeout)
                except BaseException:
                    self.close()
                    raise
                return self._connection
        raise AssertionError

    def _connect(self) -> psycopg.Connection:
        import psycopg

        return psycopg.connect(**self._address.parameters(), autocommit=True)  # type: ignore[arg-type]

    def _give_up(self, connection: psycopg.Connection) -> None:
        """Rolls back; a connection that cannot is thrown away."""
        import psycopg

        try:
            connection.execute("ROLLBACK")
        except psycopg.Error:
            self.close()


class _PsycopgSession:
    """Statements on a psycopg connection inside its transaction."""

    def __init__(self, connection: psycopg.Connection) -> None:
        from psycopg import RawCursor

        self._cursor = RawCursor(connection)

    def run(self, query: Composable | str, *values: Any) -> list[tuple[Any, ...]]:
        """Runs one statement."""
        self._cursor.execute(query, values or None)  # type: ignore[arg-type]
        return self._cursor.fetchall() if self._cursor.description else []


class Loader:
    """An ADBC connection: Arrow goes in by binary COPY, in the same transaction as the statements around it."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._connection: Any = None

    @contextmanager
    def transaction(self) -> Iterator[LoadSession]:
        """One transaction: committed at the end; after an error the connection is thrown away, and with it what was begun.

        Raises ConnectionLostError when the connection dies inside; at the commit that leaves open whether it happened.
        """
        try:
            with translate_errors(self._address.node):
                session = self._ready()
                yield session
                self._connection.commit()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Closes the connection, if there is one; an open transaction is rolled back by the server."""
        connection, self._connection = self._connection, None
        if connection is not None:
            import adbc_driver_manager

            try:
                connection.close()
            except adbc_driver_manager.Error:
                log.debug("event=close_failed node=%s", self._address.node)

    def _ready(self) -> LoadSession:
        """A session with its transaction begun, on a new connection where the old one is dead."""
        for attempt in stamina.retry_context(on=TransientError, attempts=12, timeout=CONNECT_SECONDS, wait_initial=0.1, wait_max=3.0):
            with attempt, translate_errors(self._address.node):
                self._connection = self._connection or self._connect()
                session = LoadSession(self._connection)
                try:
                    session.run(_LOCAL, self._address.statement_timeout)
                except BaseException:
                    self.close()
                    raise
                return session
        raise AssertionError

    def _connect(self) -> Any:
        from adbc_driver_postgresql import dbapi
        from psycopg.conninfo import make_conninfo

        return dbapi.connect(make_conninfo(**self._address.parameters()))


class LoadSession:
    """Statements and COPY on an ADBC connection."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def run(self, query: Composable | str, *values: Any) -> list[tuple[Any, ...]]:
        """Runs one statement."""
        text = query if isinstance(query, str) else query.as_string(None)
        with self._connection.cursor() as cursor:
            cursor.execute(text, values or None)
            return cursor.fetchall() if cursor.description else []

    def load(self, table: str, rows: pa.Table | pa.RecordBatchReader, *, schema: str | None) -> int:
        """COPY into a table, columns by name; `schema` None means a temporary table. Returns the number of rows."""
        with self._connection.cursor() as cursor:
            return cursor.adbc_ingest(table, rows, mode="append", db_schema_name=schema, temporary=schema is None)

    def stream(self, table: str, columns: pa.Schema, batches: Iterable[pa.RecordBatch], *, schema: str | None) -> int:
        """`load` for batches as they come. An error of theirs is raised as it was, not as ADBC's report of a broken stream."""
        import pyarrow as pa

        broken: list[Exception] = []

        def guarded() -> Iterator[pa.RecordBatch]:
            try:
                yield from batches
            except Exception as error:
                broken.append(error)
                raise

        try:
            return self.load(table, pa.RecordBatchReader.from_batches(columns, guarded()), schema=schema)
        except Exception as error:
            if broken:
                raise broken[0] from error
            raise


def terminate_older_backends(session: Session, key: SinkKey, generation: int) -> Sequence[int]:
    """Ends the server's processes of older generations of this sink. Returns the ids of those that would not end."""
    rows = session.run(
        "SELECT pid, pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        " WHERE starts_with(application_name, $1::text) AND pid <> pg_backend_pid()"
        " AND substr(application_name, length($1::text) + 1) ~ '^[0-9]{1,18}$'"
        " AND CASE WHEN substr(application_name, length($1::text) + 1) ~ '^[0-9]{1,18}$'"
        " THEN substr(application_name, length($1::text) + 1)::bigint < $2::bigint ELSE false END",
        application_prefix(key),
        generation,
    )
    return [pid for pid, ended in rows if not ended]
