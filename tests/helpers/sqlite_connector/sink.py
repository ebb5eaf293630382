"""A SQLite table as a sink, exactly once: rows and state share one transaction."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import ClassVar

import pyarrow as pa

from headrace.connectors.plugins.sinks import changes
from headrace.connectors.sink_base import SinkContext
from headrace.connectors.transactional_sink import CommitKind, SinkCommit, SinkState, TransactionalSink
from headrace.pipeline.model.capabilities import SinkCapabilities
from headrace.pipeline.model.connectors import sink_entries
from headrace.pipeline.protocol.epochs import CommitRecord, Json, WriteCounts
from headrace.pipeline.sql.system_columns import OP


class SqliteSink(TransactionalSink):
    """One table of a SQLite file. `SinkState.version` is the text of the state in the file."""

    capabilities: ClassVar[SinkCapabilities] = sink_entries()["sqlite"].capabilities

    def __init__(self, context: SinkContext) -> None:
        """Store the context without opening the file."""
        super().__init__(context)
        self._key: tuple[str, ...] = tuple(context.extra.get("key", context.node.primary_key))
        self._table = _quote(context.node.table)

    @property
    def target(self) -> str:
        """The table as messages name it."""
        return f"the SQLite table {self._table}"

    def prepare_target(self, schema: pa.Schema) -> None:
        """Create missing tables."""
        columns = ", ".join(map(_quote, schema.names))
        key = f", PRIMARY KEY ({', '.join(map(_quote, self._key))})" if self._key else ""
        with self._transaction() as connection:
            connection.execute(
                "CREATE TABLE IF NOT EXISTS headrace_states (sink TEXT PRIMARY KEY, state TEXT NOT NULL)"
            )
            connection.execute(f"CREATE TABLE IF NOT EXISTS {self._table} ({columns}{key})")

    def read_state(self) -> SinkState | None:
        """Return the state in the file."""
        with self._transaction() as connection:
            return self._read_state(connection)

    def commit(self, expected: SinkState, change: SinkCommit) -> SinkState | None:
        """Compare the state, write rows and set the new state in one transaction."""
        rows = changes(change.frame) if change.frame is not None else None
        with self._transaction() as connection:
            if self._read_state(connection) != expected:
                return None
            record = change.record
            if rows is not None:
                record = change.complete(self._write_rows(connection, rows))
            elif change.kind is CommitKind.REGISTER and record is not None:
                record = replace(record, baseline=self._count_rows(connection))
            state = {"generation": change.generation, "record": record.to_json() if record else None}
            connection.execute(
                "INSERT OR REPLACE INTO headrace_states VALUES (?, ?)",
                [self._context.key.text, json.dumps(state)],
            )
        return SinkState(change.generation, record)

    def find_conflicting_record(self) -> CommitRecord | None:
        """Return the record of the same pipeline name, `lane` and sink under another UUID."""
        mine = self._context.key
        with self._transaction() as connection:
            states = [json.loads(text) for (text,) in connection.execute("SELECT state FROM headrace_states")]
        for record in (CommitRecord.from_json(state["record"]) for state in states if state["record"]):
            if record.key.pipeline != mine.pipeline and (
                record.key.name,
                record.key.lane,
                record.key.sink,
            ) == (
                mine.name,
                mine.lane,
                mine.sink,
            ):
                return record
        return None

    def read_row_count(self) -> tuple[CommitRecord | None, int] | None:
        """Return the record and the number of rows of one transaction."""
        with self._transaction() as connection:
            state = self._read_state(connection)
            return (state.record if state else None), self._count_rows(connection)

    def describe(self) -> Json:
        """Return the type, asset key, table name and path."""
        node = self._context.node
        return {
            "kind": "sqlite",
            "asset_key": ["sqlite", node.table],
            "table_name": node.table,
            "location": node.path,
        }

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with (
            closing(sqlite3.connect(self._context.node.path, isolation_level=None, timeout=30)) as connection,
            connection,
        ):
            connection.execute("BEGIN IMMEDIATE")
            yield connection

    def _read_state(self, connection: sqlite3.Connection) -> SinkState | None:
        stored = connection.execute(
            "SELECT state FROM headrace_states WHERE sink = ?", [self._context.key.text]
        ).fetchone()
        if stored is None:
            return SinkState()
        state = json.loads(stored[0])
        return SinkState(
            state["generation"],
            CommitRecord.from_json(state["record"]) if state["record"] else None,
            stored[0],
        )

    def _write_rows(self, connection: sqlite3.Connection, rows: pa.Table) -> WriteCounts:
        """Write rows in order. With a key there is one row per key."""
        names = [name for name in rows.column_names if name != OP]
        insert = f"INSERT OR REPLACE INTO {self._table} VALUES ({', '.join('?' for _ in names)})"
        match = " AND ".join(f"{_quote(name)} = ?" for name in self._key)
        inserted = updated = deleted = 0
        for row in rows.to_pylist():
            exists = 0
            if self._key:
                exists = connection.execute(
                    f"DELETE FROM {self._table} WHERE {match}", [row[name] for name in self._key]
                ).rowcount
            if row[OP] == "d":
                deleted += exists
                continue
            connection.execute(insert, [row[name] for name in names])
            inserted, updated = inserted + 1 - exists, updated + exists
        return WriteCounts(rows.num_rows, inserted, updated, deleted)

    def _count_rows(self, connection: sqlite3.Connection) -> int:
        return connection.execute(f"SELECT count(*) FROM {self._table}").fetchone()[0]


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
