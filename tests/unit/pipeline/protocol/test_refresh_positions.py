"""Which partitions a position marks for a refresh, until each was read again."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.pipeline.file.loader import load_pipeline
from headrace.pipeline.model.nodes import PipelineModel
from headrace.pipeline.protocol import positions

FILE = """
name: sales
sources: {src: {type: clickhouse, table_name: sales, primary_key: id}}
sinks: {pg: {type: postgres, from: src, table: sales}}
"""
DAYS = [f"2024-03-0{day}" for day in range(1, 5)]
OLD, NEW = [{"token": "old"}], [{"token": "new"}]


@pytest.fixture
def model(tmp_path: Any) -> PipelineModel:
    path = tmp_path / "sales.yaml"
    path.write_text(FILE + "partitions: {column: day, every: day, start: 2024-03-01, end: 2024-03-05}\n")
    return load_pipeline(path).model


def advanced(model: PipelineModel, position: Any, *keys: str) -> Any:
    """Return the position after these partitions were read in one epoch each."""
    for key in keys:
        position = positions.advance_partition(model, model.sources["src"], position, key, (1, 0, ""))
    return position


def complete(model: PipelineModel) -> Any:
    first = {"pins": OLD, "fence": None, "cursor": None, "history": positions.no_history()}
    return advanced(model, first, *DAYS)


def refreshed(model: PipelineModel, position: Any, *keys: str) -> Any:
    return positions.start_refresh(model, positions.renew_snapshots(position, NEW, {}), keys)


def marked(model: PipelineModel, position: Any) -> list[str]:
    return [key for key in DAYS if positions.is_refresh(model, position, key)]


def test_marked_partitions_are_open_until_they_were_read_again(model: PipelineModel) -> None:
    before = complete(model)
    position = refreshed(model, before, DAYS[1], DAYS[3])
    assert positions.completed_partitions(model, {"src": position}) == [DAYS[0], DAYS[2]]
    assert marked(model, position) == [DAYS[1], DAYS[3]]
    assert not positions.history_complete(model, {"src": position})

    after = advanced(model, position, DAYS[1])
    assert marked(model, after) == [DAYS[3]]
    assert positions.is_refreshed(model, position, after, DAYS[1])
    assert not positions.is_refreshed(model, position, after, DAYS[3])
    assert not positions.is_refreshed(model, before, position, DAYS[1])

    last = advanced(model, after, DAYS[3])
    assert positions.history_complete(model, {"src": last})
    assert "refresh" not in last["history"]
    assert [positions.is_from_snapshot(model, last, key) for key in DAYS] == [False, True, False, True]


def test_a_refresh_of_everything_leaves_nothing_of_former_snapshots(model: PipelineModel) -> None:
    position = advanced(model, refreshed(model, complete(model), *DAYS), *DAYS)
    assert all(positions.is_from_snapshot(model, position, key) for key in DAYS)
    assert position["history"].keys() == complete(model)["history"].keys()


def test_a_second_request_keeps_the_marks_of_the_first(model: PipelineModel) -> None:
    position = refreshed(model, refreshed(model, complete(model), DAYS[0]), DAYS[2])
    assert marked(model, position) == [DAYS[0], DAYS[2]]
    assert positions.refreshable(model, {"src": position}, DAYS) == DAYS
    assert marked(model, positions.renew_snapshots(position, OLD, {})) == [DAYS[0], DAYS[2]]


def test_partitions_that_were_not_read_are_not_refreshed(model: PipelineModel) -> None:
    first = {"pins": OLD, "fence": None, "cursor": None, "history": positions.no_history()}
    assert positions.refreshable(model, {"src": advanced(model, first, DAYS[0])}, DAYS) == DAYS[:1]


def test_a_refresh_that_is_cancelled_leaves_the_rows_of_the_partitions_that_were_not_read(
    model: PipelineModel,
) -> None:
    before = complete(model)
    position = advanced(model, refreshed(model, before, *DAYS[:3]), DAYS[0])
    after = positions.cancel_refresh(model, position, DAYS[1:3])
    assert positions.history_complete(model, {"src": after})
    assert marked(model, after) == []
    assert [positions.is_from_snapshot(model, after, key) for key in DAYS] == [True, False, False, False]
    assert not any(positions.is_refreshed(model, position, after, key) for key in DAYS)
    assert positions.pins_ref(after) == positions.pins_ref(position)
    again = advanced(model, refreshed(model, after, *DAYS), *DAYS)
    assert again["history"].keys() == before["history"].keys()


def test_one_of_two_refreshes_is_cancelled(model: PipelineModel) -> None:
    position = refreshed(model, complete(model), DAYS[0], DAYS[2])
    after = positions.cancel_refresh(model, position, DAYS[:1])
    assert marked(model, after) == [DAYS[2]]
    assert positions.completed_partitions(model, {"src": after}) == [DAYS[0], DAYS[1], DAYS[3]]
    assert positions.history_complete(model, {"src": advanced(model, after, DAYS[2])})


def test_a_history_without_partitions(tmp_path: Any) -> None:
    path = tmp_path / "sales.yaml"
    path.write_text(FILE)
    model = load_pipeline(path).model
    first = {"pins": OLD, "fence": None, "cursor": None, "history": positions.no_history()}
    position = refreshed(model, advanced(model, first, ""), "")
    assert positions.completed_partitions(model, {"src": position}) == []
    assert positions.is_refreshed(model, position, advanced(model, position, ""), "")

    cancelled = positions.cancel_refresh(model, position, [""])
    assert positions.completed_partitions(model, {"src": cancelled}) == [""]
    assert not positions.is_refreshed(model, position, cancelled, ""), "it would delete all rows"
