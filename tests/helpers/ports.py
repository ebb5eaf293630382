"""Ports of this host."""

from __future__ import annotations

import itertools
import os
import random

from headrace.services.state import is_port_free

# Below the range from which the kernel takes the ports of outgoing connections, so that no connection takes a
# port between its choice and the start of its server, or while the server is down.
_FIRST, _PER_WORKER, _WORKERS = 20_000, 1_000, 12


def _choose_range() -> range:
    """Return the ports of this worker of pytest: two workers never choose the same one."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _WORKERS
    first = _FIRST + worker * _PER_WORKER
    return range(first, first + _PER_WORKER)


_PORTS = _choose_range()
_positions = itertools.count(random.randrange(len(_PORTS)))


def free_port() -> int:
    """Return a port on which no server listens. The next calls return others."""
    for _ in _PORTS:
        port = _PORTS[next(_positions) % len(_PORTS)]
        if is_port_free(port):
            return port
    msg = f"no free port between {_PORTS.start} and {_PORTS.stop}"
    raise AssertionError(msg)
