"""The memory of the driver, which the streams of one process share equally."""

from __future__ import annotations

import threading
from weakref import WeakSet

_lock = threading.Lock()
_open: WeakSet[object] = WeakSet()


def join_share(stream: object) -> None:
    """Count a stream whose messages pass through the driver."""
    with _lock:
        _open.add(stream)


def leave_share(stream: object) -> None:
    """Stop counting a stream. Do nothing if it is not counted."""
    with _lock:
        _open.discard(stream)


def share_of(total: int) -> int:
    """Return the part of `total` that one stream may use."""
    with _lock:
        return total // max(1, len(_open))
