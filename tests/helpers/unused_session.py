"""A session that a test must not use."""

from __future__ import annotations

from typing import Any

from headrace.connectors.lazy_session import LazySession


def unused_session() -> Any:
    """Return a lazy session that fails the test when it is started."""

    def start() -> Any:
        raise AssertionError

    return LazySession(start)
