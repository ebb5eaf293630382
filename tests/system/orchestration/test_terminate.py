"""Terminate, with the code server dead: the processes of a run end all the same, and no epoch follows."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from itertools import count
from pathlib import Path
from typing import Any

import dagster as dg
import psutil
import pytest
from helpers.checkout import ROOT
from helpers.dagster_ui import DagsterUi, dagster_ui, family, is_alive
from helpers.pipeline_world import World, until

from headrace.orchestration.build import build_definitions
from headrace.orchestration.termination import RunStatusWatch
from headrace.pipeline.protocol.ledger import PipelineState, open_sqlite

SECONDS = 30.0
"""The limit for the end of all processes of a run after a termination."""


@pytest.fixture
def ui(world: World) -> Iterator[DagsterUi]:
    """`headrace ui` over the pipeline of the world."""
    with dagster_ui(world.folder, world.env() | {"HEADRACE_PIPELINES": str(world.file)}) as services:
        yield services


@contextmanager
def traffic(world: World) -> Iterator[None]:
    """Produce messages that never end, so that a stream that goes on commits epochs."""
    end, numbers = threading.Event(), count(10_000)

    def produce() -> None:
        while not end.wait(0.2):
            row = (next(numbers), date(2024, 3, 1), "late", 1)
            world.expected[row[0]] = row
            world.produce([("c", row, 0)])

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def find_state(world: World) -> PipelineState | None:
    if not world.ledger.exists():
        return None
    ledger = open_sqlite(world.ledger)
    try:
        return ledger.state(world.name)
    finally:
        ledger.close()


def state_of(world: World) -> PipelineState:
    state = find_state(world)
    assert state
    return state


def wait_for_stream(world: World, after: int = 0) -> PipelineState:
    """The state of a stream that commits epochs."""

    def in_stream() -> PipelineState | None:
        state = find_state(world)
        if (
            state is None
            or state.holder is None
            or state.progress.get("phase") not in ("catching_up", "live")
        ):
            return None
        return state if state.committed > after else None

    return until(in_stream, "epochs of the stream", seconds=400)


def start_stream(ui: DagsterUi, world: World, after: int = 0) -> tuple[str, list[psutil.Process]]:
    """Launch the stream. Its run, and its processes once it commits epochs."""
    config = {"ops": {f"{world.name}_stream_op": {"config": {"until": "forever"}}}}
    run = ui.launch(f"{world.name}_stream", config)
    state = wait_for_stream(world, after)
    ui.processes()
    assert state.holder
    return run, family(state.holder["pid"])


def check_terminate_without_server(
    ui: DagsterUi, world: World, run: str, processes: list[psutil.Process], policy: str
) -> None:
    """Kill the code servers and terminate a run that commits epochs: its processes end after their epoch."""
    # Spark's launcher and its Python workers may end at any time. The run's process and its JVM stay.
    holder = state_of(world).holder or {}
    lasting = [psutil.Process(holder["pid"]), psutil.Process(holder["jvm"]["pid"])]
    servers = ui.code_servers()
    assert servers
    for server in servers:
        server.kill()
    psutil.wait_procs(servers, timeout=30)
    assert all(is_alive(process) for process in lasting), "a run outlives its code server"

    ui.terminate(run, policy)
    assert ui.status(run) in ("CANCELING", "CANCELED")
    until(lambda: not any(is_alive(process) for process in processes), "the end of all processes", SECONDS)
    ended = state_of(world)
    assert ended.holder is None, "the lease was released"
    assert ended.open_plan is None, "the epoch in flight was finished"
    until(lambda: ui.status(run) == "CANCELED", "the status", 120)
    assert state_of(world).committed == ended.committed


@pytest.mark.parametrize(
    "policy", ["SAFE_TERMINATE", pytest.param("MARK_AS_CANCELED_IMMEDIATELY", marks=pytest.mark.slow)]
)
def test_terminate_without_server(ui: DagsterUi, world: World, policy: str) -> None:
    world.use_spark()
    with traffic(world):
        check_terminate_without_server(ui, world, *start_stream(ui, world), policy)


# Three streams with Spark. Daily: the termination above, the queue in test_queue, stop and pause in
# tests/system/cli/test_stop.py, and the decisions of the supervisor in test_supervision.
@pytest.mark.slow
def test_queued_stopped_paused_and_terminated_streams_of_a_supervisor(ui: DagsterUi, world: World) -> None:
    """`headrace stop` is as Terminate. A pause ends the stream until the pipeline is resumed."""
    job = f"{world.name}_stream"
    run, processes = start_stream(ui, world)
    epoch, second = state_of(world).committed, ui.launch(job)
    stopped = re.search(r"stopped after epoch (\d+)", world.run_cli("stop", str(world.file)))
    assert stopped
    assert int(stopped[1]) >= epoch, "the stream commits epochs until the request reaches it"
    until(lambda: ui.status(run) == "CANCELED", "the end of the run", 120)
    until(lambda: ui.status(second) == "STARTED", "the start of the run that was queued", 120)
    until(lambda: (state_of(world).holder or {}).get("run_id") == second, "its lease", 300)

    assert "paused by " in world.run_cli("pause", str(world.file), "--reason", "new schema")
    until(lambda: ui.status(second) == "SUCCESS", "the end of the second run", 120)
    until(lambda: "new schema" in ui.newest_tick(f"{world.name}_supervisor"), "a tick with the reason", 120)

    assert "resumed" in world.run_cli("resume", str(world.file))
    until(lambda: state_of(world).holder, "the stream that the supervisor started", 300)
    assert (state_of(world).holder or {}).get("run_id") not in (run, second)
    assert not any(is_alive(process) for process in processes)
    until(lambda: world.count_rows() == len(world.expected), "all rows", 300)

    with traffic(world):
        holder = wait_for_stream(world, state_of(world).committed).holder or {}
        processes = family(holder["pid"])
        check_terminate_without_server(ui, world, holder["run_id"], processes, "SAFE_TERMINATE")


@pytest.mark.parametrize(
    ("status", "shown"),
    [
        (dg.DagsterRunStatus.CANCELING, dg.DagsterRunStatus.CANCELED),
        (dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.FAILURE),
    ],
)
def test_a_step_that_hangs_is_killed_with_its_children(
    tmp_path: Path, status: dg.DagsterRunStatus, shown: dg.DagsterRunStatus
) -> None:
    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        run = dg.DagsterRun(job_name="flights_stream", status=dg.DagsterRunStatus.STARTED)
        instance.add_run(run)
        process = subprocess.Popen([sys.executable, ROOT / "tests/helpers/hanging_step.py", tmp_path, "1.0"])
        try:
            note = tmp_path / "child"
            until(lambda: note.exists() and note.read_text(), "the child", 120)
            child = psutil.Process(int(note.read_text()))
            assert process.poll() is None
            if status is dg.DagsterRunStatus.CANCELING:
                instance.report_run_canceling(run)
            else:
                instance.report_run_failed(run)
            assert process.wait(timeout=300) == 1
        finally:
            process.kill()
        assert not is_alive(child)
        result = instance.get_run_by_id(run.run_id)
        assert result
        assert result.status is shown


def test_a_run_that_goes_on_is_left_alone(tmp_path: Path) -> None:
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        run = dg.DagsterRun(job_name="flights_stream", status=dg.DagsterRunStatus.STARTED)
        instance.add_run(run)
        with RunStatusWatch(instance, run.run_id, poll=0.01) as watch:
            assert not watch.canceled.wait(0.5)
            instance.report_run_canceling(run)
            assert watch.canceled.wait(30)


@pytest.mark.parametrize(
    ("job", "request_", "shown"),
    [
        ("flights_stream", "stop", dg.DagsterRunStatus.CANCELED),
        ("flights_stream", "pause", dg.DagsterRunStatus.SUCCESS),
        ("flights_history", "stop", dg.DagsterRunStatus.CANCELED),
        ("flights_history", "pause", dg.DagsterRunStatus.CANCELED),
    ],
)
def test_a_request_in_the_ledger_ends_the_dagster_run(
    written: Callable[..., Path],
    stand_in: Any,
    monkeypatch: pytest.MonkeyPatch,
    job: str,
    request_: str,
    shown: dg.DagsterRunStatus,
) -> None:
    """A pause ends a stream as a success, after which the supervisor starts the next one."""
    run = stand_in.run
    monkeypatch.setattr(
        "headrace.jobs.run.runner.run",
        lambda *a, **request: replace(run(*a, **request), stop_reason=request_),
    )
    definition = build_definitions([written()]).resolve_job_def(job)
    with dg.DagsterInstance.ephemeral() as instance:
        definition.execute_in_process(instance=instance, raise_on_error=False)
        (result,) = instance.get_runs()
        assert result.status is shown
        canceling = instance.all_logs(result.run_id, of_type=dg.DagsterEventType.RUN_CANCELING)
        messages = [entry.get_dagster_event().message for entry in canceling]
        expected = [f"A request in the ledger (headrace {request_}) ended the run."]
        assert messages == (expected if shown is dg.DagsterRunStatus.CANCELED else [])
