"""The start of the stream after a history with offsets.

Below the fence nothing is missing, from it on the topic has all.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline.protocol import table_offsets as fences
from headrace.pipeline.protocol.table_offsets import (
    Block,
    HandoffFilter,
    HandoffPosition,
    PartitionOffsets,
    Range,
    TableOffsets,
    find_handoff_position,
    table_offsets,
)

SMALL = 4  # offsets per block


def blocks(offsets: Sequence[int]) -> list[Block]:
    """What a connector measures, with small blocks."""
    result: dict[int, list[int]] = {}
    for offset in offsets:
        result.setdefault(offset // SMALL, []).append(offset)
    return [Block("0", min(part), max(part) + 1, len(part), len(set(part))) for part in result.values()]


def measured(offsets: Sequence[int], since: int = 0) -> TableOffsets:
    def search(block: Block, since: int, most: int) -> list[Range]:
        mine = sorted({offset for offset in offsets if block.first <= offset < block.end})
        return [(a + 1, b) for a, b in itertools.pairwise(mine) if b > a + 1 and b > since][:most]

    return table_offsets(blocks(offsets), {"0": since}, search)


def topic_of(messages: Sequence[int]) -> fences.FirstFilled:
    """A topic with messages at these offsets; the others are markers or compacted."""

    def first(gaps: Mapping[str, Sequence[Range]]) -> Mapping[str, int]:
        filled = [
            at for at, (low, high) in enumerate(gaps["0"]) if any(low <= offset < high for offset in messages)
        ]
        return {"0": filled[0]} if filled else {}

    return first


def test_gaps_between_and_inside_blocks() -> None:
    assert measured([0, 1, 2, 3, 4, 6, 7, 20, 21]).partitions["0"] == PartitionOffsets(
        0, 22, ((5, 6), (8, 20))
    )


def test_gaps_below_the_topics_first_offset_do_not_count() -> None:
    have = measured([0, 1, 2, 3, 4, 6, 7, 20, 21], since=10)
    assert have.partitions["0"].gaps == ((10, 20),)
    assert find_handoff_position(have, {"0": 10}, topic_of(range(10, 30))) == HandoffPosition(
        {"0": 10}, {"0": (10, 20)}
    )
    assert find_handoff_position(have, {"0": 20}, topic_of(range(20, 30))) == HandoffPosition({"0": 22}, {})


def test_duplicates_are_counted() -> None:
    assert measured([0, 1, 1, 1, 2, 5, 5]).partitions["0"].duplicates == 3


def test_a_partition_that_the_table_lacks_starts_at_its_first_offset() -> None:
    assert find_handoff_position(TableOffsets({}), {"0": 7}, topic_of([])) == HandoffPosition({"0": 7}, {})


def test_offsets_below_the_tables_first_one_are_a_gap() -> None:
    assert find_handoff_position(measured([5, 6, 7]), {"0": 0}, topic_of(range(9))).offsets == {"0": 0}
    assert find_handoff_position(measured([5, 6, 7]), {"0": 0}, topic_of([7, 8])).offsets == {"0": 8}


def test_markers_are_not_missing() -> None:
    assert find_handoff_position(
        measured([0, 1, 3, 4, 6]), {"0": 0}, topic_of([0, 1, 3, 4, 6])
    ) == HandoffPosition({"0": 7}, {})


def test_more_gaps_than_are_listed_end_at_the_last_one_listed() -> None:
    offsets = range(0, 2 * fences.MOST_GAPS + 10, 2)
    have = measured(offsets)
    assert have.partitions["0"].more
    fence = find_handoff_position(have, {"0": 0}, topic_of([]))
    assert fence.offsets["0"] == have.partitions["0"].gaps[-1][0] == 2 * fences.MOST_GAPS - 1


offsets_of_a_log = st.integers(0, 40)


@given(table=st.sets(offsets_of_a_log), lost=st.sets(offsets_of_a_log), earliest=offsets_of_a_log)
def test_each_message_arrives_once(table: set[int], lost: set[int], earliest: int) -> None:
    """The table has some offsets.

    The topic has those from `earliest` on, without markers and what compaction took (`lost`).
    """
    messages = [offset for offset in range(41) if offset not in lost]
    in_topic = [offset for offset in messages if offset >= earliest]
    in_table = sorted(table & set(messages))
    have = measured(in_table, earliest) if in_table else TableOffsets({})
    fence = find_handoff_position(have, {"0": earliest}, topic_of(in_topic)).offsets
    cut = HandoffFilter("p", "o", fence)
    history = [offset for offset in in_table if cut.keeps({"p": 0, "o": offset})]
    stream = [offset for offset in in_topic if offset >= fence["0"]]
    arrived = sorted(history + stream)
    assert arrived == sorted(set(arrived))
    assert set(arrived) == {*in_table, *in_topic}


def test_the_cut_goes_by_its_own_topic_alone() -> None:
    cut = HandoffFilter("p", "o", {"0": 3}, "t", "mine")
    rows = [("mine", 0, 2), ("mine", 0, 3), ("other", 0, 9), (None, 0, 9), ("mine", None, 9), ("mine", 1, 0)]
    assert [cut.keeps({"t": topic, "p": part, "o": offset}) for topic, part, offset in rows] == [
        True,
        False,
        True,
        True,
        True,
        False,
    ]
