"""Scheduled backfills: Dagster's scheduler starts a run for the partitions that have passed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
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

from headrace.orchestration.build import build_definitions
from headrace.orchestration.pipelines import read_pipeline
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


class Nights:
    """Dagster's scheduler in this process, with a clock that the test moves."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, instance: dg.DagsterInstance) -> None:
        self.instance = instance
        self._monkeypatch = monkeypatch
        self._target = PythonFileTarget(
            str(folder / "definitions.py"),
            attribute=None,
            working_directory=str(folder),
            location_name="here",
        )
        self._iterations: dict[str, Any] = {}

    def pass_to(self, moment: datetime) -> list[dg.DagsterRun]:
        """Let the scheduler run at a moment, and return the runs that it started."""
        before = {run.run_id for run in self.instance.get_runs()}
        self._monkeypatch.setattr(partitions, "today", moment.date)
        with (
            freeze_time(moment),
            create_test_daemon_workspace_context(self._target, self.instance) as context,
        ):
            list(
                launch_scheduled_runs(
                    context, logging.getLogger("scheduler"), moment, iteration_times=self._iterations
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
    with dg.instance_for_test(overrides=IN_PROCESS, temp_dir=str(tmp_path)) as instance:
        yield world, Nights(tmp_path, monkeypatch, instance)


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
        found = connection.execute("SELECT day, count(*) FROM sales GROUP BY day ORDER BY day").fetchall()
    return {day.isoformat(): count for day, count in found}


def keys_of(run: dg.DagsterRun) -> tuple[str, str]:
    """The first and the last partition of a run."""
    one = run.tags.get("dagster/partition", "")
    return (
        run.tags.get("dagster/asset_partition_range_start", one),
        run.tags.get("dagster/asset_partition_range_end", one),
    )


# Three Dagster runs, and the scheduler's code server for each night.
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
    with dg.DagsterInstance.from_ref(scheduler.instance.get_ref()) as instance:
        scheduler.instance = instance
        runs = scheduler.pass_to(night(12))
    assert [keys_of(run) for run in runs if run.status is dg.DagsterRunStatus.SUCCESS] == [
        ("2024-03-04", "2024-03-11")
    ]
    assert loaded(world) == dict.fromkeys(days(1, 11), 3)
    pipeline = read_pipeline(world.file)
    assert sorted(instance.get_materialized_partitions(pipeline.sinks["pg"].key)) == days(1, 11)


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
