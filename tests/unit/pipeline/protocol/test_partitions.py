"""Partitions of time in a time zone, and positions of partitions by integers and values."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from headrace.pipeline.file.loader import parse_pipeline
from headrace.pipeline.model.nodes import PipelineModel
from headrace.pipeline.model.partitions import TimePartitionsConfig
from headrace.pipeline.protocol import positions
from headrace.pipeline.protocol.partitions import (
    current_time,
    history_end,
    list_partitions,
    partition_at,
    window_keys,
)

FILE = """
name: sales
sources: {src: {type: clickhouse, table_name: sales, primary_key: id}}
sinks: {pg: {type: postgres, from: src, table: sales}}
"""
ZONES = (
    "Europe/Berlin",
    "America/Sao_Paulo",
    "America/Havana",
    "Asia/Kolkata",
    "Pacific/Apia",
    "Pacific/Kiritimati",
)


def in_zone(zone: str, **more: Any) -> TimePartitionsConfig:
    inputs = {"column": "at", "every": "day", "start": "2018-01-01", "end": "2019-01-01", "timezone": zone}
    return TimePartitionsConfig.model_validate(inputs | more)


def parse_model(partitions: str) -> PipelineModel:
    return parse_pipeline(f"{FILE}partitions: {partitions}\n").model


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("every", ["day", "month", "year"])
def test_windows_of_a_time_zone_have_each_moment_once(zone: str, every: str) -> None:
    result = list_partitions(in_zone(zone, every=every, start="2011-01-01"))
    assert all(one.end == other.start for one, other in pairwise(result))
    assert all(one.start <= one.end for one in result)
    assert result[-1].end == history_end(in_zone(zone, start="2011-01-01"))


@pytest.mark.parametrize(
    ("zone", "key", "start", "hours"),
    [
        ("Europe/Berlin", "2018-07-01", "2018-06-30T22:00:00", 24),
        ("Europe/Berlin", "2018-03-25", "2018-03-24T23:00:00", 23),
        ("Europe/Berlin", "2018-10-28", "2018-10-27T22:00:00", 25),
        # The clock went from 23:59 to 01:00, so the day began at 01:00.
        ("America/Sao_Paulo", "2018-11-04", "2018-11-04T03:00:00", 23),
        # The clock went from 23:59 back to 23:00, so the day before had that hour twice.
        ("America/Sao_Paulo", "2018-02-17", "2018-02-17T02:00:00", 25),
        # The clock went from 00:59 back to 00:00: the day begins at the first of both.
        ("America/Havana", "2018-11-04", "2018-11-04T04:00:00", 25),
    ],
)
def test_days_with_another_length(zone: str, key: str, start: str, hours: int) -> None:
    result = partition_at(in_zone(zone), key)
    assert result.start == start
    assert datetime.fromisoformat(result.end) - datetime.fromisoformat(start) == timedelta(hours=hours)


def test_a_day_that_a_zone_left_out_has_no_rows() -> None:
    by = in_zone("Pacific/Apia", start="2011-12-01", end="2012-01-31")
    before, left_out, after = (partition_at(by, f"2011-12-{day}") for day in (29, 30, 31))
    assert before.end == after.start == left_out.start
    assert left_out.end < left_out.start, "equal bounds would select the rows with that value"


def test_an_open_end_moves_at_midnight_of_the_zone() -> None:
    by = in_zone("Europe/Berlin", end="open")
    before, after = datetime(2018, 6, 30, 21, 59, 59), datetime(2018, 6, 30, 22)
    assert [list_partitions(by, now=now)[-1].key for now in (before, after)] == ["2018-06-29", "2018-06-30"]
    assert history_end(by, after) == current_time(by, after) == after


def test_utc_has_bounds_of_days_and_is_not_stored() -> None:
    assert partition_at(in_zone("UTC"), "2018-07-01").start == "2018-07-01"
    stored = positions.partitions_json(in_zone("UTC"))
    assert stored is not None
    assert "timezone" not in stored
    assert not positions.is_cut_alike(stored, positions.partitions_json(in_zone("Europe/Berlin")))


def test_windows_are_those_of_the_zones_clock() -> None:
    zone = "America/Sao_Paulo"
    for key in window_keys(in_zone(zone)):
        start = datetime.fromisoformat(partition_at(in_zone(zone), key).start).replace(tzinfo=UTC)
        shown = start.astimezone(ZoneInfo(zone))
        earlier = (start - timedelta(seconds=1)).astimezone(shown.tzinfo)
        assert shown.date().isoformat() == key
        assert earlier.date() < shown.date()


def begin(model: PipelineModel) -> Any:
    noted = positions.snapshot_end(model.partitions)
    return {"pins": [], "fence": None, "cursor": None, "history": positions.no_history() | noted}


def read(model: PipelineModel, position: Any, *keys: str) -> Any:
    for key in keys:
        position = positions.advance_partition(model, model.sources["src"], position, key, (1, 0, ""))
    return position


KINDS = {
    "values": ("{column: region, values: [b, a, c]}", "{column: region, values: [b, d, a, c]}", "d"),
    "integers": ("{column: id, every: 10, end: 30}", "{column: id, every: 10, end: 40}", "30"),
    "time zone": (
        "{column: at, every: day, start: 2018-03-24, end: 2018-03-27, timezone: Europe/Berlin}",
        "{column: at, every: day, start: 2018-03-24, end: 2018-03-28, timezone: Europe/Berlin}",
        "2018-03-27",
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_partitions_are_done_one_by_one_and_again_after_a_refresh(kind: str) -> None:
    model = parse_model(KINDS[kind][0])
    keys = window_keys(model.partitions)
    position = read(model, begin(model), keys[2], keys[0])
    assert positions.completed_partitions(model, {"src": position}) == [keys[0], keys[2]]
    position = read(model, position, keys[1])
    assert positions.history_complete(model, {"src": position})
    position = positions.start_refresh(model, positions.renew_snapshots(position, [], {}), [keys[1]])
    assert positions.completed_partitions(model, {"src": position}) == [keys[0], keys[2]]
    assert [positions.is_refresh(model, position, key) for key in keys] == [False, True, False]
    assert positions.history_complete(model, {"src": read(model, position, keys[1])})
    assert positions.history_complete(model, {"src": positions.cancel_refresh(model, position, [keys[1]])})


@pytest.mark.parametrize("kind", ["values", "integers"])
def test_an_added_partition_needs_a_new_snapshot(kind: str) -> None:
    former, now, added = KINDS[kind]
    position = read(
        parse_model(former), begin(parse_model(former)), *window_keys(parse_model(former).partitions)
    )
    model = parse_model(now)
    assert positions.needs_snapshot(model, position, [added])
    assert not positions.needs_snapshot(model, position, window_keys(parse_model(former).partitions))
    renewed = positions.renew_snapshots(position, [], positions.snapshot_end(model.partitions))
    assert not positions.needs_snapshot(model, renewed, [added])
    assert positions.history_complete(model, {"src": read(model, renewed, added)})
