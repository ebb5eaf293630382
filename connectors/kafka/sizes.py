"""How many bytes ranges of offsets hold, as far as samples of their messages tell.

Kafka itself does not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from headrace.connectors.frame import DRIVER_BYTES
from headrace.connectors.kafka.peek import MessagePeeker

_UNSEEN = 1_024.0
"""Bytes of a message in a topic of which none could be looked at."""
_LARGEST = 2**20
"""Bytes of a message at most, by Kafka's default. Ranges that are small even so are not looked at."""
_FEW, _MANY = 2, 8
"""Places of a range that are looked at: where the range is far below the limit, and where it is not."""
_FAR = 8
_TRUSTED = 15
"""Ranges after a sample that are not looked at, if they are far below the limit by the last samples."""
_MARGIN = 16
"""How much larger their messages may be."""

Range = tuple[int, int]


class _Stretch(NamedTuple):
    """A part of a range, and the mean bytes per offset in it."""

    start: int
    end: int
    each: float


class SizeEstimator:
    """Samples of one topic.

    Keeps the mean of each partition for stretches in which no message could be looked at.
    """

    def __init__(self, peeker: MessagePeeker) -> None:
        self._peeker = peeker
        self._means: dict[int, float] = {}
        self._trusted = 0
        """Ranges that may still be judged by the last samples."""

    def limit(self, ranges: Mapping[int, Range], most: int) -> tuple[dict[int, int], int]:
        """Return the ends up to which ranges have about `most` bytes in total, and the bytes up to there.

        The bytes are shared fairly. Every non-empty range gets at least one offset, so that large messages
        are read too.
        """
        ranges = {part: span for part, span in ranges.items() if span[1] > span[0]}
        if self._is_small(ranges, most):
            return {part: end for part, (_, end) in ranges.items()}, round(
                sum(self._guess(part, *span) for part, span in ranges.items())
            )
        stretches = self._sample_ranges(ranges, most)
        sizes = {part: round(_bytes(result)) for part, result in stretches.items()}
        shares = fair_shares(sizes, most)
        ends = {
            part: _end(result, shares[part]) if shares[part] < sizes[part] else ranges[part][1]
            for part, result in stretches.items()
        }
        return ends, round(sum(_bytes(_until(result, ends[part])) for part, result in stretches.items()))

    def total(self, ranges: Mapping[int, Range], most: int) -> int:
        """Estimate the bytes of ranges; `most` decides how many samples are read."""
        filled = {part: span for part, span in ranges.items() if span[1] > span[0]}
        if self._is_small(filled, most):
            return round(sum(self._guess(part, *span) for part, span in filled.items()))
        return round(sum(_bytes(result) for result in self._sample_ranges(filled, most).values()))

    def _is_small(self, ranges: Mapping[int, Range], most: int) -> bool:
        """Return whether ranges need no sample: they are small, or far below the limit by the last samples.

        Samples take a fifth of the time of a stream of small epochs. If the messages have become much larger,
        the driver leaves them to Spark, and the next samples show it.
        """
        count = sum(end - start for start, end in ranges.values())
        limit = min(most, DRIVER_BYTES)
        if count * _LARGEST <= limit:
            return True
        if not self._trusted or not ranges.keys() <= self._means.keys():
            return False
        is_far_below = _MARGIN * sum(self._guess(part, *span) for part, span in ranges.items()) <= limit
        self._trusted -= is_far_below
        return is_far_below

    def _guess(self, part: int, start: int, end: int) -> float:
        return (end - start) * self._means.get(part, _UNSEEN)

    def _sample_ranges(self, ranges: Mapping[int, Range], most: int) -> dict[int, list[_Stretch]]:
        """Sample each range in a few stretches, or in many if the bytes are close to the limit."""
        result = self._look(ranges, _FEW)
        if sum(_bytes(stretches) for stretches in result.values()) * _FAR < most:
            return result
        return self._look(ranges, _MANY)

    def _look(self, ranges: Mapping[int, Range], places: int) -> dict[int, list[_Stretch]]:
        result: dict[int, list[_Stretch]] = {part: [] for part in ranges}
        self._trusted = _TRUSTED
        for place in range(places):
            spans = {
                part: (start + (end - start) * place // places, start + (end - start) * (place + 1) // places)
                for part, (start, end) in ranges.items()
            }
            spans = {part: span for part, span in spans.items() if span[1] > span[0]}
            seen = self._peeker.look({part: span[0] for part, span in spans.items()})
            for part, (start, end) in spans.items():
                sizes = [one.size for one in seen.get(part, ()) if one.offset < ranges[part][1]]
                if sizes:
                    self._means[part] = sum(sizes) / len(sizes)
                result[part].append(_Stretch(start, end, max(1.0, self._means.get(part, _UNSEEN))))
        return result


def _bytes(stretches: list[_Stretch]) -> float:
    return sum((end - start) * each for start, end, each in stretches)


def _until(stretches: list[_Stretch], end: int) -> list[_Stretch]:
    return [one._replace(end=min(one.end, end)) for one in stretches if one.start < end]


def _end(stretches: list[_Stretch], share: int) -> int:
    """Return the offset up to which stretches have `share` bytes, at least one after their start."""
    left = float(share)
    for start, end, each in stretches:
        if (end - start) * each > left:
            return max(stretches[0].start + 1, start + int(left / each))
        left -= (end - start) * each
    return stretches[-1].end


def fair_shares(backlog: Mapping[int, int], most: int) -> dict[int, int]:
    """Return shares of at most `most` in total, none above its backlog.

    Unused parts of small shares go to the larger ones.
    """
    taken = dict.fromkeys(backlog, 0)
    left = most
    waiting = sorted(backlog, key=lambda part: backlog[part])
    for rank, part in enumerate(waiting):
        taken[part] = min(backlog[part], left // (len(waiting) - rank))
        left -= taken[part]
    return taken
