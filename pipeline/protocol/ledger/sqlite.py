"""A ledger in a SQLite file, for pipelines that run on one host.

The database is durable at every commit (synchronous=FULL). An owner keeps one lock file per generation under
flock(2). The kernel drops the lock when the process dies, so that a killed owner can be replaced at once.
Both need a local file system.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import stamina

from headrace.pipeline.errors import SettingsError, TransientError
from headrace.pipeline.protocol.ledger.store import SCHEMA, SCHEMA_VERSION, Presence, upgrade_statements
from headrace.pipeline.protocol.ledger.writer import Ledger

NETWORK_FILE_SYSTEMS = (
    "nfs",
    "cifs",
    "smb",
    "afs",
    "9p",
    "ceph",
    "gluster",
    "lustre",
    "sshfs",
    "fuse.s3fs",
    "fuse.gcsfuse",
)
BUSY_SECONDS = 10.0
_WAL_BYTES = 8 * 2**20
_FREE_PAGES, _TRIMMED_PAGES = 512, 256
"""The number of free pages that a file keeps for reuse, and the number that it returns at a time."""


def open_sqlite(path: Path) -> Ledger:
    """Open the ledger at `path`, and create it if needed. Raise SettingsError on a network file system."""
    path = Path(path).absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    _refuse_network(path)
    return Ledger(SqliteStore(str(path), FileLocks(path.with_name(path.name + ".locks"))))


def _refuse_network(path: Path) -> None:
    resolved = path.parent.resolve()
    mounts = {part.mountpoint: part.fstype for part in psutil.disk_partitions(all=True)}
    mount = next((str(folder) for folder in (resolved, *resolved.parents) if str(folder) in mounts), None)
    if mount is not None and mounts[mount].startswith(NETWORK_FILE_SYSTEMS):
        msg = (
            f"the ledger {path} lies on a network file system ({mounts[mount]} at {mount}), where file"
            " locks do not hold"
        )
        raise SettingsError(msg, hint="Put the SQLite ledger on a local disk, or use a Postgres ledger.")


class FileLocks:
    """One lock file per lane and generation, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _path(self, pipeline: str, lane: str, generation: int) -> Path:
        return self.folder / f"{pipeline}.{quote(lane, safe='')}.{generation}"

    def present(self, pipeline: str, lane: str, generation: int) -> Presence:
        """Take the lock of a generation.

        The caller's transaction ensures that no other process competes for it.
        """
        self.folder.mkdir(exist_ok=True)
        path = self._path(pipeline, lane, generation)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        fcntl.flock(file, fcntl.LOCK_EX)
        self._sweep(pipeline, lane, path)
        return _FileLock(file, path)

    def _sweep(self, pipeline: str, lane: str, own: Path) -> None:
        """Remove the lock files of dead generations."""
        for path in self.folder.glob(f"{pipeline}.{quote(lane, safe='')}.*"):
            if path != own and self._free(path):
                path.unlink(missing_ok=True)

    def is_owner_dead(self, pipeline: str, lane: str, generation: int) -> bool:
        """Return whether the lock is free. A missing lock file proves nothing, so the result is False."""
        return self._free(self._path(pipeline, lane, generation))

    def _free(self, path: Path) -> bool:
        try:
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(file)
        return True


class _FileLock:
    def __init__(self, file: int, path: Path) -> None:
        self._file: int | None = file
        self._path = path

    def release(self) -> None:
        if self._file is not None:
            self._path.unlink(missing_ok=True)
            os.close(self._file)
            self._file = None


class SqliteStore:
    """A store over one SQLite connection, which the threads of a process share."""

    def __init__(self, database: str, locks: Any) -> None:
        self._lock = threading.RLock()
        self._locks = locks
        self._where = database
        self._connection = sqlite3.connect(
            database, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        self._configure()
        self._migrate()

    # If two processes create the file at once, one change of the journal mode fails without waiting.
    @stamina.retry(on=TransientError, attempts=20, wait_initial=0.02, wait_max=0.5, timeout=BUSY_SECONDS)
    def _configure(self) -> None:
        with self._lock, self._map_errors():
            # This works only on an empty file. `trim` can then return deleted pages one by one.
            self._connection.execute("pragma auto_vacuum=incremental")
            self._connection.execute("pragma journal_mode=wal")
            self._connection.execute(f"pragma journal_size_limit={_WAL_BYTES:d}")
            self._connection.execute("pragma synchronous=full")

    def _migrate(self) -> None:
        with self.write():
            row = self._connection.execute("pragma user_version").fetchone()
            statements = SCHEMA if row[0] == 0 else upgrade_statements(row[0], self._where)
            for statement in statements:
                self._connection.execute(statement)
            if statements:
                self._connection.execute(f"pragma user_version={SCHEMA_VERSION:d}")

    def clock(self) -> float:
        """Return the host's clock. Every owner of a SQLite ledger runs on this host."""
        return time.time()

    @contextmanager
    def _map_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            msg = f"the ledger {self._where} cannot be used just now: {error}"
            locked = "Another process has held it for too long; is one of them stopped?"
            raise TransientError(
                msg, hint=locked if "locked" in str(error) else "Is the disk full, or the file not writable?"
            ) from error

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[_SqliteTx]:
        with self._lock, self._map_errors():
            self._connection.execute(begin)
            try:
                yield _SqliteTx(self._connection, self.clock())
                self._connection.execute("commit")
            except BaseException:
                # A failed statement may have ended the transaction by itself (disk full).
                with suppress(sqlite3.OperationalError):
                    self._connection.execute("rollback")
                raise

    def write(self) -> Any:
        """See `Store.write`."""
        return self._transaction("begin immediate")

    def read(self) -> Any:
        """See `Store.read`."""
        return self._transaction("begin")

    def trim(self) -> None:
        """See `Store.trim`."""
        with self._lock, self._map_errors():
            if self._connection.execute("pragma freelist_count").fetchone()[0] > _FREE_PAGES:
                # `execute` does one step of the statement, which frees one page.
                self._connection.executescript(f"pragma incremental_vacuum({_TRIMMED_PAGES:d})")

    def present(self, pipeline: str, lane: str, generation: int) -> Presence:
        """See `Store.present`."""
        return self._locks.present(pipeline, lane, generation)

    def is_owner_dead(self, pipeline: str, lane: str, generation: int) -> bool:
        """See `Store.is_owner_dead`."""
        return self._locks.is_owner_dead(pipeline, lane, generation)

    def close(self) -> None:
        """See `Store.close`."""
        with self._lock:
            self._connection.close()


class _SqliteTx:
    def __init__(self, connection: sqlite3.Connection, now: float) -> None:
        self._connection = connection
        self.now = now

    def all(self, sql: str, /, **values: Any) -> list[tuple[Any, ...]]:
        return self._connection.execute(sql, values).fetchall()

    def one(self, sql: str, /, **values: Any) -> tuple[Any, ...] | None:
        return next(iter(self.all(sql, **values)), None)

    def run(self, sql: str, /, **values: Any) -> int:
        return self._connection.execute(sql, values).rowcount
