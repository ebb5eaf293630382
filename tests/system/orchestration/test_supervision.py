"""Sensor decisions over a real ledger in SQLite."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime

import dagster as dg
import pytest
from helpers.dagster_runs import FLIGHTS, job_origin

from headrace.connectors.ledger.factory import open_ledger
from headrace.orchestration.build import build_definitions
from headrace.orchestration.pipelines import read_pipeline
from headrace.orchestration.state import describe_blocked_epoch, read_pipeline_state
from headrace.orchestration.supervision import (
    FIRST_WAIT,
    LOST_AFTER,
    MAX_STARTS,
    LastRun,
    LastRunStatus,
    SupervisorAction,
    SupervisorMemory,
    decide_action,
)
from headrace.pipeline.protocol.epochs import EpochPlan, Phase
from headrace.pipeline.protocol.ledger import StopAction

NOW = 1_000_000.0


class Lane:
    """A lane of the pipeline in a real ledger, brought to the state that a test needs."""

    def __init__(self, pipeline):
        self.pipeline = pipeline
        self.ledger = open_ledger(pipeline.settings())
        self.position = {"flights": {"n": 0}}
        self.committed = 0

    def hold(self):
        self.lease = self.ledger.acquire(
            "flights", "main", {"launched_by": "cli", "host": "here", "pid": 1}, ttl=60
        )
        self.ledger.begin(self.lease, lambda: self.position)
        return self

    def epochs(self, count):
        for _ in range(count):
            self.committed = number = self.committed + 1
            end = {"flights": {"n": number}}
            plan = EpochPlan(number, Phase.LIVE, self.position, end, "hash", datetime.now(UTC))
            self.ledger.plan(self.lease, plan, {})
            self.ledger.commit(self.lease, number, {})
            self.position = end
        return self

    def open_epoch(self, error, times):
        plan = EpochPlan(
            self.committed + 1, Phase.LIVE, self.position, {"flights": {"n": -1}}, "hash", datetime.now(UTC)
        )
        self.ledger.plan(self.lease, plan, {})
        for _ in range(times):
            self.ledger.record_failure(self.lease, plan.number, "pg", error)
        return self

    def release(self):
        self.ledger.release(self.lease)
        return self

    @property
    def state(self):
        return read_pipeline_state(self.pipeline)


@pytest.fixture
def lane(written):
    return Lane(read_pipeline(written(FLIGHTS)))


def last(ended, *, ago, run_id="run-1"):
    return LastRun(run_id, ended, NOW - ago)


CASES = {
    "no ledger yet": (None, False, None, SupervisorMemory(), SupervisorAction.WAIT, "not complete"),
    "history under way": ("idle", False, None, SupervisorMemory(), SupervisorAction.WAIT, "not complete"),
    "history complete, never streamed": (
        "idle", True, None,
        SupervisorMemory(), SupervisorAction.START, "has not run yet"),
    "somebody holds the lane": (
        "held", True, None,
        SupervisorMemory(), SupervisorAction.WAIT, "running: epoch 3"),
    "held, while Dagster's last run failed": (
        "held", True, last(LastRunStatus.FAILED, ago=999),
        SupervisorMemory(), SupervisorAction.WAIT, "running"),
    "lifetime over": (
        "idle", True, last(LastRunStatus.SUCCEEDED, ago=1),
        SupervisorMemory(committed=3), SupervisorAction.START, "goes on"),
    "terminated by hand": (
        "idle", True, last(LastRunStatus.CANCELED, ago=9999),
        SupervisorMemory(committed=3), SupervisorAction.WAIT, "by hand"),
    "queued for an hour": (
        "idle", True, last(LastRunStatus.QUEUED, ago=3600),
        SupervisorMemory(committed=3, unheld_since=NOW - 3600), SupervisorAction.WAIT, "is queued"),
    "just launched": (
        "idle", True, last(LastRunStatus.RUNNING, ago=5),
        SupervisorMemory(committed=3), SupervisorAction.WAIT, "not acquired the lease yet"),
    "launched long ago, never held for as long": (
        "idle", True, last(LastRunStatus.RUNNING, ago=9999),
        SupervisorMemory(committed=3, unheld_since=NOW - LOST_AFTER), SupervisorAction.MARK_FAILED, "process has ended"),
    "running long, lane lost only now": (
        "idle", True, last(LastRunStatus.RUNNING, ago=9999),
        SupervisorMemory(committed=3, unheld_since=NOW - 5), SupervisorAction.WAIT, "not acquired"),
    "failed a moment ago": (
        "idle", True, last(LastRunStatus.FAILED, ago=1),
        SupervisorMemory(committed=3), SupervisorAction.WAIT, "failure 1 of"),
    "failed, waited enough": (
        "idle", True, last(LastRunStatus.FAILED, ago=FIRST_WAIT),
        SupervisorMemory(committed=3), SupervisorAction.START, "again"),
    "failed the third time, waited as after the first": (
        "idle", True, last(LastRunStatus.FAILED, ago=FIRST_WAIT),
        SupervisorMemory(3, 2, "run-0"), SupervisorAction.WAIT, "failure 3 of"),
    "failed the third time, waited enough": (
        "idle", True, last(LastRunStatus.FAILED, ago=4 * FIRST_WAIT),
        SupervisorMemory(3, 2, "run-0"), SupervisorAction.START, "failure 3 of"),
    "failed too often": (
        "idle", True, last(LastRunStatus.FAILED, ago=9999),
        SupervisorMemory(3, MAX_STARTS - 1, "run-0"), SupervisorAction.GIVE_UP, "gave up"),
    "gave up before, and still": (
        "idle", True, last(LastRunStatus.FAILED, ago=9999),
        SupervisorMemory(3, MAX_STARTS, "run-1"), SupervisorAction.GIVE_UP, "gave up"),
    "failed often, but an epoch was committed since": (
        "idle", True, last(LastRunStatus.FAILED, ago=FIRST_WAIT),
        SupervisorMemory(2, MAX_STARTS, "run-0"), SupervisorAction.START, "failure 1 of"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("failures", "act"),
    [(1, SupervisorAction.START), (2, SupervisorAction.START), (3, SupervisorAction.GIVE_UP)],
)
def test_a_blocked_epoch_is_left_to_a_person_after_a_few_starts(lane, failures, act):
    state = (
        lane.hold()
        .epochs(3)
        .open_epoch("SparkJvmError: Spark's JVM was ended by signal 9", times=3)
        .release()
        .state
    )
    blocked = describe_blocked_epoch(lane.pipeline, state)
    assert "blocked at epoch 4, node 'pg', after 3 equal failures: SparkJvmError: Spark's JVM" in blocked
    assert f"`headrace run {lane.pipeline.file.path}` goes on with this epoch" in blocked
    memory = SupervisorMemory(3, failures - 1, "run-0")
    result = decide_action(
        state,
        complete=True,
        last=last(LastRunStatus.FAILED, ago=9999),
        memory=memory,
        now=NOW,
        blocked=blocked,
    )
    assert result.action is act
    assert (blocked in result.reason) is (act is SupervisorAction.GIVE_UP)


@pytest.mark.parametrize(
    ("error", "times"),
    [("SparkJvmError: Spark's JVM was ended by signal 9", 2), ("TransientError: no answer", 9)],
)
def test_an_epoch_that_may_be_tried_again_is_not_blocked(lane, error, times):
    assert not describe_blocked_epoch(lane.pipeline, lane.hold().epochs(3).state)
    assert not describe_blocked_epoch(lane.pipeline, lane.open_epoch(error, times=times).state)


@pytest.mark.parametrize("case", CASES)
def test_decisions(lane, case):
    ledger, complete, run, memory, act, why = CASES[case]
    if ledger:
        lane.hold().epochs(3)
    if ledger == "idle":
        lane.release()
    state = lane.state if ledger else None
    result = decide_action(state, complete=complete, last=run, memory=memory, now=NOW)
    assert (result.action, why in result.reason) == (act, True), result


@pytest.mark.parametrize("status", [None, *LastRunStatus])
def test_a_paused_pipeline_is_not_started_and_no_run_is_marked(lane, status):
    lane.hold().epochs(3).release()
    lane.ledger.request_stop("flights", StopAction.PAUSE, by="ann@a", reason="new schema")
    memory = SupervisorMemory(3, 1, "run-0", NOW - 10 * LOST_AFTER)
    run = last(status, ago=9999) if status else None
    result = decide_action(lane.state, complete=True, last=run, memory=memory, now=NOW)
    assert result.action is SupervisorAction.WAIT
    assert "paused by ann@a" in result.reason
    assert "new schema. `headrace resume` ends the pause" in result.reason
    assert result.memory.unheld_since == 0.0

    lane.ledger.end_pause("flights")
    result = decide_action(lane.state, complete=True, last=None, memory=result.memory, now=NOW)
    assert result.action is SupervisorAction.START


def test_one_failed_run_is_counted_once(lane):
    state = lane.hold().epochs(3).release().state
    memory = SupervisorMemory(committed=3)
    for _ in range(5):
        memory = decide_action(
            state, complete=True, last=last(LastRunStatus.FAILED, ago=1), memory=memory, now=NOW
        ).memory
    assert memory.failures == 1


def test_memory_survives_the_cursor():
    memory = SupervisorMemory(5, 2, "run", 12.5)
    assert SupervisorMemory.load(memory.dump()) == memory
    assert SupervisorMemory.load(None) == SupervisorMemory()
    assert SupervisorMemory.load('{"committed": 3, "of_another_version": 1}') == SupervisorMemory(committed=3)


def test_looking_makes_no_ledger(written, own_home):
    assert read_pipeline_state(read_pipeline(written(FLIGHTS))) is None
    assert not (own_home / ".headrace").exists()


@dataclass
class Ticker:
    """Evaluates the sensor as the daemon does."""

    instance: dg.DagsterInstance
    sensor: dg.SensorDefinition
    defs: dg.Definitions

    def __call__(self, cursor=None):
        return self.sensor.evaluate_tick(
            dg.build_sensor_context(instance=self.instance, cursor=cursor, definitions=self.defs)
        )


class TestSensor:
    """The same, through Dagster's own tick."""

    @pytest.fixture
    def tick(self, written, monkeypatch):
        monkeypatch.setattr("headrace.orchestration.sensors.was_history_loaded", lambda *_: True)
        defs = build_definitions([written(FLIGHTS)])
        sensor = (
            defs.resolve_sensor_def("flights_supervisor")
            if hasattr(defs, "resolve_sensor_def")
            else defs.get_sensor_def("flights_supervisor")
        )
        with dg.DagsterInstance.ephemeral() as instance:
            yield Ticker(instance, sensor, defs)

    def test_starts_the_job_once_per_last_run(self, tick, lane):
        lane.hold().epochs(1).release()
        first, second = tick(), tick()
        assert tick.sensor.job_name == "flights_stream"
        assert first.run_requests[0].tags["headrace/stream"] == "flights"
        assert first.run_requests[0].run_key == second.run_requests[0].run_key

    def test_a_pipeline_without_history_has_nothing_to_wait_for(self, written):
        text = (
            "name: only\nsources: {src: {type: kafka, topic: t, schema: {id: int64}}}\nsinks: {out:"
            " {type: print, from: src}}\n"
        )
        defs = build_definitions([written(text, "only")])
        with dg.DagsterInstance.ephemeral() as instance:
            result = Ticker(instance, defs.resolve_sensor_def("only_supervisor"), defs)()
        assert len(result.run_requests or ()) == 1

    def test_waits_with_the_reason(self, tick, lane):
        lane.hold().epochs(1)
        result = tick()
        assert not result.run_requests
        assert "cli" in result.skip_message

    def test_gives_up_as_a_failed_tick(self, tick, lane):
        lane.hold().epochs(1).release()
        run = dg.DagsterRun(job_name="flights_stream", status=dg.DagsterRunStatus.FAILURE)
        tick.instance.add_run(run)
        memory = SupervisorMemory(1, MAX_STARTS, run.run_id)
        with pytest.raises(Exception, match="gave up") as caught:
            tick(memory.dump())
        assert run.run_id[:8] in str(caught.value.__cause__ or caught.value)

    def test_a_queued_run_is_not_marked_as_failed(self, tick, lane, monkeypatch):
        lane.hold().epochs(1).release()
        run = dg.DagsterRun(
            job_name="flights_stream",
            status=dg.DagsterRunStatus.QUEUED,
            remote_job_origin=job_origin("flights_stream"),
        )
        tick.instance.add_run(run)
        monkeypatch.setattr(
            "headrace.orchestration.sensors.time.time", lambda: time.time_ns() / 1e9 + 10 * LOST_AFTER
        )
        result = tick(SupervisorMemory(committed=1, unheld_since=1.0).dump())
        assert "is queued" in result.skip_message
        assert tick.instance.get_run_by_id(run.run_id).status is dg.DagsterRunStatus.QUEUED
        assert SupervisorMemory.load(result.cursor).unheld_since == 0.0

    def test_buries_a_run_whose_process_is_gone(self, tick, lane, monkeypatch):
        lane.hold().epochs(1).release()
        run = dg.DagsterRun(job_name="flights_stream", status=dg.DagsterRunStatus.STARTED)
        tick.instance.add_run(run)
        monkeypatch.setattr(
            "headrace.orchestration.sensors.time.time", lambda: time.time_ns() / 1e9 + LOST_AFTER + 1
        )
        tick(SupervisorMemory(committed=1, unheld_since=1.0).dump())
        assert tick.instance.get_run_by_id(run.run_id).status is dg.DagsterRunStatus.FAILURE
