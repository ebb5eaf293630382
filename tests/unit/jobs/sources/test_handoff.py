"""Handoffs that are refused because neither history nor stream has the rows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.jobs.sources.handoff import Handoff
from headrace.pipeline.errors import RetentionError
from headrace.pipeline.file.loader import parse_pipeline
from headrace.pipeline.protocol.table_offsets import PartitionOffsets, TableOffsets

FILE = """
name: orders
sources:
  src:
    type: hybrid
    bounded_sources: [{source_type: clickhouse, table_name: db.history}]
    unbounded_source: {source_type: kafka, topic: orders, schema: {id: int64}}
    offset_table: {%s}
sinks:
  pg: {type: postgres, from: src, table: target}
"""


def handoff(options: str, loaded: int, earliest: int) -> Handoff:
    """A table with the offsets below `loaded`, and a topic that starts at `earliest`."""
    node: Any = parse_pipeline(FILE % options).model.sources["src"]
    table = SimpleNamespace(measure_offsets=lambda *_: TableOffsets({"0": PartitionOffsets(0, loaded)}))
    stream = SimpleNamespace(
        earliest_offsets=lambda: {"offsets": {"0": earliest}}, find_filled_gaps=lambda _: {}
    )
    return Handoff("src", node, [table], stream)  # pyright: ignore[reportArgumentType]


def find_handoff_position(found: Handoff) -> Any:
    nothing: Any = None
    return found.position_from_snapshot(nothing, nothing)


def test_messages_after_the_tables_last_one_that_the_topic_has_dropped_are_refused() -> None:
    with pytest.raises(RetentionError, match=r"partition 0: \[3, 5\)") as error:
        find_handoff_position(handoff("", 3, 5))
    assert "allow_missing: true" in error.value.hint


def test_the_file_can_allow_that_they_are_missing() -> None:
    assert find_handoff_position(handoff("allow_missing: true", 3, 5)) == {"offsets": {"0": 5}}


@pytest.mark.parametrize("options", ["", "allow_missing: true"])
def test_a_table_that_reaches_the_topic_hands_off_at_its_end(options: str) -> None:
    assert find_handoff_position(handoff(options, 5, 5)) == {"offsets": {"0": 5}}
