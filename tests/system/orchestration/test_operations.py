"""Operations on a pipeline as a Dagster job, the advice of a red check, and alerts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import psycopg
import pytest
from helpers.dagster_runs import FLIGHTS, PG
from helpers.pipeline_world import World
from pyspark.sql import SparkSession

from headrace.connectors.ledger.factory import open_ledger
from headrace.orchestration.alerts import GAVE_UP_TAG, Alert, build_alert_sensors
from headrace.orchestration.build import build_definitions
from headrace.orchestration.pipelines import Pipeline, read_pipeline
from headrace.pipeline.protocol.epochs import EpochPlan, Phase, WriteCounts
from headrace.pipeline.protocol.ledger import Ledger

EPOCHS = 5


@pytest.fixture
def flights(written) -> Pipeline:
    """A pipeline with some committed epochs and no active run."""
    pipeline = read_pipeline(written())
    with_ledger(pipeline, fill)
    return pipeline


def with_ledger(pipeline: Pipeline, work: Callable[[Ledger], Any]) -> Any:
    ledger = open_ledger(pipeline.settings())
    try:
        return work(ledger)
    finally:
        ledger.close()


def fill(ledger: Ledger) -> None:
    lease = ledger.acquire("flights", "main", {}, ttl=60)
    ledger.begin(lease, lambda: {"n": 0})
    for number in range(1, EPOCHS + 1):
        now = datetime.now(UTC)
        plan = EpochPlan(number, Phase.LIVE, {"n": number - 1}, {"n": number}, "h", now)
        ledger.plan(lease, plan, {})
        ledger.commit(lease, number, dict.fromkeys(("flights_pg", "lake"), WriteCounts(1)))
    ledger.release(lease)


def state(pipeline: Pipeline) -> Any:
    return with_ledger(pipeline, lambda ledger: ledger.state(pipeline.file.name))


def operate(pipeline: Pipeline, operation: dict[str, Any], *, dry_run: bool | None = None) -> Any:
    """Launch the job as the launchpad does. Return its success, and its report or its error."""
    config: dict[str, Any] = {"operation": operation}
    if dry_run is not None:
        config["dry_run"] = dry_run
    job = build_definitions([Path(pipeline.file.path)]).resolve_job_def(f"{pipeline.name}_operate")
    op = f"{pipeline.name}_operate_op"
    with dg.DagsterInstance.ephemeral() as instance:
        result = job.execute_in_process(
            instance=instance, run_config={"ops": {op: {"config": config}}}, raise_on_error=False
        )
        if not result.success:
            failure = result.failure_data_for_node(op)
            assert failure
            assert failure.user_failure_data, failure.error
            return False, failure.user_failure_data.description
        (output,) = [event for event in result.all_events if event.event_type_value == "STEP_OUTPUT"]
        return True, output.step_output_data.metadata["changes"].value


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        ({"stop": {}}, "No run is active"),
        ({"restart": {}}, "No run is active"),
        ({"replay": {"sink": "lake", "from_epoch": 3}}, "epoch 3 to epoch 5 would be written again"),
        ({"rebuild": {"sink": "lake"}}, "epoch 1 to epoch 5 would be written again"),
        ({"reset": {"targets": "empty"}}, "all rows of its target are removed"),
        ({"prune": {"keep_epochs": 2}}, "Up to 3 epochs would be rolled up"),
    ],
)
def test_a_launch_is_a_dry_run_unless_it_says_otherwise(flights, stand_in, operation, message) -> None:
    before = state(flights)
    success, text = operate(flights, operation)
    assert success
    assert message in text
    assert "Nothing was changed" in text
    assert state(flights) == before
    assert stand_in.sessions == [], "a dry run starts no Spark"


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        ({"replay": {"sink": "lake", "from_epoch": 9}}, "the ledger has epochs 1 to 5"),
        ({"rewind": {"to": "tomorrow"}}, "`tomorrow` is neither an epoch nor a time"),
        ({"compact": {"sink": "flights_pg"}}, "types have files to maintain: delta, iceberg."),
        ({"vacuum": {"sink": "flights_pg"}}, "types have files to maintain: delta, iceberg."),
    ],
)
def test_what_cannot_be_done_is_one_failure_with_the_reason(flights, operation, message) -> None:
    success, text = operate(flights, operation)
    assert not success
    assert message in text


def test_the_sinks_are_those_of_the_present_file(written) -> None:
    """A process that has loaded the pipeline before its file was edited accepts the new sinks only."""
    for sink, other in (("lake", "pond"), ("pond", "lake")):
        job = build_definitions([written(FLIGHTS.replace("lake:", f"{sink}:"))]).resolve_job_def(
            "flights_operate"
        )

        def config(name: str) -> dict[str, Any]:
            return {"ops": {"flights_operate_op": {"config": {"operation": {"rebuild": {"sink": name}}}}}}

        dg.validate_run_config(job, config(sink))
        with pytest.raises(dg.DagsterInvalidConfigError, match=f"got {other}"):
            dg.validate_run_config(job, config(other))


def test_a_pipeline_that_never_ran_says_so(written) -> None:
    success, text = operate(read_pipeline(written()), {"stop": {}})
    assert not success
    assert "never ran" in text


@pytest.mark.parametrize("operation", ["stop", "restart"])
def test_a_run_is_ended_and_the_next_one_may_start(flights, operation) -> None:
    """The run is a thread with the lease, which ends when it reads the request, as a real run does."""
    started = threading.Event()
    requests: list[str] = []

    def run(ledger: Ledger) -> None:
        lease = ledger.acquire("flights", "main", {"host": "here"}, ttl=60)
        started.set()
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not requests:
            result = ledger.state("flights")
            if result and result.request:
                requests.append(str(result.request.action))
            time.sleep(0.05)
        ledger.release(lease)

    thread = threading.Thread(target=with_ledger, args=(flights, run))
    thread.start()
    assert started.wait(30)
    success, text = operate(flights, {operation: {}})
    assert success
    assert "The active run would end" in text
    assert requests == []
    success, text = operate(flights, {operation: {}}, dry_run=False)
    thread.join(60)
    assert success, text
    assert requests == ["stop" if operation == "stop" else "pause"]
    assert "The last epoch is 5" in text
    after = state(flights)
    assert after.holder is None
    assert not (after.request and after.request.is_pause)


def test_a_restart_leaves_the_pause_of_a_person(flights) -> None:
    from headrace.pipeline.protocol.ledger import StopAction

    with_ledger(
        flights, lambda ledger: ledger.request_stop("flights", StopAction.PAUSE, by="anna", reason="")
    )
    success, text = operate(flights, {"restart": {}}, dry_run=False)
    assert not success
    assert "is paused" in text
    assert state(flights).request.is_pause


def test_a_restart_whose_process_died_is_continued_by_the_next(flights) -> None:
    from headrace.pipeline.protocol.ledger import StopAction

    request = {"by": "Dagster run 1", "reason": "restart"}
    with_ledger(flights, lambda ledger: ledger.request_stop("flights", StopAction.PAUSE, **request))
    assert operate(flights, {"restart": {}}, dry_run=False)[0]
    assert state(flights).request is None


def test_the_ledger_is_pruned(flights) -> None:
    success, text = operate(flights, {"prune": {"keep_epochs": 2}}, dry_run=False)
    assert success, text
    assert "3 epochs are rolled up" in text
    assert (state(flights).kept_from, state(flights).committed) == (4, 5)
    assert "0 epochs are rolled up" in operate(flights, {"prune": {"keep_epochs": 2}}, dry_run=False)[1]


def test_no_operation_writes_next_to_a_run(flights) -> None:
    def prune(ledger: Ledger) -> Any:
        lease = ledger.acquire("flights", "main", {"host": "here"}, ttl=60)
        try:
            return operate(flights, {"prune": {"keep_epochs": 2}}, dry_run=False)
        finally:
            ledger.release(lease)

    assert with_ledger(flights, prune)[0] is False
    assert state(flights).kept_from == 1


def test_a_red_check_names_the_job_that_repairs_its_sink(written, stand_in) -> None:
    stand_in.failing = {"row_count_matches"}
    job = build_definitions([written()]).resolve_implicit_global_asset_job_def()
    with dg.DagsterInstance.ephemeral() as instance:
        result = job.execute_in_process(instance=instance, raise_on_error=False)
    checks = {
        check.check_name: check.metadata
        for check in result.get_asset_check_evaluations()
        if check.asset_key == PG
    }
    advice = str(checks["row_count_matches"]["what to do"].value)
    assert "job `flights_operate`, `operation: {rebuild: {sink: flights_pg}}`" in advice
    assert "headrace accept-target" in advice
    assert "what to do" not in checks["content_matches"]


@pytest.fixture
def operable_world(world: World, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> World:
    """The world, with its settings in the environment, and the session of the tests for Dagster's runs."""
    for name, value in world.env().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("headrace.orchestration.spark.start_session", lambda *_: spark)
    monkeypatch.setattr("headrace.orchestration.spark.stop_session", lambda *_: None)
    return world


def test_a_row_that_somebody_removed_is_back_after_a_rebuild(
    operable_world: World, spark: SparkSession
) -> None:
    world = operable_world
    assert world.run_here(spark).caught_up
    with psycopg.connect(world.conninfo) as connection:
        connection.execute("DELETE FROM target WHERE id = (SELECT min(id) FROM target)")
    pipeline = read_pipeline(world.file)
    before = world.in_postgres()
    assert operate(pipeline, {"rebuild": {"sink": "pg"}})[0]
    assert world.in_postgres() == before
    success, text = operate(pipeline, {"rebuild": {"sink": "pg"}}, dry_run=False)
    assert success, text
    world.check(spark)


def test_the_files_of_a_lake_are_compacted_and_removed(operable_world: World, spark: SparkSession) -> None:
    world = operable_world
    world.run_here(spark)
    pipeline = read_pipeline(world.file)
    before = sorted(world.lake.iterdir())
    for operation in ({"compact": {}}, {"vacuum": {"sink": "lake", "older_than_hours": 200}}):
        success, text = operate(pipeline, operation)
        assert success, text
        assert "would be" in text
        assert "Nothing was changed" in text
    assert sorted(world.lake.iterdir()) == before
    success, text = operate(pipeline, {"compact": {"sink": "lake"}}, dry_run=False)
    assert success, text
    assert ", and has 1 file (" in text
    success, text = operate(pipeline, {"compact": {"sink": "pg"}}, dry_run=False)
    assert not success
    assert "delta, iceberg" in text
    success, text = operate(pipeline, {"vacuum": {}}, dry_run=False)
    assert success, text
    assert "0 files" in text
    world.check(spark)


class TestAlerts:
    @pytest.fixture
    def failed(self, written, stand_in):
        """A failed run of the stream, its instance and the events that a sensor gets."""

        def fail(**_):
            from headrace.pipeline.errors import BlockedError

            msg = "epoch 4 failed 3 times"
            raise BlockedError(msg, hint="Correct the target.")

        stand_in.during = fail
        job = build_definitions([written()]).resolve_job_def("flights_stream")
        with dg.DagsterInstance.ephemeral() as instance:
            yield job.execute_in_process(instance=instance, raise_on_error=False), instance

    def test_a_failed_run_is_reported_once_with_what_to_do(self, failed) -> None:
        result, instance = failed
        sent: list[Alert] = []
        sensor = build_alert_sensors(sent.append)[0]
        (event,) = [one for one in result.all_events if one.event_type_value == "PIPELINE_FAILURE"]
        context = dg.build_run_status_sensor_context(
            sensor_name="headrace_failures",
            dagster_event=event,
            dagster_instance=instance,
            dagster_run=instance.get_run_by_id(result.run_id),
        ).for_run_failure()
        sensor(context)
        (alert,) = sent
        assert alert.pipeline == "flights"
        assert alert.run_id == result.run_id
        assert "of flights_stream failed" in alert.title
        assert "epoch 4 failed 3 times" in alert.text
        assert "Correct the target." in alert.text
        assert "launch flights_stream" in alert.text

    def test_a_supervisor_that_gave_up_is_reported_once(self, failed) -> None:
        result, instance = failed
        sent: list[Alert] = []
        sensor = build_alert_sensors(sent.append)[1]
        quiet = sensor.evaluate_tick(dg.build_sensor_context(instance=instance))
        assert sent == []
        assert "no supervisor gave up" in (quiet.skip_message or "")
        instance.add_run_tags(result.run_id, {GAVE_UP_TAG: "gave up: 6 runs failed"})
        tick = sensor.evaluate_tick(dg.build_sensor_context(instance=instance))
        sensor.evaluate_tick(dg.build_sensor_context(instance=instance, cursor=tick.cursor))
        (alert,) = sent
        assert alert.pipeline == "flights"
        assert "The stream is down" in alert.title
        assert "gave up: 6 runs failed" in alert.text
        assert "launch flights_stream" in alert.text

    def test_a_supervisor_that_gives_up_marks_its_last_run(self, written, failed, monkeypatch) -> None:
        result, instance = failed
        from headrace.orchestration import sensors
        from headrace.orchestration.supervision import (
            SupervisorAction,
            SupervisorDecision,
            SupervisorMemory,
        )

        decision = SupervisorDecision(SupervisorAction.GIVE_UP, "gave up: look at it", SupervisorMemory())
        monkeypatch.setattr(sensors, "decide_action", lambda *_, **__: decision)
        defs = build_definitions([written(FLIGHTS)])
        context = dg.build_sensor_context(instance=instance, definitions=defs)
        with pytest.raises(Exception, match=r"gave up|Error occurred"):
            defs.resolve_sensor_def("flights_supervisor").evaluate_tick(context)
        run = instance.get_run_by_id(result.run_id)
        assert run is not None
        assert run.tags[GAVE_UP_TAG] == "gave up: look at it"
