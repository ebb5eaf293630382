"""What keeps a stream from being read further."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stall:
    """A partition that cannot be read further although rows follow: an open transaction holds them back."""

    topic: str
    partition: str
    last_stable: int
    """The offset of the transaction's first row."""
    high_watermark: int
    since_ms: int | None
    """The time of the transaction's first row, where known."""
