"""Partitions that a stream fills: their keys, their states over several runs, and the assets downstream."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from functools import partial

import dagster as dg
import pytest
from helpers.dagster_runs import FLIGHTS, LAKE, PARTITIONS, PG

from headrace.jobs.run.events import EpochCommitted
from headrace.orchestration.build import build_definitions
from headrace.orchestration.pipelines import read_pipeline, to_dagster_partitions
from headrace.orchestration.stream_progress import StreamPartitions
from headrace.pipeline.file.loader import parse_pipeline
from headrace.pipeline.model.partitions import TimePartitionsConfig
from headrace.pipeline.protocol.epochs import EpochPlan, Phase, WriteCounts
from headrace.pipeline.protocol.partitions import current_time, list_partitions

AT_ONCE = "stream: {report_interval: 0s}\n"
DOWNSTREAM = dg.AssetKey("downstream")
CONDITION = dg.AutomationCondition
HOURLY = "0 * * * *"
CONDITIONS = {
    "eager": CONDITION.eager(),
    "eager_after_checks": CONDITION.eager() & CONDITION.all_deps_blocking_checks_passed(),
    "on_cron": CONDITION.on_cron(HOURLY),
}


def epoch(number: int, *, backlog: int = 0) -> EpochCommitted:
    plan = EpochPlan(number, Phase.LIVE, {}, {}, "hash", datetime.now(UTC))
    counts = {name: WriteCounts(10, inserted=10) for name in ("flights_pg", "lake")}
    return EpochCommitted(plan, counts, {"total": 0.5}, backlog)


def this_month() -> str:
    """Return partitions in months of which the stream fills the current one and later ones."""
    month = datetime.now(UTC).date().replace(day=1)
    return f"partitions: {{column: day, start: 2013-01, end: {month.year + 1}-01, history_end: {month}}}\n"


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as result:
        yield result


@pytest.mark.parametrize("end", ["open", "2027-01-01", "2014-01-01"])
@pytest.mark.parametrize("every", ["hour", "day", "week", "month", "year"])
@pytest.mark.parametrize("timezone", ["UTC", "Europe/Berlin", "America/Sao_Paulo", "Pacific/Apia"])
@pytest.mark.parametrize("now", [datetime(2014, 1, 1), datetime(2015, 5, 20, 23, 59, 59)])
def test_every_partition_that_a_stream_can_report_is_one_of_dagster(every, end, now, timezone) -> None:
    if every == "hour" and timezone != "UTC":
        return
    if every == "week":
        end = {"2027-01-01": "2026-12-29", "2014-01-01": "2013-12-31"}.get(end, end)
    history_end = "2013-12-31" if every == "week" else "2014-01-01"
    partitions = TimePartitionsConfig.model_validate(
        {
            "column": "d",
            "every": every,
            "start": "2013-01-01",
            "end": end,
            "history_end": history_end,
            "timezone": timezone,
        }
    )
    stream = StreamPartitions(partitions, (), now=lambda: now)
    reported = [*stream.take_completed(caught_up=True), stream.current()]
    result = to_dagster_partitions(partitions, include_current=True)
    assert result is not None
    listed = result.get_partition_keys(current_time=now.replace(tzinfo=UTC))
    assert {key for key in reported if key} <= set(listed)
    begun = [
        one.key
        for one in list_partitions(partitions, history_only=False, now=now)
        if one.start <= current_time(partitions, now)
    ]
    assert listed == begun


class TestStates:
    PARTS = parse_pipeline(FLIGHTS + PARTITIONS.replace("2014-01,", "2014-03,")).model.partitions

    def partitions(self, today: date, **known) -> StreamPartitions:
        now = datetime.combine(today, datetime.min.time())
        return StreamPartitions(self.PARTS, known.pop("reported", ()), now=lambda: now, **known)

    def test_complete_when_the_end_has_passed_and_the_stream_has_caught_up(self) -> None:
        result = self.partitions(date(2014, 1, 15))
        assert result.take_completed(caught_up=False) == []
        assert result.take_completed(caught_up=True) == ["2013-12-01"]
        assert result.take_completed(caught_up=True) == []

    def test_the_partition_of_today_is_current_and_not_complete(self) -> None:
        result = self.partitions(date(2014, 1, 31))
        assert result.current() == "2014-01-01"
        assert "2014-01-01" not in result.take_completed(caught_up=True)
        assert result.take_begun() == []

    def test_begun_is_what_was_current_and_has_passed(self) -> None:
        result = self.partitions(date(2014, 1, 15), filled={"2013-12-01"})
        assert result.take_begun() == ["2013-12-01"]
        assert result.take_begun() == []
        assert result.take_completed(caught_up=True) == ["2013-12-01"]

    def test_partitions_of_history_are_not_the_streams(self) -> None:
        completed = self.partitions(date(2020, 1, 1)).take_completed(caught_up=True)
        assert completed == ["2013-12-01", "2014-01-01", "2014-02-01"]

    def test_complete_partitions_are_not_reported_again(self) -> None:
        result = self.partitions(date(2020, 1, 1), reported={"2013-12-01"})
        assert result.take_completed(caught_up=True) == ["2014-01-01", "2014-02-01"]

    def test_a_pipeline_without_partitions_has_none(self) -> None:
        result = StreamPartitions(None, ())
        assert (result.current(), result.take_begun(), result.take_completed(caught_up=True)) == (
            None,
            [],
            [],
        )


@pytest.fixture
def live(
    written, stand_in, monkeypatch: pytest.MonkeyPatch, instance: dg.DagsterInstance
) -> Callable[..., list[tuple[str, str, str]]]:
    """Run the stream on a day. Return the type, partition and state of its reports of the Postgres sink."""
    defs = build_definitions([written(FLIGHTS + PARTITIONS.replace("2014-01,", "2030-01,"))])
    job = defs.resolve_job_def("flights_stream")

    def run_on(day: date, *, backlog: int = 0) -> list[tuple[str, str, str]]:
        now = datetime.combine(day, datetime.min.time())
        monkeypatch.setattr(
            "headrace.orchestration.stream.StreamPartitions", partial(StreamPartitions, now=lambda: now)
        )

        def during(listener, **_) -> None:
            listener(epoch(1, backlog=backlog))
            if backlog:
                msg = "ended before it caught up"
                raise RuntimeError(msg)

        stand_in.during = during
        result = job.execute_in_process(instance=instance, raise_on_error=False)
        actual = []
        for event in instance.all_logs(result.run_id):
            entry = event.asset_materialization or event.asset_observation
            if entry and entry.asset_key == PG:
                state = entry.metadata["partition state"].value
                actual.append((type(entry).__name__.removeprefix("Asset"), entry.partition, state))
        return actual

    return run_on


def test_each_of_three_lifetimes_reports_the_current_partition(live) -> None:
    for day in (6, 7, 8):
        assert live(date(2013, 12, day)) == [("Materialization", "2013-12-01", "current")]
    assert live(date(2014, 1, 2)) == [("Materialization", "2013-12-01", "complete")]
    for day in (3, 4):
        assert live(date(2014, 1, day)) == [("Materialization", "2014-01-01", "current")]


def test_a_partition_is_begun_until_the_stream_has_caught_up(live) -> None:
    live(date(2013, 12, 31))
    for _ in range(2):
        assert live(date(2014, 1, 1), backlog=9) == [
            ("Observation", "2013-12-01", "begun"),
            ("Materialization", "2014-01-01", "current"),
        ]
    assert live(date(2014, 1, 1)) == [("Materialization", "2013-12-01", "complete")]
    assert live(date(2014, 1, 1)) == [("Materialization", "2014-01-01", "current")]


@pytest.mark.parametrize(
    ("condition", "partitions"),
    [
        pytest.param("eager", this_month(), marks=pytest.mark.slow),
        ("eager_after_checks", this_month()),
        pytest.param("on_cron", this_month(), marks=pytest.mark.slow),
        pytest.param("eager", "", marks=pytest.mark.slow),
        pytest.param("eager_after_checks", "", marks=pytest.mark.slow),
        ("on_cron", ""),
    ],
)
def test_assets_downstream_are_requested_while_the_stream_runs(
    written, stand_in, instance: dg.DagsterInstance, condition: str, partitions: str, monkeypatch
) -> None:
    """Once after each report: in three lifetimes, and never without a report."""
    monkeypatch.setattr("headrace.orchestration.stream.REPORT_SECONDS", 0.0)  # of the checks
    path = written(FLIGHTS + partitions + AT_ONCE)
    keys = read_pipeline(path).partitions

    @dg.asset(
        key=DOWNSTREAM,
        deps=[PG, LAKE],
        partitions_def=keys,
        automation_condition=CONDITIONS[condition],
    )
    def downstream() -> None: ...

    defs = dg.Definitions.merge(build_definitions([path]), dg.Definitions(assets=[downstream]))
    moment, cursor = datetime.now(UTC), None

    def evaluate() -> int:
        nonlocal cursor
        result = dg.evaluate_automation_conditions(defs, instance, cursor=cursor, evaluation_time=moment)
        cursor = result.cursor
        if keys and result.total_requested:
            assert result.get_requested_partitions(DOWNSTREAM) == {keys.get_partition_keys()[-1]}
        return result.total_requested

    def during(listener, **_) -> None:
        listener(epoch(1, backlog=5))
        deadline = time.monotonic() + 60
        while not all(map(has_report, (PG, LAKE))) and time.monotonic() < deadline:
            time.sleep(0.05)
        (run,) = instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED]))
        requested.append((run.job_name, evaluate(), evaluate()))

    def has_report(key: dg.AssetKey) -> bool:
        event = instance.get_latest_materialization_event(key)
        return event is not None and event.run_id not in former

    job = defs.resolve_job_def("flights_stream")
    requested: list[tuple[str, int, int]] = []
    former: set[str] = set()
    stand_in.during = during
    evaluate()
    for _ in range(3):
        # The schedule ticks each hour. Others advance little: in the last hours of a month the partition ends.
        moment += timedelta(hours=1) if condition == "on_cron" else timedelta(seconds=1)
        assert evaluate() == 0, "no report"
        assert job.execute_in_process(instance=instance).success
        former = {run.run_id for run in instance.get_runs()}
    assert requested == [("flights_stream", 1, 0)] * 3
