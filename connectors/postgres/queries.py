"""Read-only SQL over the table of a sink, in one transaction, for declared checks."""

from __future__ import annotations

from contextlib import ExitStack

import psycopg
from psycopg import sql

from headrace.connectors.postgres.commit_store import RecordStore
from headrace.connectors.postgres_client.session import ControlConnection, ControlSession, translate_errors
from headrace.connectors.target_query import QueryColumn, QueryResult, TargetQuery, to_query_column
from headrace.pipeline.errors import TargetError
from headrace.pipeline.protocol.claims import TargetClaimant

_COLUMNS = (
    "SELECT a.attname, format_type(a.atttypid, a.atttypmod) FROM pg_attribute AS a"
    " WHERE a.attrelid = $1::text::regclass AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"
)


def open_query(
    control: ControlConnection, store: RecordStore, table: sql.Identifier, owner: TargetClaimant
) -> TargetQuery | None:
    """Return queries of one snapshot, until they are closed. Return None if there is no table."""
    closing = ExitStack()
    with closing:
        session = closing.enter_context(control.transaction(snapshot=True))
        session.run("SET TRANSACTION READ ONLY")
        name = table.as_string(None)
        if session.run("SELECT to_regclass($1::text)", name)[0][0] is None:
            return None
        state = store.read_state(session)
        return TargetQuery(
            "postgres",
            name,
            _read_columns(session, name),
            lambda text: _fetch(session, text, owner.key.sink),
            state.record if state else None,
            is_shared=bool(owner.others(store.claims(session))),
            close=closing.pop_all().close,
        )


def _read_columns(session: ControlSession, table: str) -> dict[str, QueryColumn]:
    return {name: to_query_column("postgres", kind) for name, kind in session.run(_COLUMNS, table)}


def _fetch(session: ControlSession, text: str, node: str) -> QueryResult:
    """Run one statement. A failed statement does not end the transaction."""
    with translate_errors(node):
        session.run("SAVEPOINT headrace_check")
        try:
            rows = session.run(text)
        except psycopg.Error as error:
            session.run("ROLLBACK TO SAVEPOINT headrace_check")
            if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
                msg = "the statement writes, and a check is read-only"
                raise TargetError(msg, node=node) from error
            if isinstance(error, psycopg.errors.QueryCanceled):
                msg = "the statement took longer than the statement timeout"
                hint = "Set `postgres_sink.statement_timeout_secs`, or add an index."
                raise TargetError(msg, hint=hint, node=node) from error
            raise
        return QueryResult(session.columns, rows)
