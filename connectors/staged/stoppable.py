"""Reading that ends soon after a stop: another thread reads, and a blocked call is abandoned with it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import closing
from queue import Empty, Full, Queue
from typing import Generic, TypeVar

from headrace.pipeline.errors import SnapshotStoppedError
from headrace.pipeline.protocol.log_context import with_log_context

T = TypeVar("T")
_LOOK_S = 0.1
"""Seconds between two looks at the stop."""


def read_until_stopped(read: Callable[[], Generator[T]], stop: threading.Event, node: str) -> Generator[T]:
    """Yield what `read` yields, and raise its errors. Raise SnapshotStoppedError soon after `stop` is set.

    A call that is blocked then is abandoned with its thread. What it returns later is dropped.
    """
    reading = _Reading(read)
    threading.Thread(target=with_log_context(reading.run), name=f"read {node}", daemon=True).start()
    try:
        while True:
            if stop.is_set():
                msg = "the run was stopped before all rows were read"
                hint = "Nothing was stored; the next run reads the source from its beginning."
                raise SnapshotStoppedError(msg, hint=hint, node=node)
            try:
                item = reading.items.get(timeout=_LOOK_S)
            except Empty:
                continue
            if isinstance(item, _End):
                if item.error is not None:
                    raise item.error
                return
            yield item
    finally:
        reading.is_over.set()


class _End:
    """The end of what is read, or the error that ended it."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


class _Reading(Generic[T]):
    """One reading in a thread of its own, at most one item ahead."""

    def __init__(self, read: Callable[[], Generator[T]]) -> None:
        self._read = read
        self.items: Queue[T | _End] = Queue(1)
        self.is_over = threading.Event()
        """Set when no further item is taken."""

    def run(self) -> None:
        """Put all items, then the end."""
        end = _End()
        try:
            with closing(self._read()) as result:
                for item in result:
                    if not self._put(item):
                        return
        except BaseException as error:  # noqa: BLE001  raised in the thread that takes the items
            end = _End(error)
        self._put(end)

    def _put(self, item: T | _End) -> bool:
        """Return whether the item was taken over."""
        while not self.is_over.is_set():
            try:
                self.items.put(item, timeout=_LOOK_S)
            except Full:
                continue
            return True
        return False
