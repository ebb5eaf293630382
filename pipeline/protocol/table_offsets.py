"""The handoff position for a history that stores topic offsets: the first message that the history lacks.

This is pure data and arithmetic. Connectors measure which offsets a table has (`Block`). `table_offsets`
finds the gaps between them. `find_handoff_position` picks one offset per partition. History then reads the
offsets below it, and the stream reads the rest. A message below a gap comes from history. A message in or
above a gap comes from the topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.pipeline.protocol.epochs import Json

BLOCK = 2**20
"""Offsets per block. Gaps are searched row by row only in blocks that are not full."""
MOST_GAPS = 1_000
"""Gaps per partition that are listed and compared with the topic."""

Range = tuple[int, int]
"""Offsets [first, end)."""


@dataclass(frozen=True, slots=True)
class Block:
    """The offsets of one partition that a table has between two multiples of `BLOCK`."""

    partition: str
    first: int
    end: int
    rows: int
    distinct: int


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """The offsets of one partition that a table has: from `first` to before `end`, without `gaps`.

    `gaps` are in order and contain no offset below the position at which the search began. `more` means that
    there are more gaps above them. `duplicates` counts rows whose offset another row has too.
    """

    first: int
    end: int
    gaps: tuple[Range, ...] = ()
    more: bool = False
    duplicates: int = 0


@dataclass(frozen=True, slots=True)
class TableOffsets:
    """The offsets of one topic that a table has, by partition."""

    partitions: Mapping[str, PartitionOffsets]


@dataclass(frozen=True, slots=True)
class HandoffPosition:
    """The first offset per partition that the stream reads.

    `missing` are the partitions where a gap with messages determined it.
    """

    offsets: Mapping[str, int]
    missing: Mapping[str, Range]


Search = Callable[[Block, int, int], Sequence[Range]]
"""Lists the gaps in a block that end above an offset, in order, up to a maximal number."""
FirstFilled = Callable[[Mapping[str, Sequence[Range]]], Mapping[str, int]]
"""Returns, for each partition, the index of the first listed gap that has messages in the topic."""


def table_offsets(blocks: Iterable[Block], since: Mapping[str, int], search: Search) -> TableOffsets:
    """Return the offsets of a table, with the gaps at or above `since`."""
    result: dict[str, list[Block]] = {}
    for block in blocks:
        result.setdefault(block.partition, []).append(block)
    return TableOffsets({name: _partition(mine, since.get(name, 0), search) for name, mine in result.items()})


def _partition(blocks: Sequence[Block], since: int, search: Search) -> PartitionOffsets:
    ordered = sorted(blocks, key=lambda block: block.first)
    gaps: list[Range] = []
    at = ordered[0].first
    for block in ordered:
        if len(gaps) > MOST_GAPS:
            break
        if block.first > at:
            gaps.append((at, block.first))
        if block.distinct < block.end - block.first and block.end > since:
            gaps += search(block, since, MOST_GAPS + 1)
        at = block.end
    listed = [(max(first, since), end) for first, end in gaps if end > since]
    duplicates = sum(block.rows - block.distinct for block in ordered)
    return PartitionOffsets(
        ordered[0].first, ordered[-1].end, tuple(listed[:MOST_GAPS]), len(listed) > MOST_GAPS, duplicates
    )


def find_handoff_position(
    have: TableOffsets, earliest: Mapping[str, int], find_filled_gaps: FirstFilled
) -> HandoffPosition:
    """Return the handoff position for the partitions that the topic has now.

    A partition that the table lacks starts at its earliest offset. Any other starts at its first gap that has
    messages in the topic, or else after its largest offset. The offsets below the table's smallest one are a
    gap like others. Rows of the table without an offset are not messages of the topic. Gaps below the
    earliest offset do not count, since no source can fill them.
    """
    gaps: dict[str, list[Range]] = {}
    for name, first in earliest.items():
        if mine := have.partitions.get(name):
            low = [(first, mine.first)] if mine.first > first else []
            if listed := low + [gap for gap in mine.gaps if gap[1] > first]:
                gaps[name] = listed
    filled = find_filled_gaps(gaps) if gaps else {}
    offsets, missing = dict(earliest), dict[str, Range]()
    for name in earliest:
        if not (mine := have.partitions.get(name)):
            continue
        listed = gaps.get(name, [])
        at = filled.get(name, len(listed) - 1 if mine.more else None)
        offsets[name] = mine.end if at is None else listed[at][0]
        if at is not None:
            missing[name] = listed[at]
    return HandoffPosition(offsets, missing)


@dataclass(frozen=True, slots=True)
class HandoffFilter:
    """Ends history exactly where the stream starts.

    `fence` maps the partition number, as a string, to the first offset that the stream reads. History keeps
    rows below that offset, and rows without an offset. If `topic_column` is set, history also keeps rows of
    another topic than `topic`. A partition that `fence` does not name is new: the stream reads it from its
    first offset, so history leaves it out.
    """

    partition_column: str
    offset_column: str
    fence: Mapping[str, int]
    topic_column: str | None = None
    topic: str = ""

    def keeps(self, row: Mapping[str, Any]) -> bool:
        """Return whether history keeps a row. The SQL of the connectors applies the same rule."""
        if self.topic_column is not None and row[self.topic_column] != self.topic:
            return True
        partition, offset = row[self.partition_column], row[self.offset_column]
        return partition is None or offset is None or offset < self.fence.get(str(partition), 0)

    def to_json(self) -> Json:
        """Return the handoff filter as JSON, as splits store it."""
        result: Json = {
            "partition_column": self.partition_column,
            "offset_column": self.offset_column,
            "fence": dict(sorted(self.fence.items())),
        }
        return (
            result
            if self.topic_column is None
            else result | {"topic_column": self.topic_column, "topic": self.topic}
        )
