"""ClickHouse's HTTP interface for the engine.

python -m headrace.services.clickhouse_gateway <data folder> <host> <port>

It supports what clickhouse-connect and plain HTTP clients use: the query in the body, in `query`, or in both;
`database`, settings, `param_…` and `session_id` as URL parameters or form fields; data in any input format,
compressed or not; every output format, streamed; headers and errors of the real server. Not supported:
temporary tables, external tables, several users, compressed responses (no use on the loopback), the time zone
of a `DateTime('…')` column in Native (chdb writes the format's first revision; other formats and DateTime64
have it).
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
from headrace.services.clickhouse_engine import (
    CHUNK,
    ClickHouseEngine,
    ClickHouseEngineError,
    QuerySummary,
    ResultStream,
    read_blocks,
)
from headrace.services.clickhouse_protocol import GatewayRequest
from headrace.services.clickhouse_sql import (
    CommandStatement,
    InsertStatement,
    QueryStatement,
    is_insert,
    parse_statement,
)

_HEAD_BYTES = 1 << 18  # an INSERT up to its FORMAT fits into this; data follows
_MEMORY_BYTES = 1 << 26


class Gateway:
    """The HTTP handlers, with the engine and the sessions."""

    def __init__(self, engine: ClickHouseEngine, password: str) -> None:
        self._engine = engine
        self._password = password
        self._sessions: dict[str, tuple[float, tuple[str, ...]]] = {}

    def app(self) -> Starlette:
        """Return the ASGI application."""
        return Starlette(
            routes=[Route("/ping", self._ping), Route("/", self._handle, methods=["GET", "POST"])]
        )

    async def _ping(self, request: HttpRequest) -> Response:
        del request
        return PlainTextResponse("Ok.\n")

    async def _handle(self, http: HttpRequest) -> Response:
        try:
            body, form = _RequestBody(http.stream()), {}
            content_type = http.headers.get("content-type", "")
            if content_type.startswith("multipart/form-data"):
                form, body = protocol.read_form(content_type, await http.body()), _RequestBody(_empty_body())
            request = protocol.read_request(
                http.headers, http.url.query.encode(), form, read_only=http.method == "GET"
            )
            if request.user != "default" or not secrets.compare_digest(
                request.password.encode(), self._password.encode()
            ):
                raise protocol.authentication_failed(request.user)
            stream = protocol.decode_body(body, http.headers.get("content-encoding"))
            return await anyio.to_thread.run_sync(self._execute, request, stream)
        except ClickHouseEngineError as error:
            return self._respond_error(error)
        except ClientDisconnect:
            return Response(status_code=499)

    def _execute(self, request: GatewayRequest, body: BinaryIO) -> Response:
        """Read as much of the body as the statement needs, and run it. Runs in a worker thread."""
        request = self._with_session(request)
        text = f"{request.query}\n".encode() if request.query else b""
        text += body.read(_HEAD_BYTES)
        if is_insert(text.decode("latin-1")):
            # Latin-1, because binary rows can follow, and in Latin-1 every byte is a character.
            insert = parse_statement(text.decode("latin-1"))
            if isinstance(insert, InsertStatement):
                head = insert.head.encode("latin-1").decode()
                return self._respond_done(
                    request,
                    self._engine.insert(
                        head, insert.format, read_blocks(body, text[insert.data :]), request.context
                    ),
                )
        sql = (text + body.read()).decode()
        statement = parse_statement(sql)
        if isinstance(statement, QueryStatement):
            fmt = statement.format or request.default_format
            return self._respond_rows(request, self._engine.open_stream(statement, fmt, request.context), fmt)
        if isinstance(statement, CommandStatement) and statement.temporary:
            msg = (
                "Code: 48. DB::Exception: This local gateway does not support temporary tables."
                " (NOT_IMPLEMENTED)"
            )
            raise ClickHouseEngineError(msg)
        rows, summary = self._engine.run(sql.strip().rstrip(";"), request.context)
        if isinstance(statement, CommandStatement) and statement.changes_session and request.session_id:
            self._sessions[request.session_id] = (
                time.monotonic() + request.session_timeout,
                (*request.context.session, sql.strip().rstrip(";")),
            )
        return self._respond_done(request, summary, rows)

    def _with_session(self, request: GatewayRequest) -> GatewayRequest:
        """Return the request with the earlier SET and USE statements of its session."""
        now = time.monotonic()
        for name in [name for name, (until, _) in self._sessions.items() if until < now]:
            self._sessions.pop(name, None)
        if request.session_id is None or request.session_id not in self._sessions:
            return request
        _, statements = self._sessions[request.session_id]
        self._sessions[request.session_id] = (now + request.session_timeout, statements)
        return replace(request, context=replace(request.context, session=statements))

    def _respond_rows(self, request: GatewayRequest, stream: ResultStream, fmt: str) -> Response:
        """Return the response to a query.

        It starts when the first bytes arrive, so that most errors still get their own HTTP status.
        """
        try:
            first = stream.read()
            spooled = _spool_rows(first, stream) if request.buffered else None
        except BaseException:
            stream.close()
            raise
        if stream.error and (spooled or not first):
            stream.close()
            raise stream.error
        headers = self._headers(request, stream.summary, fmt)
        if spooled:
            stream.close()
            return _RowsResponse(headers, b"", lambda: spooled.read(CHUNK), spooled.close, lambda: None)
        return _RowsResponse(headers, first, stream.read, stream.close, lambda: stream.error)

    def _respond_done(self, request: GatewayRequest, summary: QuerySummary, rows: bytes = b"") -> Response:
        return Response(rows, headers=self._headers(request, summary, "TabSeparated" if rows else None))

    def _respond_error(self, error: ClickHouseEngineError) -> Response:
        text = (
            error.text
            if "(version " in error.text
            else f"{error.text} (version {self._engine.version} (chdb))"
        )
        headers = {
            "X-ClickHouse-Exception-Code": str(error.code),
            "X-ClickHouse-Server-Display-Name": "headrace",
        }
        return PlainTextResponse(text + "\n", status_code=protocol.http_status(error.code), headers=headers)

    def _headers(self, request: GatewayRequest, summary: QuerySummary, fmt: str | None) -> dict[str, str]:
        headers = {
            "X-ClickHouse-Query-Id": request.query_id,
            "X-ClickHouse-Summary": summary.header(),
            "X-ClickHouse-Timezone": self._engine.timezone,
            "X-ClickHouse-Server-Display-Name": "headrace",
        }
        return headers | (
            {"X-ClickHouse-Format": fmt, "Content-Type": protocol.content_type(fmt)} if fmt else {}
        )


class _RowsResponse(Response):
    """Streams rows. An error halfway is written into the stream, which then breaks off without its end."""

    def __init__(
        self,
        headers: dict[str, str],
        first: bytes,
        read: Callable[[], bytes],
        close: Callable[[], None],
        error: Callable[[], Any],
    ) -> None:
        self._tag = secrets.token_hex(8)
        super().__init__(headers=headers | {"X-ClickHouse-Exception-Tag": self._tag})
        self.raw_headers = [(key, value) for key, value in self.raw_headers if key != b"content-length"]
        self._first, self._read, self._close, self._error = first, read, close, error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the rows end or the client disconnects."""
        del scope
        disconnected = anyio.Event()

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            disconnected.set()

        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(watch)
                await self._send(send, disconnected)
                tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self._close)

    async def _send(self, send: Send, disconnected: anyio.Event) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        data = self._first or await anyio.to_thread.run_sync(self._read)
        while data and not disconnected.is_set():
            await send({"type": "http.response.body", "body": data, "more_body": True})
            data = await anyio.to_thread.run_sync(self._read)
        if not disconnected.is_set() and (error := self._error()):
            await send(
                {
                    "type": "http.response.body",
                    "body": protocol.exception_block(error.text, self._tag),
                    "more_body": True,
                }
            )
            return
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class _RequestBody(io.RawIOBase):
    """The body of a request, read from a worker thread while it arrives."""

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Read into the buffer as RawIOBase requires."""
        while not self._rest:
            data = anyio.from_thread.run(anext, self._chunks, None)
            if data is None:
                return 0
            self._rest = memoryview(data)
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size


async def _empty_body() -> AsyncIterator[bytes]:
    for chunk in ():
        yield chunk


def _spool_rows(first: bytes, stream: ResultStream) -> BinaryIO:
    """Return all rows of a stream, on disk if they are many.

    The client waits for the end to learn the result.
    """
    spooled: Any = tempfile.SpooledTemporaryFile(max_size=_MEMORY_BYTES)  # noqa: SIM115 - closed with the response
    while first:
        spooled.write(first)
        first = stream.read()
    spooled.seek(0)
    return spooled


def main() -> None:
    """Serve until SIGTERM."""
    folder, host, port = sys.argv[1:]
    password = os.environ.pop("HEADRACE_GATEWAY_PASSWORD")
    gateway = Gateway(ClickHouseEngine(Path(folder)), password)
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
    # Running statements must not delay the exit. The engine's data is as safe as after a kill.
    os._exit(0)


if __name__ == "__main__":
    main()
