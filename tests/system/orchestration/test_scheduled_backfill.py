"""Scheduled backfills: Dagster's scheduler starts a run for the partitions that have passed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import clickhouse_connect
import dagster as dg
import psycopg
import pytest
from dagster._core.scheduler.instigation import TickStatus
from dagster._core.test_utils import create_test_daemon_workspace_context, freeze_time
from dagster._core.workspace.load_target import PythonFileTarget
from dagster._scheduler.scheduler import launch_scheduled_runs
from helpers.dagster_runs import DAILY
from helpers.pipeline_world import World
from pyspark.sql import SparkSession

from headrace.jobs.run.events import Until
from headrace.jobs.run.runner import run as run_pipeline
from headrace.orchestration.build import build_definitions
from headrace.orchestration.pipelines import read_pipeline
from headrace.pipeline.errors import SchemaError
from headrace.pipeline.file.loader import load_pipeline
from headrace.pipeline.protocol import partitions
from headrace.services import Services

IN_PROCESS = {
    "run_coordinator": {"module": "dagster._core.run_coordinator", "class": "DefaultRunCoordinator"},
    "run_launcher": {
        "module": "dagster._core.launcher.sync_in_memory_run_launcher",
        "class": "SyncInMemoryRunLauncher",
    },
}
"""A run is executed where the scheduler runs, so that both have the moved clock."""
DEFINITIONS = """
from pathlib import Path
import dagster as dg
from headrace.orchestration.build import AutomationDefaults, build_definitions
defs = dg.Definitions.merge(
    build_definitions([Path({path!r})], automation=AutomationDefaults(schedules=True)),
    dg.Definitions(executor=dg.in_process_executor),
)
"""
"""A step in another process would have another clock."""


class Nights(ExitStack):
    """Dagster's scheduler in this process, with a clock that the test moves, and one code server."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, instance: dg.DagsterInstance) -> None:
        super().__init__()
        self.instance = instance
        self._monkeypatch = monkeypatch
        self._target = PythonFileTarget(
            str(folder / "definitions.py"),
            attribute=None,
            working_directory=str(folder),
            location_name="here",
        )
        self._iterations: dict[str, Any] = {}
        self._contexts: dict[int, Any] = {}

    def _context(self) -> Any:
        """Return the workspace of the present instance: the code server starts at the first tick."""
        key = id(self.instance)
        if key not in self._contexts:
            self._contexts[key] = self.enter_context(
                create_test_daemon_workspace_context(self._target, self.instance)
            )
        return self._contexts[key]

    def pass_to(self, moment: datetime) -> list[dg.DagsterRun]:
        """Let the scheduler run at a moment, and return the runs that it started."""
        before = {run.run_id for run in self.instance.get_runs()}
        self._monkeypatch.setattr(partitions, "today", moment.date)
        self._monkeypatch.setattr(partitions, "utc_now", lambda: moment.replace(tzinfo=None))
        with freeze_time(moment):
            list(
                launch_scheduled_runs(
                    self._context(),
                    logging.getLogger("scheduler"),
                    moment,
                    iteration_times=self._iterations,
                )
            )
        return [run for run in self.instance.get_runs() if run.run_id not in before]

    def skips(self) -> list[str]:
        (schedule,) = self.instance.all_instigator_state()
        ticks = self.instance.get_ticks(schedule.instigator_origin_id, schedule.selector_id)
        return [str(tick.skip_reason) for tick in ticks if tick.status is TickStatus.SKIPPED]


@pytest.fixture
def nights(
    services: Services,
    spark: SparkSession,
    pg: str,
    ch_db: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[tuple[World, Nights]]:
    """A table with sales of each day, its pipeline, and the scheduler.

    The runs use the session of the tests: a process has one JVM, and the end of a run would stop it.
    """
    monkeypatch.setattr("headrace.orchestration.spark.start_session", lambda *_: spark)
    monkeypatch.setattr("headrace.orchestration.spark.stop_session", lambda _: None)
    world = World(services, tmp_path, ch_db, pg)
    for name, value in world.env().items():
        monkeypatch.setenv(name, value)
    world.file.write_text(DAILY.replace("table_name: sales", f"table_name: {ch_db}.sales"))
    (tmp_path / "definitions.py").write_text(DEFINITIONS.format(path=str(world.file)))
    with clickhouse_connect.get_client(**services.clickhouse.client_arguments(database=ch_db)) as client:
        client.command(
            "CREATE TABLE sales (id Int64, day Date, v Int64) ENGINE = MergeTree ORDER BY (day, id)"
        )
    with (
        dg.instance_for_test(overrides=IN_PROCESS, temp_dir=str(tmp_path)) as instance,
        Nights(tmp_path, monkeypatch, instance) as scheduler,
    ):
        yield world, scheduler


def sell_hours(world: World, *hours: datetime) -> None:
    """Add three rows of each hour, the first at its start."""
    with clickhouse_connect.get_client(
        **world.services.clickhouse.client_arguments(database=world.database)
    ) as client:
        rows = [
            (int(hour.timestamp()) + at, hour + timedelta(minutes=at * 25), at)
            for hour in hours
            for at in range(3)
        ]
        client.insert("hourly", rows, column_names=["id", "day", "v"])


def sell(world: World, *days: str) -> None:
    """Add three rows of each day."""
    with clickhouse_connect.get_client(
        **world.services.clickhouse.client_arguments(database=world.database)
    ) as client:
        rows = [
            (int(day.replace("-", "")) * 10 + at, date.fromisoformat(day), at)
            for day in days
            for at in range(3)
        ]
        client.insert("sales", rows, column_names=["id", "day", "v"])


def loaded(world: World) -> dict[str, int]:
    """The rows of each day in Postgres."""
    with psycopg.connect(world.conninfo) as connection:
        result = connection.execute("SELECT day, count(*) FROM sales GROUP BY day ORDER BY day").fetchall()
    return {day.isoformat(): count for day, count in result}


def keys_of(run: dg.DagsterRun) -> tuple[str, str]:
    """The first and the last partition of a run."""
    one = run.tags.get("dagster/partition", "")
    return (
        run.tags.get("dagster/asset_partition_range_start", one),
        run.tags.get("dagster/asset_partition_range_end", one),
    )


# Three Dagster runs.
def test_scheduled_backfill_gives_each_day_one_run_and_a_week_off_one_run(
    nights: tuple[World, Nights],
) -> None:
    world, scheduler = nights

    def night(day: int) -> datetime:
        return datetime(2024, 3, day, 3, 0, 30, tzinfo=UTC)

    def days(first: int, last: int) -> list[str]:
        return [f"2024-03-{day:02}" for day in range(first, last + 1)]

    sell(world, *days(1, 3))
    assert scheduler.pass_to(night(3) - timedelta(hours=1)) == []  # the schedule is on; no tick is due yet
    (run,) = scheduler.pass_to(night(3))
    assert (run.status, keys_of(run)) == (dg.DagsterRunStatus.SUCCESS, ("2024-03-01", "2024-03-02"))
    assert loaded(world) == dict.fromkeys(days(1, 2), 3)

    assert scheduler.pass_to(night(3) + timedelta(hours=1)) == []
    sell(world, "2024-03-04")
    (run,) = scheduler.pass_to(night(4))
    assert (run.status, keys_of(run)) == (dg.DagsterRunStatus.SUCCESS, ("2024-03-03", "2024-03-03"))

    sell(world, *days(5, 12))
    scheduler.instance = scheduler.enter_context(
        dg.DagsterInstance.from_ref(scheduler.instance.get_ref())
    )  # a daemon that was off starts again
    runs = scheduler.pass_to(night(12))
    assert [keys_of(run) for run in runs if run.status is dg.DagsterRunStatus.SUCCESS] == [
        ("2024-03-04", "2024-03-11")
    ]
    assert loaded(world) == dict.fromkeys(days(1, 11), 3)
    pipeline = read_pipeline(world.file)
    assert sorted(scheduler.instance.get_materialized_partitions(pipeline.sinks["pg"].key)) == days(1, 11)


CLOCK_CHANGES = [
    # 02:30 does not exist in Vienna on 31 March; Dagster ticks at 03:00, which is 01:00 UTC
    pytest.param(
        ["31T00:40", "31T01:05", "31T01:35", "31T03:05"],
        "31T01:05",
        "2024-03-",
        marks=pytest.mark.slow,  # autumn, which has an hour twice, is the daily one
        id="spring",
    ),
    # 02:30 is twice on 27 October, 00:30 and 01:30 UTC; Dagster ticks at the second one
    pytest.param(["27T00:10", "27T00:35", "27T01:35", "27T03:05"], "27T01:35", "2024-10-", id="autumn"),
]


@pytest.mark.parametrize(("moments", "due", "month"), CLOCK_CHANGES)
def test_scheduled_backfill_gives_a_day_one_run_when_the_clock_changes(
    nights: tuple[World, Nights], moments: list[str], due: str, month: str
) -> None:
    """The schedule is in a zone that changes the clock. Partitions are days in UTC, so none is cut or missed."""
    world, scheduler = nights
    day = int(due[:2])
    text = world.file.read_text().replace("start: 2024-03-01", f"start: {month}{day - 1:02}")
    world.file.write_text(text.replace('cron: "0 3 * * *"', 'cron: "30 2 * * *", timezone: Europe/Vienna'))
    sell(world, *(f"{month}{one:02}" for one in (day - 2, day - 1, day)))
    runs: dict[str, list[tuple[str, str]]] = {}
    for moment in moments:
        result = scheduler.pass_to(datetime.fromisoformat(f"{month}{moment}").replace(tzinfo=UTC))
        assert all(run.status is dg.DagsterRunStatus.SUCCESS for run in result)
        runs[moment] = [keys_of(run) for run in result]
    passed = f"{month}{day - 1:02}"
    assert runs == {moment: [] for moment in moments} | {due: [(passed, passed)]}
    assert loaded(world) == {passed: 3}


# Three Dagster runs.
def test_scheduled_backfill_gives_each_hour_one_run_when_the_clock_changes(
    nights: tuple[World, Nights],
) -> None:
    """In Vienna the hour after 02:59 CEST of 27 October is 02:00 again, as another partition."""
    world, scheduler = nights
    text = world.file.read_text().replace(f"{world.database}.sales", f"{world.database}.hourly")
    text = text.replace("every: day, start: 2024-03-01", "every: hour, start: 2024-10-27")
    world.file.write_text(text.replace('cron: "0 3 * * *"', 'cron: "5 * * * *", timezone: Europe/Vienna'))
    with clickhouse_connect.get_client(
        **world.services.clickhouse.client_arguments(database=world.database)
    ) as client:
        client.command(
            "CREATE TABLE hourly (id Int64, day DateTime('Europe/Vienna'), v Int64) ENGINE = MergeTree"
            " ORDER BY (day, id)"
        )
    hours = [datetime(2024, 10, 27, hour, tzinfo=UTC) for hour in range(5)]
    sell_hours(world, *hours)
    assert scheduler.pass_to(hours[0] + timedelta(minutes=4)) == []
    started: list[tuple[str, str]] = []
    for hour in (1, 2, 4):  # the scheduler is off at 03:05
        for minute in (6, 40):
            result = scheduler.pass_to(hours[hour] + timedelta(minutes=minute))
            assert all(run.status is dg.DagsterRunStatus.SUCCESS for run in result)
            started += [keys_of(run) for run in result]
    assert started == [
        ("2024-10-27T00", "2024-10-27T00"),
        ("2024-10-27T01", "2024-10-27T01"),
        ("2024-10-27T02", "2024-10-27T03"),
    ]
    with psycopg.connect(world.conninfo) as connection:
        result = connection.execute(
            "SELECT extract(hour FROM day), count(*) FROM sales GROUP BY 1 ORDER BY 1"
        ).fetchall()
    assert [(int(hour), count) for hour, count in result] == [(hour, 3) for hour in range(4)]
    pipeline = read_pipeline(world.file)
    keys = scheduler.instance.get_materialized_partitions(pipeline.sinks["pg"].key)
    assert sorted(keys) == [f"2024-10-27T{hour:02}" for hour in range(4)]


def test_scheduled_backfill_by_hour_refuses_a_column_of_days(
    nights: tuple[World, Nights], spark: SparkSession
) -> None:
    """No hour has the rows of a date, so that all of them would be lost."""
    world, _ = nights
    world.file.write_text(world.file.read_text().replace("every: day", "every: hour"))
    sell(world, "2024-03-01")
    with pytest.raises(SchemaError, match="needs a timestamp column") as refused:
        run_pipeline(load_pipeline(world.file), world.settings(), until=Until.HISTORY, spark=spark)
    assert "`every: day`" in str(refused.value.hint)


@pytest.mark.parametrize("every", ["hour", "day", "week", "month", "year"])
@pytest.mark.parametrize(
    "moment",
    [
        datetime(2024, 3, 31, 1, 30, tzinfo=UTC),  # the clock changes in Europe
        datetime(2024, 10, 27, 0, 59, 59, tzinfo=UTC),
        datetime(2024, 12, 31, 23, 59, 59, tzinfo=UTC),
        datetime(2025, 1, 1, tzinfo=UTC),
        datetime(2028, 2, 29, 12, tzinfo=UTC),
    ],
    ids=lambda moment: moment.isoformat()[:13],
)
def test_scheduled_backfill_requests_the_partitions_that_dagster_shows(
    written: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, every: str, moment: datetime
) -> None:
    """After years off, one run has all partitions that have passed, and Dagster knows each of them."""
    monkeypatch.setattr(partitions, "utc_now", lambda: moment.replace(tzinfo=None))
    monkeypatch.setattr(partitions, "today", moment.date)
    text = DAILY.replace("every: day, start: 2024-03-01", f"every: {every}, start: 2023-01-01")
    path = written(text, "daily")
    defs, pipeline = build_definitions([path]), read_pipeline(path)
    assert pipeline.partitions is not None
    known = pipeline.partitions.get_partition_keys(current_time=moment)
    assert pipeline.history_partitions == list(known)
    schedule = defs.resolve_schedule_def("daily_schedule")
    with (
        dg.instance_for_test() as instance,
        dg.build_schedule_context(
            instance=instance, scheduled_execution_time=moment, repository_def=defs.get_repository_def()
        ) as context,
    ):
        (request,) = list(schedule.evaluate_tick(context).run_requests or [])
    one = request.tags.get("dagster/partition")
    assert one or request.tags["dagster/asset_partition_range_start"] == known[0]
    assert (one or request.tags["dagster/asset_partition_range_end"]) == known[-1]


def test_scheduled_backfill_waits_while_a_run_is_active(
    written: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "today", lambda: date(2024, 3, 3))
    defs = build_definitions([written(DAILY, "daily")])
    schedule = defs.resolve_schedule_def("daily_schedule")
    with dg.instance_for_test() as instance:

        def tick(day: int) -> dg.ScheduleExecutionData:
            moment = datetime(2024, 3, day, 3, tzinfo=UTC)
            with dg.build_schedule_context(instance=instance, scheduled_execution_time=moment) as context:
                return schedule.evaluate_tick(context)

        (request,) = list(tick(3).run_requests or [])
        assert request.tags["dagster/asset_partition_range_end"] == "2024-03-02"
        assert "no partition has passed yet" in str(tick(1).skip_message)
        job = defs.resolve_job_def("daily_history")
        instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTING)
        assert "is starting" in str(tick(3).skip_message)
