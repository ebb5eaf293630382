"""`make bench-quick` fails on a slowed step, and passes where nothing changed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path

import pytest

from benchmarks.quick.__main__ import RECORDED
from benchmarks.quick.comparison import (
    RatioStep,
    compare_ratios,
    measure_ratio,
    read_recorded,
    record_ratios,
)
from benchmarks.quick.steps import decode_step
from headrace.connectors.kafka import arrow_decoder


def returning(*times: float) -> Callable[[], float]:
    """Return work that takes these times, one after the other."""
    left: Iterator[float] = cycle(times)
    return lambda: next(left)


def step(ours: Callable[[], float], bare: Callable[[], float]) -> RatioStep:
    return RatioStep("work", "some work", ours, bare)


def test_a_load_that_slows_both_ways_changes_no_ratio() -> None:
    slowed = (1.0, 7.0, 2.0, 30.0)
    result = step(returning(*(2 * time for time in slowed)), returning(*slowed))
    assert compare_ratios([result], {"work": 0.5}) == []


def test_one_slow_round_does_not_count() -> None:
    assert measure_ratio(step(returning(1, 1, 9, 1), returning(1))) == 1


def test_a_first_round_does_not_count() -> None:
    assert measure_ratio(step(returning(9, 1, 1, 1), returning(1))) == 1


@pytest.mark.parametrize(("ours", "fails"), [(1.0, False), (1.17, False), (1.19, True), (2.0, True)])
def test_a_drop_of_more_than_15_percent_fails(ours: float, *, fails: bool) -> None:
    result = compare_ratios([step(returning(ours), returning(1))], {"work": 1.0})
    assert bool(result) == fails
    assert all("work: some work dropped from 1.00 to" in line for line in result)


def test_a_dropped_ratio_is_measured_again() -> None:
    times = [*[2.0] * 4, *[1.0] * 4]
    assert compare_ratios([step(returning(*times), returning(1))], {"work": 1.0}) == []


def test_a_step_without_a_recorded_ratio_fails() -> None:
    assert "no recorded ratio" in compare_ratios([step(returning(1), returning(1))], {})[0]


def test_recording_keeps_the_ratios_of_other_steps(tmp_path: Path) -> None:
    path = tmp_path / "recorded.json"
    path.write_text(json.dumps({"other": 0.5}))
    record_ratios([step(returning(4), returning(1))], path)
    assert read_recorded(path) == {"other": 0.5, "work": 0.25}


def test_a_slowed_decoder_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """That the same decoder passes is a matter of time, so a machine in use can miss it."""
    result = decode_step(1000)
    recorded = {result.name: measure_ratio(result)}
    original = arrow_decoder._join_objects

    def slowed(values: list[bytes | None]) -> bytes | None:
        for _ in range(100):
            original(values)
        return original(values)

    monkeypatch.setattr(arrow_decoder, "_join_objects", slowed)
    assert [line.partition(":")[0] for line in compare_ratios([result], recorded, rounds=1)] == ["decode"]


def test_recorded_ratios_belong_to_steps() -> None:
    assert set(read_recorded(RECORDED)) == {"decode", "epoch", "upsert", "history"}
