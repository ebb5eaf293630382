"""Epoch limits in bytes, and the meaning of Spark's failures. Without servers and Spark."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from headrace.connectors.frame import DRIVER_BYTES, EpochFrame
from headrace.connectors.kafka.peek import MessageInfo
from headrace.connectors.kafka.sizes import SizeEstimator
from headrace.jobs.sources.backfill import _take
from headrace.jobs.spark.errors import as_headrace_error
from headrace.jobs.spark.session import explain_death
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import SparkJvmError, TransientError, WorkerError
from headrace.pipeline.model.run_options import EpochOptions

KIB, MIB = 1 << 10, 1 << 20


class Topic:
    """Messages of known sizes, by partition; looks at them are counted."""

    def __init__(self, sizes: Mapping[int, list[int]]) -> None:
        self.sizes = sizes
        self.looks = 0

    def look(self, at: Mapping[int, int]) -> dict[int, list[MessageInfo]]:
        self.looks += 1
        return {
            part: [
                MessageInfo(place, self.sizes[part][place], 0, by_broker=False)
                for place in range(offset, min(offset + 3, len(self.sizes[part])))
            ]
            for part, offset in at.items()
        }

    def limit(self, most: int) -> dict[int, int]:
        made: Any = self
        return SizeEstimator(made).limit({part: (0, len(sizes)) for part, sizes in self.sizes.items()}, most)[
            0
        ]


def test_a_range_of_large_messages_is_cut() -> None:
    topic = Topic({0: [150_000] * 8_000})
    end = topic.limit(256 * MIB)[0]
    assert 0.9 * 256 * MIB < end * 150_000 <= 256 * MIB


def test_large_messages_after_small_ones_are_seen() -> None:
    topic = Topic({0: [100] * 50_000 + [500_000] * 50_000})
    assert 50_000 <= topic.limit(64 * MIB)[0] < 50_200


def test_small_messages_are_looked_at_in_two_places_and_few_not_at_all() -> None:
    topic = Topic({0: [100] * 10_000, 1: [100] * 10})
    assert topic.limit(256 * MIB) == {0: 10_000, 1: 10}
    assert topic.looks == 2
    few = Topic({0: [100] * 20})
    assert few.limit(256 * MIB) == {0: 20}
    assert few.looks == 0


def test_the_next_small_ranges_are_not_looked_at() -> None:
    topic: Any = Topic({0: [100] * 10_000})
    estimator = SizeEstimator(topic)
    looks = []
    for start in range(0, 3_400, 100):
        assert estimator.limit({0: (start, start + 100)}, 256 * MIB) == ({0: start + 100}, 10_000)
        looks.append(topic.looks)
    assert looks == [2] * 16 + [4] * 16 + [6] * 2
    assert estimator.limit({0: (3_400, 4_000), 1: (0, 0)}, 256 * MIB)[0] == {0: 4_000}
    assert topic.looks == 6
    topic.sizes[1] = [100] * 100
    estimator.limit({0: (4_000, 4_100), 1: (0, 100)}, 256 * MIB)
    assert topic.looks == 8, "no message of partition 1 was seen before"


def test_a_range_that_may_be_large_is_looked_at_each_time() -> None:
    topic: Any = Topic({0: [20_000] * 1_000})
    estimator = SizeEstimator(topic)
    for start in range(0, 600, 200):
        estimator.limit({0: (start, start + 200)}, 256 * MIB)
    assert topic.looks == 3 * 2


def test_bytes_are_shared_and_every_partition_gets_on() -> None:
    topic = Topic({0: [1_000] * 1_000, 1: [1_000] * 20, 2: [2 * MIB] * 3, 3: []})
    ends = topic.limit(200_000)
    assert ends == {0: 90, 1: 20, 2: 1}, (
        "what a partition leaves goes to the others; one message is always taken"
    )


def test_splits_are_taken_by_rows_and_by_bytes() -> None:
    splits = [{"rows": 10, "bytes": 100}] * 5
    assert len(_take(splits, 1_000, 250)) == 2
    assert len(_take(splits, 25, 10_000)) == 2
    assert len(_take([{"rows": 10, "bytes": 900}, *splits], 1_000, 250)) == 1
    assert len(_take([{"rows": 10}] * 5, 1_000, 250)) == 5


@pytest.mark.parametrize(("size", "passes"), [(None, True), (1_000, True), (DRIVER_BYTES + 1, False)])
def test_few_but_large_rows_do_not_pass_through_the_driver(
    size: int | None, monkeypatch: pytest.MonkeyPatch, *, passes: bool
) -> None:
    rows: Any = pa.table({"a": [1]})
    monkeypatch.setattr("headrace.connectors.frame.collect_arrow", lambda rows: rows)
    spark: Any = None
    frame = EpochFrame(rows, pa.schema([]), (), 1, spark, size=size)
    assert (frame.collect_if_small(rows, 100) is not None) is passes


def test_sizes_are_written_with_units() -> None:
    assert EpochOptions.model_validate({"max_bytes": "64MiB"}).max_bytes == 64 * MIB
    assert EpochOptions().max_bytes == 256 * MIB
    for wrong in ("much", True, "1KiB"):
        with pytest.raises(ValueError, match=r"is no size|is less than 64KiB"):
            EpochOptions.model_validate({"max_bytes": wrong})


JOB = "Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times, most recent failure: "


@pytest.mark.parametrize(
    ("text", "kind", "retriable", "blocks"),
    [
        (JOB + "java.lang.OutOfMemoryError: Java heap space", SparkJvmError, False, True),
        ("Job 7 cancelled because SparkContext was shut down", SparkJvmError, False, True),
        (
            JOB + "Python worker exited unexpectedly (crashed)\nCaused by: java.io.EOFException",
            WorkerError,
            True,
            True,
        ),
        (JOB + "java.lang.IllegalStateException: whatever", WorkerError, True, True),
        (JOB + "java.net.ConnectException: Connection refused", TransientError, True, False),
    ],
)
def test_only_causes_that_pass_are_tried_without_end(
    text: str, kind: type, *, retriable: bool, blocks: bool
) -> None:
    error = as_headrace_error(RuntimeError(text))
    assert (type(error), error.retriable, error.blocks) == (kind, retriable, blocks)


def test_a_refused_connection_to_the_jvm_is_no_outside_system() -> None:
    error = as_headrace_error(ConnectionRefusedError(111, "Connection refused"))
    assert isinstance(error, SparkJvmError)
    assert "Spark's JVM" in error.message


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (52, "ended with exit code 52: it ran out of memory; spark.driver_memory is 2g"),
        (-9, "was ended by signal 9; the system may have run out of memory"),
        (1, "ended with exit code 1"),
    ],
)
def test_a_dead_jvm_is_explained(code: int, reason: str) -> None:
    process = SimpleNamespace(poll=lambda: code)
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(_gateway=SimpleNamespace(proc=process)))
    error = explain_death(spark, Settings())
    assert error is not None
    assert error.message == f"Spark's JVM {reason}"
    assert "epoch.max_bytes" in error.hint
    process.poll = lambda: None
    assert explain_death(spark, Settings()) is None
