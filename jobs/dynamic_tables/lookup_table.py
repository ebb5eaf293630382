"""Dynamic tables in Postgres: one text column that pipelines and other programs fill, and workers look up.

Writers take one advisory lock per table and stamp their rows while they hold it, so that rows become visible
in the order of their stamps, and a cache that reads on from the newest stamp misses none. Other programs must
do the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from headrace.connectors.postgres_client.session import Address, ControlConnection, Session, trusted_sql
from headrace.connectors.task_failures import TaskFailure
from headrace.pipeline.config.sections import TableConnection
from headrace.pipeline.errors import DataError, HeadraceError, SchemaError, TargetError, TransientError
from headrace.pipeline.model.transforms import DynamicTableConfig
from headrace.pipeline.protocol.epochs import Json

_AT_ONCE = 4
"""Chunks of one worker that are looked up in parallel."""
_INSERT = 10_000
_OVERLAP = "60 seconds"
"""How far before the newest timestamp a cache starts to read, for writers that committed later."""
_TIMES = ("timestamp with time zone", "timestamp without time zone", "date")
_ORDERED = "DNS"
"""Postgres' categories of types with an order: dates and times, numbers, texts."""
_DEFAULT_SCHEMA = "public"

_COLUMNS = (
    "SELECT a.attname, format_type(a.atttypid, NULL), t.typcategory FROM pg_attribute a JOIN pg_type t ON"
    " t.oid = a.atttypid"
    " WHERE a.attrelid = to_regclass($1::text) AND a.attnum > 0 AND NOT a.attisdropped"
)


@dataclass(frozen=True, slots=True)
class LookupTableColumns:
    """A table's columns by name. `cache` says that its values are kept by the pipeline."""

    schema: str
    table: str
    column: str
    time_column: str | None
    cache: bool

    @classmethod
    def of(cls, node: DynamicTableConfig, connection: TableConnection) -> LookupTableColumns:
        """Return the names of schema, table and columns for a node under these settings."""
        before, _, table = node.backend_entity_name.rpartition(".")
        schema = node.schema_ or before or connection.dt_schema_name or _DEFAULT_SCHEMA
        wanted = connection.cache_enabled if node.cache is None else node.cache
        return cls(schema, table, node.column, node.time_column, wanted and node.time_column is not None)

    @property
    def name(self) -> str:
        """The name `schema.table`, for messages and for the advisory lock."""
        return f"{self.schema}.{self.table}"


class ValueTable:
    """The driver's connection to one table, made when it is first used."""

    def __init__(self, node: str, where: LookupTableColumns, address: Address) -> None:
        from psycopg import sql

        self.where = where
        self._node = node
        self._address = address
        self._control = ControlConnection(address)
        self._table = sql.Identifier(where.schema, where.table)
        self._column = sql.Identifier(where.column)
        self._time = sql.Identifier(where.time_column) if where.time_column else None
        self._time_type = ""

    def prepare(self) -> None:
        """Create the table if it is missing, and check its columns.

        Raise SchemaError, TargetError or TransientError.
        """
        with self._control.transaction() as session:
            if not self._columns(session):
                self._lock(session)
                self._create(session)
        with self._control.transaction() as session:
            self._time_type = self._check(self._columns(session))

    def check(self) -> None:
        """Check the columns of an existing table. Create nothing."""
        control = ControlConnection(self._address, patient=False)
        try:
            with control.transaction() as session:
                if result := self._columns(session):
                    self._check(result)
        finally:
            control.close()

    def add(self, values: Sequence[str]) -> None:
        """Add missing values. Idempotent, also when other writers add the same values.

        Raise DataError for a string that Postgres cannot store.
        """
        from psycopg import sql

        if bad := next((value for value in values if "\0" in value), None):
            msg = f"the value {bad!r} holds the character NUL, which Postgres takes in no text"
            raise DataError(msg, node=self._node, hint="Replace it in the table's `sql`.")
        stamped = self._time is not None and self._time_type in _TIMES
        columns = [self._column, *([self._time] if stamped and self._time else [])]
        statement = sql.SQL(
            "INSERT INTO {table} ({columns}) SELECT {items} FROM unnest($1::text[]) AS new(v)"
            " WHERE NOT EXISTS (SELECT 1 FROM {table} AS old WHERE old.{column} = new.v) ON CONFLICT DO"
            " NOTHING"
        ).format(
            table=self._table,
            columns=sql.SQL(", ").join(columns),
            items=sql.SQL("new.v, clock_timestamp()" if stamped else "new.v"),
            column=self._column,
        )
        with self._control.transaction() as session:
            self._lock(session)
            for at in range(0, len(values), _INSERT):
                session.run(statement, list(values[at : at + _INSERT]))

    def since(self, mark: str | None) -> tuple[list[str], str | None]:
        """Return the values added since a mark, and the next mark; all values if `mark` is None.

        Some values are returned again.
        """
        from psycopg import sql

        assert self._time is not None  # noqa: S101  only called for a cache
        select = sql.SQL("SELECT {column}::text FROM {table} WHERE {column} IS NOT NULL").format(
            column=self._column, table=self._table
        )
        kind = trusted_sql(self._time_type)
        # A timestamp in the future, from a wrong clock, must not hide rows that are added until then.
        past = (
            sql.SQL(" WHERE {} <= clock_timestamp()").format(self._time)
            if self._time_type in _TIMES
            else sql.SQL("")
        )
        with self._control.transaction(snapshot=True) as session:
            newest = session.run(
                sql.SQL("SELECT max({})::text FROM {}{}").format(self._time, self._table, past)
            )[0][0]
            if mark is None:
                rows = session.run(select)
            else:
                back = (
                    sql.SQL(" - interval {}").format(sql.Literal(_OVERLAP))
                    if self._time_type in _TIMES
                    else sql.SQL("")
                )
                later = sql.SQL(" AND {time} >= $1::text::{kind}{back}").format(
                    time=self._time, kind=kind, back=back
                )
                rows = session.run(select + later, mark)
        return [value for (value,) in rows], newest if newest is not None else mark

    def lookup(self, at_most: int) -> PostgresLookup:
        """Return the lookup that workers query the table with, in chunks of `at_most` values."""
        return PostgresLookup(self._node, self.where, self._address, at_most)

    def describe(self) -> Json:
        """Return the table's description for users and Dagster, as sinks do."""
        connection, where = self._address.connection, self.where
        return {
            "kind": "postgres",
            "asset_key": ["postgres", where.schema, where.table],
            "scope": [f"{connection.host}:{connection.port}", connection.db],
            "table_name": f"{connection.db}.{where.name}",
            "location": f"{connection.host}:{connection.port}",
        }

    def close(self) -> None:
        """Close the connection."""
        self._control.close()

    def _columns(self, session: Session) -> dict[str, tuple[str, str]]:
        """Return the type and its category by column; empty if there is no such table."""
        return {
            name: (kind, category)
            for name, kind, category in session.run(_COLUMNS, self._table.as_string(None))
        }

    def _lock(self, session: Session) -> None:
        session.run("SELECT pg_advisory_xact_lock(hashtextextended($1::text, 0))", self.where.name)

    def _create(self, session: Session) -> None:
        from psycopg import sql

        if not session.run("SELECT 1 FROM pg_namespace WHERE nspname = $1::text", self.where.schema):
            session.run(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(self.where.schema)))
        time = (
            sql.SQL(", {} timestamptz NOT NULL DEFAULT clock_timestamp()").format(self._time)
            if self._time
            else sql.SQL("")
        )
        session.run(
            sql.SQL("CREATE TABLE IF NOT EXISTS {} ({} text PRIMARY KEY{})").format(
                self._table, self._column, time
            )
        )
        if self._time:
            session.run(sql.SQL("CREATE INDEX ON {} ({})").format(self._table, self._time))

    def _check(self, columns: dict[str, tuple[str, str]]) -> str:
        """Return the time column's type, or "" without a time column.

        Raise SchemaError for columns that are missing or have a wrong type.
        """
        where = self.where
        if where.column not in columns:
            msg = f"table {where.name} has no column '{where.column}'; it has {', '.join(columns)}"
            raise SchemaError(msg, node=self._node, hint="Say the column of the values as `column`.")
        kind, category = columns[where.column]
        if category != "S":
            msg = f"column '{where.column}' of table {where.name} is {kind}, and values are texts"
            raise SchemaError(msg, node=self._node, hint="Name a column of type text or varchar as `column`.")
        if where.time_column is None:
            return ""
        needs = "the cache reads what is new by it" if where.cache else "it says when a value came"
        hint = (
            "Name a timestamp column as `time_column`, or remove"
            f" `time_column`{' and `cache`' if where.cache else ''}."
        )
        if where.time_column not in columns:
            msg = (
                f"table {where.name} has no time column '{where.time_column}', and {needs}; it has"
                f" {', '.join(columns)}"
            )
            raise SchemaError(msg, node=self._node, hint=hint)
        kind, category = columns[where.time_column]
        if category not in _ORDERED:
            msg = (
                f"time column '{where.time_column}' of table {where.name} is {kind}, which has no order,"
                f" and {needs}"
            )
            raise SchemaError(msg, node=self._node, hint=hint)
        return kind


@dataclass(frozen=True, slots=True)
class PostgresLookup:
    """Asks the table for the different values of a batch, some chunks side by side.

    Holds the password: never logged.
    """

    node: str
    where: LookupTableColumns
    address: Address
    at_most: int

    def contains(self, values: list[str]) -> list[bool]:
        """Return for each value whether the table has it.

        Raise TransientError, TargetError or SchemaError, with the node in its message.
        """
        wanted = [value for value in values if value is not None and "\0" not in value]
        chunks = [wanted[at : at + self.at_most] for at in range(0, len(wanted), self.at_most)]
        if len(chunks) > 1:
            with ThreadPoolExecutor(min(_AT_ONCE, len(chunks))) as pool:
                result = set().union(*pool.map(self._ask, chunks))
        else:
            result = self._ask(chunks[0]) if chunks else set()
        return [value in result for value in values]

    def _ask(self, chunk: list[str]) -> set[str]:
        from psycopg import sql

        column, table = sql.Identifier(self.where.column), sql.Identifier(self.where.schema, self.where.table)
        statement = sql.SQL("SELECT {column}::text FROM {table} WHERE {column} = ANY($1::text[])").format(
            column=column, table=table
        )
        try:
            with _borrow_connection(self.address) as control, control.transaction() as session:
                return {value for (value,) in session.run(statement, chunk)}
        except HeadraceError as error:
            raise self._to_worker_error(error) from error

    def _to_worker_error(self, error: HeadraceError) -> HeadraceError:
        """Return the error in a form that survives a worker, which keeps only its class and message."""
        plain = TaskFailure.of(error).error()
        if isinstance(
            plain, TargetError | TransientError
        ):  # at the front: only the first line of a message arrives
            plain.message = f"table {self.where.name}, column {self.where.column}: {plain.message}"
        plain.node = self.node
        return plain


_idle: dict[str, list[ControlConnection]] = {}
"""Idle connections of this worker process, by their target."""


@contextmanager
def _borrow_connection(address: Address) -> Iterator[ControlConnection]:
    """Yield a pooled connection of this process and return it to the pool afterwards.

    A lost connection reconnects by itself.
    """
    pool = _idle.setdefault(repr(sorted(address.parameters().items())), [])
    try:
        control = pool.pop()
    except IndexError:
        control = ControlConnection(address)
    try:
        yield control
    finally:
        pool.append(control)
