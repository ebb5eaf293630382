"""The engine behind the gateway: chdb, one process per data folder, one cheap connection per request.

Tried with chdb 4.4: connections of one process run queries side by side and without the GIL; opening one costs a millisecond. Results
leave through a named pipe (`INTO OUTFILE`), because chdb's own streaming encodes every block as a file of its own, which only some
formats survive. Data comes in by `send_insert`.
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

from headrace.services.clickhouse_sql import Answer

CHUNK = 1 << 20
_HELD_BACK = 1 << 18
_F_SETPIPE_SZ = 1031
_CODE = re.compile(r"Code: (\d+)\. ")
_NAME = re.compile(r"\([A-Z_]{3,}\)\s*$")


class EngineError(Exception):
    """What the engine refused, in the words and with the code of ClickHouse."""

    def __init__(self, message: str, version: str = "") -> None:
        found = message[message.find("Code: ") :] if "Code: " in message else f"Code: 1002. DB::Exception: {message} (UNKNOWN_EXCEPTION)"
        self.text = f"{found.strip()} (version {version} (chdb))" if version and "(version " not in found else found.strip()
        code = _CODE.search(self.text)
        self.code = int(code.group(1)) if code else 1002
        super().__init__(self.text)


@dataclass(frozen=True, slots=True)
class Request:
    """What surrounds a statement: its database, settings, bound parameters, and what its session was told before."""

    database: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)
    session: tuple[str, ...] = ()


@dataclass(slots=True)
class Summary:
    """The counts of X-ClickHouse-Summary."""

    read_rows: int = 0
    read_bytes: int = 0
    written_rows: int = 0
    written_bytes: int = 0
    elapsed: float = 0.0

    def header(self) -> str:
        """As the server writes it: every number a string."""
        counts = {name: str(getattr(self, name)) for name in ("read_rows", "read_bytes", "written_rows", "written_bytes")}
        return json.dumps(counts | {"total_rows_to_read": "0", "elapsed_ns": str(int(self.elapsed * 1e9))}, separators=(",", ":"))


class Engine:
    """The databases of one folder. Only one process can hold them; it holds them until it ends."""

    def __init__(self, folder: Path) -> None:
        self._path = str(folder / "engine")
        self._pipes = folder / "pipes"
        self._pipes.mkdir(parents=True, exist_ok=True)
        for stale in self._pipes.iterdir():
            stale.unlink()
        # Without one connection open the engine would close and open again at every request.
        self._keeper = chdb.connect(self._path)
        version, self.timezone = self._keeper.query("SELECT version(), timezone()", "TSV").bytes().decode().split()
        self.version = version

    def run(self, sql: str, request: Request) -> tuple[bytes, Summary]:
        """Run a statement that returns few rows or none; they come as TabSeparated."""
        with self._connection(request) as connection:
            return _rows_and_summary(connection.query(sql, "TabSeparated"))

    def open(self, answer: Answer, fmt: str, request: Request) -> Stream:
        """Start a statement that returns rows. Its errors show when the stream is read."""
        return Stream(self, answer, fmt, request)

    def insert(self, head: str, fmt: str, blocks: Iterable[bytes], request: Request) -> Summary:
        """Write encoded rows as one insert. Nothing is held back: the engine parses while the data comes.

        An error of `blocks` itself (the client is gone) cancels the insert and is raised.
        """
        with self._connection(request) as connection, connection.send_insert(head, fmt) as inserter:
            for block in blocks:
                inserter.append(block)
            done = inserter.finish()
        return Summary(done.rows_written, done.bytes_written, done.rows_written, done.bytes_written, done.elapsed)

    @contextlib.contextmanager
    def _connection(self, request: Request) -> Iterator[Any]:
        """A connection that nobody used before, so no setting leaks from one request to another."""
        connection = chdb.connect(self._path)
        try:
            connection.query("SET implicit_select = 0")  # on in chdb only, where `1` would be a statement
            for statement in request.session:
                connection.query(statement)
            if request.database:
                connection.query(f"USE {_quoted(request.database, '`')}")
            values = [f"{_name('param_' + key)} = {_quoted(value)}" for key, value in request.parameters.items()]
            if values:
                # The limit is for statements; bound values may be longer.
                connection.query(f"SET max_query_size = {1 << 30}")
                connection.query("SET " + ", ".join(values))
                connection.query("SET max_query_size = DEFAULT")
            if settings := [f"{_name(key)} = {_quoted(value)}" for key, value in request.settings.items()]:
                connection.query("SET " + ", ".join(settings))
            yield connection
        except RuntimeError as error:
            raise EngineError(str(error), self.version) from None
        finally:
            connection.close()

    def pipe(self) -> Path:
        """A new named pipe."""
        path = self._pipes / secrets.token_hex(8)
        os.mkfifo(path, 0o600)
        return path


class Stream:
    """The encoded rows of one statement, as the engine produces them; at most a pipe's worth is ahead of the reader.

    The last part waits until the statement has ended well. When one fails halfway chdb still writes the format's regular end, and with
    it half a result would look like a whole one.
    """

    def __init__(self, engine: Engine, answer: Answer, fmt: str, request: Request) -> None:
        self._engine = engine
        self._path = engine.pipe()
        # Both ends open before the engine comes, so that neither side ever waits for the other to open; ours of the writing
        # side is closed when the statement ends, which is what the reader sees as the end.
        self._reading = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK)
        self._writing = os.open(self._path, os.O_WRONLY)
        os.set_blocking(self._reading, True)
        if sys.platform == "linux":
            with contextlib.suppress(OSError):
                fcntl.fcntl(self._reading, _F_SETPIPE_SZ, CHUNK)
        self._sql = f"{answer.head}\nINTO OUTFILE {_quoted(str(self._path))} TRUNCATE FORMAT {fmt} {answer.tail}"
        self.summary = Summary()
        self.error: EngineError | None = None
        self._held = b""
        self._ended = False
        self._thread = threading.Thread(target=self._run, args=(request,), daemon=True)
        self._thread.start()

    def read(self) -> bytes:
        """The next bytes, empty at the end. After the end `error` and `summary` are set."""
        while not self._ended:
            if data := os.read(self._reading, CHUNK):
                ready, self._held = (self._held, data) if len(data) >= _HELD_BACK else (b"", self._held + data)
                if len(self._held) >= 2 * CHUNK:
                    ready, self._held = self._held[:-_HELD_BACK], self._held[-_HELD_BACK:]
                if ready:
                    return ready
            else:
                self._thread.join()
                self._ended = True
                return b"" if self.error else self._held
        return b""

    def close(self) -> None:
        """Stop reading; a statement that still writes fails at its next block and ends."""
        os.close(self._reading)

    def _run(self, request: Request) -> None:
        begun = time.monotonic()
        try:
            _, self.summary = self._engine.run(self._sql, request)
        except EngineError as error:
            self.error = error
        finally:
            self.summary.elapsed = time.monotonic() - begun
            os.close(self._writing)
            self._path.unlink(missing_ok=True)


def blocks_of(stream: BinaryIO, head: bytes = b"") -> Iterator[bytes]:
    """The rest of a binary stream, in large pieces."""
    if head:
        yield head
    while block := stream.read(CHUNK):
        yield block


def _rows_and_summary(result: Any) -> tuple[bytes, Summary]:
    written = result.rows_written()
    summary = Summary(result.storage_rows_read(), result.storage_bytes_read(), written, result.bytes_written(), result.elapsed())
    return result.bytes() or b"", summary


def _quoted(text: str, mark: str = "'") -> str:
    return mark + text.replace("\\", "\\\\").replace(mark, "\\" + mark) + mark


def _name(key: str) -> str:
    if not re.fullmatch(r"\w+", key, re.ASCII):
        msg = f"Code: 115. DB::Exception: Unknown setting '{key}'. (UNKNOWN_SETTING)"
        raise EngineError(msg)
    return key
