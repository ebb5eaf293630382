"""Materializing a partition while the pipeline's stream runs, with real runs, on ledgers of both kinds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg
import psutil
import pytest
from helpers.dagster_ui import DagsterUi, dagster_ui
from helpers.pipeline_world import World, leftovers, postgres_ledger, until
from helpers.revised_history import (
    JANUARY,
    allow_any_order,
    ask,
    produce,
    revise,
    start_stream,
    untouched_keys,
    wait_for_rows,
)
from helpers.world_commands import Commands

from headrace.connectors.ledger.postgres import open_postgres
from headrace.orchestration.build import build_definitions
from headrace.orchestration.instance import dagster_home
from headrace.pipeline.protocol.ledger import Ledger, PipelineState, RefreshRequest, RefreshState

TARGET = dg.AssetKey(["postgres", "public", "target"])


@pytest.fixture(autouse=True)
def sales(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """A pipeline whose runs start no JVM, with settings and Dagster's home in the environment."""
    world.write_file_without_spark()
    allow_any_order(world)
    monkeypatch.chdir(world.folder)
    for name, value in world.env().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("DAGSTER_HOME", str(world.folder / ".dagster"))
    return world


def check_report(instance: dg.DagsterInstance, world: World) -> None:
    """January was materialized with the rows of its refresh."""
    event = instance.get_latest_materialization_event(TARGET)
    assert event
    assert event.asset_materialization
    assert event.asset_materialization.partition == JANUARY
    metadata = event.asset_materialization.metadata
    assert metadata["epochs"].value == 2
    rows = sum(row[1].month == 1 for row in world.expected.values())
    assert metadata["dagster/partition_row_count"].value
    assert 0 < int(str(metadata["rows_written"].value)) <= rows + 40


@pytest.mark.slow  # daily ones: test_refresh_requests, and test_refresh of tests/system/cli with a stream
def test_refresh_is_executed_by_the_stream_that_runs(world: World) -> None:
    """Without checks: these have a Spark session of their own."""
    commands = Commands(world)
    process = start_stream(commands)
    revise(world, keys := untouched_keys(world))
    with dg.DagsterInstance.ephemeral() as instance:
        job = build_definitions([world.file]).resolve_implicit_global_asset_job_def()
        selected = job.get_subset(asset_selection={TARGET}, asset_check_selection=set())
        result = selected.execute_in_process(
            instance=instance,
            tags={f"dagster/asset_partition_range_{name}": JANUARY for name in ("start", "end")},
        )
        assert result.success
        check_report(instance, world)
    wait_for_rows(world, process)
    with commands.ledger() as ledger:
        request = ledger.refresh_request(world.name, 1)
    assert request
    assert (request.state, request.by) == (RefreshState.DONE, f"Dagster run {result.run_id[:8]}")
    produce(world, keys[0], "newer")
    wait_for_rows(world, process)
    code, out, err = commands.run("audit", str(world.file))
    assert code == 0, out + err
    assert commands.run("stop", str(world.file))[0] == 0
    process.communicate(timeout=120)
    assert process.returncode == 0
    assert leftovers(world) == []


class PostgresCommands(Commands):
    """Commands with a ledger in the database of the target."""

    @contextmanager
    def ledger(self) -> Iterator[Ledger]:
        ledger = open_postgres(self.world.conninfo)
        try:
            yield ledger
        finally:
            ledger.close()

    def state(self) -> PipelineState | None:
        with self.ledger() as ledger:
            return ledger.state(self.world.name)

    def request(self, number: int) -> RefreshRequest:
        with self.ledger() as ledger:
            request = ledger.refresh_request(self.world.name, number)
        assert request
        return request


@pytest.fixture
def commands(world: World, monkeypatch: pytest.MonkeyPatch) -> PostgresCommands:
    for name, value in postgres_ledger(world.conninfo).items():
        monkeypatch.setenv(name, value)
    return PostgresCommands(world)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("point", "nth"),
    [
        pytest.param("", 0, id="waits"),
        ("refresh-begun", 1),
        ("planned", 3),
        ("sinks-written", 3),
        ("refresh-ending", 1),
    ],
)
def test_refresh_whose_owner_is_killed_is_finished_by_the_dagster_run_that_waits(
    commands: PostgresCommands, world: World, monkeypatch: pytest.MonkeyPatch, point: str, nth: int
) -> None:
    """The owner dies in the first epoch of the stream, or in an epoch of the refresh."""
    code, out, err = commands.run("run", str(world.file), "--until", "caught-up")
    assert code == 0, out + err
    keys = untouched_keys(world)
    materialize = [sys.executable, "-m", "headrace.orchestration.materialize", str(world.file), JANUARY]

    def start() -> subprocess.Popen[str]:
        process = subprocess.Popen(
            materialize,
            env=world.env(),
            cwd=world.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        world.processes.append(process)
        return process

    if point:
        revise(world, keys)
        world.produce([("d", world.expected.pop(keys[50]), keys[50] % 2)])
        before = commands.epoch()
        monkeypatch.setenv("HEADRACE_TEST_UNTIL", "forever")
        owner = world.start(point, nth, "group")
        until(lambda: commands.epoch() > before, "the stream")
        process = start()
        assert "now: " in owner.communicate(timeout=300)[0], (world.folder / "run.log").read_text()[-3000:]
    else:
        owner = start_stream(commands, lease_seconds=15)
        revise(world, keys)
        process = start()
        until(commands.pending_refreshes, "the request")
        owner.kill()
    _, err = process.communicate(timeout=300)
    log = (world.folder / "home" / "logs" / "materialize.log").read_text()
    assert process.returncode == 0, err + log
    assert "waiting for the refresh of 2024-01-01 by Dagster run " in log
    assert world.in_postgres() == sorted(world.expected.values())
    assert commands.request(1).state is RefreshState.DONE
    assert commands.request(1).by.startswith("Dagster run ")
    with dg.DagsterInstance.from_config(str(dagster_home())) as instance:
        check_report(instance, world)
    code, out, err = commands.run("audit", str(world.file))
    assert code == 0, out + err
    assert leftovers(world) == []


def launch(ui: DagsterUi, world: World) -> str:
    tags = {f"dagster/asset_partition_range_{name}": JANUARY for name in ("start", "end")}
    return ui.launch(f"{world.name}_history", tags=tags)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_refresh_next_to_the_stream_of_a_supervisor(commands: PostgresCommands, world: World) -> None:
    """Terminated while it waits, then executed by the stream, then by the run that waits for a killed stream."""
    assert commands.run("run", str(world.file), "--job-mode")[0] == 0
    environment = world.env() | {
        "HEADRACE_PIPELINES": str(world.file),
        "HEADRACE__LEASE_SECONDS": "120",
        "DAGSTER_HOME": str(world.folder / ".dagster"),
    }

    def streaming() -> dict | None:
        state = commands.state()
        written = state and state.holder and world.in_postgres() == sorted(world.expected.values())
        return state.holder if state and written and state.open_plan is None else None

    with dagster_ui(world.folder, environment) as ui:
        holder = until(streaming, "the stream of the supervisor", 400)
        stream = holder["run_id"]
        former = world.in_postgres()
        revise(world, keys := untouched_keys(world))

        os.kill(holder["pid"], signal.SIGSTOP)
        run = launch(ui, world)
        until(commands.pending_refreshes, "the request")
        assert (ui.status(run), ui.status(stream)) == ("STARTED", "STARTED")
        ui.terminate(run)
        until(lambda: ui.status(run) == "CANCELED", "the end of the run", 60)
        os.kill(holder["pid"], signal.SIGCONT)
        assert commands.request(1).state is RefreshState.WITHDRAWN
        assert world.in_postgres() == former

        run = launch(ui, world)
        until(lambda: ui.status(run) in ("SUCCESS", "FAILURE"), "the end of the run", 300)
        assert ui.status(run) == "SUCCESS"
        assert commands.request(2).state is RefreshState.DONE
        assert world.in_postgres() == sorted(world.expected.values())
        assert until(streaming, "the stream")["run_id"] == stream, "the stream goes on"
        produce(world, keys[0], "newer")
        until(lambda: world.in_postgres() == sorted(world.expected.values()), "the message", 120)

        revise_again(world, keys[45])
        os.kill(holder["pid"], signal.SIGSTOP)
        run = launch(ui, world)
        until(commands.pending_refreshes, "the request")
        for process in (psutil.Process(holder["pid"]), *psutil.Process(holder["pid"]).children()):
            process.kill()
        until(lambda: ui.status(run) in ("SUCCESS", "FAILURE"), "the end of the run", 400)
        assert ui.status(run) == "SUCCESS"
        assert commands.request(3).state is RefreshState.DONE
        assert world.in_postgres() == sorted(world.expected.values())
        produce(world, keys[1], "after the kill")
        until(streaming, "the next stream of the supervisor", 600)
    code, out, err = commands.run("audit", str(world.file))
    assert code == 0, out + err


def revise_again(world: World, key: int) -> None:
    ask(world, f"ALTER TABLE history UPDATE name = 'twice' WHERE id = {key}")
    world.expected[key] = (key, world.expected[key][1], "twice", key * 3)
