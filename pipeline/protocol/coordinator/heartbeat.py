"""Renews a lease in the background, and detects its loss."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from headrace.pipeline.errors import FencedError, HeadraceError
from headrace.pipeline.protocol.epochs import Json
from headrace.pipeline.protocol.ledger import Lease, Ledger
from headrace.pipeline.protocol.log_context import with_log_context

log = logging.getLogger(__name__)


class Heartbeat:
    """A daemon thread that renews a lease three times per `ttl` seconds.

    With `threaded=False` only `check` renews the lease, for tests that control the clock.
    """

    def __init__(
        self, ledger: Ledger, lease: Lease, ttl: float, clock: Callable[[], float], *, threaded: bool = True
    ) -> None:
        self._ledger = ledger
        self._lease = lease
        self._ttl = ttl
        self._clock = clock
        self._last = clock()
        self._lost: FencedError | None = None
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

    def _run(self) -> None:
        while self._lost is None and not self._stop.wait(self._ttl / 3):
            try:
                self.beat()
            except HeadraceError as error:
                log.warning(
                    "the lease could not be renewed: lane=%s error=%s", self._lease.lane, error.message
                )
