"""Rows of messages that were decoded before their range was planned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.connectors.kafka.message_batch import MessageBatch


@dataclass(frozen=True, slots=True)
class DecodedBatch:
    """One row per message of one partition. `offsets` ascend; `size` is that of the messages in bytes."""

    rows: pa.Table
    offsets: np.ndarray[tuple[int], np.dtype[np.int64]]
    size: int

    @classmethod
    def of(cls, messages: MessageBatch, rows: pa.Table) -> DecodedBatch:
        """Return the rows with the offsets of their messages."""
        return cls(rows, np.array(messages.offsets, np.int64), messages.size)

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def end(self) -> int:
        """The offset after the last message. The batch must not be empty."""
        return int(self.offsets[-1]) + 1

    def split_at(self, end: int) -> tuple[DecodedBatch, DecodedBatch]:
        """Return the rows of messages before the offset `end`, and the others."""
        count = int(np.searchsorted(self.offsets, end))
        size = self.size * count // max(1, len(self))
        return (
            DecodedBatch(self.rows.slice(0, count), self.offsets[:count], size),
            DecodedBatch(self.rows.slice(count), self.offsets[count:], self.size - size),
        )


def join_by_partition(
    decoded: Mapping[int, Sequence[DecodedBatch]], later: MessageBatch, rows: pa.Table
) -> pa.Table:
    """Return all rows by partition: the decoded ones, then `rows`, which are those of the messages `later`.

    The messages `later` are sorted by partition.
    """
    if not decoded:
        return rows
    places = np.array(later.partitions, np.int64)
    pieces = []
    for part in sorted({*decoded, *later.partitions}):
        pieces += [batch.rows for batch in decoded.get(part, ())]
        first, last = np.searchsorted(places, part), np.searchsorted(places, part, side="right")
        pieces.append(rows.slice(first, last - first))
    return pa.concat_tables(pieces)
