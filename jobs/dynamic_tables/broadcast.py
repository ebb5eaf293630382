"""Values that are broadcast to workers: once in large segments, and new ones in small segments."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.jobs.dynamic_tables.base import ValueLookup

if TYPE_CHECKING:
    from pyspark import Broadcast
    from pyspark.sql import SparkSession

TAIL = 4096
"""Values that travel with every query; above, they are sent once and stay with the workers."""
_GROWTH = 4
"""A segment is at least this many times as large as the next one.

So each value is sent only a few times, and few segments are searched.
"""


class ValueSegment:
    """A part of the values. A worker builds and keeps a set of them at the first lookup."""

    def __init__(self, values: pa.Array) -> None:
        self.values = values
        self._set: frozenset[str] | None = None

    def __reduce__(self) -> tuple[type[ValueSegment], tuple[pa.Array]]:
        return ValueSegment, (self.values,)

    @property
    def texts(self) -> frozenset[str]:
        """The values as a set."""
        if self._set is None:
            self._set = frozenset(self.values.to_pylist())
        return self._set


class BroadcastLookup(ValueLookup):
    """Looks up segments that the worker has."""

    def __init__(self, sent: tuple[Broadcast[ValueSegment], ...], tail: ValueSegment) -> None:
        self._sent = sent
        self._tail = tail

    def contains(self, values: list[str]) -> list[bool]:
        """See `Lookup`."""
        sets = [
            segment for segment in (*(sent.value.texts for sent in self._sent), self._tail.texts) if segment
        ]
        if len(sets) == 1:
            (only,) = sets
            return [value in only for value in values]
        return [any(value in segment for segment in sets) for value in values]


class ValueSet:
    """The values in the driver. Values are only added, each once, until it is cleared."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._sent: list[tuple[Broadcast[ValueSegment], pa.Array]] = []
        self._tail = pa.array([], pa.string())
        self._lookup: BroadcastLookup | None = None
        self._retired: list[Broadcast[ValueSegment]] = []

    def add(self, values: pa.Array) -> None:
        """Add values that are not in the set yet."""
        if not len(values):
            return
        self._lookup = None
        self._tail = pa.concat_arrays([self._tail, values.cast(pa.string())])
        if len(self._tail) > TAIL:
            self._send()

    def clear(self) -> None:
        """Forgets all values."""
        self._retired += [sent for sent, _ in self._sent]
        self._sent, self._tail, self._lookup = [], pa.array([], pa.string()), None

    @property
    def lookup(self) -> BroadcastLookup:
        """Return the lookup of the current values."""
        if self._lookup is None:
            # Queries of the previous epoch may have used these. None is running when the next epoch's frames
            # are created.
            for retired in self._retired:
                retired.unpersist()
            self._retired = []
            self._lookup = BroadcastLookup(tuple(sent for sent, _ in self._sent), ValueSegment(self._tail))
        return self._lookup

    def _send(self) -> None:
        values = self._tail
        while self._sent and len(self._sent[-1][1]) < _GROWTH * len(values):
            retired, more = self._sent.pop()
            self._retired.append(retired)
            values = pa.concat_arrays([more, values])
        self._sent.append((self._spark.sparkContext.broadcast(ValueSegment(values)), values))
        self._tail = pa.array([], pa.string())
