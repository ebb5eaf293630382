"""A limit for a whole request. httpx limits each read and write only, which a slow response never reaches."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpcore

if TYPE_CHECKING:
    import httpx

_PIECE = 65_536
"""Bytes to send at a time: a service may also read a request slowly."""


class Deadline(threading.local):
    """When the request of this thread must end, by the monotonic clock. None between requests."""

    until: float | None = None

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Everything that the thread sends and receives meanwhile ends in time, or as httpx's timeout."""
        self.until = time.monotonic() + seconds
        try:
            yield
        finally:
            self.until = None

    def remaining(self, timeout: float | None, late: type[Exception]) -> float | None:
        """Return the seconds that one operation may take, of `timeout` and of the remaining time.

        Raises `late` if none remain.
        """
        if self.until is None:
            return timeout
        left = self.until - time.monotonic()
        if left <= 0:
            raise late
        return left if timeout is None else min(timeout, left)


def add_deadline(client: httpx.Client) -> Deadline:
    """Add a deadline to all connections of a client, including those through a proxy of the environment."""
    deadline = Deadline()
    result: Any = client
    for transport in (result._transport, *result._mounts.values()):  # noqa: SLF001  httpx takes no backend, and drops the proxies for a transport
        if transport is not None:
            pool = transport._pool  # noqa: SLF001
            pool._network_backend = _Backend(pool._network_backend, deadline)  # noqa: SLF001
    return deadline


class _Backend(httpcore.NetworkBackend):
    def __init__(self, inner: httpcore.NetworkBackend, deadline: Deadline) -> None:
        self._inner = inner
        self._deadline = deadline

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Any = None,
    ) -> httpcore.NetworkStream:
        within = self._deadline.remaining(timeout, httpcore.ConnectTimeout)
        return _Stream(
            self._inner.connect_tcp(host, port, within, local_address, socket_options), self._deadline
        )


class _Stream(httpcore.NetworkStream):
    def __init__(self, inner: httpcore.NetworkStream, deadline: Deadline) -> None:
        self._inner = inner
        self._deadline = deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._inner.read(max_bytes, self._deadline.remaining(timeout, httpcore.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for at in range(0, len(buffer), _PIECE):
            self._inner.write(
                buffer[at : at + _PIECE], self._deadline.remaining(timeout, httpcore.WriteTimeout)
            )

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self, ssl_context: Any, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        within = self._deadline.remaining(timeout, httpcore.ConnectTimeout)
        return _Stream(self._inner.start_tls(ssl_context, server_hostname, within), self._deadline)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)
