"""The order of rows across the partitions of a topic that grows.

A topic that gets more partitions sends keys to other partitions, old ones too. Kafka orders rows within a
partition only, so an epoch that holds two rows of a moved key from two partitions cannot tell which is newer.
Borders of epochs can: a position carries *barriers*, offsets of every known partition that all of them reach
before any of them is read further::

    "growing": {"partitions": ["2"], "ends": [{"0": 40, "1": 38}, {"0": 57, "1": 61}]}

`partitions` are those that are added once all barriers are reached. The barriers are part of the position, so
a crash changes none of them. They are where the known partitions were at the times of the first rows of new
ones, and where they ended after those rows were seen. The last one is what holds for sure: a producer that
wrote to a new partition wrote its earlier rows below it. A stream that starts on a topic which has grown
before has one barrier and, as `moments`, the times of those that follow.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from heapq import nlargest

from headrace.connectors.kafka.admin import TopicCluster
from headrace.connectors.kafka.peek import MessagePeeker
from headrace.pipeline.protocol.epochs import Json

log = logging.getLogger(__name__)

APART_MS = 1_000
"""First rows of partitions that lie closer together are taken for those of one topic that starts."""
MOST_MOMENTS = 16
"""Growths before the stream starts that get a barrier of their own.

Many partitions with few rows look like many growths.
"""
SETTLED_MS = 600_000
"""After this time all producers know a new partition: twice Kafka's metadata.max.age.ms."""


def is_reached(offsets: Mapping[str, int], barrier: Mapping[str, int], high: Mapping[int, int]) -> bool:
    """Return whether every partition has reached the barrier, or the end of a log truncated before it."""
    return all(offsets[part] >= min(end, high[int(part)]) for part, end in barrier.items())


def barriers_left(after: Json, growing: Json, high: Mapping[int, int]) -> list[Json]:
    """Return the barriers after a position. All barriers after the first unreached one are included."""
    ends: Sequence[Json] = growing["ends"]
    reached = 0
    while reached < len(ends) and is_reached(after["offsets"], ends[reached], high):
        reached += 1
    return list(ends[reached:])


def barrier(offsets: Mapping[str, int], at: Mapping[int, int], high: Mapping[int, int]) -> dict[str, int]:
    """Return offsets for the known partitions, never below `offsets`; -1 in `at` means the end."""
    found = {part: at[int(part)] if at[int(part)] >= 0 else high[int(part)] for part in offsets}
    return {part: max(offset, found[part]) for part, offset in offsets.items()}


def founding_moments(first_ms: Mapping[int, int]) -> list[int]:
    """Return the times when a topic grew before a stream starts on it, as far as first rows show them.

    If there are many times, the ones furthest apart are returned. Partitions that a topic gets later have the
    highest numbers, and their first rows are later than those of the others.
    """
    parts = sorted(first_ms)
    moments: list[tuple[int, int]] = []
    for place in range(1, len(parts)):
        since = min(first_ms[part] for part in parts[place:])
        apart = since - max(
            [min(first_ms[part] for part in parts[:place]), *(moment for _, moment in moments)]
        )
        if apart >= APART_MS:
            moments.append((apart, since))
    return sorted(moment for _, moment in nlargest(MOST_MOMENTS, moments))


def first_grown(first_ms: Mapping[int, int]) -> tuple[list[int], int | None]:
    """Return the partitions of the first growth, and the time of the first row of later partitions.

    Growths that are close together count as one: between them producers may not know the topic's partitions
    yet.
    """
    parts = sorted(first_ms)
    for place in range(1, len(parts)):
        since = min(first_ms[part] for part in parts[place:])
        if since - min(first_ms[part] for part in parts[:place]) >= SETTLED_MS:
            return parts[:place], since
    return parts, None


def growth_moments(first_ms: Iterable[int]) -> list[int]:
    """Return the times of growths that are added as one, by the first rows of the new partitions.

    Keys may move between old partitions at each of them.
    """
    moments: list[int] = []
    for time_ms in sorted(first_ms):
        if not moments or time_ms - moments[-1] >= APART_MS:
            moments.append(time_ms)
    return moments[:MOST_MOMENTS]


class TopicGrowth:
    """The barriers of one topic."""

    def __init__(self, node: str, cluster: TopicCluster, peeker: MessagePeeker) -> None:
        self._node = node
        self._cluster = cluster
        self._peeker = peeker

    def founded(self, position: Json) -> Json:
        """Return a stream's first position, with barriers if first rows show that the topic grew before."""
        offsets = position["offsets"]
        if len(offsets) == 1:
            return position
        parts = [int(part) for part in offsets]
        high = self._cluster.high_watermark(parts)
        first = self._peeker.first(
            {part: offsets[str(part)] for part in parts if high[part] > offsets[str(part)]}
        )
        times = {part: seen.written_ms for part, seen in first.items() if seen.written_ms is not None}
        left, moments = self._next_barrier(offsets, founding_moments(times), high)
        return position | {"growing": _growing([], left, moments)} if left else position

    def follow(
        self, after: Json, partitions: Sequence[int], ends: Mapping[int, int]
    ) -> tuple[Json, dict[int, int]]:
        """Return the position to read from, with barriers or new partitions, and the ends to read up to.

        A new partition counts when it has a row. Its end is read before the ends of the known ones: rows of a
        moved key that are older than one of its rows are then below the barrier.
        """
        known, growing = after["offsets"], after.get("growing")
        new = [part for part in partitions if str(part) not in known]
        if growing is None:
            filled = [part for part, end in self._cluster.high_watermark(new).items() if end > 0]
            if not filled:
                return after, {part: end for part, end in ends.items() if str(part) in known}
            high = self._cluster.high_watermark(map(int, known))
            growing = self._grown(known, filled, high)
            log.warning(
                "event=partitions_added node=%s topic=%s partitions=%s",
                self._node,
                self._cluster.topic,
                ",".join(growing["partitions"]),
            )
        else:
            high = self._cluster.high_watermark(map(int, known))
        left, moments = barriers_left(after, growing, high), growing.get("moments", [])
        if not left:
            left, moments = self._next_barrier(known, moments, high)
        if left:
            limited = {int(part): min(ends[int(part)], end) for part, end in left[0].items()}
            return after | {"growing": _growing(growing["partitions"], left, moments)}, limited
        offsets = known | dict.fromkeys(growing["partitions"], 0)
        return self.follow({**after, "offsets": offsets, "growing": None}, partitions, ends)

    def _next_barrier(
        self, offsets: Mapping[str, int], moments: Sequence[int], high: Mapping[int, int]
    ) -> tuple[list[Json], list[int]]:
        """Return the barrier of the first time that is not reached yet, and the times after it."""
        parts = [int(part) for part in offsets]
        for place, moment in enumerate(moments):
            found = barrier(offsets, self._cluster.at_time(parts, moment), high)
            if not is_reached(offsets, found, high):
                return [found], list(moments[place + 1 :])
        return [], []

    def _grown(self, known: Mapping[str, int], new: Sequence[int], high: Mapping[int, int]) -> Json:
        """Return the barriers before new partitions.

        They are the known partitions' offsets at the times of first new rows, and their current ends. If
        the topic has grown again later, only the partitions of the first growth are added, and the known ones
        are read up to the time of the second growth. Rows may have moved back to them by then.
        """
        parts = [int(part) for part in known]
        seen = self._peeker.first(dict.fromkeys(new, 0))
        times = {part: one.written_ms for part, one in seen.items() if one.written_ms is not None}
        if not times:
            return _growing(new, [barrier(known, high, high)], [])
        first, until = first_grown(times) if len(times) == len(new) else (new, None)
        moments = growth_moments(times[part] for part in first if part in times)
        begins = [barrier(known, self._cluster.at_time(parts, moment), high) for moment in moments]
        end = barrier(known, high if until is None else self._cluster.at_time(parts, until), high)
        return _growing(first, [*begins, end], [])


def _growing(partitions: Sequence[int | str], ends: Sequence[Json], moments: Sequence[int]) -> Json:
    found: Json = {"partitions": [str(part) for part in sorted(map(int, partitions))], "ends": list(ends)}
    return found | {"moments": list(moments)} if moments else found
