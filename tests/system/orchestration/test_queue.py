"""Runs that must wait are queued or wait with the reason, and streams leave slots for other runs."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.test_utils import create_test_daemon_workspace_context
from dagster._core.workspace.load_target import EmptyWorkspaceTarget
from dagster._daemon.run_coordinator.queued_run_coordinator_daemon import QueuedRunCoordinatorDaemon
from helpers.dagster_runs import FLIGHTS, job_origin
from helpers.pipeline_world import until

from headrace.connectors.ledger.factory import open_ledger
from headrace.jobs.run.events import Until
from headrace.orchestration.build import build_definitions
from headrace.orchestration.execution import run_pipeline
from headrace.orchestration.pipelines import read_pipeline
from headrace.orchestration.spark import PipelineSparkResource
from headrace.pipeline.errors import LeaseHeldError
from headrace.pipeline.protocol.ledger import StopAction


@pytest.fixture
def queue(tmp_path: Path):
    """An instance with Headrace's dagster.yaml, and a pass of the daemon that admits runs. None gets a process.

    It has a tenth of the slots, so that few runs fill them: five, of which streams can have four.
    """
    config = (files("headrace.orchestration") / "dagster.yaml").read_text()
    for slots in ("max_concurrent_runs: 50", "limit: 40"):
        assert config.count(slots + "\n") == 1
        config = config.replace(slots + "\n", slots.removesuffix("0") + "\n")
    launcher = "run_launcher: {module: dagster._core.test_utils, class: MockedRunLauncher}\n"
    (tmp_path / "dagster.yaml").write_text(config + launcher)
    with (
        dg.DagsterInstance.from_config(str(tmp_path)) as instance,
        create_test_daemon_workspace_context(EmptyWorkspaceTarget(), instance) as workspace,
    ):
        daemon = QueuedRunCoordinatorDaemon(interval_seconds=1)

        def admit() -> Counter[str]:
            for _ in range(3):
                list(daemon.run_iteration(workspace))
            return Counter(run.status.value for run in instance.get_runs())

        yield instance, admit


def put(instance: dg.DagsterInstance, job: dg.JobDefinition) -> str:
    """Put a run of the job into the queue."""
    run = instance.create_run_for_job(
        job,
        tags=dict(job.tags),
        status=dg.DagsterRunStatus.QUEUED,
        remote_job_origin=job_origin(job.name),
    )
    return run.run_id


def test_queued_streams_leave_slots_for_backfills(queue, written: Callable[..., Path]) -> None:
    instance, admit = queue
    names = [f"p{number}" for number in range(6)]
    defs = build_definitions(
        [
            written(
                f"name: {name}\nsources: {{{name}: {{type: kafka, topic: {name}, schema: {{id: int64}}}}}}\n"
                f"sinks: {{out: {{type: print, from: {name}}}}}\n",
                name,
            )
            for name in names
        ]
    )
    for name in names:
        put(instance, defs.resolve_job_def(f"{name}_stream"))
    assert admit() == {"STARTING": 4, "QUEUED": 2}
    backfills = [put(instance, defs.resolve_job_def(f"{name}_history")) for name in names[4:]]
    assert admit() == {"STARTING": 5, "QUEUED": 3}
    assert instance.get_run_by_id(backfills[0]).status is dg.DagsterRunStatus.STARTING


def test_queued_is_the_second_run_of_a_pool_until_the_first_has_ended(
    queue, written: Callable[..., Path]
) -> None:
    """The stream has a pool of its own: a refresh next to it is requested from it in the ledger."""
    instance, admit = queue
    defs = build_definitions([written(FLIGHTS)])
    stream = put(instance, defs.resolve_job_def("flights_stream"))
    first = put(instance, defs.resolve_job_def("flights_history"))
    assert admit() == {"STARTING": 2}  # Dagster knows a pool after the first pass with a run of it
    second = put(instance, defs.resolve_implicit_global_asset_job_def())
    other = put(instance, defs.resolve_job_def("flights_stream"))
    assert admit() == {"STARTING": 2, "QUEUED": 2}
    for run, pool in ((second, "headrace/flights"), (other, "headrace/flights/stream")):
        assert instance.get_run_by_id(run).run_op_concurrency.all_pools == {pool}
    instance.report_run_failed(instance.get_run_by_id(first))
    admit()
    assert instance.get_run_by_id(second).status is dg.DagsterRunStatus.STARTING
    assert instance.get_run_by_id(other).status is dg.DagsterRunStatus.QUEUED
    instance.report_run_failed(instance.get_run_by_id(stream))
    admit()
    assert instance.get_run_by_id(other).status is dg.DagsterRunStatus.STARTING


@pytest.mark.parametrize("obstacle", ["a run", "a pause", "a run that was faster"])
def test_queued_by_the_ledger_a_run_waits_without_spark(
    written: Callable[..., Path], stand_in, monkeypatch: pytest.MonkeyPatch, obstacle: str
) -> None:
    pipeline = read_pipeline(written())
    ledger = open_ledger(pipeline.settings())
    holder = {"launched_by": "cli", "host": "here", "pid": 1}
    lease = None
    if obstacle == "a pause":
        ledger.request_stop("flights", StopAction.PAUSE, by="ann@a", reason="new schema")
    elif obstacle == "a run":
        lease = ledger.acquire("flights", "main", holder, 600)
    else:
        refusals = iter([LeaseHeldError("another run was faster")])

        def refuse(**_):
            if error := next(refusals, None):
                raise error

        stand_in.during = refuse
    monkeypatch.setattr("headrace.orchestration.turns._POLL_SECONDS", 0.02)
    messages: list[str] = []
    results = []

    def work() -> None:
        results.append(
            run_pipeline(
                pipeline,
                PipelineSparkResource(spark_config={}),
                until=Until.FOREVER,
                run_id="r",
                on_event=lambda event: messages.append(getattr(event, "message", "")),
            )
        )

    thread = threading.Thread(target=work)
    thread.start()
    if obstacle != "a run that was faster":
        until(lambda: messages, "the reason")
        assert (stand_in.calls, stand_in.sessions) == ([], [])
        if lease:
            assert messages == [
                "waiting: another run of the pipeline is active (host here, pid 1, launched by cli)"
            ]
            ledger.release(lease)
        else:
            assert "waiting: the pipeline is paused by ann@a" in messages[0]
            ledger.end_pause("flights")
    thread.join(60)
    assert len(results) == 1
    assert len(stand_in.calls) == (2 if obstacle == "a run that was faster" else 1)
    ledger.close()


def test_queued_by_a_pause_a_run_can_be_terminated(written: Callable[..., Path], stand_in) -> None:
    pipeline = read_pipeline(written())
    ledger = open_ledger(pipeline.settings())
    ledger.request_stop("flights", StopAction.PAUSE, by="ann@a")
    ledger.close()
    waiting = threading.Event()
    with pytest.raises(dg.DagsterExecutionInterruptedError):
        run_pipeline(
            pipeline,
            PipelineSparkResource(spark_config={}),
            until=Until.FOREVER,
            run_id="r",
            on_event=lambda _: waiting.set(),
            is_canceled=waiting.is_set,
        )
    assert stand_in.calls == []
