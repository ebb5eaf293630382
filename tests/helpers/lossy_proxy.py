"""A TCP proxy that lets a request through to the server, and drops the connection in place of its answer."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

HOST = "127.0.0.1"
EndTxn = b"\x00\x1a"


def is_kafka_commit(data: bytes) -> bool:
    """Whether a request to a broker is EndTxn: the type follows the size of the request."""
    return data[4:6] == EndTxn


def is_http_request(data: bytes) -> bool:
    """Whether a piece of a connection begins a request with a body."""
    return data.startswith(b"POST ")


def is_redis_script(data: bytes) -> bool:
    """Whether a piece of a connection begins a script."""
    return data.startswith(b"*") and b"\r\nEVAL\r\n" in data[:40]


def is_commit(data: bytes) -> bool:
    """Whether a message to Postgres contains a COMMIT."""
    return b"COMMIT" in data.upper()


@dataclass
class LossyProxy:
    """Stands before a server on this host. `lose` chooses the request whose answer gets lost."""

    server: int
    """The port of the server."""
    port: int = 0
    lost: int = 0
    """Answers that the server sent and the client never received."""
    _matches: Callable[[bytes], bool] | None = None
    _left: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def lose(self, matches: Callable[[bytes], bool], nth: int = 1) -> None:
        """Drop the answer of the nth request from now on that `matches`. Set `lost` to 0."""
        with self._lock:
            self._matches, self._left, self.lost = matches, nth, 0

    def serve(self, listener: socket.socket) -> None:
        """Connect clients with the server until the listener is closed."""
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection((HOST, self.server), 10)
            except OSError:
                client.close()
                continue
            _Connection(self, client, server).start()

    def is_doomed(self, data: bytes) -> bool:
        """Whether this is the request whose answer gets lost."""
        with self._lock:
            if self._matches is None or not self._matches(data):
                return False
            self._left -= 1
            if self._left:
                return False
            self._matches = None
            return True

    def rename(self, data: bytes) -> bytes:
        """Replace the server's address in the answers of a Kafka broker, so that clients come back here."""
        own, other = (HOST.encode() + port.to_bytes(4, "big") for port in (self.server, self.port))
        return data.replace(own, other)


class _Connection:
    def __init__(self, proxy: LossyProxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._doomed = threading.Event()
        server.settimeout(None)

    def start(self) -> None:
        for work in (self._send_requests, self._return_answers):
            threading.Thread(target=self._run, args=(work,), daemon=True).start()

    def _run(self, work: Callable[[], None]) -> None:
        with suppress(OSError):
            work()
        for end in (self._client, self._server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _send_requests(self) -> None:
        while data := self._client.recv(1 << 16):
            if self._proxy.is_doomed(data):
                self._doomed.set()
            self._server.sendall(data)

    def _return_answers(self) -> None:
        while data := self._server.recv(1 << 20):
            if self._doomed.is_set():
                self._proxy.lost += 1
                return
            self._client.sendall(self._proxy.rename(data))


@contextmanager
def lossy_proxy(server: int) -> Iterator[LossyProxy]:
    """Yield a proxy in threads of this process, before the server at a port of this host."""
    with socket.create_server((HOST, 0)) as listener:
        proxy = LossyProxy(server, listener.getsockname()[1])
        thread = threading.Thread(target=proxy.serve, args=(listener,), daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            listener.shutdown(socket.SHUT_RDWR)
    thread.join(10)
