"""ClickHouse's HTTP interface over the engine: `python -m headrace.services.clickhouse_gateway <data folder> <host> <port>`.

What clickhouse-connect and plain HTTP clients use of it: the query in the body, in `query`, or half and half; `database`, settings,
`param_…` and `session_id` as URL parameters or form fields; data in any input format, compressed or not; every output format, streamed;
the headers and the errors of the real server. Not there: temporary tables, external tables, several users, answers in compressed form
(on the loopback they only cost time), the zone of a `DateTime('…')` column in Native (chdb writes the format's first revision; other
formats and DateTime64 have it).
"""

from __future__ import annotations

import io
import os
import secrets
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import anyio
import anyio.from_thread
import anyio.to_thread
import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from headrace.services import clickhouse_protocol as protocol
from headrace.services.clickhouse_engine import CHUNK, Engine, EngineError, Stream, Summary, blocks_of
from headrace.services.clickhouse_protocol import Call
from headrace.services.clickhouse_sql import Answer, Command, Insert, is_insert, parse

_HEAD = 1 << 18  # an INSERT up to its FORMAT fits into this; what follows is data
_IN_MEMORY = 1 << 26
_THREADS = 200  # each open stream and each insert holds one


class Gateway:
    """The handlers, with the engine and the sessions."""

    def __init__(self, engine: Engine, password: str) -> None:
        self._engine = engine
        self._password = password
        self._sessions: dict[str, tuple[float, tuple[str, ...]]] = {}

    def app(self) -> Starlette:
        """The ASGI application."""
        return Starlette(routes=[Route("/ping", self._ping), Route("/", self._handle, methods=["GET", "POST"])])

    async def _ping(self, request: HttpRequest) -> Response:
        del request
        return PlainTextResponse("Ok.\n")

    async def _handle(self, http: HttpRequest) -> Response:
        try:
            body, form = _Body(http.stream()), {}
            kind = http.headers.get("content-type", "")
            if kind.startswith("multipart/form-data"):
                form, body = protocol.read_form(kind, await http.body()), _Body(_nothing())
            call = protocol.read_call(http.headers, http.url.query.encode(), form, reading_only=http.method == "GET")
            if call.user != "default" or not secrets.compare_digest(call.password.encode(), self._password.encode()):
                raise protocol.authentication_failed(call.user)
            stream = protocol.decoded(body, http.headers.get("content-encoding"))
            return await anyio.to_thread.run_sync(self._execute, call, stream)
        except EngineError as error:
            return self._refusal(error)
        except ClientDisconnect:
            return Response(status_code=499)

    def _execute(self, call: Call, body: BinaryIO) -> Response:
        """In a worker thread: read as much of the body as the statement needs, and run it."""
        call = self._in_session(call)
        text = f"{call.query}\n".encode() if call.query else b""
        text += body.read(_HEAD)
        if is_insert(text.decode("latin-1")):
            # Latin-1, because rows in binary form may follow: a character is a byte, whatever it is.
            insert = parse(text.decode("latin-1"))
            if isinstance(insert, Insert):
                head = insert.head.encode("latin-1").decode()
                return self._done(call, self._engine.insert(head, insert.format, blocks_of(body, text[insert.data :]), call.request))
        sql = (text + body.read()).decode()
        statement = parse(sql)
        if isinstance(statement, Answer):
            fmt = statement.format or call.default_format
            return self._rows(call, self._engine.open(statement, fmt, call.request), fmt)
        if isinstance(statement, Command) and statement.temporary:
            msg = "Code: 48. DB::Exception: This local gateway keeps no temporary tables. (NOT_IMPLEMENTED)"
            raise EngineError(msg)
        rows, summary = self._engine.run(sql.strip().rstrip(";"), call.request)
        if isinstance(statement, Command) and statement.remembered and call.session_id:
            self._sessions[call.session_id] = (time.monotonic() + call.session_timeout, (*call.request.session, sql.strip().rstrip(";")))
        return self._done(call, summary, rows)

    def _in_session(self, call: Call) -> Call:
        """The call with the SETs and USEs that its session has seen."""
        now = time.monotonic()
        for name in [name for name, (until, _) in self._sessions.items() if until < now]:
            self._sessions.pop(name, None)
        if call.session_id is None or call.session_id not in self._sessions:
            return call
        _, told = self._sessions[call.session_id]
        self._sessions[call.session_id] = (now + call.session_timeout, told)
        return replace(call, request=replace(call.request, session=told))

    def _rows(self, call: Call, stream: Stream, fmt: str) -> Response:
        """The answer to a query. It starts when the first bytes are there, so that most errors still get a status of their own."""
        try:
            first = stream.read()
            held = _held(first, stream) if call.buffered else None
        except BaseException:
            stream.close()
            raise
        if stream.error and (held or not first):
            stream.close()
            raise stream.error
        headers = self._headers(call, stream.summary, fmt)
        if held:
            stream.close()
            return _Rows(headers, b"", lambda: held.read(CHUNK), held.close, lambda: None)
        return _Rows(headers, first, stream.read, stream.close, lambda: stream.error)

    def _done(self, call: Call, summary: Summary, rows: bytes = b"") -> Response:
        return Response(rows, headers=self._headers(call, summary, "TabSeparated" if rows else None))

    def _refusal(self, error: EngineError) -> Response:
        text = error.text if "(version " in error.text else f"{error.text} (version {self._engine.version} (chdb))"
        headers = {"X-ClickHouse-Exception-Code": str(error.code), "X-ClickHouse-Server-Display-Name": "headrace"}
        return PlainTextResponse(text + "\n", status_code=protocol.status_of(error.code), headers=headers)

    def _headers(self, call: Call, summary: Summary, fmt: str | None) -> dict[str, str]:
        headers = {
            "X-ClickHouse-Query-Id": call.query_id,
            "X-ClickHouse-Summary": summary.header(),
            "X-ClickHouse-Timezone": self._engine.timezone,
            "X-ClickHouse-Server-Display-Name": "headrace",
        }
        return headers | ({"X-ClickHouse-Format": fmt, "Content-Type": protocol.content_type(fmt)} if fmt else {})


class _Rows(Response):
    """Rows as they come. An error halfway is told in the stream, which then breaks off without its end."""

    def __init__(
        self, headers: dict[str, str], first: bytes, read: Callable[[], bytes], close: Callable[[], None], error: Callable[[], Any]
    ) -> None:
        self._tag = secrets.token_hex(8)
        super().__init__(headers=headers | {"X-ClickHouse-Exception-Tag": self._tag})
        self.raw_headers = [(key, value) for key, value in self.raw_headers if key != b"content-length"]
        self._first, self._read, self._close, self._error = first, read, close, error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the rows end or the client is gone."""
        del scope
        gone = anyio.Event()

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            gone.set()

        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(watch)
                await self._send(send, gone)
                tasks.cancel_scope.cancel()
        finally:
            self._close()

    async def _send(self, send: Send, gone: anyio.Event) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        data = self._first or await anyio.to_thread.run_sync(self._read)
        while data and not gone.is_set():
            await send({"type": "http.response.body", "body": data, "more_body": True})
            data = await anyio.to_thread.run_sync(self._read)
        if not gone.is_set() and (error := self._error()):
            await send({"type": "http.response.body", "body": protocol.exception_block(error.text, self._tag), "more_body": True})
            return
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class _Body(io.RawIOBase):
    """The body of a request, read from a worker thread while it comes."""

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """As RawIOBase has it."""
        while not self._rest:
            data = anyio.from_thread.run(anext, self._chunks, None)
            if data is None:
                return 0
            self._rest = memoryview(data)
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size


async def _nothing() -> AsyncIterator[bytes]:
    for chunk in ():
        yield chunk


def _held(first: bytes, stream: Stream) -> BinaryIO:
    """All rows of a stream, on disk if they are many: the client waits for the end to learn how it went."""
    held: Any = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115 - closed with the response
    while first:
        held.write(first)
        first = stream.read()
    held.seek(0)
    return held


def main() -> None:
    """Serve until SIGTERM."""
    folder, host, port = sys.argv[1:]
    password = os.environ.pop("HEADRACE_GATEWAY_PASSWORD")
    gateway = Gateway(Engine(Path(folder)), password)
    config = uvicorn.Config(
        gateway.app(),
        host=host,
        port=int(port),
        log_level="warning",
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        timeout_keep_alive=600,
        timeout_graceful_shutdown=3,
    )
    uvicorn.Server(config).run()
    # Statements that still run must not hold up the end; the engine's data is as safe as after a kill.
    os._exit(0)


if __name__ == "__main__":
    main()
