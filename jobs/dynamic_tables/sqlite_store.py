"""The values of in-memory tables, in one SQLite file on the host that runs the pipeline.

Every commit is durable. A value is stored with the first epoch that had it. Rows of epoch N look up the
values of epochs up to N, whether it is a first attempt, after a crash, or a replay a year later. Only the
newest generation adds values.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from headrace.pipeline.errors import FencedError, TargetError, TransientError

_SCHEMA = (
    (
        "CREATE TABLE IF NOT EXISTS held (entity TEXT NOT NULL, value TEXT NOT NULL, epoch INTEGER NOT"
        " NULL, PRIMARY KEY (entity, value))"
        " WITHOUT ROWID"
    ),
    "CREATE INDEX IF NOT EXISTS held_by_epoch ON held (entity, epoch)",
    (
        "CREATE TABLE IF NOT EXISTS reached (entity TEXT PRIMARY KEY, epoch INTEGER NOT NULL, digest TEXT NOT"
        " NULL) WITHOUT ROWID"
    ),
    "CREATE TABLE IF NOT EXISTS owner (entity TEXT PRIMARY KEY, generation INTEGER NOT NULL) WITHOUT ROWID",
)
_BUSY_SECONDS = 10.0
_PIECE = 50_000


class ValueStore:
    """The file of one generation. It is opened when it is first used."""

    def __init__(self, path: Path, generation: int = 0) -> None:
        self.path = path
        self._generation = generation
        self._connection: sqlite3.Connection | None = None

    def fence(self, entity: str) -> None:
        """Keep older generations from adding values.

        For the owner of the lease. It also works after a ledger was rebuilt, which may count generations from
        the start.
        """
        with self._transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO owner VALUES (?, ?)", (entity, self._generation))

    def add(self, entity: str, epoch: int, digest: str, values: pa.Array) -> None:
        """Store an epoch's values, and the epoch as the last one of the table, in one transaction.

        Idempotent. Deletes values of a dropped plan of this epoch. Raises FencedError after a newer
        generation has begun.
        """
        with self._transaction() as connection:
            ((newest,),) = connection.execute(
                "SELECT max(generation) FROM owner WHERE entity = ?", (entity,)
            ).fetchall()
            if newest is not None and newest > self._generation:
                msg = (
                    f"the values of `{entity}` belong to generation {newest}, and this run is generation"
                    f" {self._generation}"
                )
                raise FencedError(msg)
            connection.execute("DELETE FROM held WHERE entity = ? AND epoch >= ?", (entity, epoch))
            for at in range(0, len(values), _PIECE):
                rows = ((entity, value, epoch) for value in values.slice(at, _PIECE).to_pylist())
                connection.executemany("INSERT OR IGNORE INTO held VALUES (?, ?, ?)", rows)
            connection.execute("INSERT OR REPLACE INTO reached VALUES (?, ?, ?)", (entity, epoch, digest))

    def between(self, entity: str, after: int, until: int) -> pa.Array:
        """Return the values that were added in epochs after `after`, up to `until`."""
        query = "SELECT value FROM held WHERE entity = ? AND epoch > ? AND epoch <= ?"
        with self._translated_errors():
            rows = self._open().execute(query, (entity, after, until))
            return pa.array((value for (value,) in rows), pa.string())

    def read_last_epoch(self, entity: str) -> tuple[int, str] | None:
        """Return the last stored epoch and the digest of its plan, or None for an unknown table."""
        with self._translated_errors():
            return (
                self._open()
                .execute("SELECT epoch, digest FROM reached WHERE entity = ?", (entity,))
                .fetchone()
            )

    def close(self) -> None:
        """Close the file."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(
                self.path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            for statement in _SCHEMA:
                connection.execute(statement)
            self._connection = connection
        return self._connection

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._translated_errors():
            connection = self._open()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.OperationalError, OSError) as error:
            msg = f"the values in {self.path} cannot be read or written just now: {error}"
            raise TransientError(msg) from error
        except sqlite3.DatabaseError as error:
            msg = f"the values in {self.path} cannot be read: {error}"
            raise TargetError(
                msg, hint="Restore the file from a backup that is as new as the ledger."
            ) from error
