"""Renews a lease in the background, and detects its loss."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from headrace.pipeline.errors import FencedError, HeadraceError
from headrace.pipeline.protocol.epochs import Json
from headrace.pipeline.protocol.ledger import Lease, Ledger, StopRequest
from headrace.pipeline.protocol.log_context import with_log_context

log = logging.getLogger(__name__)

_REQUEST_SECONDS = 1.0
"""Seconds between two reads of the requests: two queries by primary key, in one transaction."""


class Heartbeat:
    """A daemon thread that renews a lease three times per `ttl` seconds, and reads the requests.

    With `threaded=False` only `check` renews the lease, for tests that control the clock.
    """

    def __init__(
        self,
        ledger: Ledger,
        lease: Lease,
        ttl: float,
        clock: Callable[[], float],
        *,
        threaded: bool = True,
        on_request: Callable[[StopRequest], None] = lambda _: None,
    ) -> None:
        self._ledger = ledger
        self._lease = lease
        self._ttl = ttl
        self._clock = clock
        self._last = clock()
        self._lost: FencedError | None = None
        self._on_request = on_request
        self._request: StopRequest | None = None
        self._stop = threading.Event()
        self._thread = (
            threading.Thread(
                target=with_log_context(self._run), name=f"headrace-lease-{lease.lane}", daemon=True
            )
            if threaded
            else None
        )
        self.details: Callable[[], Json] = dict
        """Returns what a beat stores with the lease.

        Called before every beat, by this thread too. Must not raise.
        """
        self.on_refresh: Callable[[], None] = lambda: None
        """Called every second while a request for a refresh waits. Must not raise."""

    def start(self) -> None:
        """Start the thread."""
        if self._thread is not None:
            self._thread.start()

    def stop(self) -> None:
        """End the thread. Wait for a renewal in progress, so that none follows a release."""
        self._stop.set()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join()

    def check(self) -> None:
        """Raise FencedError if the lease is lost.

        A process that slept first renews the lease in the ledger.
        """
        if self._lost is None and self._clock() - self._last > self._ttl / 2:
            self.beat()
        if self._lost is not None:
            raise FencedError(self._lost.message, hint=self._lost.hint)

    def beat(self) -> None:
        """Renew the lease now. A lost lease is stored for `check`, not raised.

        Raise TransientError when the ledger cannot be reached.
        """
        began = self._clock()
        try:
            self._ledger.heartbeat(self._lease, self._ttl, self.details())
        except FencedError as error:
            self._lost = error
        else:
            self._last = began

    def read_request(self) -> None:
        """Call `on_request` once if a request to stop is for this lease, `on_refresh` if a refresh waits.

        Raise TransientError when the ledger cannot be reached.
        """
        if self._request is not None:
            return
        request, waits = self._ledger.read_requests(self._lease.name, self._lease.lane)
        if waits:
            self.on_refresh()
        if request is not None and request.generation == self._lease.generation:
            self._request = request
            self._on_request(request)

    def _run(self) -> None:
        next_beat = time.monotonic() + self._ttl / 3
        while self._lost is None and not self._stop.wait(
            min(_REQUEST_SECONDS, max(0.0, next_beat - time.monotonic()))
        ):
            is_due = time.monotonic() >= next_beat
            try:
                if is_due:
                    next_beat = time.monotonic() + self._ttl / 3
                    self.beat()
                self.read_request()
            except HeadraceError as error:
                log.warning(
                    "event=lease_unavailable action=%s error=%s", "renew" if is_due else "read", error.message
                )
