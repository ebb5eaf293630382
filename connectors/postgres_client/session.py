"""Connections: psycopg for control and merges, ADBC where Arrow goes in by COPY. Both speak `$1` here.

All state is local to a transaction (time zone, timeouts, temporary tables), so that a pooler in transaction
mode between does no harm.
"""

from __future__ import annotations

import hashlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, LiteralString, Protocol, cast

import stamina

from headrace.connectors.postgres_client.errors import translate_errors, translate_stream
from headrace.pipeline.config.sections import PostgresConnection
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
"""Per transaction.

A record that a crash may take back would be older than the ledger, so never synchronous_commit=off.
"""


class Session(Protocol):
    """One connection. Statements take `$1`, `$2`, … and rows come back as tuples."""

    def run(self, query: Composable | str, *values: Any) -> list[tuple[Any, ...]]:
        """Run one statement; return [] if it returns no rows."""
        ...


def trusted_sql(text: str) -> SQL:
    """Return SQL for our own constants or types that the server rendered; never for user input."""
    from psycopg.sql import SQL

    return SQL(cast("LiteralString", text))


def digest(key: SinkKey) -> str:
    """Return twelve characters that identify a sink key in table names."""
    return hashlib.sha256(key.text.encode()).hexdigest()[:12]


def application_prefix(key: SinkKey) -> str:
    """Return the common prefix of the application names of all generations of one sink.

    It is short enough to append the generation.
    """
    prefix = f"headrace {key.pipeline[:8]}/{key.lane}/{key.sink} g"
    return (
        prefix if len(prefix.encode()) <= NAME_BYTES - 12 else f"headrace {key.pipeline[:8]}/{digest(key)} g"
    )


def application_name(key: SinkKey, generation: int | None) -> str:
    """Return the name that the server shows for our connections.

    Read-only connections have no generation.
    """
    return f"{application_prefix(key)}{'' if generation is None else generation}"


@dataclass(frozen=True, slots=True)
class Address:
    """How to reach the server, picklable for tasks. Holds the password: never logged."""

    connection: PostgresConnection
    application: str
    node: str

    def parameters(self) -> dict[str, str]:
        """Return keyword arguments for libpq."""
        return self.connection.conninfo() | {"application_name": self.application, "connect_timeout": "10"}

    @property
    def statement_timeout(self) -> str:
        """The timeout in milliseconds, as the server's setting takes it."""
        return str(self.connection.statement_timeout_secs * 1000)


class _Reconnecting(ABC):
    """A connection that is opened on first use, and again if it is dead when a transaction begins."""

    def __init__(self, address: Address, *, patient: bool = True) -> None:
        """Create a closed connection. With `patient`, connecting is retried for some seconds."""
        self._address = address
        self._attempts = 12 if patient else 1
        self._connection: Any = None

    @abstractmethod
    def _connect(self) -> Any:
        """Return a new connection."""

    @abstractmethod
    def _session(self) -> Session:
        """Return what runs statements on the open connection."""

    def close(self) -> None:
        """Close the connection, if there is one; the server rolls back an open transaction."""
        connection, self._connection = self._connection, None
        if connection is not None:
            import adbc_driver_manager

            try:
                connection.close()
            except adbc_driver_manager.Error:
                log.debug("event=connection_not_closed node=%s", self._address.node)

    def _begin(self, *statements: str) -> Any:
        """Return a session with an open transaction, in which `statements` were run first."""
        for attempt in stamina.retry_context(
            on=TransientError,
            attempts=self._attempts,
            timeout=CONNECT_SECONDS,
            wait_initial=0.1,
            wait_max=3.0,
        ):
            with attempt, translate_errors(self._address.node):
                try:
                    self._connection = self._connection or self._connect()
                    session = self._session()
                    for statement in statements:
                        session.run(statement)
                    session.run(_LOCAL, self._address.statement_timeout)
                except BaseException:
                    self.close()
                    raise
                return session
        raise AssertionError


class ControlConnection(_Reconnecting):
    """A psycopg connection."""

    @contextmanager
    def transaction(self, *, snapshot: bool = False) -> Iterator[ControlSession]:
        """Run one transaction: commit at the end, roll back after an error.

        With `snapshot`, all statements read one REPEATABLE READ snapshot. Raise ConnectionLostError if the
        connection dies inside.
        """
        with translate_errors(self._address.node):
            session = self._begin("BEGIN ISOLATION LEVEL REPEATABLE READ" if snapshot else "BEGIN")
            connection = self._connection
            try:
                yield session
                connection.commit()
            except BaseException:
                self._roll_back(connection)
                raise

    def _connect(self) -> psycopg.Connection:
        import psycopg

        return psycopg.connect(**self._address.parameters(), autocommit=True)  # type: ignore[arg-type]

    def _session(self) -> ControlSession:
        return ControlSession(self._connection)

    def _roll_back(self, connection: psycopg.Connection) -> None:
        """Roll back, or close the connection if that fails."""
        import psycopg

        try:
            connection.execute("ROLLBACK")
        except psycopg.Error:
            self.close()


@dataclass(frozen=True, slots=True)
class ResultColumn:
    """A column of a result: the type's number in the server, and precision and scale of a numeric."""

    name: str
    type_code: int
    precision: int | None
    scale: int | None


class ControlSession:
    """Statements on a psycopg connection inside its transaction."""

    def __init__(self, connection: psycopg.Connection) -> None:
        from psycopg import RawCursor

        self._cursor = RawCursor(connection)

    def run(self, query: Composable | str, *values: Any) -> list[tuple[Any, ...]]:
        """Run one statement."""
        self._cursor.execute(query, values or None)  # type: ignore[arg-type]
        return self._cursor.fetchall() if self._cursor.description else []

    @property
    def columns(self) -> list[str]:
        """The column names of the last result."""
        return [column.name for column in self._cursor.description or ()]

    @property
    def result_columns(self) -> list[ResultColumn]:
        """The columns of the last result, with their types."""
        return [
            ResultColumn(column.name, column.type_code, column.precision, column.scale)
            for column in self._cursor.description or ()
        ]


class Loader(_Reconnecting):
    """An ADBC connection: binary COPY of Arrow, in the same transaction as the other statements."""

    @contextmanager
    def transaction(self) -> Iterator[LoadSession]:
        """Run one transaction: commit at the end, close the connection after an error.

        Closing discards what was begun. Raise ConnectionLostError if the connection dies inside. If it dies
        at the commit, the outcome is unknown.
        """
        try:
            with translate_errors(self._address.node):
                yield self._begin()
                self._connection.commit()
        except BaseException:
            self.close()
            raise

    def _connect(self) -> Any:
        from adbc_driver_postgresql import dbapi
        from psycopg.conninfo import make_conninfo

        return dbapi.connect(make_conninfo(**self._address.parameters()))

    def _session(self) -> LoadSession:
        return LoadSession(self._connection)


class LoadSession:
    """Statements and COPY on an ADBC connection."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def run(self, query: Composable | str, *values: Any) -> list[tuple[Any, ...]]:
        """Run one statement."""
        text = query if isinstance(query, str) else query.as_string(None)
        with self._connection.cursor() as cursor:
            cursor.execute(text, values or None)
            return cursor.fetchall() if cursor.description else []

    def select(self, query: Composable, node: str) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a query as they arrive, by COPY.

        Raise DataError or ConnectionLostError for an error in the middle, which Arrow raises as its own.
        """
        import pyarrow as pa

        with self._connection.cursor() as cursor:
            cursor.execute(query.as_string(None))
            try:
                yield from cursor.fetch_record_batch()
            except (pa.ArrowException, OSError) as error:
                raise translate_stream(error, node) from error

    def load(self, table: str, rows: pa.Table | pa.RecordBatchReader, *, schema: str | None) -> int:
        """COPY rows into a table by column name and return their number; `schema` None: a temporary table."""
        with self._connection.cursor() as cursor:
            return cursor.adbc_ingest(
                table, rows, mode="append", db_schema_name=schema, temporary=schema is None
            )

    def stream(
        self, table: str, columns: pa.Schema, batches: Iterable[pa.RecordBatch], *, schema: str | None
    ) -> int:
        """Load batches as they arrive. An error of `batches` is raised as is, not as ADBC's broken stream."""
        import pyarrow as pa

        broken: list[Exception] = []

        def guard_batches() -> Iterator[pa.RecordBatch]:
            try:
                yield from batches
            except Exception as error:
                broken.append(error)
                raise

        try:
            return self.load(
                table, pa.RecordBatchReader.from_batches(columns, guard_batches()), schema=schema
            )
        except Exception as error:
            if broken:
                raise broken[0] from error
            raise


def terminate_older_backends(control: ControlConnection, key: SinkKey, generation: int) -> None:
    """Terminate server processes of older generations of this sink, so that their locks and COPYs end."""
    with control.transaction() as session:
        rows = session.run(
            "SELECT pid, pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE starts_with(application_name, $1::text) AND pid <> pg_backend_pid()"
            " AND CASE WHEN substr(application_name, length($1::text) + 1) ~ '^[0-9]{1,18}$'"
            " THEN substr(application_name, length($1::text) + 1)::bigint < $2::bigint ELSE false END",
            application_prefix(key),
            generation,
        )
    if alive := [pid for pid, ended in rows if not ended]:
        log.warning("event=backends_still_alive node=%s pids=%s", key.sink, alive)
