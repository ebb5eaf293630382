"""Messages that the driver has received, in columns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from headrace.connectors.kafka.message_columns import OP_HEADER

Numbers: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.int64]]"
"""One whole number per message, such as its place in a batch."""
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@dataclass(frozen=True, slots=True)
class MessageBatch:
    """Messages of one topic, one list per field. `operations` are the texts of the header dbz.op."""

    values: list[bytes | None] = field(default_factory=list)
    partitions: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    timestamps: list[int] = field(default_factory=list)
    """Milliseconds since 1970."""
    operations: list[str | None] = field(default_factory=list)
    """None for a message without the header."""
    keys: list[bytes | None] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.values)

    @property
    def size(self) -> int:
        """Bytes of the values, and of the keys of messages without a value."""
        if None not in self.values:
            return sum(map(len, self.values))  # pyright: ignore[reportArgumentType]
        return sum(len(value or key or b"") for value, key in zip(self.values, self.keys, strict=True))

    def extend(self, later: MessageBatch) -> None:
        """Append the messages of another batch."""
        for name in self.__slots__:
            getattr(self, name).extend(getattr(later, name))

    def split_at(self, count: int) -> tuple[MessageBatch, MessageBatch]:
        """Return the first `count` messages and the others."""
        columns = [getattr(self, name) for name in self.__slots__]
        return MessageBatch(*(column[:count] for column in columns)), MessageBatch(
            *(column[count:] for column in columns)
        )

    def as_table(self, topic: str) -> pa.Table:
        """Return the messages with the columns of Spark's Kafka reader."""
        headers = [
            None if operation is None else [{"key": OP_HEADER, "value": operation.encode()}]
            for operation in self.operations
        ]
        return pa.table(
            {
                "key": pa.array(self.keys or [None] * len(self), pa.binary()),
                "value": pa.array(self.values, pa.binary()),
                "topic": pa.repeat(pa.scalar(topic), len(self)),
                "partition": pa.array(self.partitions, pa.int32()),
                "offset": pa.array(self.offsets, pa.int64()),
                "timestamp": pa.array(self.timestamps, pa.timestamp("ms", tz="UTC")).cast(
                    pa.timestamp("us", tz="UTC")
                ),
                "headers": pa.array(headers, _HEADERS),
            }
        )
