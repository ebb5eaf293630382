"""Ports of this host."""

from __future__ import annotations

import random
import socket
from contextlib import suppress


def free_port() -> int:
    """Return a port on which no server listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def free_low_port(below: int = 50_000) -> int:
    """Return a free port below `below`, for a server that takes a second port at a fixed distance above it."""
    while True:
        port = random.randrange(20_000, below)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
