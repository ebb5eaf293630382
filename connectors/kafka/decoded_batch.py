"""Rows of messages that were decoded before their range was planned."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.connectors.kafka.message_batch import MessageBatch, Numbers


@dataclass(frozen=True, slots=True)
class DecodedBatch:
    """One row per message of one partition. `offsets` ascend; `size` is that of the messages in bytes."""

    rows: pa.Table
    offsets: Numbers
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


def split_by_partition(messages: MessageBatch, rows: pa.Table) -> dict[int, pa.Table]:
    """Return the rows of each partition. The messages are sorted by partition."""
    parts, starts = np.unique(messages.partitions, return_index=True)
    ends = [*starts, len(messages)][1:]
    return {
        int(part): rows.slice(start, end - start)
        for part, start, end in zip(parts, starts, ends, strict=True)
    }
