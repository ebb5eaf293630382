"""The job of a stream: its reports and their interval, completed partitions, and its end."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from types import SimpleNamespace

import dagster as dg
import pytest
from helpers.checkout import ROOT
from helpers.dagster_runs import FLIGHTS, LAKE, PARTITIONS, PG

from headrace.jobs.run.events import EpochCommitted, Until
from headrace.orchestration.build import build_definitions
from headrace.orchestration.execution import run_pipeline
from headrace.orchestration.pipelines import read_pipeline
from headrace.orchestration.stream import StreamReporter
from headrace.orchestration.stream_progress import StreamProgress
from headrace.pipeline.protocol.epochs import EpochPlan, Phase, WriteCounts


def epoch(number, *, backlog=0, rows=10):
    plan = EpochPlan(number, Phase.LIVE, {}, {}, "hash", datetime.now(UTC))
    counts = {
        "flights_pg": WriteCounts(rows, inserted=rows - 1, updated=1),
        "lake": WriteCounts(rows, inserted=None),
    }
    return EpochCommitted(plan, counts, {"write pg": 0.4, "total": 0.5}, backlog)


class Clock:
    """Time that moves when it is told to."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class TestTally:
    def test_once_a_minute_and_sink_however_many_epochs(self):
        clock = Clock()
        tally = StreamProgress(["a", "b"], clock)
        reports = []
        for second in range(600):
            clock.now = float(second)
            tally.add(epoch(second + 1))
            reports += [(figures.sink, second) for figures in tally.take_due()]
        assert len(reports) == 18
        for sink in ("a", "b"):
            times = [second for name, second in reports if name == sink]
            assert min(b - a for a, b in pairwise(times)) >= 60

    def test_nothing_is_lost_between_reports(self):
        clock = Clock()
        tally = StreamProgress(["flights_pg"], clock)
        total = WriteCounts()
        epochs = 0
        for number in range(1, 101):
            clock.now += 7
            tally.add(epoch(number, rows=number))
            for figures in tally.take_due():
                total, epochs = total + figures.counts, epochs + figures.epochs
        for figures in tally.take_due(force=True):
            total, epochs = total + figures.counts, epochs + figures.epochs
            assert figures.last == 100
        assert (total.rows, total.inserted, total.updated, epochs) == (5050, 4950, 100, 100)

    def test_silence_says_nothing(self):
        clock = Clock()
        tally = StreamProgress(["a"], clock)
        clock.now = 1000.0
        assert tally.take_due() == [] == tally.take_due(force=True)

    def test_what_a_sink_cannot_know_stays_unknown(self):
        tally = StreamProgress(["lake"], Clock())
        tally.add(epoch(1))
        (figures,) = tally.take_due(force=True)
        assert figures.counts == WriteCounts(10, inserted=None)


@pytest.fixture
def run_stream(written, stand_in):
    """Runs the stream's job in a real, temporary instance; `during` is the lane's work."""

    def go(during=None, *, text=FLIGHTS, config=None):
        stand_in.during = during
        job = build_definitions([written(text)]).resolve_job_def("flights_stream")
        with dg.DagsterInstance.ephemeral() as instance:
            ops = {"ops": {"flights_stream_op": {"config": config}}} if config else {}
            result = job.execute_in_process(instance=instance, run_config=ops, raise_on_error=False)
            return result, [
                event.dagster_event for event in instance.all_logs(result.run_id) if event.dagster_event
            ]

    return go


def materialized(events, key):
    result = [
        event.event_specific_data.materialization
        for event in events
        if event.event_type_value == "ASSET_MATERIALIZATION"
    ]
    return [item for item in result if item.asset_key == key]


class TestJob:
    def test_many_epochs_are_one_event_per_sink(self, run_stream):
        def during(listener, **_):
            for number in range(1, 201):
                listener(epoch(number))

        result, events = run_stream(during)
        assert result.success
        for key in (PG, LAKE):
            (materialization,) = materialized(events, key)
            assert materialization.metadata["rows_written"].value == 2000
            assert materialization.metadata["epochs"].value == 200
            assert materialization.metadata["last epoch"].value == 200

    def test_checks_are_evaluated_on_the_sinks(self, run_stream):
        _, events = run_stream(lambda listener, **_: listener(epoch(1)))
        checks = [
            event.event_specific_data
            for event in events
            if event.event_type_value == "ASSET_CHECK_EVALUATION"
        ]
        assert len(checks) == 8
        assert {(check.asset_key, check.check_name) for check in checks} == {
            (key, name)
            for key in (PG, LAKE)
            for name in ("exactly_once_epochs", "row_count_matches", "handoff_has_no_gap", "content_matches")
        }

    @pytest.mark.parametrize(
        ("mode", "until", "max_run_time"),
        [("continuous", Until.FOREVER, timedelta(hours=6)), ("triggered", Until.CAUGHT_UP, None)],
    )
    def test_runs_as_the_file_says(self, run_stream, stand_in, mode, until, max_run_time):
        run_stream(text=FLIGHTS + f"stream: {{mode: {mode}}}\n")
        (requests,) = stand_in.calls
        assert (
            requests["until"],
            requests["max_run_time"],
            requests["partitions"],
            requests["launched_by"],
        ) == (
            until,
            max_run_time,
            None,
            "dagster",
        )

    def test_a_launch_may_say_otherwise(self, run_stream, stand_in):
        run_stream(config={"until": "caught-up", "max_run_seconds": 5.0})
        assert (stand_in.calls[0]["until"], stand_in.calls[0]["max_run_time"]) == (
            Until.CAUGHT_UP,
            timedelta(seconds=5),
        )

    def test_a_launch_may_not_say_nonsense(self, run_stream, stand_in):
        result, _ = run_stream(config={"until": "tomorrow"})
        assert not result.success
        assert stand_in.calls == []

    def test_partitions_that_the_stream_filled_turn_green(self, run_stream):
        _, events = run_stream(lambda listener, **_: listener(epoch(1)), text=FLIGHTS + PARTITIONS)
        (materialization,) = materialized(events, PG)
        assert (materialization.partition, materialization.metadata["rows_written"].value) == (
            "2013-12-01",
            10,
        )
        assert not [event for event in events if event.event_type_value == "ASSET_OBSERVATION"]

    def test_epochs_that_are_committed_are_said_even_where_the_run_fails(self, run_stream):
        from headrace.pipeline.errors import BlockedError

        def during(listener, **_):
            listener(epoch(1))
            msg = "epoch 2 failed 3 times"
            raise BlockedError(msg)

        result, events = run_stream(during)
        assert not result.success
        assert [item.metadata["last epoch"].value for item in materialized(events, PG)] == [1]

    def test_systems_that_cannot_be_asked_do_not_end_the_stream(self, run_stream, monkeypatch):
        from headrace.pipeline.errors import TransientError

        def down(*_, **__):
            msg = "the server is away"
            raise TransientError(msg)

        monkeypatch.setattr("headrace.jobs.checks.audit.audit", down)
        result, events = run_stream(lambda listener, **_: listener(epoch(1)))
        assert result.success
        assert len(materialized(events, PG)) == 1


class Context:
    """As much of an op's context as the reporter uses."""

    def __init__(self):
        self.logged = []
        self.instance = SimpleNamespace(get_latest_storage_id_by_partition=lambda *_: {})
        self.resources = SimpleNamespace(
            headrace_spark=SimpleNamespace(
                settings=lambda result: result,
                session=lambda *_: None,
                translate_errors=lambda _: nullcontext(),
            )
        )

    def log_event(self, event):
        self.logged.append(event)

    def of(self, kind):
        return [event for event in self.logged if isinstance(event, kind)]


class TestReporter:
    @pytest.fixture
    def reported(self, pipeline, stand_in):  # noqa: ARG002  it answers the checks
        clock, context = Clock(), Context()
        return clock, context, StreamReporter(context, pipeline, clock)

    def test_until_it_has_caught_up_progress_in_past_windows_is_an_observation(self, reported):
        clock, context, reporter = reported
        reporter.on_event(epoch(1, backlog=500))
        clock.now = 61.0
        reporter.on_tick()
        assert len(context.of(dg.AssetObservation)) == 2
        assert not context.of(dg.AssetMaterialization)
        reporter.on_event(epoch(2, backlog=0))
        reporter.on_tick()
        assert [event.partition for event in context.of(dg.AssetMaterialization)] == ["2013-12-01"] * 2

    def test_checks_come_after_the_last_epoch_too_and_not_without_any(self, reported, monkeypatch):
        clock, _, reporter = reported
        checked = []
        monkeypatch.setattr(
            "headrace.jobs.checks.audit.audit", lambda *_, **__: checked.append(clock.now) or []
        )
        for second in range(1, 1000):
            clock.now = float(second)
            if second < 70:
                reporter.on_event(epoch(second))
            reporter.on_tick()
        assert min(b - a for a, b in pairwise(checked)) >= 60
        assert 69 <= checked[-1] <= 69 + 60

    def test_slow_checks_take_a_small_share_of_the_time(self, reported, monkeypatch):
        clock, _, reporter = reported
        spent = []

        def slow(*_, **__):
            clock.now += 30.0
            spent.append(30.0)
            return []

        monkeypatch.setattr("headrace.jobs.checks.audit.audit", slow)
        while clock.now < 6000:
            clock.now += 1.0
            reporter.on_event(epoch(int(clock.now)))
            reporter.on_tick()
        assert len(spent) >= 2
        assert sum(spent) <= 0.06 * clock.now


def run_until_stopped(path, on_event=lambda _: None):
    from headrace.orchestration.spark import PipelineSparkResource

    run_pipeline(
        read_pipeline(path),
        PipelineSparkResource(spark_config={}),
        until=Until.FOREVER,
        run_id="r",
        on_event=on_event,
    )


class TestStop:
    def test_a_canceled_status_stops_the_run_without_a_code_server(self, written, stand_in):
        """Only storage shows the termination: nothing interrupts the process."""
        job = build_definitions([written()]).resolve_job_def("flights_stream")
        epochs = []

        with dg.DagsterInstance.ephemeral() as instance:

            def during(listener, stop, run_id, **_):
                listener(epoch(1))
                (run,) = instance.get_runs(dg.RunsFilter(run_ids=[run_id]))
                instance.report_run_canceling(run)
                epochs.append(stop.wait(20))

            stand_in.during = during
            result = job.execute_in_process(instance=instance, raise_on_error=False)
            assert epochs == [True]
            assert not result.success
            (run,) = instance.get_runs()
            assert run.status in (dg.DagsterRunStatus.CANCELED, dg.DagsterRunStatus.FAILURE)

    def test_an_interrupt_lets_the_lane_finish_and_is_raised_again(self, written, stand_in):
        finished = threading.Event()

        def during(listener, stop, **_):
            listener(epoch(1))
            assert stop.wait(20)
            listener(epoch(2))
            finished.set()

        stand_in.during = during
        seen = []

        def on_event(event):
            seen.append(event.plan.number)
            if event.plan.number == 1:
                raise dg.DagsterExecutionInterruptedError

        with pytest.raises(dg.DagsterExecutionInterruptedError):
            run_until_stopped(written(), on_event)
        assert finished.is_set()
        assert seen == [1, 2]

    @pytest.mark.parametrize("has_begun", [True, False])
    def test_an_interrupt_while_the_lane_starts(self, written, stand_in, monkeypatch, has_begun):
        begun, finished = threading.Event(), threading.Event()

        def during(stop, **_):
            begun.set()
            assert stop.wait(20)
            finished.set()

        stand_in.during = during
        start = threading.Thread.start

        def interrupted(thread):
            if thread.name.startswith("pipeline-"):
                if has_begun:
                    start(thread)
                    assert begun.wait(20)
                raise dg.DagsterExecutionInterruptedError
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(dg.DagsterExecutionInterruptedError):
            run_until_stopped(written())
        assert finished.is_set() == has_begun

    @pytest.mark.parametrize(
        ("job", "signal_sent"), [("flights_stream", signal.SIGINT), ("flights_history", signal.SIGTERM)]
    )
    def test_a_signal_to_the_run_ends_it_at_an_epochs_border(self, written, tmp_path, job, signal_sent):
        """A real run process, as `dagster api execute_run` sets its signals up.

        Only the lane in it is a stand-in.
        """
        path = written()
        process = subprocess.Popen(
            [sys.executable, ROOT / "tests/helpers/stoppable_job.py", path, tmp_path, job]
        )
        try:
            deadline = time.monotonic() + 60
            while not (tmp_path / "started").exists():
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)
            process.send_signal(signal_sent)
            process.wait(timeout=300)
        finally:
            process.kill()
            process.wait()
        assert (
            tmp_path / "ended"
        ).read_text() == "at a border\n"  # and once: a termination is no failure to try again
        assert (tmp_path / "status").read_text() in ("FAILURE", "CANCELED")
