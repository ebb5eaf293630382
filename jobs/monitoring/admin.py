"""The HTTP endpoint of a run: /metrics, /health, and Streamling's /admin paths for rows and errors.

It runs in its own thread, is read-only, and never changes the run.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from headrace.jobs.monitoring.sample_buffer import Sample, SampleBuffer
from headrace.pipeline.protocol.epochs import Json

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

log = logging.getLogger(__name__)

KEEP_ALIVE_SECONDS = 15.0
LIVE_DATA = "/admin/live-data"
_END_SECONDS = 2.0
_NAMES = ("127.0.0.1", "localhost", "::1", "[::1]")
_ANY = ("0.0.0.0", "::")  # noqa: S104  compared, not bound
_WAITING = 1_000
"""Rows by which a slow reader may lag before it misses some."""


class EndpointData:
    """The data of the endpoint, from the run. `samples` is None if live data inspection is off."""

    def __init__(
        self,
        metrics: Callable[[], tuple[bytes, str]],
        health: Callable[[], Json],
        error: Callable[[], Json | None],
        samples: SampleBuffer | None,
    ) -> None:
        self.metrics, self.health, self.error, self.samples = metrics, health, error, samples


class Admin:
    """A server that listens from its creation until `close`."""

    def __init__(
        self, host: str, port: int, data: EndpointData, *, keep_alive: float = KEEP_ALIVE_SECONDS
    ) -> None:
        import uvicorn

        self._socket = _listen(host, port)
        self._samples = data.samples
        app = application(data, keep_alive, _NAMES if host in _NAMES else ())
        config = uvicorn.Config(
            app, log_config=None, access_log=False, lifespan="off", ws="none", timeout_graceful_shutdown=1
        )
        self._server = uvicorn.Server(config)
        logging.getLogger("uvicorn").setLevel(logging.ERROR)
        self._thread = threading.Thread(target=self._serve, name="headrace-admin", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """`http://host:port`, as others reach it."""
        host, port = self._socket.getsockname()[:2]
        shown = _own_name() if host in _ANY else f"[{host}]" if ":" in host else host
        return f"http://{shown}:{port}"

    def _serve(self) -> None:
        try:
            self._server.run(sockets=[self._socket])
        except BaseException as error:  # noqa: BLE001  an endpoint that fails must not end the run
            log.warning("event=admin_endpoint_failed error=%s", type(error).__name__)

    def close(self) -> None:
        """End open responses and stop listening, within seconds."""
        if self._samples is not None:
            self._samples.end()
        self._server.should_exit = True
        self._thread.join(_END_SECONDS)
        self._socket.close()


def _own_name() -> str:
    """Return this host's name if it can be resolved, else the loopback address."""
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        return "127.0.0.1"
    return name


def _listen(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    If the port is taken, use any other: `headrace tail` reads it from the ledger.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for wanted in (port, 0):
        result = socket.socket(family, socket.SOCK_STREAM)
        result.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            result.bind((host, wanted))
            result.listen(64)
        except OSError as error:
            result.close()
            if wanted == 0:
                raise
            log.warning("event=admin_port_in_use port=%d error=%s", port, error.strerror)
        else:
            return result
    raise AssertionError


def application(data: EndpointData, keep_alive: float, names: Sequence[str] = ()) -> Starlette:
    """Return the application of the endpoint.

    It answers requests to the host `names`, or to any if there are none. Without this check, a web page could
    resolve its own host name to loopback and read the answers.
    """
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.responses import JSONResponse, Response, StreamingResponse
    from starlette.routing import Route

    def metrics(_: Request) -> Response:
        text, kind = data.metrics()
        return Response(text, headers={"Content-Type": kind})

    def health(_: Request) -> Response:
        result = data.health()
        return JSONResponse(result, status_code=200 if result["status"] == "ok" else 503)

    def error(_: Request) -> Response:
        result = data.error()
        return JSONResponse(result) if result else Response(status_code=204)

    async def live_data(request: Request) -> Response:
        samples = data.samples
        if samples is None:
            return JSONResponse({"message": "live_data_inspect_enabled is off"}, status_code=404)
        nodes = [
            key.strip()
            for key in request.query_params.get("topology_node_keys", "").split(",")
            if key.strip()
        ]
        if unknown := [key for key in nodes if key not in samples.nodes]:
            return JSONResponse(
                {"message": f"no node `{unknown[0]}`", "nodes": list(samples.nodes)}, status_code=404
            )
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        return StreamingResponse(
            _events(samples, nodes, keep_alive), media_type="text/event-stream", headers=headers
        )

    routes = [("/metrics", metrics), ("/health", health), ("/admin/error", error), (LIVE_DATA, live_data)]
    guards = (
        [Middleware(TrustedHostMiddleware, allowed_hosts=list(names), www_redirect=False)] if names else []
    )
    return Starlette(
        routes=[Route(path, endpoint, methods=["GET"]) for path, endpoint in routes], middleware=guards
    )


async def _events(samples: SampleBuffer, nodes: list[str], keep_alive: float) -> AsyncIterator[str]:
    """Yield the samples in the buffer, then new ones, until the run ends or the client disconnects.

    A comment every `keep_alive` seconds keeps proxies from closing the connection.
    """
    loop, new_samples = asyncio.get_running_loop(), asyncio.Queue[Sample | None](_WAITING)

    def receive(sample: Sample | None) -> None:
        with suppress(RuntimeError):  # the server's loop has ended
            loop.call_soon_threadsafe(_offer, new_samples, sample)

    kept, forget = samples.listen(nodes, receive)
    try:
        for sample in kept:
            yield event(sample)
        while True:
            try:
                sample = await asyncio.wait_for(new_samples.get(), keep_alive)
            except TimeoutError:
                yield ": keep-alive\n\n"
                continue
            if sample is None:
                return
            yield event(sample)
    finally:
        forget()


def _offer(queue: asyncio.Queue[Any], sample: Sample | None) -> None:
    if sample is None and queue.full():
        queue.get_nowait()
    if not queue.full():
        queue.put_nowait(sample)


def event(sample: Sample) -> str:
    """One server-sent event."""
    node, row = sample
    event = json.dumps({"topology_node_key": node, "data": row}, ensure_ascii=False, separators=(",", ":"))
    return f"data: {event}\n\n"
