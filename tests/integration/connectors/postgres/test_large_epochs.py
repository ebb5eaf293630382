"""Epochs above the default of `max_driver_rows`: the driver collects them, or tasks stage them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
from helpers.pipeline_world import postgres_database
from helpers.postgres_epochs import Bench, plan

from headrace.connectors import frame
from headrace.connectors.postgres import sink as postgres_sink
from headrace.pipeline.protocol.epochs import WriteCounts
from headrace.services import Services

LARGE = {"estimate": 200_000, "size": 1_000}
ROWS = [("i", 1, "a"), ("i", 2, "old"), ("u", 2, "new"), ("d", 3, None)]


@pytest.fixture(scope="module")
def pg(services: Services) -> Iterator[str]:
    """Yield a database for all tests here: each has a schema of its own."""
    with postgres_database(services) as conninfo:
        yield conninfo


@pytest.fixture
def staged(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Spy on the path by tasks."""
    spy = Mock(side_effect=postgres_sink.write_staged)
    monkeypatch.setattr(postgres_sink, "write_staged", spy)
    return spy


def test_large_epochs_are_collected_up_to_a_limit_of_rows_and_bytes(
    bench: Bench, staged: Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, most in (("LARGE_ROWS", 200_000), ("LARGE_BYTES", 1_000)):
        monkeypatch.setattr(frame, name, most)
    sink = bench.joined()
    rows = bench.frame(ROWS)
    assert sink.write(plan(1), replace(rows, estimate=200_000, size=1_000)) == WriteCounts(3, 2, 0, 0)
    assert not staged.called
    for epoch, (estimate, size) in enumerate([(200_001, 1_000), (200_000, 1_001), (200_000, None)], 2):
        counts = sink.write(plan(epoch), replace(rows, estimate=estimate, size=size))
        assert counts == WriteCounts(3, 0, 2, 0)
        assert staged.call_count == epoch - 1
    assert bench.rows() == [(1, "a"), (2, "new")]


@pytest.mark.parametrize(
    "options",
    [{"max_driver_rows": 100_000}, {"on_conflict": "nothing"}, {"on_error": "dead_letter"}],
    ids=["a limit of the file", "the server chooses the row of a key", "refused rows have a table"],
)
def test_tasks_stage_large_epochs_that_the_driver_does_not_collect(
    bench: Bench, staged: Mock, options: dict[str, Any]
) -> None:
    sink = bench.joined(**options)
    sink.write(plan(1), replace(bench.frame(ROWS[:2]), **LARGE))
    assert staged.called
    assert bench.rows() == [(1, "a"), (2, "old")]


def test_rows_that_are_larger_than_their_sources_are_staged_from_then_on(
    bench: Bench, staged: Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = Mock(side_effect=RuntimeError("… is bigger than spark.driver.maxResultSize (512.0 MiB)"))
    monkeypatch.setattr(frame, "collect_arrow", refusing)
    sink = bench.joined()
    for epoch in (1, 2):
        sink.write(plan(epoch), replace(bench.frame(ROWS), **LARGE))
    assert (staged.call_count, refusing.call_count) == (2, 1)
    assert bench.rows() == [(1, "a"), (2, "new")]
