"""A real HTTP server in a thread, with configured responses. It stores its requests."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, bytes, dict[str, str]]


@dataclass
class WebRequest:
    """One request."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def rows(self) -> Any:
        """The rows in it."""
        return json.loads(self.body)


@dataclass
class Service:
    """`answer` says what comes back.

    `faults` are done first, one per request: a status, `reset`, `hang`, or a whole answer.
    """

    answer: Callable[[WebRequest], Any]
    faults: list[Any] = field(default_factory=list)
    requests: list[WebRequest] = field(default_factory=list)
    slow: float = 0.0
    busiest: int = 0
    connections: int = 0
    url: str = ""
    _busy: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def keys(self) -> list[str]:
        """The idempotency keys, in the order of the requests."""
        return [one.headers["idempotency-key"] for one in self.requests]

    @contextmanager
    def busy(self, request: WebRequest) -> Iterator[Any]:
        """Counts a request; gives the fault that it meets, if any."""
        with self._lock:
            self.requests.append(request)
            self._busy += 1
            self.busiest = max(self.busiest, self._busy)
            fault = self.faults.pop(0) if self.faults else None
        try:
            yield fault
        finally:
            with self._lock:
                self._busy -= 1


def as_answer(result: Any) -> Answer:
    """What a test says as status, body and headers."""
    if isinstance(result, tuple):
        return result
    return 200, result if isinstance(result, bytes) else json.dumps(result).encode(), {}


def echo(request: WebRequest) -> Any:
    """The rows as they came."""
    return request.body


@contextmanager
def served(answer: Callable[[WebRequest], Any] = echo, **more: Any) -> Iterator[Service]:
    """A server on a free port."""
    service = Service(answer, **more)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            service.connections += 1
            super().setup()

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            request = WebRequest(
                self.path, {name.lower(): value for name, value in self.headers.items()}, body
            )
            with service.busy(request) as fault:
                if service.slow:
                    time.sleep(service.slow)
                if fault == "reset":
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    self.connection.close()
                    self.close_connection = True
                    return
                if fault == "torn":
                    self.send_response(200)
                    self.send_header("Content-Length", "1000")
                    self.end_headers()
                    self.wfile.write(b"[{")
                    self.close_connection = True
                    return
                if fault == "hang":
                    time.sleep(1.5)
                status, content, headers = (
                    (fault, b"no", {})
                    if isinstance(fault, int)
                    else as_answer(fault or service.answer(request))
                )
            self.send_response(status)
            for name, value in {"Content-Length": str(len(content)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def do_GET(self) -> None:
            self.do_POST()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the base class calls it so
            del format, args

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    service.url = f"http://127.0.0.1:{server.server_port}/rows"
    try:
        yield service
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
