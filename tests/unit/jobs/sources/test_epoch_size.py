"""The size of stream epochs while a backlog is read."""

from __future__ import annotations

from weakref import WeakSet

import pytest

from headrace.connectors import driver_share
from headrace.connectors.driver_share import add_stream, remove_stream
from headrace.jobs.sources.epoch_size import FIRST_ROWS, StreamEpochSize

MESSAGE = 50
FAST = 0.5


class Stream:
    """A stream of this process."""


@pytest.fixture(autouse=True)
def _no_other_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests may have left a source open."""
    monkeypatch.setattr(driver_share, "_open", WeakSet())


def read_backlog(
    size: StreamEpochSize, epochs: int, message: int = MESSAGE, seconds: float = FAST
) -> list[int]:
    """Return the rows of epochs, each of which is full."""
    result = []
    for _ in range(epochs):
        result.append(size.rows)
        size.adapt(size.rows, size.rows * message, seconds, has_spark=False)
    return result


def test_epochs_of_a_backlog_grow() -> None:
    expected = [100_000, 400_000, 1_600_000, 1_600_000]
    assert read_backlog(StreamEpochSize(None), 4) == expected


@pytest.mark.parametrize(
    ("message", "most"), [(62, 1_600_000), (63, 1_597_830), (500, 201_326), (1_100, 100_000)]
)
def test_growth_keeps_the_messages_below_the_bytes_of_the_driver(message: int, most: int) -> None:
    assert max(read_backlog(StreamEpochSize(None), 6, message)) == most


def test_streams_of_one_process_share_its_memory() -> None:
    streams = [Stream() for _ in range(8)]
    for stream in streams:
        add_stream(stream)
    try:
        assert read_backlog(StreamEpochSize(None), 4, 60) == [100_000, 209_715, 209_715, 209_715]
    finally:
        for stream in streams:
            remove_stream(stream)
            remove_stream(stream)
    assert read_backlog(StreamEpochSize(None), 2, 60) == [100_000, 400_000]


@pytest.mark.parametrize("rows", [1, 100_000, 1_000_000])
def test_the_size_of_the_file_is_kept(rows: int) -> None:
    assert read_backlog(StreamEpochSize(rows), 3) == [rows] * 3


def test_epochs_take_about_ten_seconds() -> None:
    assert read_backlog(StreamEpochSize(None), 3, seconds=5.0) == [100_000, 200_000, 400_000]
    assert read_backlog(StreamEpochSize(None), 3, seconds=30.0) == [FIRST_ROWS] * 3
    size = StreamEpochSize(None)
    read_backlog(size, 2)
    for smaller in (800_000, 400_000, 200_000, FIRST_ROWS, FIRST_ROWS):
        size.adapt(size.rows, size.rows * MESSAGE, 20.0, has_spark=False)
        assert size.rows == smaller


def test_a_fast_epoch_that_is_not_full_changes_nothing() -> None:
    size = StreamEpochSize(None)
    read_backlog(size, 1)
    size.adapt(FIRST_ROWS, 1, FAST, has_spark=False)
    assert size.rows == 400_000


def test_a_slow_epoch_that_is_not_full_makes_the_next_ones_smaller() -> None:
    size = StreamEpochSize(None)
    read_backlog(size, 2)
    size.adapt(300_000, 1, 15.0, has_spark=False)
    assert size.rows == 200_000


def test_larger_messages_make_epochs_smaller_again() -> None:
    size = StreamEpochSize(None)
    read_backlog(size, 1)
    assert read_backlog(size, 3, message=400) == [400_000, 251_658, 251_658]
    assert read_backlog(size, 2, message=10_000) == [251_658, 100_000]


@pytest.mark.parametrize(("size", "has_spark"), [(None, False), (FIRST_ROWS, True)], ids=["unknown", "spark"])
def test_epochs_with_spark_or_of_unknown_bytes_do_not_grow(size: int | None, *, has_spark: bool) -> None:
    result = StreamEpochSize(None)
    read_backlog(result, 2)
    result.adapt(400_000, size, FAST, has_spark=has_spark)
    assert result.rows == FIRST_ROWS
    result.adapt(FIRST_ROWS, size, FAST, has_spark=has_spark)
    assert result.rows == FIRST_ROWS
