"""A buffer of recent rows, a few per node, for readers now and later.

Each node has a number of slots. A used slot is free again after `refresh` seconds. Old rows stay until new
ones replace them.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence

from headrace.pipeline.protocol.epochs import Json

Sample = tuple[str, Json]
"""A node's name, and one of its rows."""
SampleListener = Callable[[Sample | None], None]
"""Receives each row in the thread that adds it, and None at the end. Must not block."""


class SampleBuffer:
    """The rows of one run. Safe for threads. `clock` is a monotonic one, in seconds."""

    def __init__(
        self, nodes: Iterable[str], records: int, refresh: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._records, self._refresh, self._clock = records, refresh, clock
        self._rows: dict[str, deque[Json]] = {node: deque(maxlen=records) for node in nodes}
        self._used: dict[str, deque[float]] = {node: deque() for node in self._rows}
        self._listeners: dict[int, tuple[frozenset[str], SampleListener]] = {}
        self._lock = threading.Lock()
        self._ended = False

    @property
    def nodes(self) -> tuple[str, ...]:
        """All nodes, in the file's order."""
        return tuple(self._rows)

    def free(self, node: str) -> int:
        """How many rows of a node may be shown now."""
        with self._lock:
            return self._free(node)

    def _free(self, node: str) -> int:
        used, now = self._used[node], self._clock()
        while used and used[0] <= now - self._refresh:
            used.popleft()
        return self._records - len(used)

    def put(self, node: str, rows: Sequence[Json]) -> int:
        """Add rows, oldest first, while there are free slots. Return how many were added."""
        with self._lock:
            taken = rows[: self._free(node)]
            for row in taken:
                self._used[node].append(self._clock())
                self._rows[node].appendleft(row)
            listeners = [listener for wanted, listener in self._listeners.values() if node in wanted]
            for row in taken:
                for listener in listeners:
                    listener((node, row))
        return len(taken)

    def listen(
        self, nodes: Collection[str], listener: SampleListener
    ) -> tuple[list[Sample], Callable[[], None]]:
        """Return the rows in the buffer, newest first, and a function that ends the subscription.

        Every later row is passed to the listener, none twice.
        """
        wanted = frozenset(nodes) & frozenset(self._rows) if nodes else frozenset(self._rows)
        with self._lock:
            kept = [(node, row) for node in self._rows if node in wanted for row in self._rows[node]]
            key = max(self._listeners, default=0) + 1
            self._listeners[key] = (wanted, listener)
            if self._ended:
                listener(None)
        return kept, lambda: self._forget(key)

    def _forget(self, key: int) -> None:
        with self._lock:
            self._listeners.pop(key, None)

    def end(self) -> None:
        """Signal to all listeners that no more rows follow."""
        with self._lock:
            self._ended = True
            for _, listener in self._listeners.values():
                listener(None)
