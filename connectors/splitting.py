"""How much one split of history holds."""

from __future__ import annotations

from headrace.pipeline.protocol.epochs import Json

SPLIT_ROWS = 250_000
SPLIT_FILES = 500
SPLIT_BYTES = 32 << 20
"""About; a source cuts no finer than it can."""
PACKED = 4
"""Bytes of rows for one byte of a compressed file, about."""


def is_full(split: Json, rows: int, size: int) -> bool:
    """Return whether a split of files has no room for another file part."""
    return (
        split["rows"] + rows > SPLIT_ROWS
        or split["bytes"] + size > SPLIT_BYTES
        or len(split["files"]) >= SPLIT_FILES
    )
