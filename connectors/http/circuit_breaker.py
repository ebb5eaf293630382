"""A circuit breaker: one probe at a time calls a failing service, not every request again and again."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

log = logging.getLogger(__name__)


class Breaker:
    """Shared by the threads of a process.

    `limit` failures in a row open it, 0: never; every `pause` seconds one probe may try.
    """

    def __init__(
        self, name: str, limit: int, pause: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name = name
        self._limit = limit
        self._pause = pause
        self._clock = clock
        self._changed = threading.Condition()
        self._failures = 0
        self._opened: float | None = None
        self._probing = False

    @property
    def open(self) -> bool:
        """Whether only probes may try."""
        with self._changed:
            return self._opened is not None

    def enter(self, deadline: float | None, stop: threading.Event) -> bool:
        """Wait until this thread may send.

        Return False if it may not before `deadline`, or if `stop` is set.
        """
        with self._changed:
            while self._opened is not None:
                left = self._opened + self._pause - self._clock()
                if left <= 0 and not self._probing:
                    self._probing = True
                    return True
                if stop.is_set() or (deadline is not None and self._clock() >= deadline):
                    return False
                self._changed.wait(max(0.01, min(0.5, left) if left > 0 else 0.5))
            return True

    def record_success(self) -> None:
        """Record that the service answered. A refusal counts as an answer."""
        with self._changed:
            if self._opened is not None:
                log.info("event=circuit_closed node=%s", self._name)
            self._failures, self._opened, self._probing = 0, None, False
            self._changed.notify_all()

    def record_failure(self) -> None:
        """Record that the service failed. After a failed probe the pause starts again."""
        with self._changed:
            self._failures += 1
            if self._limit and self._failures >= self._limit:
                if self._opened is None:
                    log.warning(
                        "event=circuit_opened node=%s failures=%d reset_after=%.1f",
                        self._name,
                        self._failures,
                        self._pause,
                    )
                self._opened = self._clock()
            self._probing = False
            self._changed.notify_all()
