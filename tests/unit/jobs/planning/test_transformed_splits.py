"""Batches that Arrow leaves to Spark are computed together, and the order of rows stays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import pyarrow as pa
import pytest

from headrace.connectors.source_base import SplitReader
from headrace.jobs.planning import arrow_sql
from headrace.jobs.planning.arrow_functions import UnprovenValuesError
from headrace.jobs.planning.arrow_sql import TransformedSplits
from headrace.pipeline.protocol.epochs import Json


class NumberReader(SplitReader):
    splits: Sequence[Json] = ()

    def fetch(self, split: Json) -> Iterator[pa.RecordBatch]:
        for number in split["numbers"]:
            yield pa.record_batch({"n": [number]})


class EvenSelect:
    """Leaves odd numbers to Spark."""

    def compute(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch["n"][0].as_py() % 2:
            msg = "even"
            raise UnprovenValuesError(msg)
        return batch


def read(numbers: list[int]) -> tuple[list[int], list[int]]:
    """Return the numbers after the transforms, and how many batches Spark computed together."""
    jobs: list[int] = []

    def compute_by_spark(batches: Sequence[pa.RecordBatch]) -> Sequence[pa.RecordBatch]:
        jobs.append(len(batches))
        return batches

    reader = TransformedSplits(NumberReader(), cast("Any", (EvenSelect(),)), compute_by_spark)
    result = pa.Table.from_batches(reader.fetch({"numbers": numbers}))
    return result["n"].to_pylist(), jobs


@pytest.mark.parametrize(
    ("numbers", "jobs"),
    [([2, 4], []), ([1, 3, 2, 5], [2, 1]), ([2, 1, 3, 5], [3]), ([1, 3, 5, 7, 9, 2, 11], [4, 1, 1])],
)
def test_odd_batches_are_computed_together_in_their_place(
    monkeypatch: pytest.MonkeyPatch, numbers: list[int], jobs: list[int]
) -> None:
    monkeypatch.setattr(arrow_sql, "_JOB_ROWS", 4)
    assert read(numbers) == (numbers, jobs)


def test_large_batches_are_a_job_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_sql, "_JOB_BYTES", 8)
    assert read([1, 3]) == ([1, 3], [1, 1])


def test_tasks_without_spark_raise() -> None:
    reader = TransformedSplits(NumberReader(), cast("Any", (EvenSelect(),)))
    with pytest.raises(UnprovenValuesError):
        list(reader.fetch({"numbers": [1]}))
