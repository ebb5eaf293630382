"""The streams of this process whose messages pass through the driver. They share its memory equally."""

from __future__ import annotations

import threading
from weakref import WeakSet

_lock = threading.Lock()
_open: WeakSet[object] = WeakSet()


def add_stream(stream: object) -> None:
    """Count a stream until `remove_stream`, or until it is garbage."""
    with _lock:
        _open.add(stream)


def remove_stream(stream: object) -> None:
    """Stop counting a stream. Do nothing if it is not counted."""
    with _lock:
        _open.discard(stream)


def divide_limit(total: int) -> int:
    """Return the part of `total` that one stream may use."""
    with _lock:
        return total // max(1, len(_open))
