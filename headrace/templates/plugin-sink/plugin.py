"""Writes rows into a table of an SQLite file, exactly once: rows and record are one transaction."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from typing import Any

import pyarrow as pa
from pydantic import Field

from headrace import OP, ArrowTransactionalSink, Options, Plugin


class TableOptions(Options):
    """The keys of a node."""

    path: str = Field(description="The SQLite file. It is created if it does not exist.")
    table: str = Field(
        pattern="^[A-Za-z_][A-Za-z0-9_]*$$", description="The table. It is created if missing."
    )


class Table(ArrowTransactionalSink):
    """`swap` is the atomic act: it compares the record, and writes record and rows in one transaction."""

    @property
    def target_id(self) -> str:
        """The table. Two pipelines do not write it, unless both sinks set `share`."""
        return self.options.table

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.options.path, isolation_level=None, timeout=30)
        connection.execute(
            "CREATE TABLE IF NOT EXISTS headrace_notes (key TEXT PRIMARY KEY, note TEXT NOT NULL)"
        )
        return connection

    def _note(self, connection: sqlite3.Connection) -> dict[str, Any] | None:
        result = connection.execute(
            "SELECT note FROM headrace_notes WHERE key = ?", [self.note_key]
        ).fetchone()
        return json.loads(result[0]) if result else None

    def load_note(self) -> dict[str, Any] | None:
        """Return the commit record that the file stores."""
        with closing(self._connect()) as connection:
            return self._note(connection)

    def compare_and_swap(
        self, expected: dict[str, Any] | None, note: dict[str, Any], rows: pa.Table | None
    ) -> bool:
        """Store the record and the rows if the stored record is still the expected one.

        Return whether they were stored.
        """
        with closing(self._connect()) as connection, connection:
            connection.execute("BEGIN IMMEDIATE")
            if self._note(connection) != expected:
                return False
            connection.execute(
                "INSERT OR REPLACE INTO headrace_notes VALUES (?, ?)", [self.note_key, json.dumps(note)]
            )
            if rows is not None:
                self._write(connection, rows)
            return True

    def _write(self, connection: sqlite3.Connection, rows: pa.Table) -> None:
        names = [name for name in rows.column_names if name != OP]
        quoted = {name: '"' + name.replace('"', '""') + '"' for name in names}
        key = f", PRIMARY KEY ({', '.join(quoted[name] for name in self.key)})" if self.key else ""
        connection.execute(
            f'CREATE TABLE IF NOT EXISTS "{self.options.table}" ({", ".join(quoted.values())}{key})'
        )
        match = " AND ".join(f"{quoted[name]} = ?" for name in self.key)
        for row in rows.to_pylist():
            if row.pop(OP) == "d":
                connection.execute(
                    f'DELETE FROM "{self.options.table}" WHERE {match}', [row[name] for name in self.key]
                )
            else:
                places = ", ".join("?" for _ in names)
                connection.execute(
                    f'INSERT OR REPLACE INTO "{self.options.table}" VALUES ({places})',
                    [row[name] for name in names],
                )


plugin = Plugin("$id", "sink", Table, TableOptions)
