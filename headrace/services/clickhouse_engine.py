"""The engine of the gateway: chdb, one process per data folder, one connection per request.

Measured with chdb 4.4: connections of one process run queries in parallel and without the GIL; opening one
takes a millisecond. Results leave through a named pipe (`INTO OUTFILE`), because chdb's own streaming encodes
every block as a separate file, which only some formats allow. Data enters through `send_insert`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import chdb

from headrace.services.clickhouse_sql import QueryStatement
from headrace.services.state import SINK_DATABASE

CHUNK = 1 << 20
_TAIL_BYTES = 1 << 18
_F_SETPIPE_SZ = 1031
_CODE = re.compile(r"Code: (\d+)\. ")
_NAME = re.compile(r"\([A-Z_]{3,}\)\s*$")


class ClickHouseEngineError(Exception):
    """An error of the engine, with ClickHouse's message and code."""

    def __init__(self, message: str, version: str = "") -> None:
        text = (
            message[message.find("Code: ") :]
            if "Code: " in message
            else f"Code: 1002. DB::Exception: {message} (UNKNOWN_EXCEPTION)"
        )
        self.text = (
            f"{text.strip()} (version {version} (chdb))"
            if version and "(version " not in text
            else text.strip()
        )
        code = _CODE.search(self.text)
        self.code = int(code.group(1)) if code else 1002
        super().__init__(self.text)


@dataclass(frozen=True, slots=True)
class StatementContext:
    """The context of a statement: database, settings, bound parameters, earlier statements of its session."""

    database: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)
    session: tuple[str, ...] = ()


@dataclass(slots=True)
class QuerySummary:
    """The counts of X-ClickHouse-Summary."""

    read_rows: int = 0
    read_bytes: int = 0
    written_rows: int = 0
    written_bytes: int = 0
    elapsed: float = 0.0

    def header(self) -> str:
        """Return the header as the server writes it: every number is a string."""
        counts = {
            name: str(getattr(self, name))
            for name in ("read_rows", "read_bytes", "written_rows", "written_bytes")
        }
        return json.dumps(
            counts | {"total_rows_to_read": "0", "elapsed_ns": str(int(self.elapsed * 1e9))},
            separators=(",", ":"),
        )


class ClickHouseEngine:
    """The databases of a folder. Only one process can open them, and it keeps them until it ends."""

    def __init__(self, folder: Path) -> None:
        self._path = str(folder / "engine")
        self._pipes = folder / "pipes"
        self._pipes.mkdir(parents=True, exist_ok=True)
        for stale in self._pipes.iterdir():
            stale.unlink()
        # One connection stays open. Without it the engine would close and reopen at every request.
        self._keeper = chdb.connect(self._path)
        # The engine of chdb's database `default` is not Atomic, so sinks refuse its tables.
        self._keeper.query(f"CREATE DATABASE IF NOT EXISTS {SINK_DATABASE} ENGINE = Atomic")
        version, self.timezone = (
            self._keeper.query("SELECT version(), timezone()", "TSV").bytes().decode().split()
        )
        self.version = version

    def run(self, sql: str, context: StatementContext) -> tuple[bytes, QuerySummary]:
        """Run a statement with few or no result rows. Return them as TabSeparated."""
        with self._connection(context) as connection:
            return _rows_and_summary(connection.query(sql, "TabSeparated"))

    def open_stream(self, statement: QueryStatement, fmt: str, context: StatementContext) -> ResultStream:
        """Start a statement with result rows. Its errors are raised when the stream is read."""
        return ResultStream(self, statement, fmt, context)

    def cancel(self, text: str) -> None:
        """Cancel the running statements that contain `text`.

        chdb ignores a closed pipe in most formats, such as Arrow and TabSeparated, and runs to the end of the
        statement.
        """
        own = "startsWith(query, 'KILL QUERY')"
        with contextlib.suppress(ClickHouseEngineError):
            self.run(
                f"KILL QUERY WHERE position(query, {_quote(text)}) > 0 AND NOT {own} ASYNC",
                StatementContext(),
            )

    def insert(self, head: str, fmt: str, blocks: Iterable[bytes], context: StatementContext) -> QuerySummary:
        """Write encoded rows as one insert. The engine parses them while they arrive.

        An error of `blocks` (the client disconnected) cancels the insert and is raised.
        """
        with self._connection(context) as connection, connection.send_insert(head, fmt) as inserter:
            for block in blocks:
                inserter.append(block)
            result = inserter.finish()
        return QuerySummary(
            result.rows_written,
            result.bytes_written,
            result.rows_written,
            result.bytes_written,
            result.elapsed,
        )

    @contextlib.contextmanager
    def _connection(self, context: StatementContext) -> Iterator[Any]:
        """Yield a new connection, so that no setting leaks from one request to another."""
        connection = chdb.connect(self._path)
        try:
            connection.query(
                "SET implicit_select = 0"
            )  # only chdb sets it, and `1` would then be a statement
            for statement in context.session:
                connection.query(statement)
            if context.database:
                connection.query(f"USE {_quote(context.database, '`')}")
            values = [
                f"{_check_name('param_' + key)} = {_quote(value)}"
                for key, value in context.parameters.items()
            ]
            if values:
                # The limit applies to statements. Bound values can be longer.
                connection.query(f"SET max_query_size = {1 << 30}")
                connection.query("SET " + ", ".join(values))
                connection.query("SET max_query_size = DEFAULT")
            if settings := [
                f"{_check_name(key)} = {_quote(value)}" for key, value in context.settings.items()
            ]:
                connection.query("SET " + ", ".join(settings))
            yield connection
        except RuntimeError as error:
            raise ClickHouseEngineError(str(error), self.version) from None
        finally:
            connection.close()

    def create_pipe(self) -> Path:
        """Create a named pipe."""
        path = self._pipes / secrets.token_hex(8)
        os.mkfifo(path, 0o600)
        return path


class ResultStream:
    """The encoded result rows of a statement. The engine is at most one pipe buffer ahead of the reader.

    The last part is returned only after the statement succeeded. If a statement fails halfway, chdb still
    writes the regular end of the format, so a partial result would look complete.
    """

    def __init__(
        self, engine: ClickHouseEngine, statement: QueryStatement, fmt: str, context: StatementContext
    ) -> None:
        self._engine = engine
        self._path = engine.create_pipe()
        # Open both ends before the engine does, so that no side waits for the other. Our writing end is
        # closed when the statement ends, and the reader sees that as the end.
        self._reading = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK)
        self._writing = os.open(self._path, os.O_WRONLY)
        os.set_blocking(self._reading, True)
        if sys.platform == "linux":
            with contextlib.suppress(OSError):
                fcntl.fcntl(self._reading, _F_SETPIPE_SZ, CHUNK)
        self._sql = (
            f"{statement.head}\nINTO OUTFILE {_quote(str(self._path))} TRUNCATE FORMAT {fmt} {statement.tail}"
        )
        self.summary = QuerySummary()
        self.error: ClickHouseEngineError | None = None
        self._pending = b""
        self._ended = False
        self._thread = threading.Thread(target=self._run, args=(context,), daemon=True)
        self._thread.start()

    def read(self) -> bytes:
        """Return the next bytes, empty at the end. After the end `error` and `summary` are set."""
        while not self._ended:
            if data := os.read(self._reading, CHUNK):
                ready, self._pending = (
                    (self._pending, data) if len(data) >= _TAIL_BYTES else (b"", self._pending + data)
                )
                if len(self._pending) >= 2 * CHUNK:
                    ready, self._pending = self._pending[:-_TAIL_BYTES], self._pending[-_TAIL_BYTES:]
                if ready:
                    return ready
            else:
                self._thread.join()
                self._ended = True
                return b"" if self.error else self._pending
        return b""

    def close(self) -> None:
        """Stop reading, and cancel the statement if it still runs."""
        os.close(self._reading)
        if self._thread.is_alive():
            self._engine.cancel(self._path.name)

    def _run(self, context: StatementContext) -> None:
        started = time.monotonic()
        try:
            _, self.summary = self._engine.run(self._sql, context)
        except ClickHouseEngineError as error:
            self.error = error
        finally:
            self.summary.elapsed = time.monotonic() - started
            os.close(self._writing)
            self._path.unlink(missing_ok=True)


def read_blocks(stream: BinaryIO, head: bytes = b"") -> Iterator[bytes]:
    """Yield `head`, then the rest of a binary stream in large blocks."""
    if head:
        yield head
    while block := stream.read(CHUNK):
        yield block


def _rows_and_summary(result: Any) -> tuple[bytes, QuerySummary]:
    written = result.rows_written()
    summary = QuerySummary(
        result.storage_rows_read(),
        result.storage_bytes_read(),
        written,
        result.bytes_written(),
        result.elapsed(),
    )
    return result.bytes() or b"", summary


def _quote(text: str, mark: str = "'") -> str:
    return mark + text.replace("\\", "\\\\").replace(mark, "\\" + mark) + mark


def _check_name(key: str) -> str:
    if not re.fullmatch(r"\w+", key, re.ASCII):
        msg = f"Code: 115. DB::Exception: Unknown setting '{key}'. (UNKNOWN_SETTING)"
        raise ClickHouseEngineError(msg)
    return key
