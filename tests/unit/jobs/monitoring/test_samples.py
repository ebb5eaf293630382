"""The choice of sampled rows, by a fake clock."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time
from decimal import Decimal

import pytest

from headrace.jobs.monitoring.json_values import json_value
from headrace.jobs.monitoring.sample_buffer import Sample, SampleBuffer


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def rows(first: int, last: int) -> list[dict[str, int]]:
    return [{"id": number} for number in range(first, last + 1)]


def ids(kept: list[Sample]) -> list[int]:
    return [row["id"] for _, row in kept]


def test_a_slot_that_was_used_comes_back_after_its_time_and_old_rows_stay_until_then(clock: Clock) -> None:
    samples = SampleBuffer(["a"], 3, 30.0, clock)
    assert samples.put("a", rows(1, 2)) == 2
    clock.now += 20
    assert samples.put("a", rows(3, 9)) == 1
    assert samples.put("a", rows(10, 10)) == 0
    assert ids(samples.listen([], print)[0]) == [3, 2, 1]
    clock.now += 9.9
    assert samples.free("a") == 0
    clock.now += 0.1
    assert samples.free("a") == 2  # those of the first moment, not the one that came 20 s later
    assert ids(samples.listen([], print)[0]) == [3, 2, 1]
    assert samples.put("a", rows(11, 20)) == 2
    assert ids(samples.listen([], print)[0]) == [12, 11, 3]


def test_nodes_have_slots_of_their_own(clock: Clock) -> None:
    samples = SampleBuffer(["a", "b"], 2, 30.0, clock)
    samples.put("a", rows(1, 2))
    assert (samples.free("a"), samples.free("b")) == (0, 2)


def test_who_listens_gets_what_is_kept_newest_first_then_what_comes_and_nothing_twice(clock: Clock) -> None:
    samples = SampleBuffer(["a", "b", "c"], 5, 30.0, clock)
    samples.put("b", rows(1, 2))
    samples.put("c", rows(9, 9))
    came: list[Sample | None] = []
    kept, forget = samples.listen(["a", "b"], came.append)
    assert kept == [("b", {"id": 2}), ("b", {"id": 1})]
    samples.put("a", rows(3, 3))
    samples.put("c", rows(4, 4))
    assert came == [("a", {"id": 3})]
    forget()
    samples.put("a", rows(5, 5))
    assert came == [("a", {"id": 3})]


def test_the_end_is_told_also_to_who_comes_later() -> None:
    samples = SampleBuffer(["a"], 5, 30.0)
    first: list[Sample | None] = []
    later: list[Sample | None] = []
    samples.listen([], first.append)
    samples.end()
    samples.listen([], later.append)
    assert (first, later) == ([None], [None])


def test_values_are_those_that_streamling_shows() -> None:
    row = {
        "null": None,
        "bytes": b"\x00\xff",
        "money": Decimal("1E+3"),
        "wide": Decimal("123456789012345678901234567890.10"),
        "at": datetime(2025, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
        "naive": datetime(2025, 1, 2, 3, 4, 5),
        "day": date(2025, 1, 2),
        "time": time(1, 2, 3),
        "nan": float("nan"),
        "list": [Decimal(1), {"b": b"\x01"}, None],
        "yes": True,
        "text": "é",
    }
    result = json.loads(json.dumps(json_value(row), allow_nan=False))
    assert result == {
        "null": None,
        "bytes": "00ff",
        "money": "1000",
        "wide": "123456789012345678901234567890.10",
        "at": "2025-01-02T03:04:05.000006Z",
        "naive": "2025-01-02T03:04:05",
        "day": "2025-01-02",
        "time": "01:02:03",
        "nan": None,
        "list": ["1", {"b": "01"}, None],
        "yes": True,
        "text": "é",
    }
