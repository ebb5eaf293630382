"""Handoffs that are refused because neither history nor stream has the rows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.jobs.sources.handoff import Handoff
from headrace.pipeline.errors import GuaranteeError, PipelineFileError, RetentionError
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
  pg: {type: postgres, from: src, table: target, primary_key: id}
"""


def handoff(options: str, loaded: int, earliest: int) -> Handoff:
    """A table with the offsets below `loaded`, and a topic that starts at `earliest`."""
    node: Any = parse_pipeline(FILE % options).model.sources["src"]
    table = SimpleNamespace(measure_offsets=lambda *_: TableOffsets({"0": PartitionOffsets(0, loaded)}))
    stream = SimpleNamespace(
        earliest_offsets=lambda: {"offsets": {"0": earliest}}, find_filled_gaps=lambda _: {}
    )
    return Handoff("src", node, [table], stream)  # pyright: ignore[reportArgumentType]


def find_handoff_position(result: Handoff) -> Any:
    nothing: Any = None
    return result.position_from_snapshot(nothing, nothing)


def test_messages_after_the_tables_last_one_that_the_topic_has_dropped_are_refused() -> None:
    with pytest.raises(RetentionError, match=r"partition 0: \[3, 5\)") as error:
        find_handoff_position(handoff("", 3, 5))
    assert "allow_missing: true" in error.value.hint


def test_the_file_can_allow_that_they_are_missing() -> None:
    assert find_handoff_position(handoff("allow_missing: true", 3, 5)) == {"offsets": {"0": 5}}


@pytest.mark.parametrize("options", ["", "allow_missing: true"])
def test_a_table_that_reaches_the_topic_hands_off_at_its_end(options: str) -> None:
    assert find_handoff_position(handoff(options, 5, 5)) == {"offsets": {"0": 5}}


def handoff_by_time(options: str, stream_options: str = "") -> tuple[Handoff, list[datetime]]:
    """Return a handoff by time, and the list of the times whose offsets it requests."""
    text = (
        (FILE % "")
        .replace("offset_table: {}", options)
        .replace("orders, schema", f"orders{stream_options}, schema")
    )
    requests: list[datetime] = []

    def offsets_for_time(milliseconds: int) -> Any:
        requests.append(datetime.fromtimestamp(milliseconds / 1000, UTC))
        return {"offsets": {"0": 7}}

    stream: Any = SimpleNamespace(
        earliest_offsets=lambda: {"offsets": {"0": 2}}, offsets_for_time=offsets_for_time
    )
    return Handoff("src", parse_pipeline(text).model.sources["src"], [], stream), requests


@pytest.mark.parametrize("options", ["handoff_lag: 2h", "cursor: {column: at, allowed_lateness: 1h}"])
def test_a_stream_can_start_at_its_first_message(options: str) -> None:
    result, requests = handoff_by_time(options, ", start_at: earliest")
    position, cursor = result.position_before_snapshot()
    assert (position, requests) == ({"offsets": {"0": 2}}, [])
    assert (cursor is not None) is ("cursor" in options)


def test_a_stream_can_start_at_a_time_before_the_lag() -> None:
    now = datetime.now(UTC)
    start = now - timedelta(hours=3)
    result, requests = handoff_by_time("handoff_lag: 2h", f", start_at: '{int(start.timestamp() * 1000)}'")
    assert result.position_before_snapshot() == ({"offsets": {"0": 7}}, None)
    assert abs(requests[0] - start) < timedelta(seconds=1)
    late = now - timedelta(hours=1)
    result, requests = handoff_by_time("handoff_lag: 2h", f", start_at: '{int(late.timestamp() * 1000)}'")
    with pytest.raises(GuaranteeError, match="which is `handoff_lag` ago"):
        result.position_before_snapshot()
    assert not requests


def test_an_offset_table_agrees_with_the_first_message() -> None:
    text = (FILE % "").replace("orders, schema", "orders, start_at: earliest, schema")
    assert parse_pipeline(text).model.sources["src"]
    with pytest.raises(PipelineFileError, match="with `offset_table`, the stream starts where history ends"):
        parse_pipeline(text.replace("earliest", "latest"))
    with pytest.raises(PipelineFileError, match="cannot be `latest`\n  Allowed: earliest, or milliseconds"):
        parse_pipeline(text.replace("earliest", "latest").replace("offset_table: {}", "handoff_lag: 1h"))
