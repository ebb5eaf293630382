"""The state of a pipeline from its position: a refresh that has not ended keeps no stream from starting."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from headrace.jobs.run.status import completed_partitions, history_complete, was_history_loaded
from headrace.pipeline.file.loader import parse_pipeline
from headrace.pipeline.protocol import positions

FILE = """
name: sales
sources: {src: {type: clickhouse, table_name: sales, primary_key: id}}
sinks: {pg: {type: postgres, from: src, table: sales}}
partitions: {column: day, every: day, start: 2024-03-01, end: 2024-03-04}
"""
DAYS = ["2024-03-01", "2024-03-02", "2024-03-03"]


def test_a_refresh_that_has_not_ended_is_no_missing_history() -> None:
    file = parse_pipeline(FILE, "sales.yaml")

    def read(position: Any, *days: str) -> Any:
        for day in days:
            position = positions.advance_partition(
                file.model, file.model.sources["src"], position, day, (1, 0, "")
            )
        return position

    first = {"pins": [{}], "fence": None, "cursor": None, "history": positions.no_history()}
    partly = read(first, *DAYS[:2])
    refreshed = positions.start_refresh(file.model, read(partly, DAYS[2]), DAYS[:1])
    states: Any = [SimpleNamespace(position={"src": position}) for position in (partly, refreshed)]
    assert [history_complete(file, state) for state in states] == [False, False]
    assert [was_history_loaded(file, state) for state in states] == [False, True]
    assert completed_partitions(file, states[1]) == DAYS[1:]
    assert not was_history_loaded(file, None)
