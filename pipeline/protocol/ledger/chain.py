"""The hash chain over committed epochs. Each row has a digest of itself and of the previous row."""

from __future__ import annotations

import hashlib

START = ""
"""The link before the first epoch of a ledger."""


def link(before: str, number: int, plan: str, generation: int, committed_at: str, counts: str) -> str:
    """Return the link of a committed epoch: 32 hex digits. Strings are hashed as they are stored."""
    parts = (before, str(number), plan, str(generation), committed_at, counts)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
