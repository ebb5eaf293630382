"""How the first rows of partitions divide the growth of a topic."""

from __future__ import annotations

from headrace.connectors.kafka.growth import Growth, complete_times, first_grown, split_growths

MINUTE_MS = 60_000


def test_growths_begin_with_the_first_row_of_their_partitions() -> None:
    """Partition 3 has a row before partition 2 has one, so both came together."""
    first_ms = {2: 9_000, 3: 5_000, 4: 20_000}
    assert split_growths(first_ms, 4) == [Growth([2, 3], 5_000), Growth([4], 20_000)]


def test_growths_that_are_closest_together_count_as_one() -> None:
    first_ms = {2: 0, 3: 5_000, 4: 7_000, 5: 60_000}
    assert split_growths(first_ms, 3) == [Growth([2], 0), Growth([3, 4], 5_000), Growth([5], 60_000)]


def test_first_rows_within_a_second_are_those_of_one_growth() -> None:
    assert split_growths({2: 0, 3: 900}, 4) == [Growth([2, 3], 0)]


def test_a_growth_ten_minutes_later_is_handled_after_the_first() -> None:
    assert first_grown({2: 0, 3: 9 * MINUTE_MS, 4: 10 * MINUTE_MS}) == ([2, 3], 10 * MINUTE_MS)
    assert first_grown({2: 0, 3: 9 * MINUTE_MS}) == ([2, 3], None)


def test_a_partition_without_a_readable_row_is_at_most_as_new_as_the_next_one() -> None:
    assert complete_times([2, 3, 4], {3: 10, 2: 5}) == {2: 5, 3: 10, 4: 10}
    assert complete_times([2, 3, 4], {4: 30}) == {2: 30, 3: 30, 4: 30}
