"""The order of rows across the partitions of a topic that grows.

A topic that gets more partitions sends keys to other partitions, old ones too. Kafka orders rows within a
partition only, so an epoch that holds two rows of a moved key from two partitions cannot tell which is newer.
Borders of epochs can: a position carries *barriers*, offsets of partitions. Until a barrier is reached, only
its partitions are read::

    "growing": {"partitions": ["2"], "ends": [{"0": 40, "1": 38}, {"0": 57, "1": 61}]}

`partitions` are those that are added once all barriers are reached. The barriers are part of the position, so
a crash changes none of them. They are where the known partitions were at the time of the first row of a new
one, and where they ended after that row was seen. The last one is what holds for sure: a producer that
wrote to a new partition wrote its earlier rows below it.

Several growths that are seen at once divide the rows by the times of their first rows. In each of these
slices the known partitions are read first, then the new ones in the order of their growths.

A stream that starts on a topic which has grown before has one barrier and, as `moments`, the times of those
that follow.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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
MOST_GROWTHS = 4
"""Growths that are seen at once and get slices of their own. Barriers grow with the square of this number."""
SETTLED_MS = 600_000
"""After this time all producers know a new partition: twice Kafka's metadata.max.age.ms."""


def is_reached(offsets: Mapping[str, int], barrier: Mapping[str, int], high: Mapping[int, int]) -> bool:
    """Return whether every partition has reached the barrier, or the end of a log truncated before it."""
    return all(offsets.get(part, 0) >= min(end, high[int(part)]) for part, end in barrier.items())


def barriers_left(after: Json, growing: Json, high: Mapping[int, int]) -> list[Json]:
    """Return the barriers after a position. All barriers after the first unreached one are included."""
    ends: Sequence[Json] = growing["ends"]
    reached = 0
    while reached < len(ends) and is_reached(after["offsets"], ends[reached], high):
        reached += 1
    return list(ends[reached:])


def barrier(offsets: Mapping[str, int], at: Mapping[int, int], high: Mapping[int, int]) -> dict[str, int]:
    """Return offsets for partitions, never below `offsets`; -1 in `at` means the end."""
    result = {part: at[int(part)] if at[int(part)] >= 0 else high[int(part)] for part in offsets}
    return {part: max(offset, result[part]) for part, offset in offsets.items()}


@dataclass(frozen=True)
class Growth:
    """Partitions that a topic got together, and the time of their first row."""

    partitions: list[int]
    first_ms: int


def split_growths(first_ms: Mapping[int, int], most: int) -> list[Growth]:
    """Return the growths of a topic in their order, as far as first rows of partitions show them.

    Partitions that a topic gets later have the highest numbers, and their first rows are later than those of
    the others. If there are more than `most` growths, those that are closest together count as one.
    """
    parts = sorted(first_ms)
    starts, last = [], min(first_ms.values())
    for place in range(1, len(parts)):
        since = min(first_ms[part] for part in parts[place:])
        if since - last >= APART_MS:
            starts.append((since - last, place, since))
            last = since
    chosen = sorted((place, since) for _, place, since in nlargest(most - 1, starts))
    borders = [(0, min(first_ms.values())), *chosen, (len(parts), 0)]
    return [Growth(parts[place:end], since) for (place, since), (end, _) in itertools.pairwise(borders)]


def founding_moments(first_ms: Mapping[int, int]) -> list[int]:
    """Return the times when a topic grew before a stream starts on it."""
    if not first_ms:
        return []
    return [growth.first_ms for growth in split_growths(first_ms, MOST_MOMENTS + 1)[1:]]


def first_grown(first_ms: Mapping[int, int]) -> tuple[list[int], int | None]:
    """Return the partitions of the first growths, and the time of the first row of later partitions.

    Growths that are close together are handled together: between them producers may not know the topic's
    partitions yet.
    """
    parts = sorted(first_ms)
    for place in range(1, len(parts)):
        since = min(first_ms[part] for part in parts[place:])
        if since - min(first_ms[part] for part in parts[:place]) >= SETTLED_MS:
            return parts[:place], since
    return parts, None


def complete_times(partitions: Iterable[int], first_ms: Mapping[int, int]) -> dict[int, int]:
    """Return a time for each partition. One without a readable row has the time of the next higher one."""
    result, following = {}, max(first_ms.values())
    for part in sorted(partitions, reverse=True):
        result[part] = following = first_ms.get(part, following)
    return result


class TopicGrowth:
    """The barriers of one topic."""

    def __init__(self, node: str, cluster: TopicCluster, peeker: MessagePeeker) -> None:
        self._node = node
        self._cluster = cluster
        self._peeker = peeker

    def first_position(self, position: Json) -> Json:
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
            filled = {part: end for part, end in self._cluster.high_watermark(new).items() if end > 0}
            if not filled:
                return after, {part: end for part, end in ends.items() if str(part) in known}
            growing = self._grown(known, sorted(filled), filled)
            log.warning(
                "event=partitions_added node=%s topic=%s partitions=%s",
                self._node,
                self._cluster.topic,
                ",".join(map(str, sorted(filled))),
            )
        high = self._cluster.high_watermark(partitions)
        left, moments = barriers_left(after, growing, high), growing.get("moments", [])
        if not left:
            left, moments = self._next_barrier(known, moments, high)
        if left:
            offsets = dict.fromkeys(left[0], 0) | known
            limited = {int(part): offset for part, offset in offsets.items()}
            limited |= {int(part): min(ends[int(part)], end) for part, end in left[0].items()}
            at = {**after, "offsets": offsets, "growing": _growing(growing["partitions"], left, moments)}
            return at, limited
        offsets = dict.fromkeys(growing["partitions"], 0) | known
        return self.follow({**after, "offsets": offsets, "growing": None}, partitions, ends)

    def _next_barrier(
        self, offsets: Mapping[str, int], moments: Sequence[int], high: Mapping[int, int]
    ) -> tuple[list[Json], list[int]]:
        """Return the barrier of the first time that is not reached yet, and the times after it."""
        parts = [int(part) for part in offsets]
        for place, moment in enumerate(moments):
            result = barrier(offsets, self._cluster.at_time(parts, moment), high)
            if not is_reached(offsets, result, high):
                return [result], list(moments[place + 1 :])
        return [], []

    def _grown(self, known: Mapping[str, int], new: Sequence[int], ends: Mapping[int, int]) -> Json:
        """Return the barriers before new partitions.

        If the topic has grown again later, only the partitions of the first growths are added, and the known
        ones are read up to the time of the later growth. Rows may have moved back to them by then. `ends` are
        the new partitions' ends, which were read before those of the known ones.
        """
        high = dict(ends) | self._cluster.high_watermark(map(int, known))
        seen = self._peeker.first(dict.fromkeys(new, 0))
        times = {part: one.written_ms for part, one in seen.items() if one.written_ms is not None}
        if not times:
            return _growing(new, [barrier(known, high, high)], [])
        times = complete_times(new, times)
        first, until = first_grown(times)
        growths = split_growths({part: times[part] for part in first}, MOST_GROWTHS)
        groups = [known, *(dict.fromkeys(map(str, growth.partitions), 0) for growth in growths[:-1])]
        barriers = [self._barrier_at(known, growths[0].first_ms, high)]
        for place, until_ms in enumerate([*(growth.first_ms for growth in growths[1:]), until], start=1):
            barriers += [self._barrier_at(group, until_ms, high) for group in groups[: place + 1]]
        return _growing(growths[-1].partitions, barriers, [])

    def _barrier_at(
        self, offsets: Mapping[str, int], moment_ms: int | None, high: Mapping[int, int]
    ) -> dict[str, int]:
        """Return the offsets at a time. None: the ends."""
        at = high if moment_ms is None else self._cluster.at_time([*map(int, offsets)], moment_ms)
        return barrier(offsets, at, high)


def _growing(partitions: Sequence[int | str], ends: Sequence[Json], moments: Sequence[int]) -> Json:
    result: Json = {"partitions": [str(part) for part in sorted(map(int, partitions))], "ends": list(ends)}
    return result | {"moments": list(moments)} if moments else result
